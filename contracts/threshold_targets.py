"""decision_threshold: a number, or what the threshold is to reach on val."""

import re
from dataclasses import dataclass

BEST_F1 = "best_f1"
COST = "cost"
_AT_LEAST = re.compile(r"(precision|recall)\s*>=\s*([0-9.eE+-]+)")


@dataclass(frozen=True)
class ThresholdTarget:
    """What a threshold is chosen for.

    Attributes:
        kind: best_f1, cost, precision or recall.
        at_least: the share that precision or recall is to reach; None for the others.
    """

    kind: str
    at_least: float | None = None

    def __str__(self) -> str:
        return self.kind if self.at_least is None else f"{self.kind}>={self.at_least!r}"


def parse_threshold(value: float | str) -> float | ThresholdTarget:
    """A number between 0 and 1, or a target.

    Raises:
        ValueError: it is neither.
    """
    text = str(value).strip()
    if text in (BEST_F1, COST):
        return ThresholdTarget(text)
    found = _AT_LEAST.fullmatch(text)
    try:
        number = float(found.group(2) if found else text)
    except ValueError:
        raise ValueError("use a number between 0 and 1, best_f1, precision>=0.9, recall>=0.9, or cost") from None
    if not 0 < number < 1 and not (found and number == 1):
        what = f"{found.group(1)} is to reach" if found else "is compared with a probability"
        raise ValueError(f"{number:g} {what}: use a number between 0 and 1")
    return ThresholdTarget(found.group(1), number) if found else number
