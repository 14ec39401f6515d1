"""Run trials of faults, and print the table of docs/testing.md with what happened."""

import argparse
import sys
import tempfile
from pathlib import Path

import pytest

from testing.faults import COMMANDS, FAULTS, table
from testing.faults.trial import Trial, Trials


def main() -> int:
    """Run the chosen trials; return 1 if one did not do what it must."""
    parser = argparse.ArgumentParser(prog="python -m testing.faults", description=__doc__)
    parser.add_argument("--fault", choices=FAULTS, action="append", help="default: all")
    parser.add_argument("--command", choices=COMMANDS, action="append", help="default: all")
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        trials = Trials(Path(folder))
        for fault in options.fault or FAULTS:
            for command in options.command or COMMANDS:
                try:
                    trial = trials.run(fault, command)
                except pytest.skip.Exception as skipped:
                    trial = Trial(f"not run: {skipped}", 0)
                failed += trial.problem is not None
                print(f"{fault:14s} {command:9s} {trial.seconds:6.1f} s  {trial.problem or 'as expected'}", flush=True)
    print("", *table(), "", f"{failed} trials did not do what they must.", sep="\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
