"""Run the pipeline in containers, with the SageMaker SDK's local pipelines (python -m pipeline run --docker).

The definition for AWS runs with local instances. moto's server on loopback replaces S3; its content is lost when the
process ends. Local pipelines have no cache and no registration: every step runs, and the local registry is used. What
they do not support runs as without containers, except for the server of BatchScore.
"""

import logging
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO
from unittest.mock import patch

import yaml

from contracts.errors import ContractError
from contracts.input_files import files_below
from contracts.paths import JobPaths
from contracts.step_contract import StepContract
from contracts.steps import BATCH_SCORE, MODEL_METRICS, PACKAGE, PYTORCH_TRAINING, REGISTRATION, TRACKING
from pipeline.aws.definition import aws_plan, build_pipeline, specs_of
from pipeline.aws.jobs import upload_settings
from pipeline.aws.parameters import TO_BEAT, instance_type_parameter
from pipeline.aws.session import sagemaker_sdk
from pipeline.condition import limit_to_beat
from pipeline.config import PipelineConfig
from pipeline.config_aws import Aws
from pipeline.graph import CONDITION, ORDER, inputs_of
from pipeline.local.cache import StepDirectory
from pipeline.local.digests import ContentDigests
from pipeline.local.process import StepFailed, last_line
from pipeline.local.progress import DONE, FAILED, Progress
from pipeline.local.run import COMPLETED, NOT_REGISTERED, STOPPED, lock, name_engine, require_inputs, run_or_reuse
from pipeline.local.run_state import Run
from pipeline.plan import make_plan

REGION, BUCKET = "us-east-1", "local"
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_CONTAINER = re.compile(r"^\S+-algo-\d+-\w+ +\| ?")  # Docker Compose's prefix of each line
_FIX = "What to change: "


def run_in_docker(config: PipelineConfig, root: Path, *, image: str) -> int:
    """Run the whole pipeline in containers of `image`, with steps and registry under `root`.

    Returns:
        0 registered, 1 a step failed or the condition does not hold, 130 stopped.

    Raises:
        ContractError: the configuration is refused, an input, the image, the SDK or moto is missing, or another run
            uses `root`.
    """
    for character in ":$":
        if character in str(root):
            raise ContractError(
                f"--root: {root} contains {character!r}, which Docker Compose does not take as part of a folder's name",
                "Use another folder, or remove --docker.",
            )
    make_plan(config, config.inputs)  # errors name the sections of the user's configuration
    local = local_config(config, image)
    _, plan = aws_plan(local)
    require_inputs(local, root)
    name_engine(config)
    _require_image(image)
    with lock(root), sagemaker_sdk(REGION), _service() as s3:
        home = root / "docker"
        shutil.rmtree(home, ignore_errors=True)
        digests = ContentDigests(root / "digests.json")
        state = Run(local, plan, root, digests, image, Progress(plan.shown), image)
        try:
            return _run(state, s3, home)
        except KeyboardInterrupt:
            print("\nStopped.", file=sys.stderr)
            return STOPPED


def local_config(config: PipelineConfig, image: str) -> PipelineConfig:
    """Return the configuration with a section `aws` for the local service.

    Args:
        image: the image's local name.
    """
    aws = Aws.model_construct(
        region=REGION,
        role="arn:aws:iam::123456789012:role/local",
        image=image,
        bucket=BUCKET,
        inputs={name: f"s3://{BUCKET}/inputs/{name}" for name in config.inputs},
        network_isolation=config.aws is None or config.aws.network_isolation,
        cache_expires=None,
        deploy=config.aws and config.aws.deploy,  # for the registered model's settings
    )
    tuning = config.tuning and config.tuning.in_container()  # the SDK's local pipelines have no tuner
    return config.model_copy(update={"aws": aws, "tuning": tuning})


