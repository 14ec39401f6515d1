"""What one generated input led to."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

RECIPE = "recipe.json"
TOO_LONG = "what to change is beyond"
ACCEPTED, REFUSED, BROKEN = "accepted", "refused", "broken"


@dataclass
class Outcome:
    """The result of one input.

    Attributes:
        verdict: accepted, refused with a message, or broken (no end, or an end without a verdict).
        problems: sentences about what the product promises and did not do; empty if all is well.
        recipe: the mutations that made the input.
        message: the first line of a refusal.
        size: bytes of the input.
    """

    verdict: str = BROKEN
    problems: list[str] = field(default_factory=list)
    recipe: list[str] = field(default_factory=list)
    message: str = ""
    size: int = 0


@dataclass(frozen=True)
class Case:
    """One input to generate and run.

    Attributes:
        rng: its only source of randomness: a function of seed, kind and index.
        folder: an empty folder for it.
        model: the model folder of a completed tiny job.
        whole: run the whole job, not only the stage before the workers.
        recipe: the mutations, which generators append to.
    """

    rng: Random
    folder: Path
    model: Path
    whole: bool
    recipe: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """Write the recipe, for an input that does not end; called before the product runs."""
        (self.folder / RECIPE).write_text(json.dumps(self.recipe), "utf-8")


def rng_of(seed: int, kind: str, index: int) -> Random:
    """Return the random numbers of an input."""
    return Random(f"{seed}/{kind}/{index}")


def signature(kind: str, problem: str) -> str:
    """Return what findings with one cause have in common: the problem without values, paths and numbers."""
    statement, _, detail = problem.splitlines()[0].partition(": ")
    if " in " in statement:  # the place of an exception says enough, with its type
        detail = detail.partition(":")[0]
    elif TOO_LONG in statement:
        detail = ""
    else:
        detail = re.sub(r"/[^\s'\":]+", "PATH", detail[:300])
    text = f"{statement}: {detail}"
    text = re.sub(r"b?'[^']*'|\"[^\"]*\"", "VALUE", text)
    return f"{kind}: {re.sub(r'[0-9]+', '#', text)[:140]}"


def product_frame(text: str, *, first: bool = False) -> str:
    """Return the innermost function of the product in the traceback that a text holds: ` in FILE, FUNCTION`.

    Args:
        first: the traceback begins with the innermost call, as faulthandler writes it.
    """
    frames = re.findall(r'File "[^"]*?/((?:container|contracts|pipeline)/[^"]+)", line \d+,? in (\w+)', text)
    file, function = (frames or [("", "")])[0 if first else -1]
    return f" in {file}, {function}" if frames else ""
