"""Every parallel strategy beside one process: largest relative differences of losses, gradients, weights, predictions.

    python -m benchmarks.parity [PART OF A NAME ...]

What is run and what a difference is relative to: testing/parity.py. Ends with exit code 1 when a row differs or fails.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.printing import print_machine, print_table
from contracts.errors import ContractError
from testing.dropout_parity import DropoutCheck
from testing.parity import ONE_PROCESS, STEPS, TOLERANCE, ParityCheck, ParityJobs, Strategy
from testing.parity_strategies import STRATEGIES, ready_configurations
from testing.rank_pool import RankFailed, RankPool

COLUMNS = (
    "strategy", "processes", "losses", "gradients", "weights", "predictions", "dropout: z", "copies", "seconds", "",
)  # fmt: skip

DROPOUT_UP_TO = 4  # processes; more add nothing but time


def main() -> int:
    arguments = _arguments()
    every = [*STRATEGIES, *ready_configurations()]
    chosen = [row for row in every if _is_chosen(row.name, arguments)]
    started = time.perf_counter()
    print_machine()
    with RankPool(timeout=arguments.timeout) as pool, tempfile.TemporaryDirectory() as folder:
        jobs = ParityJobs(pool, Path(folder))
        check = ParityCheck(jobs)
        dropout = None if arguments.without_dropout else DropoutCheck.prepare(jobs)
        rows, notes, not_begun = [], [], []
        for strategy in chosen:
            if rows and time.perf_counter() - started > 60 * arguments.minutes:
                not_begun.append(strategy.name)
                continue
            cells, note = _row(strategy, check, dropout)
            print("  ".join(cells), flush=True)
            rows.append(cells)
            notes += [f"{strategy.name}: {note}"] * bool(note)
    print_table(
        f"Largest relative difference to one process over {STEPS} steps; at most {TOLERANCE:g} is ok", COLUMNS, rows
    )
    if not_begun:
        print(f"not begun within {arguments.minutes:g} minutes: {'; '.join(not_begun)}\n")
    print("\n\n".join(notes))
    return 1 if notes else 0


def _row(strategy: Strategy, check: ParityCheck, dropout: DropoutCheck | None) -> tuple[list[str], str]:
    """The cells of the table, and what is wrong, if anything is."""
    started = time.perf_counter()
    cells, wrong = [strategy.name, str(strategy.world_size)], []
    try:
        found = check.compare(strategy)
        for one in (found.losses, found.gradients, found.weights, found.predictions):
            cells.append(f"{one.value:.1e}")
            wrong += [f"{one.value:.3g} in {one.where}"] * (one.value > TOLERANCE)
        if dropout is not None and strategy.alone() == ONE_PROCESS and strategy.world_size <= DROPOUT_UP_TO:
            noisy = dropout.compare(strategy)
            cells += [f"{noisy.z:+.1f}", f"{noisy.copies.value:.1e}"]
            if not noisy.holds:
                wrong.append(f"with dropout z = {noisy.z:.2f}, copies differ by {noisy.copies}")
        verdict = "differs" if wrong else "ok"
    except (RankFailed, ContractError) as error:
        verdict = "fails"
        wrong.append(_end(str(error)))
    cells += ["-"] * (len(COLUMNS) - 2 - len(cells))
    return [*cells, f"{time.perf_counter() - started:.1f}", verdict], "; ".join(wrong)


def _is_chosen(name: str, arguments: argparse.Namespace) -> bool:
    if not arguments.name:
        return True
    return name in arguments.name if arguments.exactly else any(part in name for part in arguments.name)


def _end(text: str) -> str:
    """The first line and the last few of a traceback."""
    first, *rest = text.strip().splitlines()
    return "\n".join([first, *rest[-5:]])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", help="only rows whose name contains one of these")
    parser.add_argument("--exactly", action="store_true", help="only rows with one of these names")
    parser.add_argument("--without-dropout", action="store_true", help="leave out the statistical check")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no further row is begun")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that a row may take")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
