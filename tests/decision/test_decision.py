"""Calibration, prior correction and thresholds: fitted on val, and the same in the graph as everywhere."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from container.decision.calibrators import log_odds
from container.decision.decision import ClassRatios, Decision, PriorShift, Threshold
from container.decision.val_labels import check_val_labels
from container.evaluation.choose_threshold import choose_threshold, decisions_at
from container.evaluation.fit_decision import STEEPEST, describe, fit_calibrator, fit_decision, fit_temperature
from container.evaluation.reliability import calibrate
from container.export.decision_layer import DecisionLayer
from contracts.errors import ContractError
from contracts.hyperparameter_files import cast_value, parse_hyperparameters
from contracts.hyperparameters import Hyperparameters
from contracts.threshold_targets import ThresholdTarget, parse_threshold
from testing.jobs import CONFIGURATION

MULTICLASS = {"is_binary": False, "num_classes": 3, "multiclass_categories": [0, 1, 2]}


def sample(rows: int, *, classes: int = 2, factor: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels drawn from their softmax, the logits then multiplied: factor 3 is too sure of itself."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=1.5, size=(rows, classes))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return (factor * logits).astype(np.float32), labels


@pytest.mark.parametrize("classes", [2, 3, 40])
def test_log_odds_are_those_of_the_softmax(classes: int) -> None:
    logits = np.vstack([sample(50, classes=classes)[0], np.zeros((1, classes)), np.eye(classes)[:1] * 900]).astype(
        "float64"
    )
    others = np.array([[np.logaddexp.reduce(np.delete(row, k)) for k in range(classes)] for row in logits])
    np.testing.assert_allclose(log_odds(logits), logits - others, rtol=1e-12, atol=1e-12)


def settings(**given: Any) -> Hyperparameters:
    return parse_hyperparameters({**CONFIGURATION, **given})


def fit(
    hp: Hyperparameters, logits: dict[str, Any], labels: dict[str, Any], counts: Any = (30, 10), weights: Any = (1, 1)
) -> Decision:
    counts, weights = np.array(counts), np.array(weights)
    return fit_decision(hp, logits=logits, labels=labels, train_counts=counts, class_weights=weights)


def fitted(rows: int = 3000, *, classes: int = 2, weights: tuple[float, ...] = (1, 1), **given: Any) -> Decision:
    logits, labels = sample(rows, classes=classes, factor=2.5)
    test_logits, test_labels = sample(rows, classes=classes, factor=2.5, seed=1)
    hp = settings(**given, **(MULTICLASS if classes > 2 else {}))
    splits = {"val": logits, "test": test_logits}, {"val": labels, "test": test_labels}
    return fit(hp, *splits, [30, 10, 5][:classes], weights)


@pytest.mark.parametrize("factor", [0.5, 1.0, 4.0])
def test_the_temperature_is_what_the_logits_were_multiplied_by(factor):
    logits, labels = sample(20_000, classes=3, factor=factor)
    assert fit_temperature(logits, labels).temperature == pytest.approx(factor, rel=0.03)


@pytest.mark.parametrize("rows", [20, 2000])
def test_records_without_a_mistake_do_not_drive_all_probabilities_to_0_and_1(rows):
    labels = np.arange(rows) % 2
    margins = np.where(labels, 1.0, -1.0) * np.linspace(0.5, 3, rows)
    logits = np.stack([-margins, margins], axis=1).astype(np.float32)
    made = Decision("temperature", fit_temperature(logits, labels))
    likely = made.probabilities(logits)[np.arange(rows), labels]
    assert 0.25 / (rows + 2) < 1 - likely.mean() < 4 / (rows + 2)
    with torch.no_grad():
        served = DecisionLayer(made)(torch.from_numpy(logits)).numpy()
    half = np.arange(rows) >= rows // 2  # a few at the very end may be one number in 32 bits
    assert sk.roc_auc_score(half, served[:, 1]) == pytest.approx(sk.roc_auc_score(half, margins), abs=1e-5)


@pytest.mark.parametrize(("factor", "said"), [(-1.0, "contradict the scores"), (1e-4, "far too close together")])
def test_a_temperature_at_its_bound_is_a_warning(factor, said, caplog):
    logits, labels = sample(500, factor=factor)
    fit(settings(calibration="temperature"), {"val": logits}, {"val": labels})
    assert said in caplog.text


@pytest.mark.parametrize("share", [0.01, 0.05])
def test_logits_that_are_right_for_balanced_classes_stay_so_where_the_prior_is_corrected(share):
    rng = np.random.default_rng(0)
    labels = (rng.random(200_000) < share).astype(int)
    found = rng.exponential(np.where(labels, 2.0, 1.0))  # densities e^-x and e^(-x/2) / 2
    odds = found / 2 - np.log(2)  # the likelihood ratio: log-odds where the classes are even
    hp, logits = settings(calibration="temperature", target_prior=share), np.stack([0 * odds, odds], axis=1)
    shares = np.array([1 - share, share])
    decision = fit(hp, {"val": logits}, {"val": labels}, shares, 1 / shares)
    # Fitted at val's own shares it is 0.54 to 0.56.
    assert decision.calibrator.temperature == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("method", ["temperature", "isotonic"])
@pytest.mark.parametrize("classes", [2, 3])
def test_calibration_brings_held_out_scores_nearer_to_observed_frequencies(method, classes):
    decision = fitted(classes=classes, calibration=method)
    logits, labels = sample(20_000, classes=classes, factor=2.5, seed=7)
    before, after = (calibrate(labels, made.probabilities(logits)) for made in (Decision(), decision))
    assert before.expected_calibration_error > 0.05
    assert after.expected_calibration_error < 0.02
    assert after.brier_score < before.brier_score
    assert decision.probabilities(logits).sum(axis=1) == pytest.approx(np.ones(len(logits)))


def test_isotonic_calibration_corrects_an_error_that_a_temperature_cannot():
    logits, labels = sample(4000)
    shifted = logits + np.float32([0, 1.5])
    errors = {}
    for method in ("temperature", "isotonic"):
        made = Decision(method, fit_calibrator(method, shifted, labels))
        errors[method] = calibrate(labels, made.probabilities(shifted)).expected_calibration_error
    assert errors["isotonic"] < 0.02 < errors["temperature"]


@pytest.mark.parametrize("rows", [5, 60, 3000])
@pytest.mark.parametrize("classes", [2, 3])
def test_an_isotonic_line_increases_with_a_bounded_slope_and_without_0_and_1(rows, classes):
    logits, labels = sample(rows, classes=classes, seed=3)
    labels[:classes] = np.arange(classes)
    for line in fit_calibrator("isotonic", logits, labels).lines:
        x, y = np.diff(line.log_odds), np.diff(line.heights)
        assert (x > 0).all()
        assert (y > 0).all()
        assert (y <= STEEPEST * x * (1 + 1e-9)).all()
        assert 1 / (rows + 2) <= line.probability[0] <= line.probability[-1] <= 1 - 1 / (rows + 2)


def test_the_graph_computes_the_decision_with_an_isotonic_line_and_a_small_prior():
    labels = np.arange(16_000) % 2
    margins = np.random.default_rng(0).normal(np.where(labels, 4.0, -4.0), 2)
    logits = np.stack([-margins / 2, margins / 2], axis=1).astype(np.float32)
    decision = fit(settings(calibration="isotonic", target_prior=1e-4), {"val": logits}, {"val": labels}, (1, 1))
    with torch.no_grad():
        found = DecisionLayer(decision)(torch.from_numpy(logits)).numpy()
    np.testing.assert_allclose(found, decision.probabilities(logits), rtol=0, atol=1e-5)


def test_a_prior_shift_gives_the_probabilities_of_a_sample_with_that_share():
    logits, labels = sample(60_000)
    rng = np.random.default_rng(0)
    kept = (labels == 0) | (rng.random(len(labels)) < 1 / 9)  # half positive becomes a tenth
    decision = Decision(prior=PriorShift(source_share=labels.mean(), target_share=labels[kept].mean()))
    assert labels[kept].mean() == pytest.approx(0.1, abs=0.01)
    before = calibrate(labels[kept], Decision().probabilities(logits[kept])).expected_calibration_error
    after = calibrate(labels[kept], decision.probabilities(logits[kept])).expected_calibration_error
    assert after < 0.01
    assert before > 0.1


@pytest.mark.parametrize(
    ("given", "weights", "expected"),
    [
        ({}, (1, 1), 10 / 40),
        ({}, (1, 3), 30 / 60),
        ({"calibration": "temperature"}, (1, 3), 30 / 60),
        ({"calibration": "isotonic"}, (1, 3), sample(3000, factor=2.5)[1].mean()),
    ],
)
def test_the_prior_is_that_of_the_loss_or_after_isotonic_calibration_that_of_val(given, weights, expected):
    assert fitted(weights=weights, target_prior=0.02, **given).prior == PriorShift(pytest.approx(expected), 0.02)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.3", 0.3),
        (0.7, 0.7),
        ("best_f1", ThresholdTarget("best_f1")),
        ("precision >= 0.9", ThresholdTarget("precision", 0.9)),
        ("recall>=1", ThresholdTarget("recall", 1.0)),
        ("precision>=0.9999999", ThresholdTarget("precision", 0.9999999)),
        ("cost", ThresholdTarget("cost")),
    ],
)
def test_a_threshold_is_a_number_or_a_target(text, expected):
    assert parse_threshold(text) == expected
    assert settings(decision_threshold=text).threshold == expected


@pytest.mark.parametrize("text", ["best", "precision>=1.5", "0", "1.2", "nan", "precision>0.9"])
def test_anything_else_is_refused_with_what_would_do(text):
    with pytest.raises(ContractError, match=r"(?s)decision_threshold: .*number between 0 and 1"):
        settings(decision_threshold=text)


def test_a_number_from_the_service_is_a_number():
    assert settings(decision_threshold=cast_value("decision_threshold", "0.25")).decision_threshold == 0.25


def scored(rows: int = 400) -> tuple[np.ndarray, np.ndarray]:
    logits, labels = sample(rows, seed=5)
    return labels == 1, Decision().probabilities(logits)[:, 1]


def test_an_isotonic_line_is_finite_where_scores_differ_in_their_last_digit():
    logits = np.array([[0, -1], [1.2e-16, 1], [0, 1]], np.float32)
    (line,) = fit_calibrator("isotonic", logits, np.array([0, 1, 1])).lines
    assert line.probability == pytest.approx((0.2, 0.8))


def test_a_target_is_written_with_all_its_digits():
    assert settings(decision_threshold="precision >= 0.9999999").decision_threshold == "precision>=0.9999999"


def test_a_threshold_between_neighbouring_floats_decides_as_the_upper_one():
    upper = np.nextafter(0.5, 1)
    found = choose_threshold(parse_threshold("best_f1"), np.array([True, False]), np.array([upper, 0.5]))
    assert found.value == upper


def test_a_threshold_that_flags_nothing_is_above_1():
    positives, scores = np.array([True, False]), np.array([0.2, 0.9999999])
    assert choose_threshold(parse_threshold("cost"), positives, scores, false_positive_cost=9).value > 1


def test_a_score_that_is_not_a_number_reaches_no_threshold():
    labels, scores = np.array([1, 1, 0, 0]), np.array([0.9, np.nan, np.nan, 0.1])
    found = decisions_at(0.5, labels, scores)
    flagged = Decision(threshold=Threshold(0.5)).decide(np.stack([1 - scores, scores], axis=1))
    assert (found["true_positives"], found["false_positives"]) == (1, 0) == (flagged[:2].sum(), flagged[2:].sum())


@pytest.mark.parametrize(("kind", "other"), [("precision", "recall"), ("recall", "precision")])
def test_a_bound_is_kept_and_the_other_ratio_is_the_highest_that_it_allows(kind, other):
    positive, scores = scored()
    ratio = {"precision": sk.precision_score, "recall": sk.recall_score}
    chosen = choose_threshold(ThresholdTarget(kind, 0.9), positive, scores)
    allowed = [t for t in scores if ratio[kind](positive, scores >= t) >= 0.9]
    decided = scores >= chosen.value
    assert chosen.met
    assert ratio[kind](positive, decided) >= 0.9
    assert ratio[other](positive, decided) == pytest.approx(max(ratio[other](positive, scores >= t) for t in allowed))


def test_a_precision_that_no_threshold_reaches_is_said_and_the_nearest_taken():
    positive, scores = np.array([False, True, True, False]), np.array([0.9, 0.8, 0.7, 0.1])
    chosen = choose_threshold(ThresholdTarget("precision", 0.9), positive, scores)
    assert (chosen.met, chosen.value) == (False, pytest.approx(0.4))


@pytest.mark.parametrize("costs", [(1.0, 1.0), (10.0, 1.0), (1.0, 10.0), (1.0, 1e-9)])
def test_the_threshold_for_costs_costs_least(costs):
    positive, scores = scored()

    def cost(threshold: float) -> float:
        flagged = scores >= threshold
        return costs[0] * (flagged & ~positive).sum() + costs[1] * (~flagged & positive).sum()

    chosen = choose_threshold(
        ThresholdTarget("cost"), positive, scores, false_positive_cost=costs[0], false_negative_cost=costs[1]
    )
    assert cost(chosen.value) == pytest.approx(min(cost(t) for t in [*scores, 2.0]))


def test_a_threshold_is_chosen_for_the_share_where_the_model_is_used():
    positive, scores = scored(4000)
    wanted = ThresholdTarget("precision", 0.9)
    here, there = (choose_threshold(wanted, positive, scores, target_share=share) for share in (None, 0.1))
    assert there.value > here.value
    labels = positive.astype(int)
    assert decisions_at(here.value, labels, scores, target_share=0.1)["at_target_prior"]["precision"] < 0.6
    assert decisions_at(there.value, labels, scores, target_share=0.1)["at_target_prior"]["precision"] >= 0.9


def test_what_a_threshold_reaches_is_also_told_with_the_weights_for_which_it_was_chosen():
    positive, scores = scored(4000)
    weights = np.where(positive, 5.0, 1.0)
    chosen = choose_threshold(ThresholdTarget("precision", 0.9), positive, scores, weights=weights)
    reached = decisions_at(chosen.value, positive.astype(int), scores, weights=weights)
    expected = np.average(positive, weights=weights * (scores >= chosen.value))
    assert reached["weighted"]["precision"] == pytest.approx(expected)
    assert reached["precision"] < 0.9 <= expected


def test_nothing_is_fitted_on_test():
    logits, labels = sample(500)
    hp = settings(calibration="isotonic", decision_threshold="best_f1", target_prior=0.3)
    splits = {"val": logits, "test": logits}
    one, other = (fit(hp, splits, {"val": labels, "test": of_test}) for of_test in (labels, 1 - labels))
    assert (one.calibrator, one.prior, one.threshold.value) == (other.calibrator, other.prior, other.threshold.value)
    assert one.threshold.reached["val"] == other.threshold.reached["val"]
    assert one.threshold.reached["test"] != other.threshold.reached["test"]


def test_what_a_threshold_reaches_is_recorded_for_each_split():
    decision = fitted(decision_threshold="recall>=0.8")
    logits, labels = sample(3000, factor=2.5, seed=1)
    flagged = decision.decide(decision.probabilities(logits))
    assert decision.threshold.reached["val"]["recall"] >= 0.8
    assert decision.threshold.reached["test"]["recall"] == pytest.approx(sk.recall_score(labels, flagged))
    assert decision.threshold.reached["test"]["precision"] == pytest.approx(sk.precision_score(labels, flagged))


def test_the_graph_decides_as_the_job_where_probabilities_are_close_to_1():
    logits = np.zeros((400, 2), np.float32)
    logits[:, 1] = np.linspace(10, 30, 400)
    labels = (logits[:, 1] > 20).astype(np.int64)
    decision = fit(settings(decision_threshold="precision>=0.9"), {"val": logits}, {"val": labels}, (1, 1))
    with torch.no_grad():
        served = DecisionLayer(decision)(torch.from_numpy(logits)).numpy().astype(np.float64)
    flagged = decision.decide(served)
    np.testing.assert_array_equal(flagged, decision.decide(decision.probabilities(logits)))
    assert decision.threshold.reached["val"]["precision"] == pytest.approx(labels[flagged == 1].mean())


CASES = {
    "as they are": (2, {}),
    "temperature": (3, {"calibration": "temperature"}),
    "temperature and prior": (2, {"calibration": "temperature", "target_prior": 0.05}),
    "isotonic": (2, {"calibration": "isotonic", "decision_threshold": "best_f1"}),
    "isotonic and prior": (2, {"calibration": "isotonic", "target_prior": 0.9}),
    "isotonic of three": (3, {"calibration": "isotonic"}),
    "without class_weights": (3, {"calibration": "temperature"}),
    "clear threshold": (2, {"decision_threshold": "auto_f1"}),
}


def decision_of(name: str) -> Decision:
    classes, given = CASES[name]
    decision = fitted(classes=classes, **given)
    return replace(decision, prior=ClassRatios((1.2, 0.5, 0.03))) if name == "without class_weights" else decision


@pytest.mark.parametrize("name", CASES)
def test_the_graphs_layer_computes_what_the_decision_computes(name):
    classes, decision = CASES[name][0], decision_of(name)
    logits = np.concatenate([sample(500, classes=classes, factor=5, seed=9)[0], np.full((1, classes), 40, np.float32)])
    logits[:2] *= 30  # far beyond what val had
    with torch.no_grad():
        found = DecisionLayer(decision)(torch.from_numpy(logits)).numpy()
    np.testing.assert_allclose(found, decision.probabilities(logits), rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_decision_read_back_is_the_same(tmp_path, name):
    decision = decision_of(name)
    decision.save(tmp_path)
    assert Decision.load(tmp_path) == decision


def test_a_damaged_decision_is_named(tmp_path):
    with pytest.raises(ContractError, match=r"decision\.json: cannot be read"):
        Decision.load(tmp_path)
    Decision().save(tmp_path)
    path = tmp_path / "decision.json"
    path.write_text(path.read_text().replace('"format_version": 2', '"format_version": 7'))
    with pytest.raises(ContractError, match="has the value 7 for 'format_version': Input should be 2"):
        Decision.load(tmp_path)


def test_two_classes_are_decided_by_the_threshold_and_more_by_the_largest():
    probabilities = np.array([[0.4, 0.6], [0.25, 0.75]])
    assert Decision(threshold=Threshold(0.75)).decide(probabilities).tolist() == [0, 1]
    assert Decision().decide(np.array([[0.2, 0.5, 0.3]])).tolist() == [1]


@pytest.mark.parametrize(
    "given", [{"calibration": "isotonic"}, {"decision_threshold": "best_f1"}, {"decision_threshold": "precision>=0.9"}]
)
def test_a_val_without_a_class_is_refused_before_training(given):
    (name,) = given
    with pytest.raises(ContractError, match=f"{name}: .*'kept': 0"):
        check_val_labels(settings(**given), {"kept": 0, "sent back": 20})
    check_val_labels(settings(**given), {"kept": 1, "sent back": 20})


def test_a_val_without_labels_cannot_be_calibrated_on():
    with pytest.raises(ContractError, match="no val record has a label"):
        check_val_labels(settings(calibration="temperature"), {"kept": 0, "sent back": 0})
    check_val_labels(settings(), {"kept": 0, "sent back": 0})


def test_a_temperature_needs_two_of_the_classes():
    three = settings(calibration="temperature", **MULTICLASS)
    check_val_labels(three, {"a": 3, "b": 4, "c": 0})
    with pytest.raises(ContractError, match="calibration: 'temperature' .* needs records of at least 2 classes"):
        check_val_labels(three, {"a": 3, "b": 0, "c": 0})


def tilted(weights, *, shares=(0.8, 0.15, 0.05), rows=4000):
    """Logits of a model whose loss had weights of the classes, and labels with these shares."""
    rng = np.random.default_rng(3)
    labels = rng.choice(len(shares), rows, p=shares)
    evidence = rng.normal(size=(rows, len(shares)))
    evidence[np.arange(rows), labels] += 1.5  # the log likelihood ratio of each class is 1.5 * evidence
    return (1.5 * evidence + np.log(np.multiply(shares, weights))).astype(np.float32), labels


def test_calibration_of_several_classes_undoes_class_weights():
    weights = (0.5, 2.0, 5.0)
    logits, labels = tilted(weights)
    counts = np.bincount(labels)
    hp = settings(calibration="temperature", **MULTICLASS)
    decision = fit(hp, {"val": logits}, {"val": labels}, counts, weights)
    found, before = decision.probabilities(logits), Decision().probabilities(logits)
    shares = counts / len(labels)
    assert np.abs(before.mean(axis=0) - shares).max() > 0.1
    np.testing.assert_allclose(found.mean(axis=0), shares, atol=0.01)
    assert sk.log_loss(labels, found) < 0.8 * sk.log_loss(labels, before)
    assert decision.calibrator.temperature == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(("calibration", "classes"), [("temperature", 2), ("none", 3), ("isotonic", 3)])
def test_class_weights_are_undone_by_the_temperature_of_several_classes_alone(calibration, classes):
    weights = (1, 2, 4)[:classes]
    assert fitted(classes=classes, calibration=calibration, weights=weights).prior is None
    assert fitted(classes=3, calibration="temperature").prior is None


@pytest.mark.parametrize(("weights", "share"), [((1, 1, 1), 0), ((0.5, 2.0, 5.0), 0), ((0.5, 2.0, 5.0), 0.5)])
def test_class_weights_are_undone_as_far_as_the_model_follows_them(weights, share):
    logits, labels = tilted(np.power(weights, share))
    hp = settings(calibration="temperature", **MULTICLASS)
    decision = fit(hp, {"val": logits}, {"val": labels}, np.bincount(labels), weights)
    if share:
        expected, found = np.power(weights, -share), np.array(decision.prior.ratios)
        np.testing.assert_allclose(found / found[0], expected / expected[0], rtol=0.2)
    else:
        assert decision.prior is None


def test_the_decision_is_fitted_on_the_rows_out_of_fold_where_there_are_any():
    logits, labels = sample(600, factor=3.0)
    of_val = {"val": np.zeros((99, 2), np.float32), "test": logits, "out_of_fold": logits}  # val alone says nothing
    of_each = {"val": labels[:99], "test": labels, "out_of_fold": labels}
    hp = settings(calibration="temperature", decision_threshold="best_f1")
    given = {"labels": of_each, "train_counts": np.array([30, 10]), "class_weights": np.ones(2)}
    found = fit_decision(hp, logits=of_val, **given, on="out_of_fold")
    alone = fit(hp, {"val": logits}, {"val": labels})
    assert (found.calibrator, found.threshold.value) == (alone.calibrator, alone.threshold.value)
    assert found.fitted_on == 600
    assert set(found.threshold.reached) == {"val", "test", "out_of_fold"}


@pytest.mark.parametrize("target", ["auto_f1", "auto_accuracy"])
def test_a_threshold_whose_gain_is_noise_stays_at_one_half(target):
    kept = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        positive = rng.random(300) < 0.5
        scores = np.clip(rng.normal(0.2 + 0.6 * positive, 0.2), 0, 1)  # 0.5 is the best threshold but for chance
        kept += choose_threshold(parse_threshold(target), positive, scores).value == 0.5
    assert kept >= 18


@pytest.mark.parametrize("target", ["auto_f1", "auto_accuracy"])
def test_a_threshold_whose_gain_is_clear_is_the_best_one_and_its_interval_is_above_0(target):
    rng = np.random.default_rng(0)
    positive = rng.random(800) < 0.1
    scores = np.clip(rng.normal(0.1 + 0.15 * positive, 0.05), 0, 1)  # none reaches 0.5
    found = choose_threshold(parse_threshold(target), positive, scores)
    best = {"auto_f1": "best_f1", "auto_accuracy": "cost"}[target]
    assert found.value == choose_threshold(parse_threshold(best), positive, scores).value
    gain, low, high = found.gain
    assert 0 < low < gain < high
    assert f"({target}: {gain:+.4f} over 0.5, 95 % interval {low:+.4f}" in describe(Decision(threshold=found))


def test_the_gain_of_a_threshold_is_measured_on_records_that_did_not_choose_it():
    rng = np.random.default_rng(1)
    positive, scores = rng.random(60) < 0.5, rng.random(60)  # scores without meaning
    found = choose_threshold(parse_threshold("auto_accuracy"), positive, scores)
    best = choose_threshold(parse_threshold("cost"), positive, scores).value
    right = [np.mean((scores >= threshold) == positive) for threshold in (best, 0.5)]
    assert found.gain[0] < right[0] - right[1], "the best of many thresholds seems better than it is"
    assert found.value == 0.5


@pytest.mark.parametrize("target", ["auto_f1", "auto_accuracy"])
def test_the_gain_of_a_threshold_is_a_number_also_for_two_records(target):
    found = choose_threshold(parse_threshold(target), np.array([True, False]), np.array([0.3, 0.1]))
    assert np.isfinite(found.gain).all()


@pytest.mark.parametrize("given", [{"target_prior": 0.1}, {"decision_threshold": 0.3}, {"decision_threshold": "cost"}])
def test_what_is_for_two_classes_is_refused_for_more(given):
    (name,) = given
    with pytest.raises(ContractError, match=f"{name}: .*two classes and num_classes is 3"):
        settings(**MULTICLASS, **given)


def test_an_isotonic_line_keeps_the_order_of_logits_that_lie_close_together():
    rng = np.random.default_rng(0)
    odds = 2 * rng.normal(size=5000) - 2
    labels = (rng.random(5000) < 1 / (1 + np.exp(-odds))).astype(int)
    logits = np.stack([np.zeros(5000), odds / 50], axis=1)
    scores = fit_calibrator("isotonic", logits, labels).log_probabilities(logits)[:, 1]
    assert sk.roc_auc_score(labels, scores) == pytest.approx(sk.roc_auc_score(labels, odds), abs=1e-3)
