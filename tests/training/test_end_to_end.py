"""Whole jobs as a person runs them: `python -m container train --root DIR`."""

import getpass
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from container.predictor import Predictor
from contracts import artifacts
from contracts.errors import ContractError
from contracts.paths import JobPaths
from testing.jobs import (
    DATE_AND_WEIGHT,
    JOINED_TEXTS,
    ONE_LAYER,
    TWO_TEXTS,
    dated_table,
    metrics,
    run_train,
    table,
    write_hyperparameters,
    write_job,
)  # fmt: skip

pytestmark = pytest.mark.slow

CASES = {
    "two_texts_csv_bfloat16": ({**TWO_TEXTS, "bf16": True, "encoder_config": ONE_LAYER}, "csv", 2),
    "one_text_parquet_two_processes": ({"nproc_per_node": 2, **DATE_AND_WEIGHT}, "parquet", 2 ),
    "joined_texts_multiclass_tsv": (
        {
            "model_class": "bert", "tab_field_list": [], "cat_field_list": [], "accumulate_grad_batches": 2,
            "is_binary": False, "num_classes": 3, "multiclass_categories": [0, 1, 2],
            **JOINED_TEXTS,
            "encoder_config": ONE_LAYER,
        },
        "tsv",
        3,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class FinishedJob:
    paths: JobPaths
    log: str
    file_format: str
    classes: int

    def predictions(self, split: str) -> pd.DataFrame:
        path = self.paths.output_data / f"{split}_predictions.{self.file_format}"
        if self.file_format == "parquet":
            return pd.read_parquet(path)
        return pd.read_csv(path, sep="," if self.file_format == "csv" else "\t", dtype={"order_id": str})


@pytest.fixture(scope="module", params=CASES)
def job(request, tmp_path_factory):
    overrides, file_format, classes = CASES[request.param]
    root = tmp_path_factory.mktemp(request.param)
    frames = {}
    for seed, (split, rows) in enumerate({"train": 48, "val": 24, "test": 24}.items()):
        frames[split] = dated_table(rows, seed=seed, classes=classes)
    paths = write_job(root, overrides=overrides, frames=frames, file_format=file_format, classes=classes)
    cold = request.param == "one_text_parquet_two_processes"  # once with processes that import everything themselves
    return FinishedJob(paths, run_train(paths, warm=not cold), file_format, classes)


def test_every_artifact_of_the_contract_is_written(job):
    for name in artifacts.REQUIRED_MODEL_FILES:
        assert (job.paths.model / name).stat().st_size > 0 or name == artifacts.FEATURE_COLUMNS, name
    assert list((job.paths.model / "tokenizer").rglob("tokenizer.json"))
    for name in artifacts.REQUIRED_EVALUATION_FILES:
        assert (job.paths.output_data / name).stat().st_size > 0, name
    assert list((job.paths.output_data / "tensorboard_eval").glob("events.out.tfevents.*"))
    assert list(job.paths.tensorboard.glob("events.out.tfevents.*"))
    assert not any(path.exists() for path in job.paths.failure_files)
    assert not list(job.paths.model.glob(".*"))


def test_metrics_have_the_weights_of_the_records_beside_the_plain_ones(job):
    found, labels = metrics(job.paths), job.predictions("test")["label"]
    weighted = {name for name in found if name.startswith("test/weighted/")}
    if job.file_format != "parquet":
        assert not weighted
        return
    scores, weights = job.predictions("test")["prob_class_1"], dated_table(24, seed=2)["weight"]
    assert found["test/weighted/auroc"] == pytest.approx(roc_auc_score(labels, scores, sample_weight=weights))
    of_labels = np.where(labels == 1, scores, 1 - scores)
    assert found["test/loss"] == pytest.approx(-np.log(of_labels).mean(), rel=1e-5)
    assert found["test/weighted/loss"] == pytest.approx(np.average(-np.log(of_labels), weights=weights), rel=1e-5)


def test_every_pth_loads_with_weights_only(job):
    for path in (job.paths.model / "model.pth", job.paths.model / "model_artifacts.pth"):
        assert torch.load(path, weights_only=True)
    results = torch.load(job.paths.output_data / "predict_results.pth", weights_only=True)
    assert len(results["y_true"]) == len(results["y_pred"]) == 24


def test_predictions_have_every_row_once_in_order_with_its_id(job):
    for i, split in ((1, "val"), (2, "test")):
        expected = dated_table(24, seed=i, classes=job.classes)
        predictions = job.predictions(split)
        scores = [f"prob_class_{k}" for k in range(job.classes)]
        assert predictions.columns.tolist() == ["order_id", "label", *scores, "predicted_label"]
        assert predictions["order_id"].tolist() == expected["order_id"].tolist()
        assert predictions["label"].tolist() == expected["label"].tolist()
        probabilities = predictions.filter(like="prob_class_").to_numpy()
        assert probabilities.sum(axis=1) == pytest.approx(np.ones(24), abs=1e-6)


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_a_record_scores_the_same_in_training_alone_in_a_batch_and_served(job, backend):
    frame = dated_table(24, seed=2, classes=job.classes)
    trained = job.predictions("test").filter(like="prob_class_").to_numpy()
    predictor = Predictor.load(job.paths.model, backend=backend)
    in_batch = predictor.predict(frame)
    np.testing.assert_allclose(in_batch, trained, atol=1e-4)
    as_records = frame.drop(columns=["label", "order_id"]).to_dict("records")
    for i in (0, 3, 7, 11):
        np.testing.assert_allclose(predictor.predict([as_records[i]])[0], trained[i], atol=1e-4)


def test_a_label_or_another_column_in_a_served_record_does_not_matter(job):
    frame = dated_table(6, seed=2, classes=job.classes)
    predictor = Predictor.load(job.paths.model)
    odd = frame.assign(label="never seen", another=1)
    np.testing.assert_array_equal(predictor.predict(odd), predictor.predict(frame))
    assert predictor.predict(frame.head(0)).shape == (0, job.classes)
    with pytest.raises(ContractError, match="chat"):
        predictor.predict(frame.drop(columns="chat"))


def test_the_time_of_each_phase_is_in_the_log_metrics_json_and_report(job):
    phases = (
        "read contracts", "prepare data", "start workers", "build model", "first step", "train", "validate",
        "evaluate", "export", "explain", "reasons", "report",
    )  # fmt: skip
    timeline = json.loads((job.paths.output_data / artifacts.METRICS).read_text())["timeline"]
    assert tuple(timeline) == phases
    assert min(timeline.values()) >= 0
    logged = re.search(r"time of each phase: (.*)", job.log).group(1)
    assert re.findall(r"([a-z ]+) [\d.]+ s \(\d+%\)", logged) == [phases[0], *(f" {name}" for name in phases[1:])]
    report = (job.paths.output_data / artifacts.REPORT).read_text()
    assert all(f"<th>{name}</th>" in report for name in phases)


def test_the_log_has_progress_and_lines_that_a_metric_definition_reads(job):
    assert re.search(r"step \d+/\d+, epoch .* rows/s, .* tokens/s, 0\.0 % padding, .* left", job.log)
    assert len(re.findall(r"val/auroc=([0-9.eE+-]+|nan);", job.log)) >= 2
    assert re.search(r"first optimizer step done [0-9.]+ s after train began: read contracts", job.log)
    assert "\r" not in job.log


def test_checkpoints_point_to_complete_folders(job):
    for pointer in ("last.ckpt", "best.ckpt"):
        name = (job.paths.checkpoints / pointer).read_text().strip()
        assert (job.paths.checkpoints / name / "manifest.json").is_file()


def test_the_report_says_which_weights_were_evaluated(job):
    said = re.search(r"evaluating and saving the weights: (the best by .*)", job.log).group(1)
    assert said.split(",")[0] in (job.paths.output_data / "report.html").read_text()


def test_several_files_in_a_channel_are_one_table_and_a_second_run_reuses_the_preparation(tmp_path):
    paths = write_job(tmp_path, rows=(30, 12, 12), overrides={"encoder_config": ONE_LAYER})
    from testing.jobs import write_table

    write_table(table(20, seed=9), paths.channel("train"), "csv", "more")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    log = run_train(paths, TMPDIR=str(temporary))
    left = {path.name for path in temporary.iterdir()}  # a volume that many jobs share would fill up
    assert left <= {"torchinductor_" + getpass.getuser()}, "more than the cache of torch's compiler is left"
    assert "training on 50 records" in log
    fingerprints = [path.name for path in Path(paths.prepared).iterdir()]
    (paths.root / "train.log").unlink()
    (paths.model / "model.onnx.data").write_text("of an earlier, larger model")
    again = run_train(paths)
    assert not (paths.model / "model.onnx.data").exists()
    assert [path.name for path in Path(paths.prepared).iterdir()] == fingerprints
    assert "found prepared" in again
    assert "resuming from" in again
    assert json.loads((paths.output_data / "metrics.json").read_text())["test/auroc"] is not None


@pytest.fixture(scope="module")
def renamed(tmp_path_factory):
    """A finished job with a companion that ran again with other names of the ONNX inputs: predictions before, paths."""
    settings = {"encoder_config": ONE_LAYER, "explain": 0, "max_epochs": 1, "companion": True}
    paths = write_job(tmp_path_factory.mktemp("renamed"), overrides=settings)
    run_train(paths)
    assert (paths.model / "companion.onnx").is_file()
    before = Predictor.load(paths.model).predict(table(24, seed=2))
    write_hyperparameters(paths, {**settings, "text_input_ids_key": "tok", "text_attention_mask_key": "seen"})
    run_train(paths)
    return before, paths


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_a_finished_job_that_renames_the_inputs_of_its_graph_predicts_the_same(renamed, backend):
    before, paths = renamed
    after = Predictor.load(paths.model, backend=backend).predict(table(24, seed=2))
    np.testing.assert_allclose(after, before, atol=1e-5)


def test_the_inputs_of_the_graph_have_the_names_of_the_last_run(renamed):
    graph = onnx.load(str(renamed[1].model / "model.onnx"), load_external_data=False).graph
    assert [each.name for each in graph.input] == ["tok", "seen", "tabular"]


def test_a_job_that_renames_the_inputs_of_its_graph_resumes_without_its_prepared_data(tmp_path):
    settings = {"encoder_config": ONE_LAYER, "explain": 0, "max_epochs": 1}
    paths = write_job(tmp_path, overrides=settings)
    run_train(paths)
    shutil.rmtree(paths.prepared)
    write_hyperparameters(paths, {**settings, "text_input_ids_key": "tok"})
    assert "resuming from" in run_train(paths)


def test_the_report_marks_the_validation_of_the_best_checkpoint(job):
    step = re.search(r"step=(\d+)", (job.paths.checkpoints / "best.ckpt").read_text()).group(1)
    assert f"at step {step}, after" in (job.paths.output_data / "report.html").read_text()
