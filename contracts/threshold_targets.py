"""Parse decision_threshold: a number, or a target that the threshold reaches on val."""

import re
from dataclasses import dataclass

BEST_F1 = "best_f1"
COST = "cost"
# The best F1 or accuracy, if it is clearly better than with 0.5.
AUTO_F1, AUTO_ACCURACY = "auto_f1", "auto_accuracy"
_NAMED = (BEST_F1, COST, AUTO_F1, AUTO_ACCURACY)
_AT_LEAST = re.compile(r"(precision|recall)\s*>=\s*([0-9.eE+-]+)")


@dataclass(frozen=True)
class ThresholdTarget:
    """The target for which a threshold is chosen.

    Attributes:
        kind: best_f1, cost, auto_f1, auto_accuracy, precision or recall.
        at_least: minimum of precision or recall; None for the others.
    """

    kind: str
    at_least: float | None = None

    def __str__(self) -> str:
        return self.kind if self.at_least is None else f"{self.kind}>={self.at_least!r}"


def parse_threshold(value: float | str) -> float | ThresholdTarget:
    """Return the threshold as a number between 0 and 1, or as a target.

    Raises:
        ValueError: `value` is neither.
    """
    text = str(value).strip()
    if text in _NAMED:
        return ThresholdTarget(text)
    bound = _AT_LEAST.fullmatch(text)
    try:
        number = float(bound.group(2) if bound else text)
    except ValueError:
        raise ValueError(f"use a number between 0 and 1, precision>=0.9, recall>=0.9, or {', '.join(_NAMED)}") from None
    if not 0 < number < 1 and not (bound and number == 1):
        raise ValueError(f"{number:g} is not between 0 and 1")
    return ThresholdTarget(bound.group(1), number) if bound else number


def canonical_threshold(value: float | str) -> float | str:
    """Return a number as float, and a target in its canonical form."""
    parsed = parse_threshold(value)
    return str(parsed) if isinstance(parsed, ThresholdTarget) else parsed
