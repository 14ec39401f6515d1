"""The report of a run: the table, the decision, the metrics' summary, and where everything lies."""

from dataclasses import dataclass
from pathlib import Path

from contracts import artifacts
from contracts.steps import DATA_PROFILE_TEXT, METRICS_SUMMARY, MODEL_METRICS, PYTORCH_TRAINING, TABULAR_PREPROCESSING
from pipeline.local.run_state import Run

REPORT = "report.md"


@dataclass(frozen=True)
class Report:
    """What is printed, and the longer page."""

    text: str
    path: Path


def write_report(state: Run, failure: str | None, *, seconds: float) -> Report:
    """Write report.md under the run's root."""
    table = "\n".join(line.rstrip() for line in state.progress.lines())
    outcome = failure or (state.decision.sentence() if state.decision else "")
    text = f"\n{table}\n\n{outcome}\nThe run took {seconds:.1f} s.\n"
    summary = _file(state, MODEL_METRICS.name, "metrics_output", METRICS_SUMMARY)
    places = {
        "profile of the data": _file(state, TABULAR_PREPROCESSING.name, "processed_data", DATA_PROFILE_TEXT),
        "evaluation": _file(state, PYTORCH_TRAINING.name, "evaluation_output", artifacts.REPORT),
        "metrics": summary,
        "plots": _file(state, MODEL_METRICS.name, "plots_output", ""),
    }
    page = [f"# {state.config.name}\n", f"```\n{table}\n```\n", f"{outcome}\n", "## Where to look\n"]
    page += [f"* {name}: {place}" for name, place in places.items() if place is not None]
    page += [f"* log of {name}: {place.log}" for name, place in state.places.items() if place.log.is_file()]
    if summary is not None and summary.is_file():
        page += ["\n## Metrics\n", f"```\n{summary.read_text(encoding='utf-8').rstrip()}\n```"]
    path = state.root / REPORT
    path.write_text("\n".join(page) + "\n", encoding="utf-8")
    return Report(text, path)


def _file(state: Run, step: str, output: str, name: str) -> Path | None:
    if step not in state.places:
        return None
    contract = next(each.contract for each in state.plan.steps if each.contract.name == step)
    path = state.places[step].output(contract, output) / name
    return path if path.exists() else None
