"""Read calibration.json of a package: a monotone map of class 1's probability, fitted after training on other data."""

import operator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from contracts.errors import ContractError
from contracts.input_files import read_object

_FIX = 'Write {"scores": [...], "probabilities": [...]}: from 0 to 1; scores ascending, probabilities never decreasing.'


@dataclass(frozen=True)
class CalibrationMap:
    """Interpolate linearly between points (score, probability), flat beyond the first and the last.

    Attributes:
        scores: probabilities of class 1 from the model, ascending. [P], P >= 2
        probabilities: calibrated probabilities, never decreasing. [P]
    """

    scores: tuple[float, ...]
    probabilities: tuple[float, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read calibration.json.

        Raises:
            ContractError: not JSON, other keys, lists of unequal length, or values that are not monotone.
        """
        content = read_object(path, _FIX)
        if set(content) != {"scores", "probabilities"}:
            raise ContractError(f"{path}: has the keys {sorted(content)}, not scores and probabilities", _FIX)
        for name, values in content.items():
            if not isinstance(values, list) or not all(map(_is_share, values)):
                raise ContractError(f"{path}: {name} is not a list of numbers from 0 to 1", _FIX)
        scores, probabilities = content["scores"], content["probabilities"]
        if len(scores) != len(probabilities) or len(scores) < 2:
            counts = f"{len(scores)} scores and {len(probabilities)} probabilities"
            raise ContractError(f"{path}: has {counts}; their numbers must be equal and at least 2", _FIX)
        for name, in_order in (("scores", operator.lt), ("probabilities", operator.le)):
            for before, after in pairwise(content[name]):
                if not in_order(before, after):
                    raise ContractError(f"{path}: {name} are not ascending: {after} follows {before}", _FIX)
        return cls(tuple(scores), tuple(probabilities))

    def apply(self, probabilities: np.ndarray) -> np.ndarray:
        """Return calibrated probabilities. [N, 2] -> [N, 2]"""
        positive = np.interp(probabilities[:, 1], self.scores, self.probabilities)
        return np.stack([1 - positive, positive], axis=1)


def _is_share(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1
