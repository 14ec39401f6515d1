"""The report says whether the companion is used, why not, and what each part of the model is worth."""

from dataclasses import replace

import pytest

from container.evaluation.bootstrap import Estimate
from container.evaluation.companion_report import CompanionReport
from container.evaluation.evaluate import write_evaluation
from testing.evaluations import two_splits

ESTIMATES = {name: Estimate(0.5, 0.01) for name in ("loss", "auroc", "average_precision", "accuracy", "f1_score")}
KEPT = CompanionReport(
    kept=True,
    factors=(0.7, 0.4),
    improvement=0.02,
    standard_error=0.005,
    rounds=100,
    rows=5000,
    num_bytes=700_000,
    seconds=3.2,
    parts={"network": {"val": ESTIMATES, "test": {**ESTIMATES, "auroc": Estimate(None)}}},
)
REASON = "val does not improve by more than the standard error"


def page(folder, report: CompanionReport) -> str:
    write_evaluation(folder, replace(two_splits(), companion=report))
    return (folder / "report.html").read_text()


def test_a_companion_that_is_used_has_its_factors_and_a_table_for_each_split(tmp_path):
    shown = page(tmp_path, KEPT)
    assert "logits of the model are 0.7 * network + 0.4 * companion" in shown
    assert "Each part alone, on val" in shown
    assert "Each part alone, on test" in shown
    assert '<td>0.5000<br><small class="nowrap">± 0.0100</small></td>' in shown
    assert "<td>–</td>" in shown


@pytest.mark.parametrize(("improvement", "change"), [(0.02, "-0.0200"), (-0.02, "+0.0200")])
def test_the_companions_change_of_the_log_loss_has_its_sign(tmp_path, improvement, change):
    report = replace(KEPT, improvement=improvement)
    assert f"The blend changes the log loss on val by {change} (standard error 0.0050)" in page(tmp_path, report)
    assert f"log loss on val {change}0, standard error 0.00500" in str(report)


def test_the_average_precision_of_two_classes_names_its_class(tmp_path):
    assert "average precision of class 1" in page(tmp_path, replace(KEPT, rarer_class=1))


@pytest.mark.parametrize(
    ("report", "sentence"),
    [
        (CompanionReport(False, "there is one class"), "The model is the network alone: there is one class."),
        (replace(KEPT, kept=False, reason=REASON), f"The companion is not part of the model: {REASON}."),
    ],
)
def test_a_companion_that_is_not_used_has_the_reason(tmp_path, report, sentence):
    assert sentence in page(tmp_path, report)
    assert report.reason in str(report)


def test_without_a_companion_there_is_no_section(tmp_path):
    write_evaluation(tmp_path, two_splits())
    assert "Companion" not in (tmp_path / "report.html").read_text()
