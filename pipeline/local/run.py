"""Run the pipeline's steps in order as local processes; unchanged steps come from the cache."""

import json
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from contracts import artifacts
from contracts.atomic_files import write_text_atomically
from contracts.errors import ContractError
from contracts.file_systems import alone_in, naming_full_disk
from contracts.fingerprint import ContentDigests, Fingerprint
from contracts.input_files import files_below, read_json
from contracts.program import COMPLETED, FAILED
from contracts.step_contract import StepContract
from contracts.steps import (
    ARCHIVED_MODEL,
    BATCH_SCORE,
    CHAMPION,
    DATA_LOADING,
    DATA_PROFILE_TEXT,
    METRICS_SUMMARY,
    MODEL_METRICS,
    MONITOR,
    MONITOR_REPORT,
    PACKAGE,
    PYTORCH_TRAINING,
    REGISTRATION,
    SIGNATURE,
    TABULAR_PREPROCESSING,
    TRACKED,
    TRACKING,
    VIOLATIONS,
)
from pipeline.card import GENERATED
from pipeline.checks import check_local_input, check_metrics_columns
from pipeline.condition import ConditionOutcome, check_condition
from pipeline.config import PipelineConfig
from pipeline.estimate import print_estimate
from pipeline.graph import CONDITION, source
from pipeline.local.batch_score import score
from pipeline.local.cache import Completed, StepDirectory, code_digest, step_folder
from pipeline.local.docker import image_id
from pipeline.local.process import StepFailed, run_step
from pipeline.local.registry import LocalRegistry
from pipeline.plan import Plan, make_plan
from pipeline.progress import StepState

REPORT = "report.md"
STATE = "run.json"  # the newest run, for `status`


