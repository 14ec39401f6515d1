"""The report of a job that a search chose: every trial, what pruning saved, and how certain the choice is."""

import re
from dataclasses import replace

import numpy as np
import pytest

from container.evaluation.metrics import classification_metrics
from container.evaluation.tuning_report import tuning_section
from testing.evaluations import two_splits
from tests.evaluation.test_report import HOSTILE, Page, charts, check_charts, report, rows_of


def trial(number, value, *, state="complete", steps=90, **settings):
    facts = {"seconds": 1.5, "planned_steps": 90, "reason": "" if state == "complete" else "worse"}
    given = {"lr": 10.0 ** -(2 + number), "model_class": "bert", "kernel_size": [2, number], **settings}
    return {"number": number, "state": state, "value": value, "steps": steps, "settings": given, **facts}


def summary(*trials, **changes):
    winner = {"trial": 1, "value": 0.84, "networks": 1, "model": None}
    importance = {"lr": 0.8, "model_class": 0.2}
    found = {"metric": "val/auroc", "minimizes": False, "importance": importance, "winner": winner}
    return {**found, "trials": list(trials), **changes}


WHOLE = (trial(0, 0.8), trial(1, 0.84), trial(2, 0.7, state="pruned", steps=10), trial(3, None, state="fail", steps=0))


def test_the_section_has_a_row_for_each_trial_and_charts_without_points_that_are_no_numbers(tmp_path):
    markup = report(tmp_path, replace(two_splits(), tuning=summary(*WHOLE, importance={"lr": 1.0})))
    page = Page(markup)
    assert "Search of hyperparameters" in page.text
    assert len(rows_of(markup, "tuning")) == 1 + len(WHOLE)
    assert len(charts(markup)) > len(charts(report(tmp_path, two_splits()))) + 4
    check_charts(markup)


@pytest.mark.parametrize("trials", [WHOLE[:1], (WHOLE[0], WHOLE[3]), (WHOLE[0], WHOLE[2])])
def test_a_search_with_one_result_is_described_too(tmp_path, trials):
    Page(report(tmp_path, replace(two_splits(), tuning=summary(*trials, importance={}))))


def test_the_saved_steps_are_those_that_pruned_trials_did_not_take_and_failed_ones_do_not_count():
    sentences = " ".join(tuning_section(summary(*WHOLE), error=None).sentences)
    assert "saved 80 of 270 optimizer steps (29.6%)" in sentences
    assert "The model has the settings of trial 1. Its network, with 0.84, became the model;" in sentences


def test_the_networks_of_the_best_settings_are_described():
    winner = {"trial": 1, "value": 0.84, "networks": 3, "model": "average"}
    sentences = " ".join(tuning_section(summary(*WHOLE, winner=winner), error=None).sentences)
    assert "Of 3 networks with these settings, the average of their probabilities became the model;" in sentences


@pytest.mark.parametrize(("error", "meaning"), [(0.1, "at most one standard error"), (0.01, "more than one")])
def test_the_distance_to_the_second_is_compared_with_the_standard_error_of_val(error, meaning):
    sentences = " ".join(tuning_section(summary(*WHOLE), error=error).sentences)
    assert "The best trial is 0.04 from the second (trial 0)." in sentences
    assert meaning in sentences


@pytest.mark.parametrize("labels", [(0, 1), (0, 1, 2)])
@pytest.mark.parametrize("metric", ["f1_score", "loss", "auroc", "accuracy"])
def test_a_metric_has_the_standard_error_of_its_values_on_samples_of_val(tmp_path, metric, labels):
    given = two_splits(300, labels=labels)
    val, rng = given.splits["val"], np.random.default_rng(1)

    def value(rows):
        if metric == "loss":
            return -np.log(val.probabilities[rows, val.labels[rows]]).mean()
        return classification_metrics(val.labels[rows], val.probabilities[rows], [metric]).values[metric]

    samples = [value(rng.integers(0, 300, 300)) for _ in range(300)]
    given = replace(given, tuning=summary(*WHOLE, metric=f"val/{metric}"), class_weights=[1.0] * len(labels))
    page = Page(report(tmp_path, given))
    error = float(re.search(rf"The standard error of val/{metric} is ([\d.]+):", page.text)[1])
    assert error == pytest.approx(np.std(samples), rel=0.25)


def test_a_metric_that_the_bootstrap_does_not_have_has_no_standard_error(tmp_path):
    for metric in ("precision", "average_precision"):
        page = Page(report(tmp_path, replace(two_splits(), tuning=summary(*WHOLE, metric=f"val/{metric}"))))
        assert "from the second" in page.text
        assert "The standard error" not in page.text


def test_equal_trials_do_not_differ_by_more_than_a_standard_error_of_zero():
    equal = summary(trial(0, 1.0), trial(1, 1.0))
    sentences = " ".join(tuning_section(equal, error=0.0).sentences)
    assert "The best trial is 0 from the second" in sentences
    assert "at most one standard error" in sentences


def test_the_best_of_a_loss_is_the_lowest():
    sentences = " ".join(tuning_section(summary(*WHOLE, metric="val/loss", minimizes=True), error=None).sentences)
    assert "from the second (trial 1)" in sentences


def drawn(*trials):
    """Return the series of the chart of all trials, and of the first setting."""
    return [chart.series for chart in tuning_section(summary(*trials, importance={}), error=None).charts][:2]


def test_the_best_value_is_drawn_until_the_last_trial():
    history, _ = drawn(*WHOLE)
    assert (list(history[0].x), list(history[0].y)) == ([0, 1, 3], [0.8, 0.84, 0.84])


def test_complete_trials_are_drawn_over_pruned_ones():
    for series in drawn(*WHOLE):
        assert [each.name for each in series][-2:] == ["pruned", "complete"]


def test_no_setting_becomes_markup(tmp_path):
    trials = (trial(0, 0.8, tokenizer=HOSTILE), trial(1, 0.9, tokenizer=HOSTILE))
    assert HOSTILE not in report(tmp_path, replace(two_splits(), tuning=summary(*trials)))
