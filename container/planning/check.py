"""Estimate the memory of a job whose data is prepared, and of smaller ones.

Runs as a program for the supervisor, which imports no torch.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from container.data.split import PreparedSplit
from container.parallel.degrees import ParallelDegrees
from container.parallel.encoder_checks import EncoderShape
from container.planning.catalogue import Catalogue, Instance
from container.planning.memory import GIB, Memory, job_memory
from container.planning.options import SPARE
from container.planning.workload import SAMPLE_ROWS, Workload
from container.preprocessing.prepared import open_prepared
from container.text.encoder_config import read_config
from container.training.precision import precision_of
from contracts.errors import ContractError
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.hyperparameters import Hyperparameters

Settings = Mapping[str, Any]
Need = tuple[Memory, Settings]
_SUGGESTED = 3
_LORA = {"lora_rank": 8, "reinit_layers": 0}


def main(arguments: Sequence[str]) -> int:
    """Print the estimate of a question of container/planning/estimate.py as JSON."""
    question = json.loads(arguments[0])
    work = of_prepared(question["settings"], Path(question["prepared"]))
    on_gpu = torch.cuda.is_available()
    gpu = torch.cuda.get_device_properties(0).total_memory / GIB if on_gpu else None
    hosts, per_host = question["hosts"], question["per_host"]

    def memory_of(work: Workload) -> Memory:
        degrees = ParallelDegrees.resolve(work.hp, hosts * per_host, per_host=per_host)
        return job_memory(
            work, degrees, precision=precision_of(work.hp, torch.device("cuda" if on_gpu else "cpu")), on_gpu=on_gpu
        )

    memory = memory_of(work.changed({"compile": False}))
    needs: list[Need] = []
    if gpu is None or memory.total / GIB > gpu or question["explain"]:
        tokens = work.batch(work.hp.batch_size).num_tokens
        needs = _smaller(work, memory_of, _changes(work.hp, tokens=tokens, processes=hosts * per_host))
    better = [
        [json.dumps(settings), round(need.total / GIB, 2)] for need, settings in needs if need.total < memory.total
    ]
    answer = {
        "memory_gib": memory.in_gib(),
        "largest": memory.largest(),
        "gpu_gib": gpu,
        "suggestions": better[:_SUGGESTED],
    }
    print(json.dumps(answer))
    return 0


def of_prepared(settings: Mapping[str, Any], folder: Path) -> Workload:
    """Return the workload of prepared data, with the lengths of its first records."""
    prepared, hp = open_prepared(folder), parse_hyperparameters(dict(settings))
    roles = [field.role for field in hp.text_fields]
    arrays = PreparedSplit(prepared.split("train"), roles=roles).arrays()
    sample = [
        tuple(tuple(text.chunks(i).tolist()) for text in part.texts)
        for part in arrays
        for i in range(min(len(part.row), SAMPLE_ROWS))
    ]
    folders = tuple(prepared.encoders[role].config_folder for role in roles)
    shapes = tuple(
        EncoderShape(field.role, field.tokenizer, read_config(each))
        for field, each in zip(hp.text_fields, folders, strict=True)
    )
    return Workload(hp, shapes, folders, dict(prepared.rows), tuple(sample[:SAMPLE_ROWS]))


def _smaller(work: Workload, memory_of: Callable[[Workload], Memory], changes: Iterable[Settings]) -> list[Need]:
    """Return the memory with each of these changes that the job allows, least first."""
    needs = []
    for settings in changes:
        with suppress(ContractError):
            needs.append((memory_of(work.changed({**settings, "compile": False})), settings))
    return sorted(needs, key=lambda need: need[0].total)


def _changes(hp: Hyperparameters, *, tokens: int, processes: int) -> Iterator[Settings]:
    """Yield settings that may need less memory."""
    yield {"activation_checkpointing": 1}
    if hp.batch_size > 1:
        yield {"batch_size": hp.batch_size // 2, "accumulate_grad_batches": 2 * hp.accumulate_grad_batches}
    yield {"max_tokens_per_batch": max(1, tokens // 4)}
    if processes > 1 and hp.strategy in ("auto", "ddp"):
        yield {"strategy": "fsdp"}
    if torch.cuda.is_available() and not hp.fp16 and hp.bf16 is False:
        yield {"bf16": True}
    yield _LORA


def remedies(work: Workload, catalogue: Catalogue, largest: Instance) -> list[str]:
    """Return changes of a job that fits nowhere, each with the memory of a process that has a record per pass."""
    on_gpu = largest.gpu is not None
    memory_of = partial(
        job_memory, degrees=ParallelDegrees(), precision=torch.bfloat16 if on_gpu else torch.float32, on_gpu=on_gpu
    )
    half = {"max_sen_len": max(8, min(field.max_sen_len for field in work.hp.text_fields) // 2)}
    one = work.changed({"batch_size": 1})
    lines = [
        f"{json.dumps({**settings, 'batch_size': 1})}: {memory.total / GIB:.1f} GiB, which "
        f"{'fits' if memory.total / GIB <= largest.memory_gib * (1 - SPARE) else 'does not fit'} on {largest.name} "
        f"({largest.memory_gib:g} GiB)"
        for memory, settings in _smaller(one, memory_of, (_LORA, half, {"activation_checkpointing": 1}))
    ]
    layers = [shape.layers for shape in work.encoders]
    depths = {
        name: entry.get("num_hidden_layers", entry.get("n_layers", 12)) for name, entry in catalogue.encoders.items()
    }
    smaller = [f"{name} ({depth} layers)" for name, depth in depths.items() if depth < max(layers)]
    other = ", ".join(smaller[:4]) or "take one with fewer"
    return [*lines, f"another encoder: yours have {' and '.join(map(str, layers))} layers; {other}"]
