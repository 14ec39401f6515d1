"""Run the pipeline's steps in order as local processes; unchanged steps come from the cache."""

import fcntl
import json
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from contracts.errors import ContractError
from contracts.fingerprint import Fingerprint
from contracts.input_files import read_json
from contracts.step_contract import StepContract
from contracts.steps import (
    BATCH_SCORE,
    DATA_LOADING,
    MODEL_METRICS,
    PACKAGE,
    PYTORCH_TRAINING,
    REGISTRATION,
    SIGNATURE,
    TABULAR_PREPROCESSING,
    TRACKING,
)
from contracts.tracking import TRACKED
from pipeline.checks import check_local_input, check_metrics_columns
from pipeline.config import PipelineConfig
from pipeline.graph import CONDITION
from pipeline.local.batch_score import score
from pipeline.local.cache import Completed, StepDirectory, step_folder
from pipeline.local.digests import ContentDigests, code_digest
from pipeline.local.docker import image_id
from pipeline.local.process import StepFailed, last_line, run_step
from pipeline.local.progress import CACHED, DONE, FAILED, Progress
from pipeline.local.run_state import Run
from pipeline.plan import make_plan

COMPLETED, NOT_REGISTERED, STOPPED = 0, 1, 130


def run(config: PipelineConfig, root: Path, *, image: str | None = None) -> int:
    """Run the pipeline under `root`; take steps whose inputs have not changed from the cache.

    Args:
        image: of the containers that run the steps; None: processes do.

    Returns:
        0 registered (now or before), 1 a step failed or the condition does not hold, 130 stopped: the same command
        continues.

    Raises:
        ContractError: the configuration is refused, an input or the image is missing, or another run uses `root`.
    """
    plan = make_plan(config, config.inputs)
    require_inputs(config, root)
    name_engine(config)
    mounted = [root, *map(Path, config.inputs.values())]
    code = code_digest() if image is None else image_id(image, mounted)
    with lock(root):
        digests = ContentDigests(root / "digests.json")
        state = Run(config, plan, root, digests, code, Progress(plan.shown), image)
        try:
            return _run(state)
        except KeyboardInterrupt:
            print("\nStopped. Run the same command to continue.", file=sys.stderr)
            return STOPPED
        finally:
            digests.save()


def require_inputs(config: PipelineConfig, root: Path) -> None:
    """Raise ContractError where an input does not exist, its step would refuse it, or it contains the run's folder."""
    for name, path in config.inputs.items():
        if root.resolve().is_relative_to(Path(path).resolve()):
            raise ContractError(f"inputs.{name}: {path} contains --root {root}", "Choose a --root outside of it.")
        if not Path(path).exists():
            raise ContractError(f"inputs.{name}: {path} does not exist", "Name an existing folder or file.")
        check_local_input(name, Path(path))


def name_engine(config: PipelineConfig) -> None:
    """Print a line if the search here is not that of SageMaker's tuner, which the configuration asks for."""
    if config.tuning is not None and config.tuning.by_tuner:
        print(
            f"tuning.engine: sagemaker is for AWS; here, {PYTORCH_TRAINING.name} searches the same space itself.",
            file=sys.stderr,
        )


def _run(state: Run) -> int:
    began = time.monotonic()
    exit_code, failure = NOT_REGISTERED, None
    try:
        for contract in state.plan.before_condition:
            run_or_reuse(state, contract)
        # The condition runs no program, so it is not cached.
        outcome = state.check_condition(state.registry.to_beat(state.config, package_digest=_cached_package(state)))
        state.progress.finish(CONDITION, DONE if outcome.holds else FAILED, note=outcome.sentence())
        if outcome.holds:
            for contract in state.plan.after_condition:
                run_or_reuse(state, contract)
            exit_code = COMPLETED
    except (StepFailed, ContractError) as error:
        failure = str(error)
    state.finish(failure, seconds=time.monotonic() - began)
    return exit_code


