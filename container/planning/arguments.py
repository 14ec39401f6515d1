"""Declare the command line of plan, without imports that take time."""

import argparse
from pathlib import Path
from typing import Any

HERE = Path("this machine")  # of --calibrate without a file


def add_plan_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `plan`."""
    about = "the job's settings, instead of those in the folder"
    command.add_argument("--hyperparameters", type=Path, metavar="FILE", help=about)
    about = "rows of train (default: those of the files)"
    command.add_argument("--rows", type=positive(int), metavar="N", help=about)
    command.add_argument(
        "--tokens", type=_list(positive(float)), default=(), metavar="MEAN",
        help="mean tokens of a text, or of each text, separated by commas (default: those of the first rows)",
    )  # fmt: skip
    command.add_argument(
        "--instance", dest="instances", type=_list(str), default=(), metavar="NAMES",
        help="instance types, separated by commas (default: the catalogue)",
    )  # fmt: skip
    command.add_argument(
        "--hosts", type=positive(int), default=1, help="instances of the job (default: 1)", metavar="N"
    )
    command.add_argument("--budget", type=positive(float), metavar="DOLLARS", help="most dollars, on demand")
    command.add_argument("--hours", type=positive(float), metavar="H", help="most hours")
    about = "records of a step (default: batch_size x accumulate_grad_batches, as on one GPU)"
    command.add_argument("--global-batch", type=positive(int), help=about, metavar="N")
    about = "a file whose instances and prices replace those of the catalogue"
    command.add_argument("--catalogue", type=Path, metavar="FILE", help=about)
    command.add_argument(
        "--calibrate", type=Path, nargs="?", const=HERE, metavar="FILE",
        help="take 20 steps on this machine, and scale the estimates for machines like it; or read results.json of "
        "`make gpu-check`, and scale those for machines with its GPU",
    )  # fmt: skip


def positive(kind: type[int] | type[float]) -> Any:
    """Return the parser of an argument above 0."""

    def number(text: str) -> float:
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    return number


def _list(parse: Any) -> Any:
    def comma_separated(text: str) -> tuple[Any, ...]:
        return tuple(parse(part.strip()) for part in text.split(",") if part.strip())

    return comma_separated
