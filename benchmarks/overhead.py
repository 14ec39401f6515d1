"""Measure the Trainer's overhead: its step on one process compared with a minimal loop.

    python -m benchmarks.overhead [--pairs 40] [--records 8]

Both alternately take the same steps (forward, backward, clipping, AdamW) on the same batches from the same weights.
The result is the median ratio of pairs of steps, for wall-clock and processor time; machine load affects processor
time less. The exit code is 1 if the losses differ.
"""

import argparse
import copy
import logging
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import torch
import torch.distributed as dist
import torch.nn.functional as F

from benchmarks.encoders import SMALL, TINY, Shape, build_model, chats, hyperparameters
from benchmarks.printing import print_machine, print_table
from container.data.batch import PackedBatch
from container.job.job import Job, Scratch
from container.models.classifier import Classifier
from container.parallel.degrees import ParallelDegrees
from container.parallel.mesh import build_mesh
from container.parallel.parallelize import parallelize
from container.training.checkpoint import CheckpointStore
from container.training.job_data import JobData
from container.training.loop import Trainer
from container.training.progress import Progress
from container.training.state import ValidationSchedule
from container.training.stop import StopFlag
from container.training.training_run import TrainingRun
from contracts.hyperparameters import Hyperparameters
from contracts.paths import JobPaths

TARGET = 1.02
WARMUP = 3
LARGEST_LOSS_DIFFERENCE = 1e-5  # relative
LEARNING_RATE = 1e-4

TrainStep = Callable[[PackedBatch], float]


@dataclass(frozen=True)
class Pair:
    """Seconds of one step of each: (wall clock, processor)."""

    minimal: tuple[float, float]
    trainer: tuple[float, float]


def main() -> int:
    arguments = _arguments()
    shape = TINY if arguments.smoke else SMALL
    torch.set_num_threads(arguments.threads)
    print_machine()
    # A process group of one, as a job with one process has.
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as folder:
        pairs, difference = measure(Path(folder), shape, pairs=arguments.pairs, records=arguments.records)
    dist.destroy_process_group()
    title = (
        f"{shape.name} on one process with {arguments.threads} thread(s), {arguments.records} chats per step, "
        f"{len(pairs)} pairs of steps"
    )
    rows = [_row("clock", pairs, 0), _row("processor", pairs, 1)]
    print_table(title, ["time", "minimal loop", "Trainer", "ratio", "ratio, middle half of the pairs"], rows)
    ratio = statistics.median(pair.trainer[0] / pair.minimal[0] for pair in pairs)
    print(f"Target: a ratio of at most {TARGET}; {'reached' if ratio <= TARGET else 'MISSED'}.")
    equal = difference < LARGEST_LOSS_DIFFERENCE
    print(f"Losses {'are equal' if equal else 'DIFFER'}: the largest relative difference is {difference:.1e}.")
    return 0 if equal else 1


def measure(folder: Path, shape: Shape, *, pairs: int, records: int) -> tuple[list[Pair], float]:
    """Return the pairs after WARMUP pairs, and the largest relative difference of their losses."""
    total = WARMUP + pairs
    hp = hyperparameters(
        folder, shape, batch_size=records, lr=LEARNING_RATE, warmup_steps=0, run_scheduler=False, dropout=0.0,
        log_every_n_steps=20,
    )  # fmt: skip
    model = build_model(folder, shape, hp, dropout=0.0)
    steps = (minimal_loop(copy.deepcopy(model).train()), trainer_step(model, hp, folder=folder, steps=total))
    measured, difference = [], 0.0
    for i in range(total):
        batch = chats(shape, records=records, seed=i)
        timed = [(0.0, 0.0)] * 2
        losses = [0.0] * 2
        for which in (0, 1) if i % 2 else (1, 0):
            clock, processor = time.perf_counter(), time.process_time()
            losses[which] = steps[which](batch)
            timed[which] = (time.perf_counter() - clock, time.process_time() - processor)
        difference = max(difference, abs(losses[1] / losses[0] - 1))
        if i >= WARMUP:
            measured.append(Pair(*timed))
    return measured, difference


def minimal_loop(model: Classifier) -> TrainStep:
    """Return a training step for one process, written directly with PyTorch."""
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.0},
            {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
        ],
        lr=LEARNING_RATE,
        eps=1e-8,
        fused=True,
    )

    def step(batch: PackedBatch) -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(batch), batch.labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def trainer_step(model: Classifier, hp: Hyperparameters, *, folder: Path, steps: int) -> TrainStep:
    """Return the Trainer's step: all that a job's step does, except loading its batch."""
    ranks = build_mesh(ParallelDegrees.resolve(hp, 1))
    execution = parallelize(model, ranks, hp, precision=torch.float32)
    execution.module.train()
    run = TrainingRun(hp, execution, CheckpointStore(folder / "checkpoints", keep=1, device=ranks.device), identity={})
    no_records = pa.table({"label": pa.array([], pa.int64())})
    fitted: Any = SimpleNamespace(fitted=SimpleNamespace(class_labels=range(hp.num_classes)))
    trainer = Trainer(
        Job(JobPaths(folder), hp, Scratch(folder), folder),
        run,
        data=JobData(fitted, {"train": no_records, "val": no_records}, [1.0] * hp.num_classes),
        schedule=ValidationSchedule(steps * run.batch_plan.global_batch, steps, 1, 1.0),
        progress=Progress(reports=True, total_steps=steps, max_epochs=1, step=0, tensorboard=folder / "tensorboard"),
        profiler=None,
        stop=StopFlag(),
    )

    seen = 0.0

    def step(batch: PackedBatch) -> float:
        nonlocal seen
        if trainer._loss_steps == 0:
            seen = 0.0
        trainer._step([batch])
        trainer._settle()  # the minimal loop waits for its loss too
        if trainer._loss_steps == 0:
            return run.state.history[-1]["train/loss"] * hp.log_every_n_steps - seen
        loss, seen = trainer._loss.item() - seen, trainer._loss.item()
        return loss

    return step


def _row(name: str, pairs: Sequence[Pair], which: int) -> list[str]:
    minimal = [pair.minimal[which] for pair in pairs]
    trainer = [pair.trainer[which] for pair in pairs]
    ratios = [ours / theirs for ours, theirs in zip(trainer, minimal)]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (math.nan, ratios[0], math.nan)
    medians = [f"{1000 * statistics.median(seconds):.1f} ms" for seconds in (minimal, trainer)]
    return [name, *medians, f"{middle:.4f}", f"{low:.4f} to {high:.4f}"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40, help="measured pairs of steps")
    parser.add_argument("--records", type=int, default=SMALL.batch_size, help="chats per step")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads; one gives the most stable figures")
    parser.add_argument("--smoke", action="store_true", help="use a tiny encoder, only to test the benchmark")
    return parser.parse_args()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    sys.exit(main())
