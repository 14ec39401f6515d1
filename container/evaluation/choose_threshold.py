"""Choose a two-class threshold on val for a target, and measure the decisions at a threshold."""

from typing import Any

import numpy as np

from container.decision.decision import Threshold
from container.evaluation.curves import confusion_at, rank, threshold_below
from contracts.threshold_targets import AUTO_ACCURACY, AUTO_F1, BEST_F1, COST, ThresholdTarget

_SAMPLES = 400  # bootstrap samples of the gain of a threshold
_FOLDS = 10
_MOST_RECORDS = 20_000  # that measure it


def choose_threshold(
    wanted: float | ThresholdTarget,
    is_positive: np.ndarray,
    scores: np.ndarray,
    *,
    weights: np.ndarray | None = None,
    target_share: float | None = None,
    false_positive_cost: float = 1.0,
    false_negative_cost: float = 1.0,
) -> Threshold:
    """Return a given number, or the threshold that reaches a target.

    best_f1: the highest F1. auto_f1, auto_accuracy: the highest F1 or accuracy, if the 95 % interval of its gain over
    0.5 is above 0, else 0.5. precision>=x: the highest recall with that precision. recall>=x: the highest precision
    with that recall. cost: the lowest sum of costs. Of equal thresholds, the highest is chosen. The result lies
    halfway to the next lower score, so that rounding changes no decision.

    Args:
        is_positive: whether a record is of class 1; both classes must occur for a target. [N]
        scores: [N]
        weights: of the records, above 0; None: 1. [N]
        target_share: weight records so that positives have this share; None: unweighted.

    Returns:
        A threshold; its `reached` is empty.
    """
    if not isinstance(wanted, ThresholdTarget):
        return Threshold(wanted)
    if wanted.kind in (AUTO_F1, AUTO_ACCURACY):
        return _clear_threshold(wanted, is_positive, scores, weights=weights, target_share=target_share)
    ranking = rank(is_positive, scores, weights)
    of_positives, of_negatives = class_factors(ranking.positives, ranking.negatives, target_share)
    true_positives = ranking.true_positives * of_positives  # [T]
    false_positives = ranking.false_positives * of_negatives
    positives = ranking.positives * of_positives
    recall = true_positives / positives
    flagged = true_positives + false_positives
    precision = np.divide(true_positives, flagged, out=np.zeros_like(recall), where=flagged > 0)
    met = np.ones(len(recall), bool)
    if wanted.kind == BEST_F1:
        gain = 2 * true_positives / (positives + flagged)
    elif wanted.kind == COST:
        gain = -(false_negative_cost * (positives - true_positives) + false_positive_cost * false_positives)
    else:
        assert wanted.at_least is not None
        bounded, other = (precision, recall) if wanted.kind == "precision" else (recall, precision)
        met = bounded >= wanted.at_least - 1e-12
        gain = np.where(met, other, -1.0) if met.any() else bounded
    best = int(gain.argmax())
    return Threshold(threshold_below(ranking, best), target=str(wanted), met=bool(met[best]))


def _clear_threshold(
    wanted: ThresholdTarget,
    is_positive: np.ndarray,
    scores: np.ndarray,
    *,
    weights: np.ndarray | None,
    target_share: float | None,
) -> Threshold:
    """Return the best threshold if it is clearly better than 0.5, else 0.5.

    Each record is decided with the threshold that is best on nine tenths of the others; bootstrap samples of the
    records give the interval of the gain.
    """
    random = np.random.default_rng(0)
    rows = random.permutation(len(scores))[:_MOST_RECORDS]
    positive, scores = is_positive[rows], scores[rows]
    weight = np.ones(len(rows)) if weights is None else weights[rows].astype(np.float64)
    of_positive, of_negative = float(weight[positive].sum()), float(weight[~positive].sum())
    weight *= np.where(positive, *class_factors(of_positive, of_negative, target_share))
    kind = ThresholdTarget(BEST_F1 if wanted.kind == AUTO_F1 else COST)  # with equal costs: the fewest errors

    def best(chosen: np.ndarray) -> float:
        if len(np.unique(positive[chosen])) < 2:
            return 0.5
        return choose_threshold(kind, positive[chosen], scores[chosen], weights=weight[chosen]).value

    folds = np.arange(len(rows)) % _FOLDS
    thresholds = np.array([best(folds != fold) for fold in range(_FOLDS)])[folds]
    samples = np.stack([np.ones(len(rows)), *random.poisson(1.0, (_SAMPLES, len(rows)))]) * weight  # [1 + S, N]

    def value(decided: np.ndarray) -> np.ndarray:
        if wanted.kind == AUTO_ACCURACY:
            return samples @ (decided == positive) / np.maximum(samples.sum(axis=1), 1e-12)  # a sample may be empty
        return 2 * samples @ (decided & positive) / np.maximum(samples @ decided + samples @ positive, 1e-12)

    gain, *of_samples = value(scores >= thresholds) - value(scores >= 0.5)
    low, high = np.percentile(of_samples, [2.5, 97.5])
    chosen = best(np.ones(len(rows), bool)) if low > 0 else 0.5
    return Threshold(chosen, target=str(wanted), gain=(float(gain), float(low), float(high)))


def decisions_at(
    threshold: float,
    labels: np.ndarray,
    scores: np.ndarray,
    *,
    weights: np.ndarray | None = None,
    target_share: float | None = None,
) -> dict[str, Any]:
    """Return counts, precision, recall and F1 at `threshold`; also weighted, and those expected at `target_share`.

    Args:
        labels: class ids, negative if unlabelled. [N]
        scores: NaN reaches no threshold. [N]
        weights: of the records; None: 1. [N]
    """
    scores = np.where(np.isnan(scores), -np.inf, scores)  # NaN would sort as the highest score
    positive, negative = np.sort(scores[labels == 1]), np.sort(scores[labels == 0])
    counts = confusion_at(threshold, positive_scores=positive, negative_scores=negative)
    reached: dict[str, Any] = counts.to_dict()
    weight = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    positives, negatives = (float(weight[labels == k].sum()) for k in (1, 0))
    hits, alarms = (float(weight[(labels == k) & (scores >= threshold)].sum()) for k in (1, 0))
    shares = {"weighted": None} if weights is not None else {}
    shares |= {"at_target_prior": target_share} if target_share is not None else {}
    for name, share in shares.items() if positives and negatives else ():
        of_positives, of_negatives = class_factors(positives, negatives, share)
        hit, alarm = hits * of_positives, alarms * of_negatives
        reached[name] = {
            "precision": hit / (hit + alarm) if hit + alarm else None,
            "recall": hits / positives,
            "f1_score": 2 * hit / (hit + alarm + positives * of_positives),
        }
    return reached


def class_factors(positives: float, negatives: float, target_share: float | None) -> tuple[float, float]:
    """Return the weights of a positive and of a negative for positives to make up `target_share` of all."""
    if target_share is None:
        return 1.0, 1.0
    total = positives + negatives
    return target_share * total / positives, (1 - target_share) * total / negatives
