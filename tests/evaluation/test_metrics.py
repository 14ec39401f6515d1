import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from container.evaluation.metrics import classification_metrics, one_vs_rest
from contracts.metrics import METRICS


def binary(scores):
    scores = np.array(scores, float)
    return np.stack([1 - scores, scores], axis=1)


def test_two_classes_are_scored_by_class_1_at_one_half():
    labels, scores = np.array([0, 0, 1, 1, 1]), [0.1, 0.6, 0.5, 0.9, 0.2]
    values = classification_metrics(labels, binary(scores), METRICS).values
    assert values["precision"] == pytest.approx(2 / 3)
    assert values["recall"] == pytest.approx(2 / 3)
    assert values["f1_score"] == pytest.approx(2 / 3)
    assert values["accuracy"] == pytest.approx(3 / 5)
    assert values["auroc"] == pytest.approx(roc_auc_score(labels, scores))
    assert values["average_precision"] == pytest.approx((1 / 1 + 2 / 3 + 3 / 4) / 3)


def test_more_classes_are_averaged_over_those_that_occur():
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(4), 200)
    labels = rng.integers(0, 3, 200)  # class 3 never occurs
    found = classification_metrics(labels, probabilities, METRICS)
    expected = np.mean([roc_auc_score(labels == k, probabilities[:, k]) for k in range(3)])
    assert found.values["auroc"] == pytest.approx(expected)
    assert found.values["accuracy"] == pytest.approx((probabilities.argmax(1) == labels).mean())
    assert not found.undefined


@pytest.mark.parametrize("classes", [2, 3])
def test_a_probability_that_is_not_a_number_makes_every_metric_undefined(classes):
    probabilities = np.full((4, classes), 1 / classes)
    probabilities[2] = np.nan
    found = classification_metrics(np.array([0, 1, 0, 1]), probabilities, METRICS)
    assert set(found.values.values()) == {None}
    assert set(found.undefined.values()) == {"1 of 4 labelled records have a probability that is not a number"}


def test_an_undefined_metric_is_none_with_a_reason_never_zero():
    found = classification_metrics(np.array([1, 1, 1]), binary([0.2, 0.9, 0.8]), METRICS)
    assert found.values["auroc"] is None
    assert found.values["accuracy"] == pytest.approx(2 / 3)
    assert found.undefined.keys() == {"auroc", "average_precision"}
    assert "3 labelled records are of class 1" in found.undefined["auroc"]


def test_a_ratio_over_nothing_is_none_and_a_ratio_of_nothing_is_zero():
    unflagged = classification_metrics(np.array([0, 1, 1]), binary([0.1, 0.2, 0.3]), METRICS)
    assert unflagged.undefined == {"precision": "no record reaches probability 0.5 of class 1"}
    assert (unflagged.values["precision"], unflagged.values["recall"], unflagged.values["f1_score"]) == (None, 0.0, 0.0)
    no_positive = classification_metrics(np.array([0, 0]), binary([0.1, 0.9]), METRICS)
    assert no_positive.undefined.keys() == {"auroc", "average_precision", "recall"}
    assert (no_positive.values["precision"], no_positive.values["f1_score"]) == (0.0, 0.0)
    neither = classification_metrics(np.array([0, 0]), binary([0.1, 0.2]), METRICS, class_labels=["kept", "sent back"])
    assert {name for name, value in neither.values.items() if value is not None} == {"accuracy"}
    assert neither.undefined["recall"] == "all 2 labelled records are of class kept"
    assert neither.undefined["precision"] == "no record reaches probability 0.5 of class sent back"


def test_a_class_that_is_never_decided_lowers_the_mean_precision():
    probabilities = np.array([[0.8, 0.1, 0.1]] * 4)
    found = classification_metrics(np.array([0, 0, 1, 2]), probabilities, METRICS)
    assert found.values["precision"] == pytest.approx((0.5 + 0 + 0) / 3)
    assert not found.undefined


def test_unlabelled_records_are_left_out():
    labels, scores = np.array([0, 1, -100]), [0.1, 0.9, 0.0]
    assert classification_metrics(labels, binary(scores), ["accuracy"]).values["accuracy"] == 1.0
    nothing = classification_metrics(np.array([-100]), binary([0.5]), METRICS)
    assert set(nothing.values.values()) == {None}
    assert nothing.undefined["f1_score"] == "no record has a label"


def test_a_class_that_never_or_always_occurs_has_no_curve():
    assert [k for k, _, _ in one_vs_rest(np.array([0, 0, 2]), np.full((3, 3), 1 / 3))] == [0, 2]
    assert [k for k, _, _ in one_vs_rest(np.array([0, 1]), binary([0.1, 0.9]))] == [1]
