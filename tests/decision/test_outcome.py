"""What a whole job makes of its trained weights: decisions, in every place where they show."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest

from container.decision.decision import Decision
from container.predictor import Predictor
from contracts.errors import ContractError
from contracts.paths import JobPaths
from testing.jobs import ONE_LAYER, failure_line, log_of, metrics, run_train, table, write_job

pytestmark = pytest.mark.slow

THREE_CLASSES: dict[str, Any] = {
    "calibration": "temperature", "is_binary": False, "num_classes": 3, "multiclass_categories": [0, 1, 2],
    "encoder_config": ONE_LAYER,
}  # fmt: skip


@dataclass(frozen=True)
class FinishedJob:
    paths: JobPaths
    log: str
    classes: int

    @property
    def predictions(self) -> np.ndarray:
        return pd.read_csv(self.paths.output_data / "test_predictions.csv").filter(like="prob_class_").to_numpy()


@pytest.fixture(scope="module")
def three_classes(tmp_path_factory: pytest.TempPathFactory) -> JobPaths:
    paths = write_job(tmp_path_factory.mktemp("job"), overrides=THREE_CLASSES, rows=(60, 60, 24), classes=3)
    run_train(paths)
    return paths


@pytest.fixture(params=["calibrated_job", "three_classes"])
def job(request: pytest.FixtureRequest) -> FinishedJob:
    paths = request.getfixturevalue(request.param)
    return FinishedJob(paths, log_of(paths), 3 if request.param == "three_classes" else 2)


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_calibrated_numbers_are_the_same_in_the_predictions_file_and_served(job: FinishedJob, backend: str) -> None:
    predictor = Predictor.load(job.paths.model, backend=backend)
    frame = table(24, seed=2, classes=job.classes)
    np.testing.assert_allclose(predictor.predict(frame), job.predictions, atol=1e-4)
    decided = Decision.load(job.paths.model).decide(job.predictions)
    assert predictor.decide(frame) == [predictor.class_labels[k] for k in decided]


def test_the_decision_is_in_the_metrics_the_log_and_the_report(job: FinishedJob) -> None:
    written = json.loads((job.paths.model / "decision.json").read_text())
    values = metrics(job.paths)
    assert values["decision"] == written
    assert written["calibration"]["method"] == job_setting(job.paths, "calibration")
    assert f"decisions: calibration {written['calibration']['method']}" in job.log
    for split in ("val", "test"):
        before, after = values["uncalibrated"][split], values["calibration"][split]
        assert before["brier_score"] != after["brier_score"]
        assert f"<td>{before['brier_score']:.4f}</td>" in (job.paths.output_data / "report.html").read_text()


def test_metrics_of_two_classes_are_those_at_the_threshold(job: FinishedJob) -> None:
    values = metrics(job.paths)
    if job.classes > 2:
        assert values["decision"]["threshold"] is None
        return
    threshold = values["decision"]["threshold"]
    assert values["val/recall"] == threshold["reached"]["val"]["recall"] >= 0.8
    for name in ("precision", "recall", "f1_score"):
        assert values[f"test/{name}"] == pytest.approx(threshold["reached"]["test"][name])
    metadata = {entry.key: entry.value for entry in onnx.load(job.paths.model / "model.onnx").metadata_props}
    assert float(metadata["decision_threshold"]) == threshold["value"]


def job_setting(paths: JobPaths, name: str) -> Any:
    return json.loads((paths.model / "hyperparameters.json").read_text())[name]


@pytest.mark.long
def test_a_finished_job_is_calibrated_anew_without_training_again(tmp_path: Path) -> None:
    paths = write_job(tmp_path, overrides={"calibration": "none"})
    run_train(paths)
    plain = Predictor.load(paths.model).predict(table(6, seed=2))
    write_job(tmp_path, overrides={"calibration": "temperature"})
    stale = paths.output_data / "label_issues.csv"  # of an earlier run with label_issues
    stale.touch()
    log = run_train(paths)
    assert not stale.exists()
    assert "resuming from" in log
    temperature = json.loads((paths.model / "decision.json").read_text())["calibration"]["temperature"]
    odds = np.log(plain[:, 1] / plain[:, 0]) / temperature
    np.testing.assert_allclose(
        Predictor.load(paths.model).predict(table(6, seed=2))[:, 1], 1 / (1 + np.exp(-odds)), atol=1e-4
    )


def test_a_val_of_one_class_is_refused_before_any_training(tmp_path: Path) -> None:
    frames = {"val": table(24, seed=1).assign(label=1)}
    paths = write_job(tmp_path, overrides={"decision_threshold": "best_f1"}, frames=frames)
    log = run_train(paths, expect=1)
    assert failure_line(paths).startswith("decision_threshold: 'best_f1' is fitted on val")
    assert "first optimizer step" not in log


def test_a_model_folder_without_its_decision_is_refused(job: FinishedJob, tmp_path: Path) -> None:
    for path in job.paths.model.iterdir():
        if path.name != "decision.json":
            (tmp_path / path.name).symlink_to(path)
    with pytest.raises(ContractError, match="decision"):
        Predictor.load(tmp_path)
