"""Monitoring: compare the records of a deployed model with its baseline, and write a report."""

import json
import logging
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from container.monitoring.baseline import Baseline
from container.monitoring.captured import RecordFiles
from container.monitoring.checks import Check, Current, check_records
from container.monitoring.cloudwatch import metric_lines
from container.monitoring.observe import Labels, observe
from container.monitoring.page import render_page
from container.serving.predictor import Predictor
from container.steps.packaging import model_folder
from container.steps.program import StepRun
from contracts import artifacts
from contracts.atomic_files import write_text_atomically
from contracts.errors import ContractError
from contracts.program import COMPLETED, VIOLATED
from contracts.step_contract import message_file
from contracts.steps import MONITOR_HISTORY, MONITOR_REPORT, VIOLATIONS, MonitorSettings

logger = logging.getLogger(__name__)

_RUNS = 500  # of the trend


def run(step: StepRun) -> int:
    """Compare, and return VIOLATED where something is out of bounds and the settings say so.

    Raises:
        ContractError: a model without a baseline, no records, or labels of other records.
    """
    settings: MonitorSettings = step.settings
    _, model = model_folder(step)
    baseline, predictor = Baseline.load(model), Predictor.load(model)
    fitted = predictor.preprocessor.fitted
    now = datetime.now(UTC)
    id_name = settings.id_field or fitted.id_name
    records = RecordFiles(
        step.required_input("records"),
        fitted.feature_inputs,
        id_name=id_name,
        endpoint=settings.endpoint_name,
        since=None if settings.window_hours is None else now - timedelta(hours=settings.window_hours),
    )
    current = observe(
        predictor,
        baseline,
        records,
        _labels(step, predictor, id_name),
        sample_rows=settings.sample_rows,
        compare_words=settings.compare_words,
        scratch=step.scratch,
    )
    checks = check_records(baseline, current, fitted, settings)
    new = sorted(set(current.profile.columns) - set(baseline.table.columns))
    facts = {
        "time": now.isoformat(timespec="seconds"),
        "records": current.profile.rows,
        "labelled": sum((current.labels or {}).values()),
        "left_out": {cause: [count, records.examples[cause]] for cause, count in records.left_out.items()},
        "new_columns": new,
        "violations": sum(check.violated for check in checks),
    }
    metrics = _write(step, checks, current, facts=facts, baseline=baseline)
    if settings.cloudwatch_pipeline is not None:
        print(*metric_lines(metrics, pipeline=settings.cloudwatch_pipeline), sep="\n", flush=True)
    for check in checks:
        if check.violated:
            logger.warning("out of bounds: %s, %s: %s (%.3g)", check.subject, check.what, check.about, check.distance)
    logger.info(
        "%s records compared: %d of %d comparisons are out of bounds%s",
        f"{current.profile.rows:,}",
        facts["violations"],
        len(checks),
        f"; new columns: {', '.join(new)}" * bool(new),
    )
    if not (facts["violations"] and settings.fail_on_violation):
        return COMPLETED
    text = "; ".join(f"{check.subject}, {check.what}: {check.about}" for check in checks if check.violated)
    message_file(step.root).parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(message_file(step.root), f"out of bounds: {text}\n")
    return VIOLATED


def _labels(step: StepRun, predictor: Predictor, id_name: str | None) -> Labels:
    fitted, folder = predictor.preprocessor.fitted, step.input("labels")
    if folder is None:
        return Labels(fitted.labels)
    if id_name is None:
        raise ContractError("ID_FIELD: is not set, and the model has no id", "Name the column of ids of the labels.")
    label_name = step.settings.label_field or fitted.label_name
    return Labels.read(folder, fitted.labels, id_name=id_name, label_name=label_name, scratch=step.scratch)


def _write(
    step: StepRun, checks: list[Check], current: Current, *, facts: dict[str, Any], baseline: Baseline
) -> dict[str, Any]:
    """Write the outputs, and return what metrics.json has."""
    out = step.output("monitoring")
    now = None if current.labelled is None else current.labelled.metrics
    entry = {
        **{name: facts[name] for name in ("time", "records", "violations")},
        "distances": {f"{check.subject}: {check.what}": round(check.distance, 6) for check in checks},
        "metrics": {name: estimate.value for name, estimate in (now or {}).items()},
    }
    runs = [*_earlier(step, out), entry][-_RUNS:]
    metrics = {
        **facts,
        "metrics": {name: asdict(estimate) for name, estimate in (now or {}).items()},
        "baseline_metrics": {name: asdict(estimate) for name, estimate in (baseline.scores.metrics or {}).items()},
        "comparisons": [asdict(check) for check in checks],
    }
    page = render_page(checks, current, baseline, facts=facts, runs=runs)
    for name, content in (
        (artifacts.METRICS, json.dumps(metrics, indent=1)),
        (VIOLATIONS, json.dumps({"violations": [asdict(check) for check in checks if check.violated]}, indent=1)),
        (MONITOR_REPORT, page),
        (MONITOR_HISTORY, "".join(f"{json.dumps(each)}\n" for each in runs)),
    ):
        write_text_atomically(out / name, content)
    return metrics


def _earlier(step: StepRun, out: Path) -> list[dict[str, Any]]:
    """Return the entries of earlier runs; a line that is none is named and left out."""
    folder = step.input("history") or out
    path = folder / MONITOR_HISTORY
    runs = []
    for number, line in enumerate(path.read_text("utf-8").splitlines() if path.is_file() else (), start=1):
        if not line:  # of a history without runs
            continue
        try:
            entry = json.loads(line)
            assert entry.keys() >= {"time", "records", "violations", "distances", "metrics"}
            assert isinstance(entry["distances"], dict)
            assert isinstance(entry["metrics"], dict)
            runs.append(entry)
        except (ValueError, AttributeError, AssertionError):
            logger.warning("%s, line %d: is no earlier run; it is left out of the trend.", path, number)
    return runs
