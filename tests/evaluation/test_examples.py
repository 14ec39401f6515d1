"""The report shows the most confident errors and the metrics of each value of a category."""

import numpy as np
import pytest

from container.evaluation.examples import metrics_of_values, most_confident_errors, shortened
from testing.evaluations import split


def test_the_errors_are_those_with_the_highest_probability_of_the_decided_class_and_have_a_label():
    labels, decided = np.array([0, 1, 0, -100, 1]), np.array([1, 0, 0, 1, 0])
    probabilities = np.array([[0.4, 0.6], [0.9, 0.1], [0.99, 0.01], [0.0, 1.0], [0.7, 0.3]])
    assert most_confident_errors(labels, decided, probabilities).tolist() == [1, 4, 0]


def test_at_most_ten_errors_are_shown():
    labels, decided = np.zeros(40, np.int64), np.ones(40, np.int64)
    assert len(most_confident_errors(labels, decided, np.full((40, 2), 0.5))) == 10


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        ({"chat": "two\n lines"}, "two lines"),
        ({"chat": "x" * 300}, "x" * 239 + "…"),
        ({"chat": "a" * 200, "events": "b"}, "chat: " + "a" * 119 + "… · events: b"),
        ({"chat": None, "events": "b"}, "events: b"),
        ({"chat": None}, ""),
    ],
)
def test_a_text_is_shortened_to_one_line_and_several_share_its_length(texts, shown):
    assert shortened(texts) == shown


def test_only_columns_with_2_to_10_values_of_30_records_are_measured_and_the_most_different_is_first():
    predictions = split("test", 800, labels=[0, 1])
    right = predictions.probabilities.argmax(axis=1) == predictions.labels
    columns = {
        "even": ["ab"[i % 2] for i in range(800)],
        "rare": ["a" if i > 20 else "b" for i in range(800)],
        "many": [str(i % 11) for i in range(800)],
        "decides": [str(known) for known in right],
    }
    found = metrics_of_values(columns, predictions, threshold=0.5, class_labels=[0, 1])
    assert list(found) == ["decides", "even"]
    assert {each.group: each.metrics.values["accuracy"] for each in found["decides"]} == {"True": 1.0, "False": 0.0}
