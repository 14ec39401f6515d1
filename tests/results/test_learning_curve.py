"""learning_curve: the AUROC of the companion out of fold at parts of train, and whether more rows would help."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from container.commands import main
from container.evaluation.evaluate import write_evaluation
from container.evaluation.evaluation_input import LearningCurve
from container.results.learning_curve import learning_curve
from testing.companions import FIELD, Split, rows
from testing.evaluations import two_splits
from testing.jobs import write_job


def curve(*parts):
    hp = SimpleNamespace(text_fields=(FIELD,), seed=0)
    return learning_curve(hp, SimpleNamespace(splits={"train": Split(*parts)}, class_weights=[1.0, 1.0]))


@pytest.mark.slow
def test_the_curve_grows_with_the_rows_and_has_intervals():
    found = curve(rows(800))
    counts, areas = zip(*((count, point[0]) for count, point in found.points.items()), strict=True)
    assert np.allclose(counts, [200, 400, 600, 800], atol=60)
    assert counts[-1] == 800
    assert all(low < area < high for area, (low, high) in found.points.values())
    assert found.doubling is not None
    value, (low, high) = found.doubling
    assert low < value < high
    assert areas[-1] - areas[1] == pytest.approx(value, abs=0.05)


def test_too_few_rows_have_a_reason_instead_of_a_curve():
    found = curve(rows(12))
    assert "fewer than two classes have 10 training rows" in found.problem
    assert str(found).startswith("learning curve: not measured, because fewer")


@pytest.mark.parametrize(
    ("interval", "says"),
    [((0.01, 0.05), "more rows would probably help"), ((-0.01, 0.05), "more rows are not shown to help")],
)
def test_the_page_and_metrics_json_say_whether_more_rows_would_help(interval, says, tmp_path):
    made = two_splits()
    points = {100: (0.7, (0.6, 0.8)), 200: (0.75, None)}
    object.__setattr__(made, "learning_curve", LearningCurve("trees", points, (0.03, interval)))
    written = write_evaluation(tmp_path, made)["learning_curve"]
    assert written["points"]["100"] == [0.7, [0.6, 0.8]]
    page = (tmp_path / "report.html").read_text()
    assert says in page
    assert "From half of the rows to all, the AUROC of trees changes by" in page
    assert '<section id="curve">' in page
    assert "0.600–0.800" in page


@pytest.mark.slow
def test_train_with_learning_curve_writes_one(tmp_path):
    paths = write_job(tmp_path, overrides={"max_epochs": 1, "nproc_per_node": 1}, rows=(160, 24, 24))
    assert main(["train", "--root", str(paths.root), "--learning-curve"]) == 0
    found = json.loads((paths.output_data / "metrics.json").read_text())["learning_curve"]
    assert list(found["points"])[-1] == "160"
