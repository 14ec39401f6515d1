import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread
from sklearn import metrics as sk

from container.decision.decision import Decision
from container.evaluation.choose_threshold import choose_threshold
from container.evaluation.curves import (
    areas,
    auroc_interval,
    confusion_at,
    mean_curve,
    precision_recall,
    rank,
    roc,
    thin,
    wilson_interval,
)
from container.evaluation.evaluate import write_evaluation
from container.evaluation.reliability import calibrate
from contracts.metrics import METRICS
from contracts.threshold_targets import parse_threshold
from testing.evaluations import evaluation, history, split, two_splits


def scored(rows, *, seed=0, digits=None):
    rng = np.random.default_rng(seed)
    positive = rng.random(rows) < 0.3
    scores = 1 / (1 + np.exp(-rng.normal(size=rows) - 1.5 * positive + 1))
    return positive, scores if digits is None else scores.round(digits)


def no_constant(name):
    raise AssertionError(f"{name} in JSON")


def test_metrics_json_holds_every_metric_flat_and_is_what_comes_back(tmp_path):
    made = two_splits()
    returned = write_evaluation(tmp_path, made)
    written = json.loads((tmp_path / "metrics.json").read_text(), parse_constant=no_constant)
    assert written == returned
    for name, predictions in made.splits.items():
        assert all(isinstance(written[f"{name}/{metric}"], float) for metric in ("loss", *METRICS))
        scores = predictions.probabilities[:, 1]
        assert written[f"{name}/auroc"] == pytest.approx(sk.roc_auc_score(predictions.labels, scores))
        assert written["calibration"][name]["brier_score"] == pytest.approx(
            sk.brier_score_loss(predictions.labels, scores)
        )
    assert written["undefined"] == {}


def test_every_file_is_written_and_no_temporary_file_remains(tmp_path):
    write_evaluation(tmp_path, two_splits())
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {
        "val_predictions.csv", "test_predictions.csv", "metrics.json", "history.json", "report.html",
        "tensorboard_eval/roc_curve.png", "tensorboard_eval/pr_curve.png",
    }  # fmt: skip
    assert len(pd.read_csv(tmp_path / "test_predictions.csv")) == 400


def test_history_json_holds_each_logged_step_and_null_for_a_loss_that_is_not_finite(tmp_path):
    entries = [*history(), {"step": 7, "epoch": 3.5, "train/loss": float("nan")}]
    write_evaluation(tmp_path, replace(two_splits(), history=entries))
    written = json.loads((tmp_path / "history.json").read_text(), parse_constant=no_constant)
    assert written == {"entries": [*history(), {"step": 7, "epoch": 3.5, "train/loss": None}]}


def test_metrics_json_agrees_with_its_own_table_of_thresholds(tmp_path):
    made = two_splits()
    for predictions in made.splits.values():  # nothing is flagged at 0.5
        predictions.probabilities[:, 1] *= 0.4
        predictions.probabilities[:, 0] = 1 - predictions.probabilities[:, 1]
    metrics = write_evaluation(tmp_path, made)
    for name in made.splits:
        at_half = next(row for row in metrics["thresholds"][name] if row["threshold"] == 0.5)
        for metric in ("precision", "recall", "f1_score"):
            assert metrics[f"{name}/{metric}"] == at_half[metric]
    assert metrics["undefined"] == {
        f"{k}/precision": "no record reaches probability 0.5 of class 1" for k in made.splits
    }


def test_a_split_without_labels_has_null_metrics_and_all_of_its_predictions(tmp_path):
    made = two_splits(unlabelled=1.1)
    metrics = write_evaluation(tmp_path, made)
    assert {metrics[f"test/{name}"] for name in ("loss", *METRICS)} == {None}
    assert metrics["undefined"]["test/loss"] == "no record has a label"
    assert len(pd.read_csv(tmp_path / "test_predictions.csv")) == 400


def test_the_loss_is_that_of_the_metrics_step_without_class_weights(tmp_path):
    made = replace(two_splits(), class_weights=[1.0, 9.0])
    test = made.splits["test"]
    expected = sk.log_loss(test.labels, test.probabilities, labels=[0, 1])
    assert write_evaluation(tmp_path, made)["test/loss"] == pytest.approx(expected)


