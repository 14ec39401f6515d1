"""Fit calibrators on val: temperature by maximum likelihood, isotonic by pooling adjacent violators."""

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import logit

from container.decision.calibrators import Calibrator, Isotonic, RisingLine, Temperature, log_odds
from container.decision.softmax import log_softmax

# A line may rise by this many log-odds per unit of log-odds (the softmax itself: by 1), or by some times what the
# temperature of the logits would: two records whose logits differ by rounding must not get different probabilities, and
# ONNX must agree with PyTorch.
STEEPEST = 20.0
_STEEPER = 5.0
LARGEST_TEMPERATURE = 100.0


def fit_calibrator(
    method: str,
    logits: np.ndarray,
    labels: np.ndarray,
    *,
    shares: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> Calibrator:
    """Return a calibrator of `method` (none, temperature, isotonic).

    Args:
        logits: of labelled records. [N, K]
        labels: class ids; isotonic needs records of every class. [N]
        shares: see fit_temperature; isotonic uses the shares of `labels`. [K]
        weights: of the records, above 0; None: 1. [N]
    """
    weights = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    if method == "temperature":
        return fit_temperature(logits, labels, shares=shares, weights=weights)
    return fit_isotonic(logits, labels, weights=weights) if method == "isotonic" else Temperature()


def fit_temperature(
    logits: np.ndarray, labels: np.ndarray, *, shares: np.ndarray | None = None, weights: np.ndarray | None = None
) -> Temperature:
    """Return the temperature with the lowest log loss, which is convex in the inverse temperature.

    Each of n records counts as another class with Laplace's probability 1 / (n + 2). Without this smoothing, records
    without an error would give a temperature of 0: all probabilities become 0 or 1 and, in 32 bits, lose their order.

    Args:
        shares: class shares that the logits assume; records are weighted to match them, because a temperature cannot
            correct shares. None: those of `labels`. [K]
        weights: of the records; None: 1. [N]
    """
    assert len(labels) > 0
    logits = logits.astype(np.float64)
    at = (np.arange(len(labels)), labels)
    weights = np.ones(len(labels)) if weights is None else weights
    if shares is not None:
        totals = np.bincount(labels, weights, minlength=logits.shape[1])
        weights = weights * (shares / shares.sum() / np.where(totals > 0, totals, 1))[labels]
    unsure = 1 / (len(labels) + 2)

    def loss(log_inverse: float) -> float:
        log_p = log_softmax(logits * np.exp(log_inverse))
        others = (log_p.sum(axis=1) - log_p[at]) / (logits.shape[1] - 1)
        return -float(np.average((1 - unsure) * log_p[at] + unsure * others, weights=weights))

    bound = np.log(LARGEST_TEMPERATURE)
    minimum = minimize_scalar(loss, bounds=(-bound, bound), method="bounded", options={"xatol": 1e-6})
    return Temperature(float(np.exp(-minimum.x)))


def fit_isotonic(logits: np.ndarray, labels: np.ndarray, *, weights: np.ndarray | None = None) -> Isotonic:
    """Fit one line for two classes (class 1's), else one per class against the rest."""
    odds = log_odds(logits)  # [N, K]
    classes = (1,) if logits.shape[1] == 2 else range(logits.shape[1])
    of_records = np.ones(len(labels)) if weights is None else weights / weights.mean()
    steepest = max(STEEPEST, _STEEPER / fit_temperature(logits, labels, weights=of_records).temperature)
    return Isotonic(tuple(_rising_line(odds[:, k], labels == k, of_records, steepest=steepest) for k in classes))


def _rising_line(scores: np.ndarray, outcome: np.ndarray, weights: np.ndarray, *, steepest: float) -> RisingLine:
    """Fit centered isotonic regression (Oron & Flournoy, 2017), which keeps the order of records within a level.

    Each level has its knot in its middle. Laplace smoothing over n records keeps levels between 1 / (n + 2) and
    (n + 1) / (n + 2).
    """
    from sklearn.isotonic import IsotonicRegression  # takes longer to import than to fit

    assert 0 < outcome.sum() < len(outcome), "a line needs records of both classes"
    least = 1 / (len(outcome) + 2)
    regression = IsotonicRegression(y_min=least, y_max=1 - least, out_of_bounds="clip")
    levels = regression.fit(scores, outcome, sample_weight=weights).predict(scores)
    heights, member = np.unique(levels, return_inverse=True)
    counts = np.bincount(member, weights=weights)
    centers = np.bincount(member, weights=weights * scores) / counts
    knots: list[tuple[float, float, float]] = []  # center, height, records
    for center, height, count in zip(centers, heights, counts.astype(float)):
        x, y, n = float(center), float(height), float(count)
        # Merge with the previous level while the line between them is too steep.
        while knots and logit(y) - logit(knots[-1][1]) > steepest * (x - knots[-1][0]):
            before_x, before_y, before = knots.pop()
            x, y, n = (x * n + before_x * before) / (n + before), (y * n + before_y * before) / (n + before), n + before
        knots.append((x, y, n))
    return RisingLine(tuple(x for x, _, _ in knots), tuple(y for _, y, _ in knots))