def _run(state: Run, s3: Any, home: Path) -> int:
    began = time.monotonic()
    registered = state.registry.to_beat(state.config, package_digest=None)
    for name, path in state.config.inputs.items():
        if name not in inputs_of(BATCH_SCORE):
            _upload(s3, Path(path), f"inputs/{name}")
    upload_settings(state.config, state.plan, s3)
    names = [instance_type_parameter(step.contract.name) for step in state.plan.steps if step.command]
    parameters: dict[str, Any] = dict.fromkeys(names, "local")
    if TO_BEAT in specs_of(state.config):
        condition, value = state.config.condition, registered and registered.value
        parameters[TO_BEAT] = condition.threshold if value is None else limit_to_beat(condition, value)
    execution = _execute(state, parameters, home)
    for contract in ORDER:
        if contract.name in state.directories:
            _fetch(s3, contract, execution.step_execution[contract.name].properties, state.directories[contract.name])
    if MODEL_METRICS.name in state.directories:
        state.check_condition(registered)
    failure: str | None = execution.failure_reason
    if state.config.tracked_by_step and PYTORCH_TRAINING.name in state.directories:
        try:
            run_or_reuse(state, TRACKING)
        except StepFailed as error:
            failure = failure or str(error)
    if failure is None:
        model = state.register(state.digests.of(state.output(PACKAGE, "packaged_model")))
        note = f"version {model.version} in {model.folder.relative_to(state.root)}"
        state.progress.finish(REGISTRATION.name, DONE, note=note)
        if state.config.batch_score is not None:
            try:
                run_or_reuse(state, BATCH_SCORE)
            except StepFailed as error:
                failure = str(error)
    state.finish(failure, seconds=time.monotonic() - began)
    return COMPLETED if failure is None else NOT_REGISTERED


@dataclass
class _Watch:
    """Show the steps of an execution, and write a log for each.

    Attributes:
        log: the log of the running step; it receives what the SDK prints of the containers.
    """

    state: Run
    home: Path
    log: TextIO | None = None
    began: float = 0.0
    running: ExitStack = field(default_factory=ExitStack)

    def begin(self, name: str) -> None:
        if name not in {step.name for step in ORDER}:
            return
        directory = StepDirectory(self.home / name)
        directory.folder.mkdir(parents=True)
        self.log, self.began = directory.log.open("w"), time.monotonic()
        self.running = ExitStack()
        self.running.callback(self.log.close)
        self.running.enter_context(self.state.progress.running(name, lambda: last_line(directory.log)))

    def end(self, name: str, outcome: str, note: str = "") -> None:
        self.running.close()
        self.log = None
        if name == CONDITION:
            self.state.progress.finish(name, outcome)
        elif name in {step.name for step in ORDER}:
            if outcome == DONE:
                self.state.directories[name] = StepDirectory(self.home / name)
            self.state.progress.finish(name, outcome, seconds=time.monotonic() - self.began, note=note)

    def write(self, text: str) -> int:
        if self.log is not None:
            self.log.write(_CONTAINER.sub("", _COLORS.sub("", text).replace("\r", "")))
            self.log.flush()
        return len(text)

    def flush(self) -> None:
        """Do nothing: `write` flushes."""


def _execute(state: Run, parameters: dict[str, Any], home: Path) -> Any:
    """Run the SDK's local pipeline, until its end or a failed step."""
    import boto3
    from sagemaker.core.workflow.pipeline_context import LocalPipelineSession
    from sagemaker.mlops.local.pipeline import LocalPipelineExecutor
    from sagemaker.mlops.local.pipeline_entities import _LocalPipelineExecution

    watch = _Watch(state, home)

    class Execution(_LocalPipelineExecution):
        def mark_step_executing(self, step_name: str) -> None:
            super().mark_step_executing(step_name)
            watch.begin(step_name)

        def update_step_properties(self, step_name: str, step_properties: Any) -> None:
            super().update_step_properties(step_name, step_properties)
            refused = step_name == CONDITION and not step_properties["Outcome"]
            watch.end(step_name, FAILED if refused else DONE)

        def update_step_failure(self, step_name: str, failure_message: str) -> None:
            log = StepDirectory(home / step_name).log
            watch.end(step_name, FAILED, str(log))
            super().update_step_failure(step_name, _cause(log) or failure_message)

    session = LocalPipelineSession(boto_session=boto3.Session(region_name=REGION), default_bucket=BUCKET)
    containers = home / "containers"
    containers.mkdir(parents=True)
    session.config = {"local": {"container_root": str(containers)}}
    pipeline = build_pipeline(state.config, session, local=True)
    execution = Execution("local", pipeline, PipelineParameters=parameters, local_session=session)
    try:
        with redirect_stdout(watch):  # type: ignore[type-var]
            LocalPipelineExecutor(execution, session).execute()
    finally:
        _remove_containers(containers)
    return execution


