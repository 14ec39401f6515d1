"""The scores of a baseline, and those of new records."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from container.monitoring.baseline import Scores


def test_the_average_precision_of_new_records_is_that_of_the_class_that_was_rarer_in_test():
    rng = np.random.default_rng(0)
    first = rng.random(200)
    probabilities, rare = np.stack([first, 1 - first], axis=1), rng.random(200) < 0.2
    then = Scores.of(probabilities, rare.astype(int), [0, 1])
    now = Scores.of(probabilities, (~rare).astype(int), [0, 1], then=then)
    assert now.metrics is not None
    expected = average_precision_score(~rare, probabilities[:, 1])
    assert now.metrics["average_precision"].value == pytest.approx(expected)
