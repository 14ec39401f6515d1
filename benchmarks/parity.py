"""Compare every parallel strategy with one process: losses, gradients, weights and predictions.

    python -m benchmarks.parity [PART OF A NAME ...]

testing/parity.py defines the runs and the relative difference. The exit code is 1 if a row differs or fails. On a
machine with GPUs, each process has one, and rows with more processes than GPUs are left out. An empty
CUDA_VISIBLE_DEVICES hides the GPUs; TEXT_TABLE_SHARE_GPU=1 puts all processes on the first (docs/testing.md).

Rarely, a process crashes inside torch or gloo. Such a row runs once more, and the output shows the crash.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.printing import print_machine, print_table
from container.parallel.mesh import shares_gpu
from contracts.errors import ContractError
from testing.dropout_parity import DropoutCheck
from testing.parity import ONE_PROCESS, STEPS, ParityCheck, ParityJobs, Strategy, tolerance
from testing.parity_strategies import STRATEGIES, ready_configurations
from testing.rank_pool import RankFailed, RankPool

_SHOWN = 60  # lines of an error
COLUMNS = (
    "strategy", "processes", "losses", "gradients", "weights", "predictions", "dropout: z", "copies", "seconds", "",
)  # fmt: skip

DROPOUT_UP_TO = 4  # processes; more only take more time


def main() -> int:
    arguments = _arguments()
    strategies = [*STRATEGIES, *ready_configurations()]
    gpus = 0 if shares_gpu() else torch.cuda.device_count()
    named = [row for row in strategies if _is_chosen(row.name, arguments)]
    chosen = [row for row in named if not gpus or row.world_size <= gpus]
    started = time.perf_counter()
    print_machine()
    with RankPool(timeout=arguments.timeout) as pool, tempfile.TemporaryDirectory() as folder:
        jobs = ParityJobs(pool, Path(folder))
        check = ParityCheck(jobs)
        dropout = None if arguments.without_dropout else DropoutCheck.prepare(jobs)
        rows, notes, not_started = [], [], []
        for strategy in chosen:
            if rows and time.perf_counter() - started > 60 * arguments.minutes:
                not_started.append(strategy.name)
                continue
            try:
                cells, note = _row(strategy, check, dropout)
            except RankFailed as crash:
                print(f"{strategy.name} crashed, and runs again: {_end(str(crash))}", flush=True)
                cells, note = _row(strategy, check, dropout, may_crash=False)
            print("  ".join(cells), flush=True)
            rows.append(cells)
            notes += [f"{strategy.name}: {note}"] * bool(note)
    print_table(
        f"Largest relative difference to one process over {STEPS} steps; at most {tolerance():g} is ok", COLUMNS, rows
    )
    if len(chosen) < len(named):
        print(f"more processes than the {gpus} GPUs: {'; '.join(row.name for row in named if row not in chosen)}\n")
    if not_started:
        print(f"not started within {arguments.minutes:g} minutes: {'; '.join(not_started)}\n")
    print("\n\n".join(notes))
    return 1 if notes else 0


def _row(
    strategy: Strategy, check: ParityCheck, dropout: DropoutCheck | None, *, may_crash: bool = True
) -> tuple[list[str], str]:
    """Return the cells of a row, and a description of the differences or the failure.

    Raises:
        RankFailed: a process crashed, and `may_crash`.
    """
    started = time.perf_counter()
    cells, problems = [strategy.name, str(strategy.world_size)], []
    try:
        parity = check.compare(strategy)
        for largest in (parity.losses, parity.gradients, parity.weights, parity.predictions):
            cells.append(f"{largest.value:.1e}")
            problems += [f"{largest.value:.3g} in {largest.where}"] * (largest.value > tolerance())
        if dropout is not None and strategy.alone() == ONE_PROCESS and strategy.world_size <= DROPOUT_UP_TO:
            with_dropout = dropout.compare(strategy)
            cells += [f"{with_dropout.z:+.1f}", f"{with_dropout.copies.value:.1e}"]
            if not with_dropout.holds:
                problems.append(f"with dropout z = {with_dropout.z:.2f}, copies differ by {with_dropout.copies}")
        verdict = "differs" if problems else "ok"
    except (RankFailed, ContractError) as error:
        if may_crash and isinstance(error, RankFailed) and error.crashed:
            raise
        verdict = "fails"
        problems.append(_end(str(error)))
    cells += ["-"] * (len(COLUMNS) - 2 - len(cells))
    return [*cells, f"{time.perf_counter() - started:.1f}", verdict], "; ".join(problems)


def _is_chosen(name: str, arguments: argparse.Namespace) -> bool:
    if not arguments.name:
        return True
    return name in arguments.name if arguments.exactly else any(part in name for part in arguments.name)


def _end(text: str) -> str:
    """Return the beginning of a message, which has the innermost calls of a crash, and the end, which has errors."""
    lines = text.strip().splitlines()
    return "\n".join([*lines[:_SHOWN], *lines[_SHOWN:][-5:]])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", help="only rows whose name contains one of these")
    parser.add_argument("--exactly", action="store_true", help="only rows with one of these names")
    parser.add_argument("--without-dropout", action="store_true", help="skip the statistical check with dropout")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no further row after this time")
    parser.add_argument("--timeout", type=float, default=300, help="maximum seconds per row")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