@dataclass
class Run:
    """A run of the pipeline on this machine.

    Attributes:
        code: digest of the steps' code, or the image.
        image: the image whose containers run the steps; None for processes.
        logs: the log of each step so far, by name.
        table: the state of each step and of the condition, by name.
        directories: the folder of each completed step, by name.
        records: the record of each completed step, by name.
    """

    config: PipelineConfig
    plan: Plan
    root: Path
    digests: ContentDigests
    code: str
    image: str | None = None
    directories: dict[str, StepDirectory] = field(default_factory=dict)
    records: dict[str, Completed] = field(default_factory=dict)
    outcome: ConditionOutcome | None = None
    logs: dict[str, Path] = field(default_factory=dict)
    table: dict[str, StepState] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table |= {name: StepState(name, "waiting") for name in self.plan.shown}

    def show(self, name: str, state: str, *, seconds: float = 0.0, note: object = "") -> None:
        """Print the state of a step, and keep it for the table at the end."""
        self.table[name] = StepState(name, state, seconds, str(note))
        print(_line(self.table[name]), file=sys.stderr, flush=True)
        self.save()

    def save(self, **ended: object) -> None:
        """Write the states for `status`; with `ended`, also how the run ended."""
        logs = {name: str(log) for name, log in self.logs.items()}
        content = {"steps": [asdict(step) for step in self.table.values()], "logs": logs, **ended}
        write_text_atomically(self.root / STATE, json.dumps(content, indent=1))

    @property
    def registry(self) -> LocalRegistry:
        return LocalRegistry(self.root, self.config.group)

    def output(self, contract: StepContract, name: str) -> Path:
        return self.directories[contract.name].output(contract, name)

    def inputs(self, contract: StepContract) -> dict[str, Path]:
        """Return the folder or file of each input of a step that exists."""
        paths = {}
        for folder in contract.inputs:
            origin = source(contract, folder)
            if origin is not None:
                paths[folder.name] = self.output(origin.step, origin.output) / origin.subfolder
            elif folder.name in self.config.inputs:
                paths[folder.name] = Path(self.config.inputs[folder.name])
            elif folder.name == CHAMPION and (champion := self._champion()) is not None:
                paths[folder.name] = champion / ARCHIVED_MODEL
        return paths

    def _champion(self) -> Path | None:
        """Return the folder of the registered model to beat; None where there is none."""
        registered = self.registry.to_beat(self.config, package_digest=_cached_package(self))
        return registered and registered.folder

    def finish(self, failure: str | None, *, seconds: float) -> None:
        """Print how the run ended, and write report.md under the root."""
        header = f"{'step':26s} {'state':8s} {'time':>8s}  note"
        table = "\n".join([header, *map(_line, self.table.values())])
        refused = self.outcome is not None and not self.outcome.holds
        ended = failure or ""
        if self.outcome is not None and (refused or not failure):
            ended = self.outcome.sentence()
        summary = self._file(MODEL_METRICS, "metrics_output", METRICS_SUMMARY)
        links: dict[str, Path | None] = {
            "profile of the data": self._file(TABULAR_PREPROCESSING, "processed_data", DATA_PROFILE_TEXT),
            "evaluation": self._file(PYTORCH_TRAINING, "evaluation_output", artifacts.REPORT),
            "metrics": summary,
            "plots": self._file(MODEL_METRICS, "plots_output", ""),
            "scores": self._file(BATCH_SCORE, "scores", ""),
            "records of the deployed model": self._file(MONITOR, "monitoring", MONITOR_REPORT),
        }
        if (found := self._file(MONITOR, "monitoring", VIOLATIONS)) is not None:
            violated = [f"{each['subject']}, {each['what']}" for each in read_json(found, "Run again.")["violations"]]
            ended += f"\nOut of bounds: {'; '.join(violated)}" if violated else ""
        logs = {f"log of {name}": log for name, log in self.logs.items() if name in self.directories}
        page = [f"# {self.config.name}\n", f"```\n{table}\n```\n", f"{ended}\n", "## Where to look\n"]
        page += [f"* {name}: {path}" for name, path in (links | logs).items() if path is not None and path.exists()]
        if summary is not None:
            page += ["\n## Metrics\n", f"```\n{summary.read_text(encoding='utf-8').rstrip()}\n```"]
        report = self.root / REPORT
        report.write_text("\n".join(page) + "\n", encoding="utf-8")
        print(f"\n{table}\n\n{ended}\nThe run took {seconds:.1f} s.\n\nReport: {report}")
        if failure and not refused:
            print(failure, file=sys.stderr)
        self.save(ended=ended, failed=bool(failure) or refused, seconds=seconds)

    def _file(self, contract: StepContract, output: str, name: str) -> Path | None:
        if contract.name in self.directories and (path := self.output(contract, output) / name).exists():
            return path
        return None


def _line(step: StepState) -> str:
    took = f"{step.seconds:.1f} s" if step.seconds else ""
    return f"{step.name:26s} {step.state:8s} {took:>8s}  {step.note}".rstrip()


