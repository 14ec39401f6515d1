"""Read calibration.json of a package: a monotone map of class 1's probability, fitted after training on other data."""

import operator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Self

import numpy as np
from pydantic import ConfigDict, Field

from contracts.input_files import read_as

_FIX = 'Write {"scores": [...], "probabilities": [...]}: from 0 to 1; scores ascending, probabilities never decreasing.'
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class CalibrationMap:
    """Interpolate linearly between points (score, probability), flat beyond the first and the last.

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
        return read_as(path, cls, _FIX)

    def apply(self, probabilities: np.ndarray) -> np.ndarray:
        """Return calibrated probabilities. [N, 2] -> [N, 2]"""
        positive = np.interp(probabilities[:, 1], self.scores, self.probabilities)
        return np.stack([1 - positive, positive], axis=1)
