"""Findings that sampling error can cause have conditions that hold for few rows (docs/findings.md)."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.findings import CASES, job, scored, texts_of
from container.decision.decision import Decision
from container.evaluation.companion_report import CompanionReport, companion_sentences
from container.evaluation.evaluation_input import Explanation, Importance
from container.evaluation.reliability import calibrate
from testing.evaluations import two_splits
from testing.jobs import REPOSITORY


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_finding_is_seldom_false_and_mostly_found(case):
    false, found = case.rates(20)
    assert false <= 0.1
    assert found >= 0.8


def test_the_table_of_findings_has_each_simulated_one():
    table = (REPOSITORY / "docs/findings.md").read_text()
    assert [case.name for case in CASES if case.name.split(",")[0] not in table] == []


@pytest.mark.parametrize("rows", [200, 2000])
def test_perfectly_calibrated_scores_exceed_the_limit_in_a_hundredth_of_samples(rows):
    rng = np.random.default_rng(0)
    found = [calibrate(of.labels, of.probabilities) for of in (scored(rng, "test", rows, 0.8) for _ in range(400))]
    above = np.mean([each.expected_calibration_error > each.most_if_calibrated for each in found])
    assert above <= 0.03
    assert 0.6 * found[0].most_if_calibrated < max(each.expected_calibration_error for each in found)


@pytest.mark.parametrize(("method", "advises"), [("none", True), ("temperature", False)])
def test_calibration_is_advised_only_where_none_is_on(method, advises):
    rng = np.random.default_rng(0)
    splits = [scored(rng, name, 400, 0.8, rate=0.02, sharpness=3.0) for name in ("val", "test")]
    texts = texts_of(job(*splits, decision=Decision(method=method)))
    assert any("Do not read the scores" in text for text in texts)
    assert any("calibration if scores are used" in text for text in texts) == advises
    assert any("choose calibration" in text for text in texts) == advises


def test_leakage_is_the_first_finding_of_a_perfect_model():
    rng = np.random.default_rng(0)
    first, *_ = texts_of(job(scored(rng, "val", 300, 0.9999), scored(rng, "test", 300, 0.9999)))
    assert first.startswith("Check for target leakage first: AUROC is")
    first, *_ = texts_of(job(scored(rng, "val", 300, 0.8), scored(rng, "test", 300, 0.9999)))
    assert "leakage" not in first


@pytest.mark.parametrize(("records", "named"), [(4, False), (100, True)])
def test_a_column_of_a_perfect_model_is_questioned_only_with_enough_records(records, named):
    importance = (Importance("plan", "categorical", 0.6, 0.1), Importance("price", "numeric", 0.0, 0.1))
    explanation = Explanation("auroc", 1.0, records, 3, 1.0, columns=importance, split="test")
    rng = np.random.default_rng(0)
    made = job(scored(rng, "val", 40, 0.8), scored(rng, "test", records, 0.9), explanation=explanation)
    assert any("depends almost only on plan" in text for text in texts_of(made)) == named


@pytest.mark.parametrize(
    ("models", "kind"), [("boosted trees", "trees"), ("0.9 * extra trees + 0.5 * linear", "companion")]
)
@pytest.mark.parametrize(("factors", "named"), [((0.05, 1.0), True), ((0.5, 0.6), False)])
def test_a_network_of_little_weight_is_named_in_the_log_and_on_the_page(factors, named, models, kind):
    report = CompanionReport(True, factors=factors, improvement=0.01, standard_error=0.001, models=models)
    found = [str(report), *texts_of(replace(two_splits(), companion=report))]
    assert [(f"he model is the {kind}:" in text) for text in (found[0], " ".join(found[1:]))] == [named, named]
    assert companion_sentences(report)