def test_probabilities_that_are_no_numbers_make_every_metric_undefined_rather_than_better(tmp_path):
    made = two_splits()
    made.splits["test"].probabilities[7] = np.nan
    metrics = write_evaluation(tmp_path, made)
    assert metrics["test/accuracy"] is None
    assert metrics["undefined"]["test/accuracy"].startswith("1 of 400 records")
    assert isinstance(metrics["val/accuracy"], float)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_a_handful_of_records_is_enough_to_write_everything(tmp_path, rows):
    metrics = write_evaluation(tmp_path, two_splits(rows))
    assert (tmp_path / "report.html").stat().st_size > 0
    assert metrics["records"]["test"]["rows"] == rows


def test_the_best_f1_threshold_is_chosen_on_val_and_applied_to_test(tmp_path):
    made = two_splits()
    metrics = write_evaluation(tmp_path, made)
    chosen = metrics["best_f1_threshold"]["threshold"]
    val, test = made.splits["val"], made.splits["test"]
    tried = np.unique(val.probabilities[:, 1])
    best = max(sk.f1_score(val.labels, val.probabilities[:, 1] >= t) for t in tried)
    assert sk.f1_score(val.labels, val.probabilities[:, 1] >= chosen) == pytest.approx(best)
    row = next(row for row in metrics["thresholds"]["test"] if row["threshold"] == chosen)
    flagged = test.probabilities[:, 1] >= chosen
    assert row["f1_score"] == pytest.approx(sk.f1_score(test.labels, flagged))
    assert row["flagged_share"] == pytest.approx(flagged.mean())
    assert [row["threshold"] for row in metrics["thresholds"]["val"] if row["threshold"] != chosen] == pytest.approx(
        np.arange(0.1, 1, 0.1)
    )


def test_a_threshold_in_use_with_the_decisions_of_the_best_f1_threshold_is_listed_once(tmp_path):
    made = two_splits()
    val = made.splits["val"]
    scores = val.probabilities[:, 1].astype(np.float32).astype(float)  # as a job that chooses it
    in_use = choose_threshold(parse_threshold("best_f1"), val.labels == 1, scores)
    metrics = write_evaluation(tmp_path, replace(made, decision=Decision(threshold=in_use)))
    assert metrics["best_f1_threshold"]["threshold"] == in_use.value
    assert len(metrics["thresholds"]["test"]) == 10
    assert (tmp_path / "report.html").read_text().count("in use, best F1 on val") == 2


def test_more_classes_get_a_confusion_matrix_and_scores_for_each(tmp_path):
    labels = ["a", "b", "c", "never seen"]
    splits = {name: split(name, 300, labels=labels[:3]) for name in ("val", "test")}
    widened = {
        name: replace(found, probabilities=np.c_[found.probabilities, np.zeros(300)]) for name, found in splits.items()
    }
    metrics = write_evaluation(tmp_path, evaluation(widened, labels=labels))
    test = splits["test"]
    decided = test.probabilities.argmax(axis=1)
    matrix = pd.DataFrame(metrics["confusion_matrix"]["test"]).T.reindex(index=labels, columns=labels)
    assert matrix.fillna(0).to_numpy().tolist() == sk.confusion_matrix(test.labels, decided, labels=range(4)).tolist()
    assert not (matrix == 0).any().any()  # left out
    second, unseen = metrics["classes"]["test"][1], metrics["classes"]["test"][3]
    assert second["recall"] == pytest.approx(sk.recall_score(test.labels == 1, decided == 1))
    assert second["auroc"] == pytest.approx(sk.roc_auc_score(test.labels == 1, test.probabilities[:, 1]))
    assert (unseen["support"], unseen["recall"], unseen["auroc"]) == (0, None, None)
    assert metrics["best_f1_threshold"] is None
    mean = np.mean([entry["auroc"] for entry in metrics["classes"]["test"][:3]])
    assert metrics["test/auroc"] == pytest.approx(mean)


def test_the_average_precision_of_both_of_two_classes_is_written(tmp_path):
    made = two_splits()
    classes = write_evaluation(tmp_path, made)["classes"]["test"]
    test = made.splits["test"]
    for k in (0, 1):
        expected = sk.average_precision_score(test.labels == k, test.probabilities[:, k])
        assert classes[k]["average_precision"] == pytest.approx(expected)


