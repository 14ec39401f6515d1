"""Fit the Decision of a job on val after training, and measure it on test."""

import logging
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from container.decision.calibrators import Calibrator, Temperature
from container.decision.decision import Decision, PriorShift
from container.decision.val_labels import needed_classes
from container.evaluation.choose_threshold import choose_threshold, decisions_at
from container.evaluation.fit_calibration import LARGEST_TEMPERATURE, fit_calibrator
from contracts.hyperparameters import Hyperparameters
from contracts.threshold_targets import ThresholdTarget

logger = logging.getLogger(__name__)


def fit_decision(
    hp: Hyperparameters,
    *,
    logits: Mapping[str, np.ndarray],
    labels: Mapping[str, np.ndarray],
    val_weights: np.ndarray | None = None,
    train_counts: np.ndarray,
    class_weights: np.ndarray,
) -> Decision:
    """Return the decision that the hyperparameters request, with the results of its threshold on every split.

    Args:
        logits: by split, val among them. [N, K] each
        labels: class ids by split, negative if unlabelled; see check_val_labels for what val must contain. [N] each
        val_weights: of the records of val; None: 1. [N]
        train_counts: labelled training records per class, or their total weight. [K]
        class_weights: weight of each class in the training loss. [K]
    """
    weights = np.ones(len(labels["val"])) if val_weights is None else val_weights
    known = (labels["val"] >= 0) & (weights > 0) & np.isfinite(logits["val"]).all(axis=1)
    val_logits, val_labels, weights = logits["val"][known], labels["val"][known], weights[known]
    wanted: float | ThresholdTarget = hp.threshold
    decision, present = Decision(), len(np.unique(val_labels))
    # The prior correction follows the temperature and starts from the class shares of the loss.
    of_loss = train_counts * class_weights if hp.target_prior is not None else None  # [K]
    if present >= needed_classes(hp):
        method, fitted_on = hp.calibration, len(val_labels) if hp.calibration != "none" else 0
        calibrator = fit_calibrator(method, val_logits, val_labels, shares=of_loss, weights=weights)
        decision = Decision(method, calibrator, fitted_on)
        _warn_at_a_bound(decision.calibrator)
    else:
        logger.warning("calibration: none, because the val records with finite logits have %d classes", present)
    if present < 2 and isinstance(wanted, ThresholdTarget):
        logger.warning("decision_threshold: 0.5, because the val records with finite logits have only one class")
        wanted = 0.5
    if hp.num_classes > 2:
        return decision
    if hp.target_prior is not None:
        # Isotonic probabilities assume the class shares of val, all others those of the training loss.
        counts = np.bincount(val_labels, weights, minlength=2) if decision.method == "isotonic" else of_loss
        assert counts is not None
        decision = replace(decision, prior=PriorShift(float(counts[1] / counts.sum()), hp.target_prior))
    scores = {split: _served_scores(decision.log_probabilities(values)) for split, values in logits.items()}
    threshold = choose_threshold(
        wanted,
        val_labels == 1,
        scores["val"][known],
        weights=weights,
        target_share=hp.target_prior,
        false_positive_cost=hp.false_positive_cost,
        false_negative_cost=hp.false_negative_cost,
    )
    if not threshold.met:
        text = "decision_threshold: no threshold reaches %s on val; using the closest, %.4g"
        logger.warning(text, threshold.target, threshold.value)
    reached = {
        split: decisions_at(threshold.value, labels[split], scores[split], target_share=hp.target_prior)
        for split in logits
    }
    return replace(decision, threshold=replace(threshold, reached=reached))


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
    if decision.method == "temperature":
        parts[0] += f" ({decision.calibrator.to_json()['temperature']:.4g})"
    if decision.prior is not None:
        source, target = decision.prior.source_share, decision.prior.target_share
        parts.append(f"class 1's share corrected from {source:.4g} to {target:.4g}")
    if decision.threshold is not None:
        parts.append(f"threshold {decision.threshold.value:.4g} ({decision.threshold.target})")
    return ", ".join(parts)
