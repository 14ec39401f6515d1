"""Choose the parts of a companion by the log loss of held-out rows, and sum their logits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from container.companion.factors import fit_factors, losses_of
from container.companion.nodes import Graph
from container.decision.softmax import log_softmax, softmax

_MOST_PARTS = 5


class Part(Protocol):
    """A fitted model of M classes that reads the columns of a companion."""

    @property
    def held_out_logits(self) -> np.ndarray:
        """Logits of each training row, by models of the other folds. [N, M]"""
        ...

    def logits(self, columns: np.ndarray) -> np.ndarray:
        """Return the logits of records. [B, F] float32 -> [B, M]"""
        ...

    def add(self, graph: Graph, columns: str) -> str:
        """Add the nodes of `logits`, and return the name of the result."""
        ...


@dataclass(frozen=True)
class ChosenParts:
    """The parts of a companion: its logits are the sum of theirs, each times its factor.

    Attributes:
        factors: of each part, by its name.
        num_columns: F, the number of columns that the parts read.
    """

    parts: Mapping[str, Part]
    factors: Mapping[str, float]
    num_columns: int

    @property
    def held_out(self) -> np.ndarray:
        """Return the probabilities of each training row, by models of the other folds. [N, M]"""
        return softmax(np.sum([self.factors[name] * part.held_out_logits for name, part in self.parts.items()], axis=0))

    def logits(self, columns: np.ndarray) -> np.ndarray:
        """[B, F] float32 -> [B, M]"""
        return np.sum([self.factors[name] * part.logits(columns) for name, part in self.parts.items()], axis=0)

    def add(self, graph: Graph, columns: str) -> str:
        """Add the nodes of `logits`, and return the name of the result."""
        terms = [
            graph.add("Mul", part.add(graph, columns), graph.constant(self.factors[name], np.float32))
            for name, part in self.parts.items()
        ]
        return graph.add("Sum", *terms)

    def __str__(self) -> str:
        if len(self.parts) == 1:
            return next(iter(self.parts))
        return " + ".join(f"{factor:.2g} * {name}" for name, factor in self.factors.items())


def choose_parts(
    candidates: Mapping[str, Part], labels: np.ndarray, *, weights: np.ndarray, num_columns: int
) -> ChosenParts:
    """Begin with the best part, and add the best other one while it decreases the log loss by its standard error.

    Source: Caruana et al., 2004, Ensemble Selection from Libraries of Models; with fitted factors instead of counts.

    Args:
        labels: 0..M-1. [N]
        weights: of the rows. [N]
    """
    weights = weights / weights.mean()
    held_out = {name: log_softmax(part.held_out_logits) for name, part in candidates.items()}
    chosen: list[str] = []
    factors, before = np.ones(1), np.full(len(labels), np.inf)
    if len(candidates) == 1:
        return ChosenParts(candidates, dict.fromkeys(candidates, 1.0), num_columns)
    while len(chosen) < min(_MOST_PARTS, len(candidates)):
        tried = {}
        for name in candidates.keys() - chosen:
            parts = np.stack([held_out[part] for part in (*chosen, name)])
            fitted = fit_factors(parts, labels, weights=weights)
            tried[name] = fitted, weights * losses_of(parts, labels, fitted)
        best = min(sorted(tried), key=lambda name: float(tried[name][1].mean()))
        gains = before - tried[best][1]
        if chosen and gains.mean() <= gains.std() / np.sqrt(len(gains)):
            break
        chosen.append(best)
        factors, before = tried[best]
    return ChosenParts(
        {name: candidates[name] for name in chosen}, dict(zip(chosen, factors.tolist(), strict=True)), num_columns
    )
