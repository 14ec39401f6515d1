"""Fit the Decision of a job on val after training, and measure it on test.

Temperature by maximum likelihood, isotonic calibration by pooling adjacent violators.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import logit

from container.decision.calibrators import Calibrator, Isotonic, RisingLine, Temperature, log_odds
from container.decision.deciding_rows import chosen_on, in_words
from container.decision.decision import ClassRatios, Decision, PriorShift, Threshold
from container.decision.softmax import log_softmax
from container.decision.val_labels import needed_classes
from container.evaluation.choose_threshold import choose_threshold, decisions_at
from contracts.hyperparameters import Hyperparameters
from contracts.threshold_targets import ThresholdTarget

logger = logging.getLogger(__name__)

# A line may rise by this many log-odds per unit of log-odds (the softmax itself: by 1), or by some times what the
# temperature of the logits would: two records whose logits differ by rounding must not get different probabilities, and
# ONNX must agree with PyTorch.
STEEPEST = 20.0
_STEEPER = 5.0
_MOST_FOR_WEIGHTS = 20_000  # records
LARGEST_TEMPERATURE = 100.0


def fit_decision(
    hp: Hyperparameters,
    *,
    logits: Mapping[str, np.ndarray],
    labels: Mapping[str, np.ndarray],
    weights: Mapping[str, np.ndarray] | None = None,
    train_counts: np.ndarray,
    class_weights: np.ndarray,
    on: str = "val",
) -> Decision:
    """Return the decision that the hyperparameters request, with the results of its threshold on every split.

    Args:
        logits: by split, `on` among them. [N, K] each
        labels: class ids by split, negative if unlabelled; see check_val_labels for what val must contain. [N] each
        weights: of the records by split; None: 1. [N] each
        train_counts: labelled training records per class, or their total weight. [K]
        class_weights: weight of each class in the training loss. [K]
        on: the split on which the decision is fitted.
    """
    val_weights = np.ones(len(labels[on])) if weights is None else weights[on]
    known = (labels[on] >= 0) & (val_weights > 0) & np.isfinite(logits[on]).all(axis=1)
    val_logits, val_labels, val_weights = logits[on][known], labels[on][known], val_weights[known]
    wanted: float | ThresholdTarget = hp.threshold
    decision, present = Decision(), len(np.unique(val_labels))
    # The prior correction follows the temperature and starts from the class shares of the loss.
    tilted = hp.num_classes > 2 and hp.calibration == "temperature" and len(np.unique(class_weights)) > 1
    of_loss = train_counts * class_weights if hp.target_prior is not None else None  # [K]
    if present >= needed_classes(hp):
        method, fitted_on = hp.calibration, len(val_labels) if hp.calibration != "none" else 0
        calibrator = fit_calibrator(method, val_logits, val_labels, shares=of_loss, weights=val_weights)
        decision = Decision(method, calibrator, fitted_on)
        if tilted:
            decision = _without_weights(decision, val_logits, val_labels, class_weights, weights=val_weights)
        _warn_at_a_bound(decision.calibrator)
    else:
        logger.warning("calibration: none, because the %s records with finite logits have %d classes", on, present)
    if present < 2 and isinstance(wanted, ThresholdTarget):
        logger.warning("decision_threshold: 0.5, because the %s records with finite logits have only one class", on)
        wanted = 0.5
    if hp.num_classes > 2:
        return decision
    if hp.target_prior is not None:
        # Isotonic probabilities assume the class shares of val, all others those of the training loss.
        counts = np.bincount(val_labels, val_weights, minlength=2) if decision.method == "isotonic" else of_loss
        assert counts is not None
        decision = replace(decision, prior=PriorShift(float(counts[1] / counts.sum()), hp.target_prior))
    scores = {split: _served_scores(decision.log_probabilities(values)) for split, values in logits.items()}
    share, of_class_1, deciding_scores = hp.target_prior, val_labels == 1, scores[on][known]
    costs = {"false_positive_cost": hp.false_positive_cost, "false_negative_cost": hp.false_negative_cost}
    threshold = choose_threshold(wanted, of_class_1, deciding_scores, weights=val_weights, target_share=share, **costs)
    return replace(decision, threshold=_measured(threshold, hp, scores=scores, labels=labels, weights=weights))


def _without_weights(
    decision: Decision, logits: np.ndarray, labels: np.ndarray, class_weights: np.ndarray, *, weights: np.ndarray
) -> Decision:
    """Return a calibrated decision that undoes as much of the class weights as decreases the log loss the most.

    A network with few rows follows the weights in part only: p(k) is divided by w(k)^a, with the best a in tenths from
    0 to 1. The decision stays as it is where the decrease is within its standard error.
    """
    rows = np.random.default_rng(0).permutation(len(labels))[:_MOST_FOR_WEIGHTS]
    logits, labels, weights = logits[rows], labels[rows], weights[rows] / weights[rows].mean()

    def losses(of: Decision) -> np.ndarray:
        return -weights * of.log_probabilities(logits)[np.arange(len(labels)), labels]

    best, before = decision, losses(decision)
    for share in np.linspace(0.1, 1, 10):
        scale = fit_temperature(logits - share * np.log(class_weights), labels, weights=weights)
        ratios = class_weights ** (-share / scale.temperature)
        tried = replace(decision, calibrator=scale, prior=ClassRatios(tuple(ratios.tolist())))
        best = min(best, tried, key=lambda of: float(losses(of).mean()))
    gains = before - losses(best)
    return best if gains.mean() > gains.std() / np.sqrt(len(gains)) else decision


def _measured(
    threshold: Threshold,
    hp: Hyperparameters,
    *,
    scores: Mapping[str, np.ndarray],
    labels: Mapping[str, np.ndarray],
    weights: Mapping[str, np.ndarray] | None,
) -> Threshold:
    """Return the threshold with what it reaches on every split. [N] each"""
    if not threshold.met:
        text = "decision_threshold: no threshold reaches %s %s; using the closest, %.4g"
        logger.warning(text, threshold.target, in_words(chosen_on(scores)), threshold.value)
    share, of_split = hp.target_prior, {split: None if weights is None else weights[split] for split in scores}
    reached = {
        split: decisions_at(threshold.value, labels[split], scores[split], weights=of_split[split], target_share=share)
        for split in scores
    }
    return replace(threshold, reached=reached)


def _served_scores(log_probabilities: np.ndarray) -> np.ndarray:
    """Return class 1's probabilities as the graph computes them, in 32 bits. [N, 2] -> [N] float64

    A threshold cannot divide records whose probabilities are the same number there, such as those above 1 - 6e-8.
    """
    relative = np.exp((log_probabilities - log_probabilities.max(axis=1, keepdims=True)).astype(np.float32))
    return (relative[:, 1] / relative.sum(axis=1)).astype(np.float64)


def _warn_at_a_bound(calibrator: Calibrator) -> None:
    if isinstance(calibrator, Temperature) and not 1.01 < calibrator.temperature * LARGEST_TEMPERATURE < 0.99e4:
        low = calibrator.temperature < 1
        reason = "the scores are far too close together" if low else "val's records contradict the scores"
        logger.warning("calibration: temperature %.3g, the limit of the search: %s", calibrator.temperature, reason)


def describe(decision: Decision) -> str:
    """Describe the decision in one line for the log."""
    parts = [f"calibration {decision.method}"]
    if decision.method == "temperature" and isinstance(decision.calibrator, Temperature):
        parts[0] += f" ({decision.calibrator.temperature:.4g})"
    if decision.prior is not None:
        parts.append(str(decision.prior))
    if decision.threshold is not None:
        parts.append(
            f"threshold {decision.threshold.value:.4g} ({decision.threshold.target}{_gain(decision.threshold)})"
        )
    return ", ".join(parts)


def _gain(threshold: Threshold) -> str:
    return (
        "" if threshold.gain is None else ": {:+.4f} over 0.5, 95 % interval {:+.4f} to {:+.4f}".format(*threshold.gain)
    )


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
