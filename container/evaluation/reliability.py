"""Measure calibration: reliability bins and the Brier score."""

from dataclasses import dataclass

import numpy as np

from container.evaluation.curves import wilson_interval

RELIABILITY_BINS = 10
_SAMPLES = 5000


@dataclass(frozen=True)
class ReliabilityBin:
    """The records whose score lies in [lower, upper); the last bin includes 1.

    Attributes:
        mean_score: their mean score.
        observed: the share of them that are of the scored class.
        interval: 95 % interval of `observed`.
    """

    lower: float
    upper: float
    count: int
    mean_score: float
    observed: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Calibration:
    """The difference between the scores and the observed shares.

    Attributes:
        expected_calibration_error: mean over records of |mean score - observed share| of their bin.
        most_if_calibrated: the error that perfectly calibrated scores exceed in 1 % of samples of so many records.
        brier_score: mean squared distance from the outcome: of class 1's probability for two classes (0 to 1), of all
            K probabilities for more (0 to 2).
        bins: the bins that contain records.
    """

    expected_calibration_error: float
    most_if_calibrated: float
    brier_score: float
    bins: tuple[ReliabilityBin, ...]

    @property
    def overconfidence(self) -> float:
        """Return the mean score minus the observed share over all records; above 0 the scores are too high."""
        total = sum(entry.count for entry in self.bins)
        return sum(entry.count * (entry.mean_score - entry.observed) for entry in self.bins) / total


def calibrate(labels: np.ndarray, probabilities: np.ndarray) -> Calibration:
    """Measure the calibration of class 1's probability (two classes), or of the most probable class's (more).

    Args:
        labels: class ids, all known, at least one. [N]
        probabilities: [N, K]
    """
    if probabilities.shape[1] == 2:
        scores, outcome = probabilities[:, 1], labels == 1
        brier = float(np.mean((scores - outcome) ** 2))
    else:
        scores, outcome = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
        of_label = probabilities[np.arange(len(labels)), labels]
        brier = float(np.mean((probabilities**2).sum(axis=1) - 2 * of_label + 1))  # sum_k (p_k - [k = y])^2
    index = np.minimum((scores * RELIABILITY_BINS).astype(np.int64), RELIABILITY_BINS - 1)
    counts = np.bincount(index, minlength=RELIABILITY_BINS)
    score_sums = np.bincount(index, weights=scores, minlength=RELIABILITY_BINS)
    outcome_sums = np.bincount(index, weights=outcome, minlength=RELIABILITY_BINS)
    error = float(np.abs(score_sums - outcome_sums).sum() / len(labels))
    variances = np.bincount(index, weights=scores * (1 - scores), minlength=RELIABILITY_BINS)
    by_chance = np.abs(np.random.default_rng(0).normal(size=(_SAMPLES, RELIABILITY_BINS)) * np.sqrt(variances))
    most = float(np.quantile(by_chance.sum(axis=1), 0.99) / len(labels))
    bins = tuple(
        ReliabilityBin(
            lower=b / RELIABILITY_BINS,
            upper=(b + 1) / RELIABILITY_BINS,
            count=int(counts[b]),
            mean_score=float(score_sums[b] / counts[b]),
            observed=float(outcome_sums[b] / counts[b]),
            interval=wilson_interval(float(outcome_sums[b]), int(counts[b])),
        )
        for b in np.flatnonzero(counts).tolist()
    )
    return Calibration(error, most, brier, bins)
