"""The registered model that must be beaten: the metrics step scores it on the records of the new model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as sk

from container.steps.archives import write_archive
from contracts.paths import JobPaths
from contracts.steps import ARCHIVED_MODEL, CHAMPION, MODEL_METRICS, NO_CHAMPION, NOT_LOOKED_UP
from testing.jobs import table
from testing.step_runs import failure_of, give, output_folder, run_step

pytestmark = pytest.mark.slow
SETTINGS = {"ID_FIELD": "order_id", "LABEL_FIELD": "label", "GENERATE_PLOTS": "false"}
PREDICTIONS = "test_predictions.csv"


@pytest.fixture(scope="module")
def package(trained_job: JobPaths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = tmp_path_factory.mktemp("champion") / ARCHIVED_MODEL
    files = [path for path in sorted(trained_job.model.rglob("*")) if path.is_file()]
    write_archive(archive, {path.relative_to(trained_job.model).as_posix(): path for path in files})
    return archive


@pytest.fixture
def own(trained_job: JobPaths) -> pd.DataFrame:
    """The registered model's own predictions of test."""
    return pd.read_csv(trained_job.output_data / PREDICTIONS)


def lay_out(root: Path, trained_job: JobPaths, predictions: pd.DataFrame, **inputs: Any) -> Path:
    """Write the inputs of a step whose test rows are those of the job, in another order than the predictions."""
    (channel,) = trained_job.channel("test").iterdir()
    rows = pd.read_csv(channel).iloc[::-1]
    scored = {PREDICTIONS: predictions.to_csv(index=False)}
    give(root, MODEL_METRICS, eval_output=scored, processed_data={"test/rows.csv": rows.to_csv(index=False)}, **inputs)
    return root


def decision(root: Path, **settings: str) -> dict[str, Any]:
    run_step(root, "metrics", **{**SETTINGS, **settings})
    content = json.loads((output_folder(root, "metrics", "metrics_output") / "evaluation.json").read_text())
    return content["decision"]


def noisy(predictions: pd.DataFrame) -> pd.DataFrame:
    """Return the predictions with noise."""
    noise = np.random.default_rng(3).normal(scale=0.5, size=len(predictions))
    score = np.clip(predictions["prob_class_1"] + noise, 0.01, 0.99)
    return predictions.assign(prob_class_0=1 - score, prob_class_1=score)


def test_a_model_has_no_lead_over_itself(tmp_path: Path, trained_job, package, own) -> None:
    found = decision(lay_out(tmp_path, trained_job, own, champion=package), CHAMPION_MARGIN="2")[CHAMPION]
    assert found["value"] == pytest.approx(sk.roc_auc_score(own["label"], own["prob_class_1"]))
    assert found["difference"] == pytest.approx(0, abs=1e-9)
    assert found["lead"] == pytest.approx(0, abs=1e-9)
    assert found["records"] == len(own)


@pytest.mark.parametrize("metric", ["test/average_precision", "test/loss"])
def test_the_lead_is_the_improvement_on_the_same_records_less_the_margin(
    tmp_path: Path, trained_job, package, own, metric: str
) -> None:
    root = lay_out(tmp_path, trained_job, noisy(own), champion=package)
    found = decision(root, CHAMPION_MARGIN="1.5", DECISION_METRIC=metric)
    champion = found[CHAMPION]
    sign, score = (-1, sk.log_loss) if metric == "test/loss" else (1, sk.average_precision_score)
    assert champion["value"] == pytest.approx(score(own["label"], own["prob_class_1"]), abs=1e-5)
    assert champion["difference"] == pytest.approx(found["value"] - champion["value"])
    assert champion["standard_error"] > 0
    assert abs(champion["difference"]) > 0.01
    assert champion["lead"] == pytest.approx(sign * champion["difference"] - 1.5 * champion["standard_error"])


@pytest.mark.parametrize(("marker", "lead"), [(NO_CHAMPION, 0.0), (NOT_LOOKED_UP, -1e30)])
def test_without_a_registered_model_only_an_execution_that_looked_it_up_registers(
    tmp_path: Path, trained_job, own, marker: str, lead: float
) -> None:
    root = lay_out(tmp_path, trained_job, own, champion={marker: "\n"})
    assert decision(root)[CHAMPION]["lead"] == lead


def test_a_registered_model_of_another_column_is_named(tmp_path: Path, trained_job, package, own) -> None:
    without = table(len(own), seed=2).drop(columns="price")
    give(tmp_path, MODEL_METRICS, eval_output={PREDICTIONS: own.to_csv(index=False)}, champion=package)
    give(tmp_path, MODEL_METRICS, processed_data={"test/rows.csv": without.to_csv(index=False)})
    message = failure_of(tmp_path, "metrics", **SETTINGS)
    assert message.startswith("champion: the registered model cannot score these records:")
    assert "'price'" in message


def test_a_registered_model_of_other_classes_is_refused(tmp_path: Path, trained_job, package, own) -> None:
    renamed = own.assign(label=own["label"].map({0: "no", 1: "yes"}))
    root = lay_out(tmp_path, trained_job, renamed, champion=package)
    message = failure_of(root, "metrics", **SETTINGS, CLASS_LABELS="no,yes")
    assert message == "champion: the registered model has the classes [0, 1], the new one ['no', 'yes']"
