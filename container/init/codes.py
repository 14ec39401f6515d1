"""Tell codes from amounts among whole numbers, by a rule that benchmarks/fit_code_rule.py learns."""

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from container.init.facts import ColumnFacts

FILE = Path(__file__).with_name("codes.json")
_MOST_CELLS = 50_000  # as init reads of a column
_PARTS = (3, 4)  # letters of the parts of a word


@dataclass(frozen=True)
class CodeRule:
    """Boosted trees over facts about a column's values and a linear score of its name.

    Attributes:
        weights: of the parts of a name; the last feature is their sum.
        trees: a node is [feature, threshold, node up to it, node above it], or the value of a leaf.
    """

    weights: Mapping[str, float]
    bias: float
    trees: Sequence[Any]

    def share(self, facts: ColumnFacts) -> float:
        """Return the estimated share of codes among columns like this one of whole numbers."""
        features = (*facts_of_values(facts), sum(self.weights.get(part, 0.0) for part in name_parts(facts)))
        score = self.bias
        for node in self.trees:
            score += _leaf(node, features)
        return 1 / (1 + math.exp(-score))


def _leaf(node: Any, features: Sequence[float]) -> float:
    while isinstance(node, list):
        feature, threshold, below, above = node
        node = below if features[feature] <= threshold else above
    return node


@functools.cache
def code_rule() -> CodeRule:
    """Return the rule of this version."""
    return CodeRule(**json.loads(FILE.read_text("utf-8")))


def facts_of_values(facts: ColumnFacts) -> tuple[float, ...]:
    """Return the features that the values give."""
    least, largest = facts.bounds
    mean, deviation = facts.moments
    cells = min(len(facts.keys), _MOST_CELLS)
    distinct, span = min(facts.distinct, cells), largest - least
    return (
        math.log1p(distinct),
        math.log(distinct / cells),
        math.log(cells),
        facts.missing,
        math.copysign(math.log1p(abs(least)), least),
        math.copysign(math.log1p(abs(largest)), largest),
        math.log1p(span),
        distinct / (span + 1),
        (mean - least) / max(span, 1.0),
        deviation / max(span, 1.0),
    )


def name_parts(facts: ColumnFacts) -> list[str]:
    """Return the words of a column's name, and their parts of three and four letters, without digits."""
    words = [word for word in facts.name_words if word.isalpha()]
    marked = [f"<{word}>" for word in words]
    pieces = (word[i : i + size] for word in marked for size in _PARTS for i in range(len(word) - size + 1))
    return list(dict.fromkeys([*(f"={word}" for word in words), *pieces]))
