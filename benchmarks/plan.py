"""Compare the memory that `python -m container plan` predicts with measurements.

    python -m benchmarks.plan [--gpu results.json] [--only PART OF A NAME]

Processes: the peak of all allocations of PyTorch on the CPU, from the profiler, in three steps of a model with random
weights; the largest of the ranks. GPUs: the peak that `make gpu-check` wrote (its step `memory`). The exit code is 1 if
a memory differs by more than 10 %.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.encoders import BASE, LARGE, SMALL, Shape, chat_lengths, chats
from benchmarks.printing import print_machine, print_table
from container.parallel.degrees import ParallelDegrees
from container.parallel.encoder_checks import EncoderShape
from container.parallel.mesh import build_mesh
from container.parallel.parallelize import parallelize
from container.planning.memory import GIB, Memory, Rank, job_memory, replaced, step_memory
from container.planning.workload import Workload
from container.training.objective import WeightedCrossEntropy
from container.training.optimizer import build_optimizer, step_optimizer
from contracts.hyperparameter_files import parse_hyperparameters
from testing.rank_pool import RankPool

TOLERANCE = 0.1
STEPS = 3
MARK = "measured step"
_WAIT, _LETTING_GO = dist.Work.wait, 0.005  # seconds


@dataclass(frozen=True)
class Case:
    """A configuration of real processes: records of a rank, and settings."""

    name: str
    shape: Shape
    world_size: int
    records: int
    settings: dict[str, Any] = field(default_factory=dict)
    texts: int = 1
    dropout: float = 0.1


CASES = (
    Case("MiniLM, 1 process", SMALL, 1, 16),
    Case("MiniLM, 1 process, checkpointing", SMALL, 1, 16, {"activation_checkpointing": 1}),
    Case("MiniLM, 1 process, 2 passes", SMALL, 1, 8, {"accumulate_grad_batches": 2}),
    Case("MiniLM, ddp 2", SMALL, 2, 8, {"strategy": "ddp"}),
    Case("MiniLM, fsdp 2", SMALL, 2, 8, {"strategy": "fsdp"}),
    Case("MiniLM, fsdp 4", SMALL, 4, 8, {"strategy": "fsdp"}),
    Case("MiniLM, hsdp 2 x 2", SMALL, 4, 8, {"strategy": "hsdp", "dp_shard_size": 2}),
    Case("MiniLM, tp 2", SMALL, 2, 16, {"strategy": "tp"}),
    Case("MiniLM, tp 2 x fsdp 2", SMALL, 4, 16, {"tp_size": 2, "dp_shard_size": 2}),
    Case("MiniLM, fsdp 2, 2 passes, whole gradients", SMALL, 2, 8, {
        "strategy": "fsdp", "accumulate_grad_batches": 2, "fsdp_accumulation": "whole",
    }),
    Case("MiniLM, pp 2", SMALL, 2, 16, {"strategy": "pp"}),
    Case("MiniLM, pp 2 x ddp 2", SMALL, 4, 16, {"pp_size": 2}),
    Case("MiniLM, pp 2 x fsdp 2", SMALL, 4, 16, {"pp_size": 2, "dp_shard_size": 2}),
    Case("MiniLM, GPipe 2", SMALL, 2, 16, {"strategy": "pp", "pp_schedule": "GPipe"}),
    Case("BERT-base, 1 process", BASE, 1, 8),
    Case("BERT-base, fsdp 2, checkpointing", BASE, 2, 4, {"strategy": "fsdp", "activation_checkpointing": 1}),
    Case("two MiniLM, 1 process", SMALL, 1, 8, texts=2),
    Case("two MiniLM, fsdp 2", SMALL, 2, 8, {"strategy": "fsdp"}, texts=2),
)  # fmt: skip


def workload(case: Case, folder: Path) -> Workload:
    """Return the workload of chats with lognormal lengths; its sample is one batch of a rank."""
    config = {
        "model_type": "bert", "vocab_size": case.shape.vocabulary, "hidden_size": case.shape.width,
        "num_hidden_layers": case.shape.layers, "num_attention_heads": case.shape.heads,
        "intermediate_size": 4 * case.shape.width, "max_position_embeddings": case.shape.longest,
        "hidden_dropout_prob": case.dropout,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = {"text_name": "a"} if case.texts == 1 else {"primary_text_name": "a", "secondary_text_name": "b"}
    hp = parse_hyperparameters({
        "id_name": "id", "label_name": "label", **names, "tokenizer": str(folder), "batch_size": case.records,
        "model_class": "bert" if case.texts == 1 else "trimodal_bert", "max_sen_len": case.shape.longest,
        "compile": False, "reinit_layers": 0, **case.settings,
    })  # fmt: skip
    random = np.random.default_rng(0)
    lengths = [chat_lengths(case.records, longest=case.shape.longest, random=random) for _ in range(case.texts)]
    sample = tuple(tuple((length,) for length in record) for record in zip(*lengths, strict=True))
    shapes = tuple(EncoderShape(each.role, each.tokenizer, config) for each in hp.text_fields)
    return Workload(hp, shapes, (folder,) * case.texts, {"train": case.records}, sample)


def predicted(case: Case, folder: Path) -> Memory:
    """Return what a plan says about the largest rank."""
    work = workload(case, folder)
    degrees = ParallelDegrees.resolve(work.hp, case.world_size)
    return job_memory(work, degrees, precision=torch.float32, on_gpu=False, margin=0)


def _wait_for_gloo(work: dist.Work, *arguments: Any) -> bool:
    """Wait until gloo's thread has let go of the tensors as well: the profiler does not see what that thread frees."""
    done = _WAIT(work, *arguments)
    time.sleep(_LETTING_GO)
    return done


