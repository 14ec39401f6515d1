"""Write the results of a search: a table of its trials, and the summary that the report shows."""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from container.tuning.study import TuningStudy
from contracts import artifacts
from contracts.atomic_files import AtomicFile, write_text_atomically
from contracts.hyperparameters import Hyperparameters
from contracts.tuning_space import space_of


def write_results(out: Path, study: TuningStudy, hp: Hyperparameters, winner: Mapping[str, Any]) -> None:
    """Write tuning/trials.csv and tuning/summary.json into `out`.

    Args:
        winner: the facts of container/tuning/winner.py.
    """
    trials = [
        {
            "number": trial.number,
            "state": trial.state.name.lower(),
            "value": trial.value,
            "steps": trial.user_attrs.get("steps"),
            "seconds": trial.user_attrs.get("seconds"),
            "planned_steps": trial.user_attrs.get("planned_steps"),
            "reason": trial.user_attrs.get("reason", ""),
            "settings": study.settings(trial),
        }
        for trial in study.trials
    ]
    names = list(space_of(hp))
    folder = out / artifacts.TUNING
    folder.mkdir(parents=True, exist_ok=True)
    with AtomicFile(folder / "trials.csv") as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        columns = ["number", "state", "value", "steps", "seconds"]
        writer.writerow([*columns, *names])
        for trial in trials:
            writer.writerow(
                [*(trial[name] for name in columns), *(_cell(trial["settings"].get(name)) for name in names)]
            )
    summary = {
        "metric": study.metric.name,
        "minimizes": study.metric.minimizes,
        "trials": trials,
        "importance": study.importance(),
        "winner": winner,
    }
    write_text_atomically(folder / artifacts.TUNING_SUMMARY, json.dumps(summary, indent=1))


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (list, dict)) else value
