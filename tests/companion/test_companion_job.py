"""A job with `companion`; tests/decision/test_outcome.py compares its predictions with those that are served."""

import json
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest

from container.companion.fit import fit_companion
from container.companion.graph import predict
from container.data.split import PreparedSplit
from container.decision.softmax import softmax
from container.evaluation.metrics import classification_metrics
from container.predictor import Predictor
from container.preprocessing.prepare import prepare_data
from container.steps.packaging import served_files
from contracts.errors import ContractError
from contracts.hyperparameter_files import load_hyperparameters
from contracts.paths import JobPaths
from testing.jobs import ONE_LAYER, log_of, metrics, run_train, table, write_job

pytestmark = pytest.mark.slow

PARTS = {"network", "companion", "network and companion", "text, linear", "table"}


def test_the_companion_is_in_the_model_the_log_the_metrics_and_the_report(calibrated_job: JobPaths) -> None:
    found, log = metrics(calibrated_job)["companion"], log_of(calibrated_job)
    assert found["kept"], "the other tests of this job need it"
    assert f"companion: logits = {found['factors'][0]:.3g} * network" in log
    assert metrics(calibrated_job)["timeline"]["companion"] > 0
    assert set(found["parts"]) == PARTS
    report = (calibrated_job.output_data / "report.html").read_text()
    for part in PARTS:
        assert f"<tr><th>{part}</th>" in report
        assert f"<td>{found['parts'][part]['test']['loss']['value']:.4f}<br>" in report
    saved = onnx.load(calibrated_job.model / "companion.onnx")
    assert [float(entry.value) for entry in saved.metadata_props] == found["factors"]
    assert json.loads((calibrated_job.model / "hyperparameters.json").read_text())["companion"] is True


def test_the_blend_is_measured_as_the_model_is(calibrated_job: JobPaths) -> None:
    found = metrics(calibrated_job)
    for split in ("val", "test"):
        blend = found["companion"]["parts"]["network and companion"][split]["auroc"]["value"]
        assert found[f"{split}/auroc"] == pytest.approx(blend, abs=0.02)  # isotonic calibration joins some scores


def test_a_package_contains_the_companion_with_the_weights_alone(calibrated_job: JobPaths) -> None:
    packed = {
        weights: served_files(calibrated_job.model, calibrated_job.model, include_weights=weights)
        for weights in (True, False)
    }
    assert "companion.onnx" in packed[True]
    assert "companion.onnx" not in packed[False]  # model.onnx contains it


def test_label_issues_are_a_file_a_line_in_the_log_and_a_section(calibrated_job: JobPaths) -> None:
    found = metrics(calibrated_job)["label_issues"]
    assert found["examined"] == 60
    with (calibrated_job.output_data / "label_issues.csv").open() as file:
        assert len(file.readlines()) == 1 + found["issues"]
    assert f"label_issues: {found['issues']} of 60 training rows" in log_of(calibrated_job)
    assert "<h2>Label issues</h2>" in (calibrated_job.output_data / "report.html").read_text()


def test_a_damaged_companion_is_named(calibrated_job: JobPaths, tmp_path) -> None:
    for entry in calibrated_job.model.iterdir():
        (tmp_path / entry.name).symlink_to(entry)
    (tmp_path / "companion.onnx").unlink()
    (tmp_path / "companion.onnx").write_bytes(b"not a graph")
    Predictor.load(tmp_path).predict(table(1, seed=0))  # model.onnx needs no other file
    with pytest.raises(ContractError, match=r"companion\.onnx: cannot be loaded"):
        Predictor.load(tmp_path, backend="torch")


def run_job(root: Path, frames: dict[str, pd.DataFrame], **settings) -> tuple[JobPaths, str]:
    """Run a job with a companion; return its paths and the only line of its log about the companion.

    Its predictions are those of model.onnx.
    """
    job = {"companion": True, "encoder_config": ONE_LAYER, "max_epochs": 1, **settings}
    paths = write_job(root, overrides=job, frames=frames)
    (line,) = (line for line in run_train(paths).splitlines() if "companion: " in line)
    written = pd.read_csv(paths.output_data / "test_predictions.csv").filter(like="prob_class_").to_numpy()
    np.testing.assert_allclose(Predictor.load(paths.model).predict(frames["test"]), written, atol=1e-4)
    return paths, line


def test_a_job_with_a_constant_column_and_19_rows_of_val_has_no_companion_and_says_why(tmp_path: Path) -> None:
    rows = {"train": 60, "val": 19, "test": 24}
    frames = {split: table(number, seed=number).assign(quantity=1) for split, number in rows.items()}
    paths, line = run_job(tmp_path, frames)
    assert line.endswith("companion: none, because 19 labelled val records are fewer than 20")
    assert metrics(paths)["companion"]["kept"] is False
    assert not (paths.model / "companion.onnx").exists()


def test_a_job_without_a_table_and_with_a_class_of_3_rows_has_a_companion(tmp_path: Path) -> None:
    frames = {split: table(number, seed=number) for split, number in {"train": 80, "val": 60, "test": 24}.items()}
    frames["train"].loc[77:, "label"] = 2
    three = {"is_binary": False, "num_classes": 3, "multiclass_categories": [0, 1, 2]}
    no_table = {"model_class": "bert", "tab_field_list": None, "cat_field_list": None, "hidden_common_dim": None}
    paths, line = run_job(tmp_path, frames, **three, **no_table)
    assert "companion: logits = " in line
    assert set(metrics(paths)["companion"]["parts"]) == PARTS - {"table"}
    assert metrics(paths)["companion"]["rows"] == 77


def test_a_column_with_a_category_for_each_row_leaves_the_companion_as_it_is(tmp_path: Path) -> None:
    """Out-of-fold values are the prior of all rows: the column says nothing."""
    frames = {split: table(rows, seed=rows) for split, rows in {"train": 3000, "val": 400, "test": 24}.items()}
    frames["train"] = frames["train"].assign(color=[f"color {row}" for row in range(3000)])
    paths = write_job(tmp_path, overrides={"encoder_config": ONE_LAYER}, frames=frames)
    hp = load_hyperparameters(paths)
    data = prepare_data(paths, hp)
    splits = {name: PreparedSplit(data.split(name), roles=[field.role for field in hp.text_fields]) for name in frames}
    fitted = fit_companion(splits["train"].arrays(), hp.text_fields, class_weights=[1.0, 1.0], seed=0)
    color = data.fitted.feature_columns.index("color")
    assert len({float(value) for part in splits["train"].arrays() for value in np.unique(part.tabular[:, color])}) == 1
    logits, _ = predict(fitted.companion, splits["val"].arrays(), hp.text_fields)
    auroc = classification_metrics(frames["val"]["label"].to_numpy(), softmax(logits), ["auroc"]).values["auroc"]
    assert auroc is not None
    assert auroc > 0.9
