"""Read what a user adds to a package: scripts for code/, and a calibration.json."""

import ast
import operator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Self

from pydantic import ConfigDict, Field

from contracts.errors import ContractError
from contracts.inference_script import check_source
from contracts.input_files import files_below, read_as
from contracts.serving import ENTRY_POINT

OURS = ("container", "contracts")
_CALIBRATION_FIX = (
    'Write {"scores": [...], "probabilities": [...]}: from 0 to 1; scores ascending, probabilities never decreasing.'
)
_SCRIPT_FIX = "Correct the script; `from container.serving.handler import ...` provides the default functions."
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class CalibrationMap:
    """A monotone map of class 1's probability, fitted after training: points that straight lines join.

    Attributes:
        scores: probabilities of class 1 from the model, ascending. [P], P >= 2
        probabilities: calibrated probabilities, never decreasing. [P]
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    scores: Annotated[tuple[Share, ...], Field(min_length=2)]
    probabilities: tuple[Share, ...]

    def __post_init__(self) -> None:
        if len(self.scores) != len(self.probabilities):
            raise ValueError(f"{len(self.scores)} scores and {len(self.probabilities)} probabilities")
        for name, in_order in (("scores", operator.lt), ("probabilities", operator.le)):
            for before, after in pairwise(getattr(self, name)):
                if not in_order(before, after):
                    raise ValueError(f"{name} are not ascending: {after} follows {before}")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read calibration.json.

        Raises:
            ContractError: not JSON, other keys, lists of unequal length, or values that are not monotone.
        """
        return read_as(path, cls, _CALIBRATION_FIX)


def read_scripts(given: Path, *, place: str) -> dict[str, Path]:
    """Return scripts for code/, and the files that they may read, by path in code/.

    Args:
        given: a folder, or one file.
        place: where the user named it, for messages.

    Raises:
        ContractError: a script is not Python, hides the package's code, or is an inference.py whose functions cannot be
            called.
    """
    folder = given if given.is_dir() else given.parent
    files = files_below(given, ignored_prefixes=("__pycache__",)).files if given.is_dir() else [given]
    scripts = {path.relative_to(folder).as_posix(): path for path in files}
    for name, path in scripts.items():
        if Path(name).parts[0].removesuffix(".py") in OURS:
            raise ContractError(f"{place}: {name} conflicts with the package's {'/ and '.join(OURS)}/", "Rename it.")
        if path.suffix != ".py":
            continue
        try:
            (check_source if name == ENTRY_POINT else ast.parse)(path.read_bytes())
        except (SyntaxError, ValueError) as error:
            raise ContractError(f"{place}: {name}: {error}", _SCRIPT_FIX) from error
    return scripts
