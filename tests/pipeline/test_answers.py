"""Compare the answers of a served version with the registered ones."""

import pytest

from pipeline.answers import first_difference

JSON = "application/json"
ANSWER = '{"class_labels": [0, 1], "predictions": [{"predicted_label": 0, "probabilities": [0.75, 0.25]}]}'


@pytest.mark.parametrize(
    ("before", "now", "content_type", "difference"),
    [
        (ANSWER, ANSWER.replace("0.75", "0.75009"), JSON, None),
        (
            ANSWER,
            ANSWER.replace("0.75", "0.7502"),
            JSON,
            ".predictions[0].probabilities[0] is 0.7502, registered is 0.75",
        ),
        (ANSWER, ANSWER.replace("[0, 1]", "[0, 1, 2]"), JSON, ".class_labels is [0, 1, 2], registered is [0, 1]"),
        (ANSWER, ANSWER.replace("predicted_label", "label"), JSON, ".predictions[0] is {'label'"),
        (ANSWER, "<html>", JSON, "the answer '<html>' cannot be read"),
        ("yes,0.75,0.25\n", "yes,0.75,0.25\n", "text/csv", None),
        ("yes,0.75,0.25\n", "no,0.75,0.25\n", "text/csv", "[0][0] is 'no', registered is 'yes'"),
        ("0,0.75\n", "0,0.75\n0,0.75\n", "text/csv", "the answer is [[0.0, 0.75], [0.0, 0.75]]"),
        ("0,nan\n", "0,0.5\n", "text/csv", "[0][1] is 0.5, registered is nan"),
    ],
)
def test_the_first_difference_of_two_answers_is_named(before, now, content_type, difference):
    found = first_difference(before, now, content_type, tolerance=1e-4)
    assert found == difference if difference is None else found.startswith(difference)
