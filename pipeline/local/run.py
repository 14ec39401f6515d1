"""python -m pipeline run: the steps in order, from the cache where nothing has changed; the decision; a report."""

import fcntl
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from contracts.errors import ContractError
from contracts.step_contract import StepContract
from contracts.steps import MODEL_METRICS, PACKAGE, PYTORCH_TRAINING, REGISTRATION
from pipeline.config import PipelineConfig
from pipeline.decision import ConditionOutcome, decide, read_decision_value
from pipeline.graph import AFTER_CONDITION, BEFORE_CONDITION, CONDITION, source
from pipeline.local.cache import Completed, step_folder
from pipeline.local.digests import ContentDigests, code_digest
from pipeline.local.process import StepFailed, last_line, run_step
from pipeline.local.progress import CACHED, DONE, FAILED, Progress
from pipeline.local.registry import LocalRegistry
from pipeline.local.report import write_report
from pipeline.local.run_state import Run
from pipeline.plan import StepPlan, make_plan

COMPLETED, NOT_REGISTERED, STOPPED = 0, 1, 130


def run(config: PipelineConfig, root: Path) -> int:
    """Run the pipeline under `root`; steps whose inputs have not changed are taken from the cache.

    Returns:
        0 registered (now or before), 1 a step failed or the condition does not hold, 130 stopped: the same command
        goes on.

    Raises:
        ContractError: the configuration is refused, an input is missing, or another run is under way in `root`.
    """
    plan = make_plan(config, config.inputs)
    require_inputs(config)
    root.mkdir(parents=True, exist_ok=True)
    with alone(root):
        names = [*(step.name for step in BEFORE_CONDITION), CONDITION, *(step.name for step in AFTER_CONDITION)]
        digests = ContentDigests(root / "digests.json")
        state = Run(config, plan, root, digests, code_digest(), Progress(names))
        try:
            return _run(state)
        except KeyboardInterrupt:
            print("\nStopped. The same command goes on.", file=sys.stderr)
            return STOPPED
        finally:
            digests.save()


def require_inputs(config: PipelineConfig) -> None:
    """Raise ContractError where an input is not there."""
    for name, place in config.inputs.items():
        if not Path(place).exists():
            raise ContractError(f"inputs.{name}: {place} does not exist", "Name a folder or a file that does.")


def _run(state: Run) -> int:
    began = time.monotonic()
    try:
        for contract in BEFORE_CONDITION:
            _step(state, state.plan.step(contract))
        state.decision = _decide(state)
        if state.decision.holds:
            state.progress.finish(CONDITION, DONE, note=state.decision.sentence())
            for contract in AFTER_CONDITION:
                _step(state, state.plan.step(contract))
            exit_code = COMPLETED
        else:
            state.progress.finish(CONDITION, FAILED, note=state.decision.sentence())
            exit_code = NOT_REGISTERED
        failure = None
    except StepFailed as error:
        exit_code, failure = NOT_REGISTERED, str(error)
    report = write_report(state, failure, seconds=time.monotonic() - began)
    print(report.text)
    print(f"Report: {report.path}")
    if failure:
        print(failure, file=sys.stderr)
    return exit_code


def _step(state: Run, plan: StepPlan) -> None:
    """Take a step from the cache, or run it."""
    contract = plan.contract
    inputs = _inputs(state, plan)
    told = _told(state, plan, inputs)
    place = step_folder(state.root, contract.name, told)
    record = place.completed()
    if record is not None and not _registered_still(record):
        record = None
    if record is not None:
        state.progress.finish(contract.name, CACHED, note=_note(contract, record))
    else:
        place.folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        result: dict[str, Any] = {}
        try:
            with state.progress.running(contract.name, lambda: last_line(place.log)):
                if contract is REGISTRATION:
                    result = _register(state, inputs)
                else:
                    run_step(plan, place, inputs, state.plan.hyperparameters)
        except StepFailed:
            state.progress.finish(contract.name, FAILED, seconds=time.monotonic() - began, note=str(place.log))
            raise
        seconds = time.monotonic() - began
        record = place.complete(contract, state.digests, told=told, seconds=seconds, result=result)
        state.progress.finish(contract.name, DONE, seconds=seconds, note=_note(contract, record))
    state.places[contract.name], state.records[contract.name] = place, record


def _inputs(state: Run, plan: StepPlan) -> dict[str, Path]:
    """Return the folder or file of each input that exists."""
    found = {}
    for folder in plan.contract.inputs:
        origin = source(plan.contract, folder)
        if origin is not None:
            written = state.places[origin.step.name].output(origin.step, origin.output)
            found[folder.name] = written / origin.subfolder if origin.subfolder else written
        elif folder.name in plan.outside:
            found[folder.name] = Path(plan.outside[folder.name])
    return found


def _told(state: Run, plan: StepPlan, inputs: Mapping[str, Path]) -> dict[str, Any]:
    """Return everything that a step's outputs depend on."""
    told: dict[str, Any] = {
        "step": plan.contract.name,
        "code": state.code,
        "command": list(plan.command),
        "environment": dict(plan.environment),
        "inputs": {name: state.digests.of(place) for name, place in inputs.items()},
    }
    if plan.contract is PYTORCH_TRAINING:
        told["hyperparameters"] = dict(state.plan.hyperparameters)
    if plan.contract is REGISTRATION:
        assert state.decision is not None
        told["group"] = state.config.group
        told["registration"] = state.config.registration.model_dump(mode="json")
        told["decision"] = state.decision.sentence()
    return told


def _decide(state: Run) -> ConditionOutcome:
    """Compare the metric with the condition; nothing runs, so nothing is cached."""
    metrics = state.places[MODEL_METRICS.name].output(MODEL_METRICS, "metrics_output")
    registry = LocalRegistry(state.root, state.config.group)
    rival = registry.to_beat(state.config, package_digest=_packaged_already(state))
    return decide(state.config.condition, read_decision_value(metrics), rival.value if rival else None)


def _packaged_already(state: Run) -> str | None:
    """Return the digest of this model's package, if an earlier run made it."""
    plan = state.plan.step(PACKAGE)
    place = step_folder(state.root, PACKAGE.name, _told(state, plan, _inputs(state, plan)))
    record = place.completed()
    return record.outputs["packaged_model"] if record else None


def _register(state: Run, inputs: Mapping[str, Path]) -> dict[str, Any]:
    assert state.decision is not None
    model = LocalRegistry(state.root, state.config.group).register(
        state.config,
        state.plan.hyperparameters,
        inputs=inputs,
        package_digest=state.records[PACKAGE.name].outputs["packaged_model"],
        decision=state.decision,
    )
    return {"version": model.version, "folder": str(model.folder.relative_to(state.root)), "root": str(state.root)}


def _registered_still(record: Completed) -> bool:
    folder = record.result.get("folder")
    return folder is None or Path(record.result["root"], folder).is_dir()


def _note(contract: StepContract, record: Completed) -> str:
    if contract is REGISTRATION:
        return f"version {record.result['version']} in {record.result['folder']}"
    return f"{sum(size for size, _ in record.files.values()) / 1e6:.1f} MB"


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Hold the lock of a run's root."""
    with (root / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ContractError(
                f"{root}: another run is under way there", "Wait for it, or use another --root."
            ) from None
        yield
