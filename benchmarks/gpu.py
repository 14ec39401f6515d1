"""Measure training on GPUs: tokens/s, utilisation and peak memory of BERT encoders with random weights.

    python -m benchmarks.gpu [--shapes bert-base ...] [--modes packed-eager ...] [--gpus N] [--steps 20] [--profile]

bf16, one chat per record, lognormal lengths. Padded modes use transformers' own attention. All run on one GPU, or with
ddp and fsdp on several. Each step consists of forward, backward, clipping and AdamW. Before the measurement the
benchmark checks that all modes compute the same loss and gradient norm; if not, it ends with exit code 1. On one GPU, a
mode that runs out of memory gets a row that says so, and the next one starts.

MFU counts only real tokens: (6 P + 12 L h s) FLOP per token (benchmarks/encoders.py), divided by the peak of all GPUs.
"""

import argparse
import gc
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn.functional as F

from benchmarks.encoders import BASE, LARGE, SMALL, TINY, Shape, build_model, chats, hyperparameters
from benchmarks.gpu_steps.clock import now
from benchmarks.printing import print_machine, print_table
from container.data.batch import PackedBatch
from container.models.encoder import TextEncoder
from container.parallel.degrees import ParallelDegrees
from container.parallel.execution import Execution
from container.parallel.mesh import RankMesh, build_mesh, init_distributed
from container.parallel.parallelize import parallelize
from container.training.objective import WeightedCrossEntropy
from container.training.optimizer import build_optimizer, step_optimizer

# Dense bf16 TFLOP/s in the data sheet, by a part of the device's name.
PEAKS = {"H200": 989, "H100 PCIe": 756, "H100": 989, "A100": 312, "L40S": 362, "A10G": 70, "L4": 121, "V100": 125}
WARMUP = 5
LARGEST_DIFFERENCE = 0.02  # relative, of loss and gradient norm: bf16 has 8 bits
CHECKED_RECORDS = 16


@dataclass(frozen=True)
class Mode:
    """One row of the table."""

    name: str
    compiled: bool = False
    padded: bool = False
    whole: bool = False  # padded to the longest chat that the shape allows, not to the longest of the batch

    def __str__(self) -> str:
        return self.name


SHAPES = {"bert-base": BASE, "bert-large": LARGE, "minilm": replace(SMALL, batch_size=BASE.batch_size)}
_MODES = (
    Mode("packed-eager"),
    Mode("packed-compiled", compiled=True),
    Mode("padded-longest", padded=True),
    Mode("padded-512", padded=True, whole=True),
)
MODES = {mode.name: mode for mode in _MODES}
COLUMNS = ("strategy", "mode", "real tokens/s", "MFU", "step", "peak memory")


class Step:
    """An optimizer step of a model of this shape, on this rank."""

    def __init__(self, folder: Path, shape: Shape, mode: Mode, *, strategy: str) -> None:
        hp = hyperparameters(
            folder, shape, bf16=True, compile=mode.compiled, strategy=strategy, lr=1e-5, dropout=0.0
        )  # fmt: skip
        self.ranks = _mesh(ParallelDegrees.resolve(hp, dist.get_world_size()))
        model = build_model(folder, shape, hp, dropout=0.0).train()
        if mode.padded:
            for encoder in model.modules():
                if isinstance(encoder, TextEncoder):
                    encoder.packed = False
                    encoder.compute_every_token()
                    encoder.backbone.set_attn_implementation("sdpa")
                    if mode.whole:
                        dense = encoder.token_states_dense
                        encoder.token_states_dense = partial(_padded, dense, length=shape.longest)
        self.execution: Execution = parallelize(model, self.ranks, hp, precision=torch.bfloat16)
        self._optimizer = build_optimizer(hp, self.execution.module)
        self._objective = WeightedCrossEntropy([1.0, 1.0], self.ranks.device)

    def __call__(self, batch: PackedBatch) -> tuple[float, float]:
        """Take a step and return the loss and gradient norm before it."""
        normaliser = torch.tensor(float(len(batch.rows) * self.ranks.data_size), device=self.ranks.device)
        self._optimizer.zero_grad(set_to_none=True)
        share = self.execution.forward_backward(
            [batch.to(self.ranks.device)], objective=self._objective, normaliser=normaliser, scale_loss=_unscaled
        )
        norm = self.execution.gradient_norm(1.0)
        step_optimizer(self._optimizer, norm)
        return self.ranks.sum(share).item(), norm.value.item()


def _padded(
    dense: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    input_ids: torch.Tensor,
    mask: torch.Tensor,
    *,
    length: int,
) -> torch.Tensor:
    """Call `dense` with chunks that are padded to `length` tokens."""
    more = (0, length - mask.shape[1])
    return dense(F.pad(input_ids, more), F.pad(mask, more))


@cache
def _mesh(degrees: ParallelDegrees) -> RankMesh:
    """Return the one mesh of `degrees`: NCCL keeps buffers for each group that was ever opened."""
    return build_mesh(degrees)


def main() -> int:
    arguments = _arguments()
    gpus = torch.cuda.device_count()
    if not gpus and not arguments.smoke:
        print("No GPU was found, so nothing was measured. Add --smoke to run tiny shapes on the CPU.")
        return 1
    processes = arguments.gpus or gpus or 1
    with tempfile.TemporaryDirectory() as folder:
        results = torch.multiprocessing.get_context("spawn").SimpleQueue()
        torch.multiprocessing.spawn(_rank, (processes, folder, arguments, results), nprocs=processes)
        return results.get()


