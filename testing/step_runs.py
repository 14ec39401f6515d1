"""Run a pipeline step's program as a separate process, with the root of a processing job."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from contracts.step_contract import StepContract, message_file
from contracts.steps import PROCESSING_STEPS
from testing import warm

VARIABLES = {name for step in PROCESSING_STEPS.values() for name in step.settings.variables()}


def run_step(root: Path, command: str, *arguments: str, expect: int = 0, **settings: Any) -> str:
    """Run `python -m container COMMAND` with the settings as environment variables, and return its log."""
    code, log = warm.run(
        ["-m", "container", command, "--root", str(root), *arguments], environment=environment(**settings), timeout=120
    )
    assert code == expect, f"exit code {code}\n{log[-4000:]}"
    return log


def failure_of(root: Path, command: str, **settings: Any) -> str:
    """Run a step that must fail, and return the first line of its message."""
    run_step(root, command, expect=1, **settings)
    return message(root)


def environment(**settings: Any) -> dict[str, str]:
    """Return this process's variables, with those of every step replaced by `settings`."""
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    written = {name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()}
    return {**kept, "OMP_NUM_THREADS": "1", **written}


def message(root: Path) -> str:
    """Return the first line that SageMaker shows of a failed step."""
    return message_file(root).read_text().splitlines()[0]


def give(root: Path, contract: StepContract, **inputs: Path | dict[str, bytes | str]) -> Path:
    """Create inputs by logical name, as copies of a folder or file, or as files by name, and return the root."""
    for name, content in inputs.items():
        folder = contract.input(name).path(root)
        if isinstance(content, dict):
            for file, text in content.items():
                path = folder / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text.encode() if isinstance(text, str) else text)
        elif content.is_dir():
            shutil.copytree(content, folder)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(content, folder)
    return root


def input_folder(root: Path, command: str, name: str) -> Path:
    """Create and return the folder of an input."""
    folder = PROCESSING_STEPS[command].input(name).path(root)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def output_folder(root: Path, command: str, name: str) -> Path:
    return PROCESSING_STEPS[command].output(name).path(root)


def orders(rows: int, *, seed: int = 0) -> pd.DataFrame:
    """Return a raw table: ids with leading zeros, a time, a text with commas and line breaks, a number, a label."""
    rng = np.random.default_rng(seed)
    texts = ["hello, world", 'he said "no"', "two\nlines", "tab\there", "", "plain"]
    return pd.DataFrame(
        {
            "order_id": [f"{i:06d}" for i in range(rows)],
            "time": pd.date_range("2025-01-01", periods=rows, freq="h").strftime("%Y-%m-%dT%H:%M:%S"),
            "chat": rng.choice(texts, rows),
            "price": np.where(rng.random(rows) < 0.1, np.nan, np.round(rng.normal(20, 5, rows), 2)),
            "seller": [f"s{i}" for i in rng.integers(0, max(rows // 5, 1), rows)],
            "label": (rng.random(rows) < 0.3).astype(int),
        }
    )