def run_or_reuse(state: Run, contract: StepContract) -> None:
    """Take a step from the cache, or run it. A tracking server that fails is a warning, and the step is not cached."""
    inputs = state.inputs(contract)
    if contract is TABULAR_PREPROCESSING:
        columns = read_json(state.output(DATA_LOADING, "SIGNATURE") / SIGNATURE, "Remove the folder of the step.")
        check_metrics_columns(state.plan.step(MODEL_METRICS).environment, columns)
    fingerprint = _fingerprint(state, contract, inputs)
    directory = step_folder(state.root, contract.name, fingerprint)
    record = directory.completed()
    if record is not None and _is_registered(state, record):
        state.progress.finish(contract.name, CACHED, note=_note(contract, record))
    else:
        directory.folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        result: dict[str, Any] = {}
        try:
            with state.progress.running(contract.name, lambda: last_line(directory.log)):
                if contract is REGISTRATION:
                    model = state.register(state.records[PACKAGE.name].outputs["packaged_model"])
                    folder = str(model.folder.relative_to(state.root))
                    result = {"version": model.version, "folder": folder}
                elif contract is BATCH_SCORE:
                    assert state.config.batch_score is not None
                    variables = state.plan.step(contract).environment
                    score(
                        state.config.batch_score, directory, inputs, variables,
                        one_column=len(state.plan.columns) == 1, image=state.image,
                    )  # fmt: skip
                else:
                    run_step(
                        state.plan.step(contract), directory, inputs, state.plan.hyperparameters,
                        image=None if contract is TRACKING else state.image,  # which may contain no MLflow
                        network=state.config.aws is not None and not state.config.aws.network_isolation,
                    )  # fmt: skip
        except StepFailed:
            state.progress.finish(contract.name, FAILED, seconds=time.monotonic() - began, note=str(directory.log))
            raise
        seconds = time.monotonic() - began
        if contract is TRACKING and (problem := _not_tracked(state, directory)):
            state.progress.finish(contract.name, FAILED, seconds=seconds, note=problem)
            return
        record = directory.complete(contract, state.digests, fingerprint=fingerprint, seconds=seconds, result=result)
        state.progress.finish(contract.name, DONE, seconds=seconds, note=_note(contract, record))
    state.directories[contract.name], state.records[contract.name] = directory, record


def _not_tracked(state: Run, directory: StepDirectory) -> str | None:
    """Print a warning and return the problem if the tracking server has not the results."""
    tracked = directory.output(TRACKING, "tracked") / TRACKED
    problem: str | None = json.loads(tracked.read_text())["problem"]
    if problem is not None:
        mlflow, job = state.config.mlflow, state.directories[PYTORCH_TRAINING.name].ml
        assert mlflow is not None
        command = f"python -m container track --root {shlex.quote(str(job))} --uri {mlflow.tracking_uri}"
        print(
            f"{TRACKING.name}: {problem}. The run continues. To send the results later, run it again, or: {command} "
            f"--experiment {shlex.quote(mlflow.experiment)}. Log: {directory.log}", file=sys.stderr,
        )  # fmt: skip
    return problem


def _fingerprint(state: Run, contract: StepContract, inputs: Mapping[str, Path]) -> Fingerprint:
    """Return everything that a step's outputs depend on."""
    plan = state.plan.step(contract)
    parts: dict[str, Any] = {
        "step": contract.name,
        "code": state.code,
        "command": list(plan.command),
        "environment": dict(plan.environment),
        "inputs": {name: state.digests.of(path) for name, path in inputs.items()},
    }
    if contract is PYTORCH_TRAINING:
        parts["hyperparameters"] = dict(state.plan.hyperparameters)
        folders = [name for name in state.plan.encoders if Path(name).is_dir()]
        parts["encoders"] = {name: state.digests.of(Path(name)) for name in folders}
    if contract is BATCH_SCORE:
        assert state.config.batch_score is not None
        parts["batch_score"] = state.config.batch_score.model_dump(mode="json")
    if contract is REGISTRATION:
        assert state.outcome is not None
        parts["group"] = state.config.group
        parts["registration"] = state.config.registration.model_dump(mode="json")
        parts["condition"] = state.outcome.sentence()
    return Fingerprint.of(parts)


def _cached_package(state: Run) -> str | None:
    """Return the digest of this model's package, if an earlier run made it."""
    fingerprint = _fingerprint(state, PACKAGE, state.inputs(PACKAGE))
    record = step_folder(state.root, PACKAGE.name, fingerprint).completed()
    return record.outputs["packaged_model"] if record else None


def _is_registered(state: Run, record: Completed) -> bool:
    """Return False for a registration whose version no longer exists."""
    folder = record.result.get("folder")
    return folder is None or (state.root / folder).is_dir()


def _note(contract: StepContract, record: Completed) -> str:
    if contract is REGISTRATION:
        return f"version {record.result['version']} in {record.result['folder']}"
    return f"{sum(size for size, _ in record.files.values()) / 1e6:.1f} MB"


@contextmanager
def lock(root: Path) -> Iterator[None]:
    """Make a run's root, and hold its lock."""
    try:
        root.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ContractError(f"--root: {root} is not a folder", "Name a folder; it need not exist.") from None
    with (root / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ContractError(f"{root}: another run uses this folder", "Wait for it, or change --root.") from None
        yield
