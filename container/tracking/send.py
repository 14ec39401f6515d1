"""Send a finished job to an MLflow tracking server: parameters, metrics by step, report, plots and the model.

The job is a folder laid out like /opt/ml, or the two archives that a job on SageMaker leaves in S3.

A job has one run, which a tag identifies. Sending a job again adds what the run lacks, and updates the rest.
"""

import hashlib
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from container.job.processes import set_up_logging
from container.steps.archives import extract_archive
from container.steps.packaging import imported_code, served_files
from contracts import artifacts
from contracts.errors import ContractError, first_line
from contracts.file_systems import link_or_copy
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.hyperparameters import Hyperparameters
from contracts.input_files import check_file, read_as, read_object
from contracts.paths import SPLITS, JobPaths
from contracts.settings.tracking import TrackingSettings
from contracts.steps import ARCHIVED_MODEL, ARCHIVED_OUTPUT

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

logger = logging.getLogger(__name__)

JOB_TAG = "text-table-trainer.job"
MODEL_FOLDER = "model"
PLOTS_FOLDER = "plots"
FINAL = "final"  # prefix of the final metrics, which are those of the chosen weights
_FILES = (artifacts.REPORT, artifacts.METRICS)
_LOADER = "container.serving.pyfunc"
_PARAMETERS = 100  # in a request, by MLflow's limits; and the other two
_METRICS = 1_000
_CHARACTERS = 6_000
_TIMEOUT = "MLFLOW_HTTP_REQUEST_TIMEOUT"
# Variables that are set unless the user has set them.
_VARIABLES = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # seven by default, which takes minutes
    "GIT_PYTHON_REFRESH": "quiet",  # the image has no git
}
_SECONDS_TO_ANSWER, _SECONDS_TO_STORE = "10", "120"  # of the first request, and of the others
Entries = list[dict[str, float | None]]
_UNFINISHED = "Give --root the folder of a completed training job, or of its model.tar.gz and output.tar.gz."


@dataclass(frozen=True)
class FinishedJob:
    """The results of a completed job.

    Attributes:
        model: the folder model/.
        output: the folder output/data/.
        identity: a digest of the metrics and of the time that each phase took.
        history: the values that training logged, by step; one empty entry if it logged nothing.
    """

    model: Path
    output: Path
    hp: Hyperparameters
    identity: str
    metrics: Mapping[str, Any]
    history: Entries

    @classmethod
    def read(cls, paths: JobPaths, scratch: Path, *, overrides: Mapping[str, Any]) -> "FinishedJob":
        """Read the results below `paths`.

        Args:
            scratch: a folder for the content of archives.
            overrides: replace the job's own settings of the tracking.

        Raises:
            ContractError: a file is missing or damaged, or an override is invalid.
        """
        model, output = _folders(paths, scratch)
        settings = read_object(model / artifacts.HYPERPARAMETERS, _UNFINISHED)
        metrics = output / artifacts.METRICS
        return cls(
            model=model,
            output=output,
            hp=parse_hyperparameters({**settings, **overrides}),
            metrics=read_object(metrics, _UNFINISHED),
            identity=hashlib.sha256(metrics.read_bytes()).hexdigest()[:32],
            history=read_as(output / artifacts.HISTORY, dict[str, Entries], _UNFINISHED)["entries"] or [{}],
        )


def track(paths: JobPaths, overrides: Mapping[str, Any]) -> int:
    """Send the finished job below `paths`; return 0, or 1 after an error.

    Args:
        overrides: hyperparameters of the tracking, by name.
    """
    set_up_logging()
    try:
        with tempfile.TemporaryDirectory(prefix="mlflow-") as scratch:
            job = FinishedJob.read(paths, Path(scratch), overrides=overrides)
            run_id = send(job, Path(scratch))
    except ContractError as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    logger.info("mlflow: run %s of experiment %r is complete", run_id, job.hp.mlflow_experiment)
    return 0


def _folders(paths: JobPaths, scratch: Path) -> tuple[Path, Path]:
    """Return model/ and output/data/; of archives, only what is sent is extracted."""
    if not (paths.root / ARCHIVED_MODEL).is_file():
        return paths.model, paths.output_data
    sent = {PurePath(name).name for name in (*_FILES, *artifacts.CURVES, artifacts.HISTORY)}
    model, output = scratch / "job" / "model", scratch / "job" / "output"
    check_file(paths.root / ARCHIVED_OUTPUT)
    weights = artifacts.TRAINED_WEIGHTS
    extract_archive(paths.root / ARCHIVED_MODEL, model, wanted=lambda name: PurePath(name).name not in weights)
    names = extract_archive(paths.root / ARCHIVED_OUTPUT, output, wanted=lambda name: PurePath(name).name in sent)
    # The archive may contain data/.
    return model, next(((output / name).parent for name in names if PurePath(name).name == artifacts.METRICS), output)


