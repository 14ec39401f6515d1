"""Write the results of a search: a table of its trials, and the summary that the report shows."""

import csv
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from container.tuning.study import Trial, TuningStudy
from contracts import artifacts
from contracts.atomic_files import AtomicFile, write_text_atomically
from contracts.hyperparameters import Hyperparameters
from contracts.tuning_space import space_of

_COLUMNS = ("number", "state", "value", "steps", "seconds")


def write_results(out: Path, study: TuningStudy, hp: Hyperparameters, best: Trial) -> None:
    """Write tuning/trials.csv and tuning/summary.json into `out`."""
    assert hp.tuning is not None
    networks = hp.tuning.final_seeds
    trials = [{**asdict(trial), "settings": study.changes(trial)} for trial in study.trials]
    names = list(space_of(hp))
    folder = out / artifacts.TUNING
    folder.mkdir(parents=True, exist_ok=True)
    with AtomicFile(folder / "trials.csv") as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*_COLUMNS, *names])
        for trial in trials:
            writer.writerow([*(trial[name] for name in _COLUMNS), *(_cell(trial["settings"][name]) for name in names)])
    summary = {
        "metric": study.metric.name,
        "minimizes": study.metric.minimizes,
        "trials": trials,
        "importance": study.importance(),
        "winner": {
            "trial": best.number,
            "value": best.value,
            "changes": study.changes(best),
            "networks": networks,
            "model": hp.ensemble_model if networks > 1 else None,
        },
    }
    write_text_atomically(folder / artifacts.TUNING_SUMMARY, json.dumps(summary, indent=1))


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (list, dict)) else value
