"""Send the results of a training job that could not reach the tracking server (the pipeline's step Tracking)."""

import json
import logging
import shlex

from container.steps.program import StepRun
from container.tracking.process import send_in_process
from contracts.artifacts import METRICS
from contracts.atomic_files import write_text_atomically
from contracts.file_systems import link_folder
from contracts.paths import JobPaths
from contracts.steps import ARCHIVED_MODEL, ARCHIVED_OUTPUT, TRACKED, TrackingSettings

logger = logging.getLogger(__name__)

LIMIT = 1_800.0  # seconds; the client stops waiting for a silent server much earlier


def run(step: StepRun) -> None:
    """Send the results, and write whether the server has them; a server that fails is a warning."""
    settings: TrackingSettings = step.settings
    job = JobPaths(step.scratch)  # with links to the results, laid out as `track` reads them
    model, output = step.required_input("model_input"), step.required_input("eval_output")
    archives = {job.root / ARCHIVED_MODEL: model / ARCHIVED_MODEL, job.root / ARCHIVED_OUTPUT: output / ARCHIVED_OUTPUT}
    if (output / METRICS).is_file():
        archives = {job.model: model, job.output_data: output}
    for link, path in archives.items():
        link.parent.mkdir(parents=True, exist_ok=True)
        link_folder(path, link)
    arguments = [f"--uri={settings.mlflow_tracking_uri}", f"--experiment={settings.mlflow_experiment}"]
    if settings.mlflow_run_name is not None:
        arguments.append(f"--run-name={settings.mlflow_run_name}")
    if settings.mlflow_tags:
        arguments += ["--tags", *(f"{key}={value}" for key, value in settings.mlflow_tags.items())]
    problem = send_in_process([f"--root={job.root}", *arguments], stopping=lambda: False, limit=LIMIT)
    if problem is not None:
        logger.warning(
            f"mlflow: {problem}. The training job is complete. To send its results later, copy its model.tar.gz and "
            f"output.tar.gz to a folder: python -m container track --root FOLDER {shlex.join(arguments)}"
        )
    write_text_atomically(step.output("tracked") / TRACKED, json.dumps({"problem": problem}))
