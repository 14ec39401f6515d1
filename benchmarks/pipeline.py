"""Measure the bubble of each pipeline schedule: the idle time of its ranks in a trace of real processes.

    python -m benchmarks.pipeline [--ranks 2 4] [--milliseconds 30] [--passes 2]

Each rank has two encoder layers, in one stage or two. A layer sleeps for half of --milliseconds in the forward pass, as
long for the gradient of its input, and as long for those of its weights. The figures therefore do not depend on the
number of cores. All other code is that of a real job.
"""

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from benchmarks.printing import print_machine, print_table
from container.models.build import build_classifier
from container.models.classifier import Classifier
from container.parallel.degrees import ParallelDegrees
from container.parallel.mesh import build_mesh
from container.parallel.parallelize import parallelize
from container.parallel.pipeline import SCHEDULES
from container.training.objective import WeightedCrossEntropy
from contracts.hyperparameters import Hyperparameters
from testing.encoder_families import hyperparameters, packed_batch, standard_transform, write_config
from testing.rank_pool import RankPool

COLUMNS = ("schedule", "ranks p", "microbatches m", "idle", "(p-1)/(m+p-1)", "ratio", "held", "ms per pass")


@dataclass(frozen=True)
class Interval:
    """A forward, backward or weight pass of one microbatch in one stage; start and end by time.monotonic()."""

    kind: str
    stage: int
    microbatch: int
    start: float
    end: float


def main() -> None:
    arguments = _arguments()
    print_machine()
    rows = []
    with RankPool(timeout=600) as pool, tempfile.TemporaryDirectory() as folder:
        for ranks in arguments.ranks:
            for name in arguments.schedules:
                for microbatches in (2 * ranks, 4 * ranks, 8 * ranks):
                    traces = pool.run(
                        trace,
                        Path(folder),
                        name,
                        world_size=ranks,
                        microbatches=microbatches,
                        seconds=arguments.milliseconds / 1000,
                        passes=arguments.passes,
                    )
                    rows.append(_row(name, ranks, microbatches, traces))
                    print("  ".join(rows[-1]), flush=True)
    print_table(
        "Idle fraction of a pipeline whose layers sleep: per rank and microbatch "
        f"{arguments.milliseconds:g} ms forward, twice as long backward; best of {arguments.passes} passes. "
        "held: the largest number of microbatches whose activations a rank keeps.",
        COLUMNS,
        rows,
    )


def trace(folder: Path, schedule: str, *, microbatches: int, seconds: float, passes: int) -> list[list[Interval]]:
    """Run the passes on one rank; return the intervals of each pass after a first one, which allocates the buffers."""
    ranks = torch.distributed.get_world_size()
    hp = hyperparameters(
        model_class="multimodal_bert", strategy="pp", pp_schedule=schedule, num_microbatches=microbatches
    )
    model = _model(folder / str(torch.distributed.get_rank()), hp, layers=2 * ranks)
    for layer in model.branches["text"].encoder.layers:
        _make_sleepy(layer, seconds=seconds / 2)
    execution = parallelize(model, build_mesh(ParallelDegrees(pp=ranks)), hp, precision=torch.float32)
    layers = [branch.encoder.layers for branch in execution.module.branches.values()]
    assert list(map(len, layers)) == [2], "the planner gives each rank two layers"
    batches = [packed_batch([[8]], tabular_dim=3, seed=seed) for seed in range(microbatches)]
    objective = WeightedCrossEntropy([1.0, 1.0], torch.device("cpu"))
    traces, normaliser = [], torch.tensor(float(microbatches))
    with _Recorder() as recorder:  # the first pass keeps the methods of its stages
        for _ in range(1 + passes):
            torch.distributed.barrier()
            recorder.intervals = []
            execution.forward_backward(
                batches, objective=objective, normaliser=normaliser, scale_loss=lambda loss: loss
            )
            traces.append(recorder.intervals)
    return traces[1:]


def _model(folder: Path, hp: Hyperparameters, *, layers: int) -> Classifier:
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": layers}
    files = [write_config(folder, "bert", **sizes)]
    return build_classifier(hp, files, tabular_dim=3, numeric_transform=standard_transform(3))


def _make_sleepy(layer: nn.Module, *, seconds: float) -> None:
    forward = layer.forward
    layer.delay = nn.Parameter(torch.zeros(()))  # the weight pass computes its gradient

    def sleepy(hidden: Tensor, *arguments: Any, **named: Any) -> Tensor:
        time.sleep(seconds)
        output = forward(_Slow.apply(hidden, seconds), *arguments, **named)
        return output + _Slow.apply(layer.delay, seconds)

    layer.forward = sleepy


class _Slow(torch.autograd.Function):
    """The identity, with a backward pass that sleeps."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


class _Recorder:
    """Records the intervals of this rank's stages; use as a context manager."""

    _METHODS = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")

    def __init__(self) -> None:
        self.intervals: list[Interval] = []
        self._originals = {name: getattr(PipelineStage, name) for name in self._METHODS}

    def __enter__(self) -> "_Recorder":
        for name, original in self._originals.items():
            setattr(PipelineStage, name, self._recorded(name, original))
        return self

    def __exit__(self, *_: object) -> None:
        for name, original in self._originals.items():
            setattr(PipelineStage, name, original)

    def _recorded(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(stage: PipelineStage, microbatch: int, *arguments: Any, **named: Any) -> Any:
            start = time.monotonic()
            try:
                return original(stage, microbatch, *arguments, **named)
            finally:
                kind = name.removesuffix("_one_chunk")
                if kind == "backward" and not named.get("full_backward", True):
                    kind = "backward of the input"
                self.intervals.append(Interval(kind, stage.stage_index, microbatch, start, time.monotonic()))

        return recorded


def _row(schedule: str, ranks: int, microbatches: int, traces: list[list[list[Interval]]]) -> list[str]:
    """Return the cells of a schedule's row, from [rank][pass] intervals."""
    idle, seconds = min(_idle([of_rank[i] for of_rank in traces]) for i in range(len(traces[0])))
    bubble = (ranks - 1) / (microbatches + ranks - 1)
    held = max(_held(of_rank[0]) for of_rank in traces) / SCHEDULES[schedule].stages_per_rank
    return [
        schedule, str(ranks), str(microbatches), f"{idle:.1%}", f"{bubble:.1%}", f"{idle / bubble:.2f}", f"{held:g}",
        f"{1000 * seconds:.0f}",
    ]  # fmt: skip


def _idle(of_ranks: list[list[Interval]]) -> tuple[float, float]:
    """Return the idle fraction of the ranks' time from the first start to the last end, and that time in seconds."""
    start = min(interval.start for intervals in of_ranks for interval in intervals)
    end = max(interval.end for intervals in of_ranks for interval in intervals)
    busy = sum(interval.end - interval.start for intervals in of_ranks for interval in intervals)
    return 1 - busy / (len(of_ranks) * (end - start)), end - start


def _held(intervals: list[Interval]) -> int:
    """Return the largest number of (stage, microbatch) pairs whose backward pass was not complete."""
    now, most = Counter[str](), 0
    for interval in sorted(intervals, key=lambda interval: interval.end):
        now["forward"] += interval.kind == "forward"
        now["done"] += interval.kind in ("backward", "backward_weight")
        most = max(most, now["forward"] - now["done"])
    return most


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--schedules", nargs="+", default=list(SCHEDULES), choices=list(SCHEDULES))
    parser.add_argument("--milliseconds", type=float, default=30)
    parser.add_argument("--passes", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