def run(config: PipelineConfig, root: Path, *, image: str | None = None) -> int:
    """Run the pipeline under `root`; take steps whose inputs have not changed from the cache.

    Args:
        image: of the containers that run the steps; None: processes do.

    Returns:
        0 registered (now or before), 1 a step failed or the condition does not hold.

    Raises:
        ContractError: the configuration is refused, an input or the image is missing, or another run uses `root`.
    """
    plan = make_plan(config, config.inputs)
    if config.aws is not None:
        print_estimate(config.aws, plan)
    require_inputs(config, root)
    name_engine(config)
    mounted = [root, *map(Path, config.inputs.values())]
    code = code_digest() if image is None else image_id(image, mounted)
    busy = ContractError(f"{root}: another run uses this folder", "Wait for it, or change --root.")
    with alone_in(root, seconds=0, busy=busy), naming_full_disk(root):
        digests = ContentDigests(root / "digests.json")
        state = Run(config, plan, root, digests, code, image)
        try:
            return _run(state)
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
    exit_code, failure = FAILED, None
    try:
        for contract in state.plan.before_condition:
            run_or_reuse(state, contract)
        # The condition runs no program, so it is not cached.
        outcome = check_condition(state.config.condition, state.output(MODEL_METRICS, "metrics_output"))
        state.outcome = outcome
        state.show(CONDITION, "done" if outcome.holds else "failed", note=outcome.sentence())
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
    state.logs[contract.name] = directory.log
    record = directory.completed(contract, state.digests)
    if record is not None and (state.root / record.result.get("folder", "")).is_dir():  # the version may be deleted
        state.show(contract.name, "cached", note=_note(contract, directory, record.result))
    else:
        directory.folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        result: dict[str, Any] = {}
        environment = state.plan.step(contract).environment
        state.show(contract.name, "running", note=directory.log)
        try:
            if contract is REGISTRATION:
                assert state.outcome is not None
                package = state.records[PACKAGE.name].outputs["packaged_model"]
                model = state.registry.register(
                    state.config,
                    inputs=inputs,
                    environment=environment,
                    package_digest=package,
                    outcome=state.outcome,
                    plan=state.plan,
                    made_of=_made_of(state),
                )
                result = {"version": model.number, "folder": str(model.folder.relative_to(state.root))}
            elif contract is BATCH_SCORE:
                assert state.config.batch_score is not None
                one_column = len(state.plan.columns) == 1
                batch = state.config.batch_score
                score(batch, directory, inputs, environment, one_column=one_column, image=state.image)
            else:
                image = None if contract is TRACKING else state.image  # which may contain no MLflow
                network = state.config.aws is not None and not state.config.aws.network_isolation
                settings = state.plan.hyperparameters
                run_step(state.plan.step(contract), directory, inputs, settings, image=image, network=network)
        except StepFailed:
            state.show(contract.name, "failed", seconds=time.monotonic() - began, note=directory.log)
            raise
        seconds = time.monotonic() - began
        if contract is TRACKING and (problem := _not_tracked(state, directory)):
            state.show(contract.name, "failed", seconds=seconds, note=problem)
            return
        record = directory.complete(contract, state.digests, fingerprint=fingerprint, seconds=seconds, result=result)
        state.show(contract.name, "done", seconds=seconds, note=_note(contract, directory, result))
    state.directories[contract.name], state.records[contract.name] = directory, record


def _made_of(state: Run) -> dict[str, str]:
    """Return what the version was made of, beside what its evaluation says."""
    data = [state.digests.of(path) for path in state.inputs(DATA_LOADING).values()]
    return {
        "image": state.code if state.image else f"none: processes of the code {state.code[:16]}",
        "data_key": Fingerprint.of({"data": data}).digest(16) if data else GENERATED,
        "training_job": str(state.directories[PYTORCH_TRAINING.name].folder.relative_to(state.root)),
        "execution": str(state.root),
    }


def _not_tracked(state: Run, directory: StepDirectory) -> str | None:
    """Print a warning and return the problem if the tracking server has not the results."""
    tracked = directory.output(TRACKING, "tracked") / TRACKED
    problem: str | None = json.loads(tracked.read_text())["problem"]
    if problem is not None:
        mlflow, job = state.config.mlflow, state.directories[PYTORCH_TRAINING.name].ml
        assert mlflow is not None
        command = f"python -m container track --root {shlex.quote(str(job))} --uri {mlflow.tracking_uri}"
        later = f"{command} --experiment {shlex.quote(mlflow.experiment)}. Log: {directory.log}"
        note = f"{TRACKING.name}: {problem}. The run continues. To send the results later, run it again, or: {later}"
        print(note, file=sys.stderr)
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
    if contract in (BATCH_SCORE, REGISTRATION):
        parts["local code"] = code_digest(("pipeline",))  # which writes the outputs of these steps
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
    record = step_folder(state.root, PACKAGE.name, fingerprint).completed(PACKAGE, state.digests)
    return record.outputs["packaged_model"] if record else None


def _note(contract: StepContract, directory: StepDirectory, result: Mapping[str, Any]) -> str:
    if contract is REGISTRATION:
        return f"version {result['version']} in {result['folder']}"
    files = [path for folder in directory.outputs(contract).values() for path in files_below(folder).files]
    return f"{sum(path.stat().st_size for path in files) / 1e6:.1f} MB"
