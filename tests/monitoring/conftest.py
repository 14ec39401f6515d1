"""A model with known weights, its baseline, and records like those of its training."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from container.monitoring.older_model import write_baseline
from container.steps.program import run_step
from contracts.paths import SPLITS, JobPaths
from contracts.step_contract import message_file
from contracts.steps import MONITOR
from testing.exported_models import linear_model

WORDS = np.array(["good", "bad", "shirt", "late", "parcel", "thank", "you"])


def records(rows: int, *, seed: int) -> pd.DataFrame:
    """Records of which the label follows from x and y, as the model knows."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(0, 1, rows), rng.integers(0, 4, rows)
    frame = pd.DataFrame(
        {
            "id": [f"r{seed}-{i}" for i in range(rows)],
            "text": [" ".join(rng.choice(WORDS, 6)) for _ in range(rows)],
            "x": x,
            "y": y,
            "c": rng.choice(["a", "b", "c"], rows, p=[0.6, 0.3, 0.1]),
        }
    )
    return frame.assign(label=(rng.random(rows) < 1 / (1 + np.exp(-(2 * x + y - 1.5)))).astype(int))


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobPaths:
    """A finished job with model/, whose baseline `python -m container baseline` wrote."""
    root = tmp_path_factory.mktemp("watched")
    linear_model(root, np.array([2.0, 1.0, 0.0]), of_tokens=0.0, bias=-1.5)
    paths = JobPaths(root)
    for seed, split in enumerate(SPLITS):
        paths.channel(split).mkdir(parents=True)
        records(1500, seed=seed).to_csv(paths.channel(split) / "data.csv", index=False)
    write_baseline(paths)
    return paths


class Monitored:
    """A root of the step with the job's model."""

    def __init__(self, root: Path, job: JobPaths) -> None:
        self.root = root
        MONITOR.input("model_input").path(root).parent.mkdir(parents=True)
        MONITOR.input("model_input").path(root).symlink_to(job.model)
        self.out = MONITOR.output("monitoring").path(root)

    def give(self, name: str, file: str, content: bytes | str) -> None:
        path = MONITOR.input(name).path(self.root) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    def run(self, *, expect: int = 0, **settings: str) -> None:
        code = run_step("monitor", self.root, {}, settings)
        message = message_file(self.root)
        assert code == expect, message.read_text() if message.exists() else self.violations

    @property
    def metrics(self) -> dict[str, Any]:
        return json.loads((self.out / "metrics.json").read_text())

    @property
    def violations(self) -> set[tuple[str, str]]:
        found = json.loads((self.out / "violations.json").read_text())["violations"]
        return {(each["subject"], each["what"]) for each in found}


@pytest.fixture
def monitored(tmp_path: Path, job: JobPaths) -> Monitored:
    return Monitored(tmp_path / "step", job)


def captured(body: str, media_type: str = "application/json", *, encoding: str = "BASE64", **event: str) -> str:
    """A line of a data capture."""
    data = base64.b64encode(body.encode()).decode() if encoding == "BASE64" else body
    part = {"observedContentType": media_type, "mode": "INPUT", "data": data, "encoding": encoding}
    event = {"eventId": "e", "inferenceTime": "2026-11-01T10:00:00Z", **event}
    return json.dumps({"captureData": {"endpointInput": part}, "eventMetadata": event, "eventVersion": "0"}) + "\n"