def _remove_containers(folder: Path) -> None:
    """Remove the containers that local mode leaves, which still run after an interrupt."""
    services = [yaml.safe_load(path.read_text())["services"] for path in folder.glob("*/docker-compose.yaml")]
    names = [service["container_name"] for each in services for service in each.values()]
    if names:
        subprocess.run(["docker", "rm", "--force", *names], capture_output=True, check=False)
    shutil.rmtree(folder, ignore_errors=True)


def _cause(log: Path) -> str | None:
    """Return the cause that the program printed; local mode removes the message file."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
    for number, line in enumerate(lines):
        if line.startswith(_FIX) and number:
            return f"{lines[number - 1]}\n{line}\nIts log: {log}"
    return None


def _fetch(s3: Any, contract: StepContract, properties: Any, directory: StepDirectory) -> None:
    """Download the outputs of a step to the folders that a run without containers uses."""
    if contract is PYTORCH_TRAINING:
        paths = JobPaths(directory.ml)
        home, _, model = properties["ModelArtifacts"]["S3ModelArtifacts"].rpartition("/")
        for name, folder in ((model, paths.model), ("output.tar.gz", paths.output_data.parent)):
            _download(s3, f"{home}/{name}", folder)
            with tarfile.open(folder / name) as archive:
                archive.extractall(folder, filter="data")
        return
    for name, output in properties["ProcessingOutputConfig"]["Outputs"].items():
        _download(s3, output["S3Output"]["S3Uri"], directory.output(contract, name))


def _download(s3: Any, uri: str, folder: Path) -> None:
    """Download one object, or all objects under a prefix."""
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for entry in page.get("Contents", []):
            target = folder / (entry["Key"].removeprefix(prefix).strip("/") or Path(prefix).name)
            target.parent.mkdir(parents=True, exist_ok=True)
            s3.download_file(bucket, entry["Key"], str(target))


def _upload(s3: Any, source: Path, key: str) -> None:
    files = [source] if source.is_file() else files_below(source).files
    for path in files:
        name = path.name if source.is_file() else path.relative_to(source).as_posix()
        s3.upload_file(str(path), BUCKET, f"{key}/{name}")


def _require_image(image: str) -> None:
    try:
        done = subprocess.run(["docker", "image", "inspect", image], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ContractError("docker: is not installed", "Install it, or remove --docker.") from None
    if done.returncode:
        missing = "no such image" in done.stderr.lower()
        fix = "Build it: make image" if missing else "Correct the name, start Docker, or give your user access to it."
        raise ContractError(f"--docker {image}: {done.stderr.strip()}", fix)


@contextmanager
def _service() -> Iterator[Any]:
    """Serve S3 with one bucket on loopback, set the environment to it, and yield a client."""
    try:
        from moto.server import ThreadedMotoServer
    except ImportError:
        raise ContractError("moto is not installed", "Run pip install -c constraints.txt 'moto[server]'.") from None
    import boto3

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        with patch.dict(os.environ, {"AWS_ENDPOINT_URL": f"http://{host}:{port}"}):
            s3 = boto3.client("s3", region_name=REGION)
            s3.create_bucket(Bucket=BUCKET)
            yield s3
    finally:
        server.stop()