def _rank(rank: int, processes: int, folder: str, arguments: argparse.Namespace, results: object) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    os.environ.update(WORLD_SIZE=str(processes), LOCAL_WORLD_SIZE=str(processes))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(arguments.port))
    if arguments.smoke:
        torch.set_num_threads(1)
    init_distributed(timeout_minutes=10)
    own = Path(folder) / str(rank)
    shapes = [TINY] if arguments.smoke else [SHAPES[name] for name in arguments.shapes]
    modes = [MODES[name] for name in arguments.modes]
    strategies = ("auto",) if processes == 1 else ("ddp", "fsdp")
    if rank == 0:
        print_machine()
    equal = True
    for shape in shapes:
        equal &= check(own, shape, strategies[0], modes, report=rank == 0)
        rows = [_row(own, shape, mode, strategy, arguments) for strategy in strategies for mode in modes]
        if rank == 0:
            records = arguments.records or shape.batch_size
            title = f"{shape.name}, {processes} process(es), {records} chats per process and step, bf16"
            print_table(title, COLUMNS, rows)
    dist.destroy_process_group()
    if rank == 0:
        results.put(0 if equal else 1)


def check(folder: Path, shape: Shape, strategy: str, modes: Sequence[Mode], *, report: bool) -> bool:
    """Return whether every mode computes the loss and gradient norm of the first."""
    batch = chats(shape, records=CHECKED_RECORDS, seed=dist.get_rank())
    expected, equal = None, True
    for mode in modes:
        result = torch.tensor(Step(folder, shape, mode, strategy=strategy)(batch))
        expected = result if expected is None else expected
        difference = float(((result - expected) / expected).abs().max())
        equal &= difference <= LARGEST_DIFFERENCE
        if report:
            verdict = "ok" if difference <= LARGEST_DIFFERENCE else "DIFFERS"
            print(
                f"{shape.name}, {mode}: loss {result[0]:.5f}, gradient norm {result[1]:.5f}, "
                f"relative difference {difference:.1e}: {verdict}"
            )
    return equal


def _row(folder: Path, shape: Shape, mode: Mode, strategy: str, arguments: argparse.Namespace) -> list[str]:
    try:
        return measure(folder, shape, mode, strategy, arguments)
    except torch.OutOfMemoryError:
        if dist.get_world_size() > 1:
            raise  # the other ranks wait for this one
        return [strategy, str(mode), "out of memory", *"-" * (len(COLUMNS) - 3)]


def measure(folder: Path, shape: Shape, mode: Mode, strategy: str, arguments: argparse.Namespace) -> list[str]:
    """Return a row of the table: medians over single steps; each rank has its own batches."""
    gc.collect()  # of the mode before, whose modules refer to each other
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    step = Step(folder, shape, mode, strategy=strategy)
    device, world = step.ranks.device, dist.get_world_size()
    records = arguments.records or shape.batch_size
    seeds = [i * world + dist.get_rank() for i in range(4)]
    batches = [chats(shape, records=records, seed=seed, multiple=arguments.multiple) for seed in seeds]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    rates = []
    for i in range(WARMUP + arguments.steps):
        batch = batches[i % len(batches)]
        flops = shape.flops(batch.texts[0].lengths, first_tokens_only=not mode.padded)
        counts = torch.tensor([float(batch.num_tokens), flops], dtype=torch.float64)
        step.ranks.sum(counts)
        started = now(device)
        step(batch)
        seconds = now(device) - started
        if i >= WARMUP:
            rates.append((counts / seconds, seconds))
    tokens, flops = torch.stack([rate for rate, _ in rates]).median(0).values.tolist()
    peak = arguments.peak or _peak(device)
    memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else float("nan")
    if arguments.profile and dist.get_rank() == 0 and world == 1:
        _print_slowest_operations(step, batches[0], device)
    return [
        strategy,
        str(mode),
        f"{tokens:,.0f}",
        f"{flops / (peak * 1e12 * world):.1%}" if peak else "unknown peak",
        f"{1000 * statistics.median(seconds for _, seconds in rates):.1f} ms",
        f"{memory:.1f} GiB",
    ]


def _print_slowest_operations(step: Step, batch: PackedBatch, device: torch.device) -> None:
    with torch.profiler.profile() as profiled:
        step(batch)
    order = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    print(profiled.key_averages().table(sort_by=order, row_limit=10))


def _peak(device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def _unscaled(loss: torch.Tensor) -> torch.Tensor:
    return loss


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["bert-base", "bert-large"])
    parser.add_argument(
        "--modes", nargs="+", choices=MODES, default=["packed-eager", "packed-compiled", "padded-longest"]
    )
    parser.add_argument("--gpus", type=int, help="number of processes; default: all GPUs")
    parser.add_argument("--steps", type=int, default=20, help=f"measured steps, after {WARMUP} warm-up steps")
    parser.add_argument("--records", type=int, help="chats per process and step")
    parser.add_argument("--multiple", type=int, default=1, help="cut batches to a multiple of this number of tokens")
    parser.add_argument("--peak", type=float, help="TFLOP/s of one GPU in bf16; common GPUs are known")
    parser.add_argument(
        "--profile", action="store_true", help="print the ten slowest operations of each mode (one GPU)"
    )
    parser.add_argument("--port", type=int, default=29511, help="TCP port for the process group")
    parser.add_argument("--smoke", action="store_true", help="run tiny shapes on the CPU, only to test the benchmark")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
