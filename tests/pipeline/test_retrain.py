"""The weekly loop of docs/retrain.md, on this machine: two weeks of its configuration."""

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml

from testing.jobs import table
from testing.warm import WarmProcess
from tests.test_pages import blocks_of

pytestmark = pytest.mark.slow


def run(folder: Path, config: dict) -> str:
    path = folder / "weekly.yaml"
    path.write_text(yaml.safe_dump(config))
    process = WarmProcess(
        ["-m", "pipeline", "run", "--config", str(path), "--root", str(folder / "weekly")],
        environment={**os.environ, "OMP_NUM_THREADS": "1"},
        output=folder / "printed.txt",
    )
    try:
        exit_code = process.wait(timeout=300)
    finally:
        process.kill()
    printed = (folder / "printed.txt").read_text()
    assert exit_code == 0, printed[-4000:]
    return printed


def give_week(folder: Path, seed: int) -> None:
    """A table to train on, and requests whose labels come later."""
    for name, rows, columns in (("table", 400, None), ("requests", 300, ["label"]), ("labels", 300, None)):
        frame = table(rows, seed=seed + (name != "table"))
        frame = frame[["order_id", "label"]] if name == "labels" else frame.drop(columns=columns or [])
        target = folder / "week" / name
        target.mkdir(parents=True, exist_ok=True)
        frame.to_csv(target / "part-0.csv", index=False)


def newest(folder: Path, pattern: str) -> Path:
    return max((folder / "weekly").rglob(pattern), key=lambda path: path.stat().st_mtime)


def test_the_second_week_starts_from_the_first_and_both_are_watched(tmp_path: Path) -> None:
    (block,) = blocks_of("docs/retrain.md", "yaml")
    config = yaml.safe_load(block)
    first = {**config, "inputs": {name: path for name, path in config["inputs"].items() if name != "initial_model"}}
    give_week(tmp_path, seed=1)
    assert "Monitoring" in run(tmp_path, first)
    watched = json.loads(newest(tmp_path, "monitor/metrics.json").read_text())
    assert (watched["records"], watched["labelled"]) == (300, 300)
    model = newest(tmp_path, "ml/model/model.pth").parent
    shutil.copytree(model, tmp_path / "week" / "initial")
    give_week(tmp_path, seed=10)
    run(tmp_path, config)
    compared = json.loads(newest(tmp_path, "metrics/evaluation.json").read_text())["decision"]["champion"]
    assert compared["records"] > 0
    assert compared["value"] is not None, "the model of the first week scored the test rows of the second"
    assert "carry over" in newest(tmp_path, "PyTorchTraining/*/log.txt").read_text()
    report = (tmp_path / "weekly" / "report.md").read_text()
    assert "records of the deployed model: " in report
    assert len(list((tmp_path / "weekly").rglob("monitor/monitor_report.html"))) == 2
