"""Run a campaign: python -m testing.fuzz --seed 7 --inputs 1000 --minutes 30 [--kind tables] [--only INDEX]."""

import argparse
import sys
from collections.abc import Sequence


def main(command_line: Sequence[str] | None = None) -> int:
    """Run the campaign; return 1 if it has findings."""
    parser = argparse.ArgumentParser(prog="python -m testing.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of every input (default: 1)")
    parser.add_argument("--inputs", type=int, default=200, help="inputs of each kind (default: 200)")
    parser.add_argument("--minutes", type=float, default=10, help="time of all kinds together (default: 10)")
    parser.add_argument("--kind", action="append", default=[], help="run only this kind; may be repeated")
    parser.add_argument("--only", type=int, help="run only the input with this index, and print what it is")
    parser.add_argument("--jobs", type=int, default=2, help="inputs at a time (default: 2)")
    parser.add_argument(
        "--timeout", type=float, default=60, help="seconds until an input counts as a hang (default: 60)"
    )
    parser.add_argument(
        "--ping-limit", type=float, default=0.5, help="seconds within which /ping answers (default: 0.5)"
    )
    parser.add_argument("--whole-every", type=int, default=20, help="every n-th is a whole job; 0: none (default: 20)")
    parser.add_argument("--out", default="fuzz_findings", help="folder for findings (default: fuzz_findings)")
    parser.add_argument("--messages", action="store_true", help="print how often each message was the first line")
    from testing.fuzz.report import run_campaign

    return run_campaign(parser.parse_args(command_line))


if __name__ == "__main__":
    sys.exit(main())
