"""Run the demo's job with other settings, with a process for each GPU; docs/gpu.md uses it.

    python -m testing.demo_job ROOT [NAME=JSON ...]

A second run with the same ROOT and settings resumes the first. null removes a setting of the demo.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from container.demo import CONFIGURATION, ROWS, SEED
from container.demo_data import write_demo_data
from container.job.supervisor import train
from contracts.paths import JobPaths


def write(paths: JobPaths, settings: Mapping[str, Any]) -> None:
    """Write the demo's data, unless it is there, and its configuration with `settings`."""
    if not paths.channel("train").exists():
        write_demo_data(paths.root, rows=ROWS, seed=SEED)
    values = {**CONFIGURATION, "nproc_per_node": None, **settings}
    paths.config.mkdir(parents=True, exist_ok=True)
    given = {name: json.dumps(value) for name, value in values.items() if value is not None}
    (paths.config / "hyperparameters.json").write_text(json.dumps(given))


def main(arguments: Sequence[str]) -> int:
    root, *settings = arguments
    paths = JobPaths(Path(root))
    write(paths, {name: _value(text) for name, _, text in (setting.partition("=") for setting in settings)})
    return train(paths)


def _value(text: str) -> Any:
    """Return the value of JSON; anything else is a string."""
    try:
        return json.loads(text)
    except ValueError:
        return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
