"""Declare the command line of plan, without imports that take time."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from contracts.declaration import checked_number
from contracts.value_types import BatchSize, Dollars, Hosts, Hours, MeanTokens, Rows

HERE = Path("this machine")  # of --calibrate without a file


def add_plan_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `plan`."""
    about = "the job's settings, instead of those in the folder"
    command.add_argument("--hyperparameters", type=Path, metavar="FILE", help=about)
    about = "rows of train (default: those of the files)"
    command.add_argument("--rows", type=partial(checked_number, kind=Rows), metavar="N", help=about)
    mean = partial(checked_number, kind=MeanTokens)
    about = "mean tokens of a text, or of each text, separated by commas (default: those of the first rows)"
    command.add_argument("--tokens", type=partial(_listed, parse=mean), default=(), metavar="MEAN", help=about)
    about = "instance types, separated by commas (default: the catalogue)"
    names = partial(_listed, parse=str)
    command.add_argument("--instance", dest="instances", type=names, default=(), metavar="NAMES", help=about)
    about = "instances of the job (default: 1)"
    command.add_argument("--hosts", type=partial(checked_number, kind=Hosts), default=1, help=about, metavar="N")
    about = "most dollars, on demand"
    command.add_argument("--budget", type=partial(checked_number, kind=Dollars), metavar="DOLLARS", help=about)
    command.add_argument("--hours", type=partial(checked_number, kind=Hours), metavar="H", help="most hours")
    about = "records of a step (default: batch_size x accumulate_grad_batches, as on one GPU)"
    command.add_argument("--global-batch", type=partial(checked_number, kind=BatchSize), help=about, metavar="N")
    about = "a file whose instances and prices replace those of the catalogue"
    command.add_argument("--catalogue", type=Path, metavar="FILE", help=about)
    about = (
        "take 20 steps on this machine, and scale the estimates for machines like it; or read results.json of "
        "`make gpu-check`, and scale those for machines with its GPU"
    )
    command.add_argument("--calibrate", type=Path, nargs="?", const=HERE, metavar="FILE", help=about)


def _listed(text: str, *, parse: Callable[[str], Any]) -> tuple[Any, ...]:
    return tuple(parse(part.strip()) for part in text.split(",") if part.strip())
