"""The first findings of the report: is the model better than guessing; and what the data lacks."""

import re

import numpy as np
import pytest
from scipy.special import softmax

from container.evaluation.analysis import analyze
from container.evaluation.curves import expected_auroc_width, moved_auroc_interval, placements
from container.evaluation.data_findings import data_findings
from container.evaluation.verdict import verdict
from testing.evaluations import split, two_splits


def found(predictions, labels):
    analyses, _ = analyze({predictions.split: predictions}, class_labels=labels)
    return verdict(analyses[predictions.split], predictions, labels)


@pytest.mark.parametrize("labels", [[0, 1], ["a", "b", "c"]])
def test_a_good_model_is_better_in_every_metric_with_an_interval_of_each_difference(labels):
    first, following = found(split("test", 400, labels=labels), labels)
    assert first.level == "good"
    assert first.text.startswith("Better than guessing in every metric, on test: Log loss 0.")
    assert first.text.count("95% CI") == 5
    assert following.text.startswith("What to do next: look at the most confident errors")


def test_random_scores_are_not_shown_to_be_better_and_name_the_class_to_guess():
    predictions = split("test", 300, labels=[0, 1])
    predictions.labels[:200] = 1
    scores = np.random.default_rng(0).random(300)
    predictions.probabilities[:] = np.stack([1 - scores, scores], axis=1)
    first, following = found(predictions, ["no", "yes"])
    assert first.level == "check"
    assert first.text.startswith("Not shown to be better than always predicting yes, on test: Log loss")
    assert following.text.startswith("What to do next: check the columns and labels")


def test_a_model_that_ranks_well_and_always_decides_one_class_is_better_in_some_metrics():
    predictions = split("test", 400, labels=[0, 1, 2])
    predictions.labels[:250] = 0
    ranked = np.eye(3)[predictions.labels] * 0.1
    predictions.probabilities[:] = np.array([0.6, 0.2, 0.2]) + ranked - ranked.mean(axis=1, keepdims=True)
    first, _ = found(predictions, ["a", "b", "c"])
    assert first.text.startswith("Better than guessing in Log loss, AUROC, Average precision, not shown in F1, Acc")
    assert "never predicted: b (" in first.text


def test_a_perfect_model_is_not_doubted_in_a_metric_without_an_interval():
    predictions = split("test", 400, labels=[0, 1])
    predictions.labels[:] = np.arange(400) % 2
    predictions.probabilities[:] = np.where(predictions.labels[:, None] == [0, 1], 0.99, 0.01)
    first, *_ = found(predictions, [0, 1])
    assert "not shown" not in first.text


@pytest.mark.parametrize("labels", [[0, 1], ["a", "b", "c"]])
def test_no_interval_of_the_verdict_has_a_metric_above_one(labels):
    predictions = split("test", 60, labels=labels)
    scores = 3 * np.eye(len(labels))[predictions.labels] + np.random.default_rng(0).normal(size=(60, len(labels)))
    predictions.probabilities[:] = softmax(scores, axis=1)
    first, *_ = found(predictions, labels)
    shares = re.findall(
        r"(?:AUROC|precision|F1|Accuracy) [0-9.]+ against ([0-9.]+) \(\S+, 95% CI \S+ to (\S+)\)", first.text
    )
    assert len(shares) == 4
    assert max(float(baseline) + float(high) for baseline, high in shares) == pytest.approx(1, abs=0.001)


def test_a_perfect_ranking_of_one_record_of_a_class_is_not_shown_to_be_better_than_guessing():
    predictions = split("test", 4, labels=[0, 1])
    predictions.labels[:] = [0, 0, 0, 1]
    predictions.probabilities[:, 1] = [0.2, 0.21, 0.22, 0.27]
    predictions.probabilities[:, 0] = 1 - predictions.probabilities[:, 1]
    first, *_ = found(predictions, ["no", "yes"])
    assert "not shown in AUROC, F1, Accuracy" in first.text


def test_a_split_of_one_class_has_no_verdict():
    assert found(split("test", 50, labels=[0, 1], only=1), [0, 1]) == []


def test_the_same_problem_of_several_columns_is_one_finding():
    summary = two_splits().data_summary
    for described in summary["splits"].values():
        numeric, category = described["numeric"]["price"], described["categories"]["color"]
        described["numeric"] = {
            "constant": {**numeric, "std": 0.0},
            "empty": {**numeric, "imputed": described["rows"] - 1},
            "half": {**numeric, "imputed": described["rows"] // 2},
            "less": {**numeric, "imputed": described["rows"] // 3},
        }
        described["categories"] = {"one": {**category, "distinct": 1}, "few": {**category, "unseen_rows": 4}}
    summary["splits"]["val"]["classes"]["1"] = 0
    texts = [finding.text for finding in data_findings(summary)]
    assert "One value in every row of train, so of no use: constant, one. Remove it." in texts
    assert any(text.startswith("Nearly empty in train: empty (") for text in texts), texts
    (imputed,) = [text for text in texts if text.startswith("Missing numbers were imputed: half in 50.0%")]
    assert "less in 33.3%" in imputed
    assert not any("do not occur in train" in text for text in texts), "4 rows are too few"
    assert "val has no record of class 1: its metrics say nothing about it." in texts


def test_the_width_of_the_interval_is_that_of_samples():
    rng = np.random.default_rng(0)
    areas = [np.mean(4 * rng.exponential(size=(12, 1)) > rng.exponential(size=60)) for _ in range(4000)]
    assert np.mean(areas) == pytest.approx(0.8, abs=0.01)
    assert expected_auroc_width(0.8, 12, 60) == pytest.approx(2 * 1.96 * np.std(areas), rel=0.05)


@pytest.mark.parametrize("counts", [[30, 30, 30], [6, 7, 13, 26, 38]])
@pytest.mark.parametrize("strength", [0, 1.5])
def test_the_interval_of_the_mean_auroc_of_several_classes_is_that_of_samples(counts, strength):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(len(counts)), counts)
    areas = []
    for _ in range(300):
        scores = softmax(strength * np.eye(len(counts))[labels] + rng.normal(size=(len(labels), len(counts))), axis=1)
        areas.append(np.mean([placements(labels == k, scores[:, k])[0].mean() for k in range(len(counts))]))
    ends = np.array([moved_auroc_interval(area, counts) for area in areas])
    covered = (ends[:, 0] < np.mean(areas)) & (np.mean(areas) < ends[:, 1])
    assert 0.93 < covered.mean() < 1
    assert np.mean(ends[:, 1] - ends[:, 0]) < 1.4 * 3.92 * np.std(areas)


@pytest.mark.parametrize("labels", [[0, 1], ["a", "b", "c"]])
def test_the_auroc_has_an_interval(labels):
    predictions = split("test", 400, labels=labels)
    analyses, _ = analyze({"test": predictions}, class_labels=labels)
    low, high = analyses["test"].intervals["auroc"]
    assert 0.5 < low < (analyses["test"].metric("auroc") or 0) < high <= 1