@pytest.mark.parametrize("labels", [("$5", "_$10_^"), ("$a", "_b", "c$d$", "\\frac")])
def test_labels_that_look_like_mathematics_are_drawn_as_they_are(tmp_path, labels):
    write_evaluation(tmp_path, two_splits(60, labels=labels))
    for name in ("roc_curve", "pr_curve"):
        assert imread(tmp_path / "tensorboard_eval" / f"{name}.png").shape[0] > 500


@pytest.mark.parametrize("digits", [None, 1])
def test_areas_under_curves_are_those_of_scikit_learn_with_and_without_ties(digits):
    positive, scores = scored(2000, digits=digits)
    ranking = rank(positive, scores)
    expected = sk.roc_auc_score(positive, scores), sk.average_precision_score(positive, scores)
    assert areas(ranking) == pytest.approx(expected)


@pytest.mark.parametrize("kind", [roc, precision_recall])
def test_a_thinned_curve_keeps_its_ends_and_its_area(kind):
    curve = kind(rank(*scored(200_000)))
    thinned = thin(curve)
    assert len(thinned.x) <= 300 < len(curve.x)
    assert (thinned.x[0], thinned.y[0], thinned.x[-1], thinned.y[-1]) == (
        curve.x[0], curve.y[0], curve.x[-1], curve.y[-1],
    )  # fmt: skip
    assert np.trapezoid(thinned.y, thinned.x) == pytest.approx(np.trapezoid(curve.y, curve.x), abs=1e-4)


def test_the_area_below_the_steps_of_a_mean_curve_is_the_mean_average_precision():
    rankings = [rank(*scored(200, seed=seed, digits=1)) for seed in range(3)]
    mean = mean_curve([precision_recall(ranking) for ranking in rankings], steps=True)
    area = (np.diff(mean.x) * mean.y[1:]).sum()
    assert area == pytest.approx(np.mean([areas(ranking)[1] for ranking in rankings]), abs=0.002)


@pytest.mark.parametrize("digits", [None, 1])
def test_the_interval_of_auroc_holds_95_percent_of_samples_with_and_without_ties(digits):
    covered, truth = 0, areas(rank(*scored(200_000, seed=99, digits=digits)))[0]
    for seed in range(400):
        low, high = auroc_interval(*scored(150, seed=seed, digits=digits))
        covered += low <= truth <= high
    assert 0.92 <= covered / 400 <= 0.98


def test_no_interval_is_claimed_where_the_sample_cannot_give_one():
    assert auroc_interval(np.array([True, False, False]), np.array([0.9, 0.1, 0.2])) is None
    assert auroc_interval(np.array([True, True, False, False]), np.array([0.9, 0.8, 0.1, 0.2])) is None


def test_the_interval_of_5_successes_in_5_trials_is_wide():
    low, high = wilson_interval(5, 5)
    assert (0.5 < low < 0.6, high) == (True, 1.0)


def test_a_score_of_exactly_the_threshold_is_flagged():
    found = confusion_at(0.5, positive_scores=np.array([0.2, 0.5]), negative_scores=np.array([0.1, 0.5, 0.7]))
    assert (found.true_positives, found.false_positives, found.false_negatives, found.true_negatives) == (1, 2, 1, 1)
    nothing = confusion_at(0.9, positive_scores=np.array([0.2]), negative_scores=np.array([0.1]))
    assert (nothing.precision, nothing.recall) == (None, 0.0)


def test_the_best_threshold_lies_between_scores_so_that_rounding_flips_no_decision():
    positive, scores = np.array([True, True, False, False]), np.array([0.9, 0.8, 0.4, 0.1])
    assert choose_threshold(parse_threshold("best_f1"), positive, scores).value == pytest.approx(0.6)


def test_calibration_error_is_the_distance_of_scores_from_observed_shares():
    labels = np.array([1] * 6 + [0] * 4)
    scores = np.full(10, 0.85)
    found = calibrate(labels, np.stack([1 - scores, scores], axis=1))
    assert found.expected_calibration_error == pytest.approx(0.25)
    assert found.overconfidence == pytest.approx(0.25)
    assert [entry.count for entry in found.bins] == [10]


def test_the_brier_score_of_more_classes_sums_over_all_probabilities():
    probabilities = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    labels = np.array([0, 1])
    expected = np.mean(((probabilities - np.eye(3)[labels]) ** 2).sum(axis=1))
    assert calibrate(labels, probabilities).brier_score == pytest.approx(expected)
