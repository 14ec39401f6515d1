"""Measure how well scores rank the records of a class: AUROC and average precision, with weights."""

import numpy as np


class Ranking:
    """Records of a class and of the others, sorted by score once for several weightings of the records.

    Args:
        of_class: whether each record is of the class; some are and some are not. [N]
        scores: higher for records that are more probably of the class; equal scores are ties. [N]
    """

    def __init__(self, of_class: np.ndarray, scores: np.ndarray) -> None:
        self._order = np.argsort(-scores, kind="stable")
        descending = scores[self._order]
        self._starts = np.flatnonzero(np.append(True, descending[1:] != descending[:-1]))  # of equal scores
        self._of_class = of_class[self._order]

    def __call__(self, weights: np.ndarray) -> tuple[float, float]:
        """Return AUROC and average precision for the weights of the records, which are not negative. [N]"""
        weights = weights[self._order]
        hits = np.add.reduceat(weights * self._of_class, self._starts)  # at each distinct score, from the highest
        others = np.add.reduceat(weights * ~self._of_class, self._starts)
        below = others.sum() - others.cumsum()
        auroc = (hits * (below + others / 2)).sum() / (hits.sum() * others.sum())
        flagged = (hits + others).cumsum()
        precision = np.divide(hits.cumsum(), flagged, out=np.zeros_like(flagged), where=flagged > 0)
        return float(auroc), float((hits * precision).sum() / hits.sum())