def measured(case: Case, folder: Path) -> int:
    """Return the peak in bytes of this rank; runs on every rank of a process group."""
    work = workload(case, folder)
    torch.set_num_threads(1)
    events = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with replaced(dist.Work, "wait", _wait_for_gloo), events as trace:
        ranks = build_mesh(ParallelDegrees.resolve(work.hp, dist.get_world_size()))
        execution = parallelize(work.build().train(), ranks, work.hp, precision=torch.float32)
        optimizer = build_optimizer(work.hp, execution.module)
        objective = WeightedCrossEntropy([1.0, 1.0], ranks.device)
        count = execution.num_microbatches
        for step in range(STEPS):
            with record_function(MARK if step == STEPS - 1 else "step"):
                optimizer.zero_grad(set_to_none=True)
                batches = [
                    work.batch(case.records // count, margin=0) for _ in range(count * work.hp.accumulate_grad_batches)
                ]
                execution.forward_backward(
                    batches, objective=objective, normaliser=torch.ones(()), scale_loss=lambda loss: loss
                )
                step_optimizer(optimizer, execution.gradient_norm(1.0))
    return _peak(trace)


def _peak(trace: profile) -> int:
    """Return the most bytes that were allocated at a time in the marked step."""
    assert trace.profiler is not None
    results = trace.profiler.kineto_results
    assert results is not None
    events = results.events()
    (begin,) = (event.start_ns() for event in events if event.name() == MARK)
    now = peak = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        now += event.nbytes()
        if event.start_ns() >= begin:
            peak = max(peak, now)
    return peak


def on_processes(only: str) -> list[list[str]]:
    """Return a row for each case."""
    rows = []
    with RankPool(timeout=600) as pool, tempfile.TemporaryDirectory() as folder:
        for case in (case for case in CASES if only in case.name):
            real = max(pool.run(measured, case, Path(folder, "encoder"), world_size=case.world_size))
            rows.append(_row(case.name, predicted(case, Path(folder, "encoder")), real))
            print(" | ".join(rows[-1]), flush=True)
    return rows


def on_gpu(file: Path) -> list[list[str]]:
    """Return a row for each configuration that `make gpu-check` measured."""
    shapes = {shape.name: shape for shape in (BASE, LARGE, SMALL)}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for found in json.loads(file.read_text())["steps"]["memory"]["findings"]["figures"]["memory"]:
            settings = {"activation_checkpointing": found["activation_checkpointing"], "dropout": 0.0}
            case = Case("", shapes[found["model"]], 1, found["records"], settings, dropout=0.0)
            work = workload(case, Path(folder, found["model"]))
            largest = max((chats(case.shape, records=case.records, seed=seed) for seed in range(STEPS)), key=_tokens)
            precision = torch.bfloat16 if found["bf16"] else torch.float32
            rank = Rank(work.build, work.hp, ParallelDegrees(), [largest], precision, True)
            name = f"{found['model']}, {found['records']} records, {str(precision).removeprefix('torch.')}"
            name += ", checkpointing" * bool(found["activation_checkpointing"])
            rows.append(_row(name, step_memory(rank), found["max_allocated"]))
    return rows


def _tokens(batch: Any) -> int:
    return batch.num_tokens


def _row(name: str, memory: Memory, real: float) -> list[str]:
    parts = (memory.weights, memory.gradients, memory.optimizer, memory.activations, memory.total, real)
    return [name, *(f"{part / GIB:.3f}" for part in parts), f"{memory.total / real:.3f}"]


def _within(rows: Sequence[Sequence[str]]) -> bool:
    return all(abs(float(row[-1]) - 1) <= TOLERANCE for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", type=Path, help="results.json of `make gpu-check`")
    parser.add_argument("--only", default="", help="part of the names of the configurations of processes")
    arguments = parser.parse_args()
    print_machine()
    columns = ("", "weights", "gradients", "optimizer", "activations", "predicted", "measured", "ratio")
    rows = on_processes(arguments.only)
    print_table("Peak memory of the largest rank on the CPU, in GiB", columns, rows)
    if arguments.gpu:
        rows += (of_gpu := on_gpu(arguments.gpu))
        print_table("Peak memory on the GPU, in GiB", columns, of_gpu)
    return 0 if _within(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
