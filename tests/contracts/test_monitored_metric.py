"""One order of validations for early stopping, searches and ensembles."""

import math

import pytest

from contracts.monitored_metric import MonitoredMetric


@pytest.mark.parametrize(("setting", "name"), [("val_loss", "val/loss"), ("val/auroc", "val/auroc")])
def test_a_metric_has_the_name_that_the_history_has(setting, name):
    assert MonitoredMetric.of(setting).name == name


@pytest.mark.parametrize(("name", "values"), [("val/loss", (0.1, 0.5)), ("val/auroc", (0.9, 0.5))])
def test_the_best_value_is_first_and_an_undefined_one_is_last(name, values):
    rank = MonitoredMetric(name).rank
    assert sorted([None, values[1], values[0]], key=rank) == [*values, None]
    assert rank(math.nan) == rank(math.inf) == rank(None)


def test_of_equal_values_the_lower_loss_is_first_and_an_unknown_one_is_last():
    rank = MonitoredMetric("val/f1_score").rank
    assert rank(0.0, 0.2) < rank(0.0, 0.4) < rank(0.0, None) == rank(0.0, math.nan)