def send(job: FinishedJob, scratch: Path) -> str:
    """Send the job and return the id of its run.

    Raises:
        ContractError: there is no server, MLflow is not installed, the server fails, or the model is incomplete.
    """
    if job.hp.mlflow_tracking_uri is None:
        raise ContractError(
            "mlflow_tracking_uri: is not set", "Give --uri, or train with the hyperparameter mlflow_tracking_uri."
        )
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
    patient = _TIMEOUT not in os.environ
    os.environ.setdefault(_TIMEOUT, _SECONDS_TO_ANSWER)
    try:
        import mlflow
    except ImportError as error:
        raise ContractError(
            f"mlflow_tracking_uri: MLflow is not installed: {first_line(error)}",
            "Install this project with its extra mlflow: pip install 'text-table-trainer[mlflow]'. Build an image with "
            "--build-arg EXTRAS=mlflow.",
        ) from error
    # sagemaker-mlflow warns at each request to another server.
    logging.getLogger("mlflow.tracking.request_header.registry").setLevel(logging.ERROR)
    try:
        mlflow.set_tracking_uri(job.hp.mlflow_tracking_uri)  # sagemaker-mlflow reads the ARN from there
        client = mlflow.MlflowClient()
        run = _find_or_create_run(client, job)
        if patient:
            os.environ[_TIMEOUT] = _SECONDS_TO_STORE
        _send_parameters(client, run.info.run_id, job)
        _send_metrics(client, run, job)
        _send_files(client, run.info.run_id, job, scratch=scratch)
        client.set_terminated(run.info.run_id, end_time=_milliseconds(job.history[-1]))
    except ContractError:
        raise
    except Exception as error:  # MLflow, its plugins, requests and botocore have no common class of errors
        raise ContractError(
            f"mlflow_tracking_uri: {job.hp.mlflow_tracking_uri} did not take the job: {first_line(error)}",
            "Check the server and the credentials, and run the same command again: it completes the run.",
        ) from error
    return run.info.run_id


def _find_or_create_run(client: "MlflowClient", job: FinishedJob) -> "Run":
    hp = job.hp
    experiment = client.get_experiment_by_name(hp.mlflow_experiment)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(hp.mlflow_experiment)
    runs = client.search_runs([experiment_id], f"tags.`{JOB_TAG}` = '{job.identity}'", max_results=1)
    if not runs:
        name = hp.mlflow_run_name or os.environ.get("TRAINING_JOB_NAME")
        return client.create_run(
            experiment_id, _milliseconds(job.history[0]), {**hp.mlflow_tags, JOB_TAG: job.identity}, name
        )
    if hp.mlflow_run_name is not None:
        client.update_run(runs[0].info.run_id, name=hp.mlflow_run_name)
    for key, value in hp.mlflow_tags.items():
        client.set_tag(runs[0].info.run_id, key, value)
    return runs[0]


def _send_parameters(client: "MlflowClient", run_id: str, job: FinishedJob) -> None:
    """Send every hyperparameter except those of the tracking, which may differ when a job is sent again."""
    from mlflow.entities import Param

    values = job.hp.model_dump(mode="json", exclude=set(TrackingSettings.model_fields))
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    parameters = [Param(name, text[:_CHARACTERS]) for name, text in texts.items()]
    for start in range(0, len(parameters), _PARAMETERS):
        client.log_batch(run_id, params=parameters[start : start + _PARAMETERS])


def _send_metrics(client: "MlflowClient", run: "Run", job: FinishedJob) -> None:
    """Send the metrics that the run lacks: a server may keep each copy of a value that it gets twice."""
    known = {
        (name, value.step) for name in run.data.metrics for value in client.get_metric_history(run.info.run_id, name)
    }
    new = [metric for metric in _metrics(job) if (metric.key, metric.step) not in known]
    for start in range(0, len(new), _METRICS):
        client.log_batch(run.info.run_id, metrics=new[start : start + _METRICS])


def _metrics(job: FinishedJob) -> "Iterator[Metric]":
    """Yield the metrics by step, then the final metrics."""
    from mlflow.entities import Metric

    for entry in job.history:
        for name, value in entry.items():
            if name not in ("step", "time") and value is not None:
                yield Metric(name, value, _milliseconds(entry), _step(entry))
    for name, value in job.metrics.items():
        if name.split("/")[0] in SPLITS and isinstance(value, int | float):
            yield Metric(f"{FINAL}/{name}", value, _milliseconds(job.history[-1]), _step(job.history[-1]))


def _send_files(client: "MlflowClient", run_id: str, job: FinishedJob, *, scratch: Path) -> None:
    for name in _FILES:
        client.log_artifact(run_id, str(job.output / name))
    for name in artifacts.CURVES:
        client.log_artifact(run_id, str(job.output / name), PLOTS_FOLDER)
    client.log_artifacts(run_id, str(_write_pyfunc(job.model, scratch, run_id)), MODEL_FOLDER)


def _write_pyfunc(model: Path, scratch: Path, run_id: str) -> Path:
    """Write the model in MLflow's pyfunc flavour, with the code that serves it; return its folder."""
    import mlflow.pyfunc
    from mlflow.models import Model

    code = imported_code(_LOADER)
    data, sources = scratch / "data", scratch / "code"
    for folder, files in ((data, served_files(model, model, include_weights=False)), (sources, code.files)):
        for name, path in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(path, folder / name)
    mlflow.pyfunc.save_model(
        str(scratch / MODEL_FOLDER),
        loader_module=_LOADER,
        data_path=str(data),
        code_paths=[str(package) for package in sorted(sources.iterdir())],
        pip_requirements=list(code.requirements),
        mlflow_model=Model(artifact_path=MODEL_FOLDER, run_id=run_id),
    )
    return scratch / MODEL_FOLDER


def _step(entry: Mapping[str, float | None]) -> int:
    return int(entry.get("step") or 0)


def _milliseconds(entry: Mapping[str, float | None]) -> int:
    """Return the time of a log entry since the epoch; the present one for an entry without a time."""
    return round(1000 * (entry.get("time") or time.time()))  # noqa: TID251 - a date
