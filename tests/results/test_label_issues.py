"""Label issues: found from out-of-fold probabilities, written as a table, and shown."""

import csv
import json
import logging
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from container.evaluation.evaluate import write_evaluation
from container.evaluation.evaluation_input import LabelIssuesReport
from container.results import label_issues as in_job
from container.results.label_issues import (
    OutOfFold,
    best_source,
    find_label_issues,
    report_label_issues,
    write_label_issues,
)
from container.training.job_data import JobData
from testing.evaluations import two_splits


def flipped(rows: int = 2000, *, share: float = 0.03, seed: int = 0) -> tuple[OutOfFold, np.ndarray]:
    """Probabilities that are mostly right, and the positions of the rows whose label was flipped."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, rows)
    logits = rng.normal(size=(rows, 3)) + 4 * np.eye(3)[truth]
    wrong = rng.choice(rows, int(share * rows), replace=False)
    labels = truth.copy()
    labels[wrong] = (truth[wrong] + rng.integers(1, 3, len(wrong))) % 3
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    # Row i is at position 10 + i of train; class index k is class 2 * k.
    return OutOfFold("a model", np.arange(rows) + 10, np.array([0, 2, 4]), labels, probabilities), wrong + 10


def test_flipped_labels_are_found_most_suspicious_first():
    found, wrong = flipped()
    issues = find_label_issues(found)
    assert issues.examined == 2000
    assert (np.diff(issues.scores) >= 0).all()
    assert np.isin(issues.positions[: len(wrong)], wrong).mean() > 0.9
    truth = found.probabilities.argmax(axis=1)
    assert (issues.suggested == 2 * truth[issues.positions - 10]).all()


def test_rows_without_a_doubt_have_no_issues():
    labels = np.repeat([0, 1], 50)
    found = OutOfFold("a model", np.arange(100), np.arange(2), labels, np.eye(2)[labels] * 0.98 + 0.01)
    assert len(find_label_issues(found).positions) == 0


def test_the_file_has_the_row_the_id_and_both_labels_as_the_user_wrote_them(tmp_path):
    issues = replace(find_label_issues(flipped()[0]), positions=np.array([3, 1]))
    issues = replace(issues, suggested=np.array([1, 0]), scores=np.array([0.125, 0.5]))
    report = write_label_issues(
        tmp_path / "label_issues.csv",
        issues,
        places={"row": np.array([0, 5, 6, 2]), "split": np.array(["train"] * 3 + ["val"])},
        ids=pa.chunked_array([["a", "007"], ["c", 'd "x", y']]),
        given=pa.chunked_array([["bad", "good", "bad", "bad"]]),
        class_labels=["bad", "good"],
    )
    with (tmp_path / "label_issues.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["row", "id", "given_label", "suggested_label", "score", "split"],
            ["2", 'd "x", y', "bad", "good", "0.125", "val"],
            ["5", "007", "good", "bad", "0.5", "train"],
        ]
    assert (report.issues, report.rows[1]["id"]) == (2, "007")


def test_the_report_and_the_metrics_have_the_issues(tmp_path):
    row = {"row": 7, "id": "<b>", "given_label": "0", "suggested_label": 1, "score": 0.25, "split": "val"}
    made = replace(two_splits(), label_issues=LabelIssuesReport("a model", 1000, 1, [row]))
    assert write_evaluation(tmp_path, made)["label_issues"]["issues"] == 1
    page = (tmp_path / "report.html").read_text()
    assert "1 of 1,000 training rows have a label that is probably wrong" in page
    assert '<th>7 of val</th><td class="text">&lt;b&gt;</td>' in page


@pytest.mark.parametrize("failing", ["_of_networks", "find_label_issues", "write_label_issues"])
def test_after_an_error_the_job_goes_on_without_the_file(failing, tmp_path, caplog, monkeypatch):
    def fail(*_, **__):
        raise MemoryError("too large")

    monkeypatch.setattr(in_job, failing, fail)
    networks = np.full((2010, 5), 0.2) if failing == "_of_networks" else None
    assert report_label_issues(tmp_path, job_data(), flipped()[0], networks=networks) is None
    assert not (tmp_path / "label_issues.csv").exists()
    assert warnings_of(caplog) == ["label_issues: none, because of MemoryError: too large"]


def test_without_probabilities_there_is_no_file_but_a_warning(tmp_path, caplog):
    assert report_label_issues(tmp_path, job_data(), None) is None
    assert not (tmp_path / "label_issues.csv").exists()
    assert warnings_of(caplog) == ["label_issues: none, because there are no out-of-fold probabilities"]


def warnings_of(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def job_data(class_weights=(1.0,) * 5, weights=None) -> JobData:
    ids = pa.chunked_array([pa.array(range(2010))])
    split = SimpleNamespace(column=lambda _: ids, weights=lambda: np.ones(2010) if weights is None else weights)
    prepared = SimpleNamespace(fitted=SimpleNamespace(class_labels=list("abcde")))
    return JobData(cast(Any, prepared), {"train": cast(Any, split)}, cast(Any, class_weights))


def test_weights_of_the_classes_change_no_issue(tmp_path):
    found, _ = flipped()
    weights = np.array([1.0, 7.0, 9.0, 7.0, 0.5])
    weighted = found.probabilities * weights[found.classes]
    weighted /= weighted.sum(axis=1, keepdims=True)
    plain = report_label_issues(tmp_path, job_data(), found)
    assert plain is not None
    assert report_label_issues(tmp_path, job_data(weights), replace(found, probabilities=weighted)) == plain


def test_rows_of_weight_0_are_not_examined(tmp_path):
    found, wrong = flipped()
    weights = np.ones(2010)
    weights[wrong[::2]] = 0
    report = report_label_issues(tmp_path, job_data(weights=weights), found)
    assert report is not None
    assert report.examined == 2000 - len(wrong[::2])
    with (tmp_path / "label_issues.csv").open(newline="") as file:
        rows = [int(row["row"]) for row in csv.DictReader(file)]
    assert np.isin(wrong[1::2], rows).mean() > 0.9
    assert not np.isin(rows, wrong[::2]).any()


@pytest.mark.parametrize(
    ("value", "shown"),
    [(datetime(2026, 1, 2), "2026-01-02 00:00:00"), (Decimal("1.50"), "1.50"), (float("nan"), "nan"), (2.5, 2.5)],
)
def test_ids_of_any_type_can_be_shown(tmp_path, value, shown):
    issues = replace(
        find_label_issues(flipped()[0]), positions=np.array([0]), suggested=np.array([1]), scores=np.zeros(1)
    )
    ids = pa.chunked_array([[value]])
    places = {"row": np.arange(1), "split": np.array(["train"])}
    report = write_label_issues(
        tmp_path / "a.csv", issues, places=places, ids=ids, given=ids, class_labels=["bad", "good"]
    )
    assert json.loads(json.dumps(report.rows, allow_nan=False))[0]["id"] == shown


def test_a_source_without_a_log_loss_is_not_used():
    good, _ = flipped()
    broken = replace(good, probabilities=np.full_like(good.probabilities, np.nan))
    assert best_source([broken, good]) is good


def test_the_source_that_predicts_the_given_labels_best_is_used(tmp_path):
    good, _ = flipped()
    bad = replace(good, source="a worse model", probabilities=np.roll(good.probabilities, 1, axis=1))
    report = report_label_issues(tmp_path, job_data(), bad, good, None)
    assert report is not None
    assert report.source == "a model"


def test_sources_are_compared_on_the_rows_and_classes_that_both_have():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [400, 400, 200])
    sure = np.full((1000, 3), 0.05) + 0.85 * np.eye(3)[labels]
    sure[800:] = [0.45, 0.45, 0.1]  # rows of a class that the other source does not examine
    networks = OutOfFold("networks", np.arange(1000), np.arange(3), labels, sure)
    trees = OutOfFold("trees", np.arange(800), np.arange(2), labels[:800], rng.dirichlet((9, 9), 800))
    trees.probabilities[np.arange(800), labels[:800]] += 1
    trees.probabilities[:] /= trees.probabilities.sum(axis=1, keepdims=True)
    everywhere = [
        -np.log(np.take_along_axis(each.probabilities, each.labels[:, None], 1)).mean() for each in (networks, trees)
    ]
    assert everywhere[0] > everywhere[1], "over its own rows, the source with the harder ones seems worse"
    assert best_source([networks, trees]) is best_source([trees, networks]) is networks
    assert best_source([trees]) is trees


def test_probabilities_of_networks_are_those_of_labelled_rows_over_the_classes_of_train():
    split = SimpleNamespace(column=lambda _: pa.chunked_array([[2, -100, 0, 2]]))
    given = np.tile([0.25, 0.5, 0.25], (4, 1))
    found = in_job._of_networks(cast(JobData, SimpleNamespace(splits={"train": split})), given)
    assert (found.rows.tolist(), found.classes.tolist(), found.labels.tolist()) == ([0, 2, 3], [0, 2], [1, 0, 1])
    np.testing.assert_array_equal(found.probabilities, np.full((3, 2), 0.5))
    assert (given[:, 1] == 0.5).all(), "the file of out-of-fold probabilities needs them"
