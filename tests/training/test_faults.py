"""Ranks that die, raise or are asked to stop at any moment: every job ends, with its cause or where it should.

A few trials of each kind run with the other tests; `make faults` (FULL_FAULTS=1) runs all of them. Every trial prints
what it drew, and its seed draws the same again.
"""

import json
import os
import random
import re
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from container.training.checkpoint import CheckpointStore
from container.training.checkpoint_files import complete_checkpoints
from contracts.paths import JobPaths
from testing.faults import SHIM
from testing.jobs import failure_line, printed, run_train, start_train, wait_for, write_job
from tests.training.test_interruptions import LONG, assert_same_weights, kill_rank

CPU = torch.device("cpu")

pytestmark = [pytest.mark.slow, pytest.mark.long]

FULL = bool(os.environ.get("FULL_FAULTS"))
# 15 steps an epoch, whose ends are not where checkpoints are saved.
SETTINGS = {**LONG, "max_epochs": 3, "checkpoint_every_n_steps": 4}
STEPS = 45
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"nproc_per_node": 2, "batch_size": 2},
    "fsdp": {"nproc_per_node": 2, "batch_size": 2, "strategy": "fsdp"},
    "pp x dp": {"nproc_per_node": 4, "batch_size": 2, "pp_size": 2, "num_microbatches": 2},
}


@dataclass(frozen=True)
class Fault:
    """What testing/faults/shim does to a rank."""

    rank: int
    at: str
    call: int
    do: str | float

    def environment(self, folder: Path) -> dict[str, str]:
        fault = {**self.__dict__, "marker": str(folder / "fault-happened")}
        return {"FAULT": json.dumps(fault), "PYTHONPATH": str(SHIM)}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Final weights of a strategy's run that nothing happens to; each is trained once."""
    found: dict[str, dict[str, torch.Tensor]] = {}

    def weights(strategy: str) -> dict[str, torch.Tensor]:
        if strategy not in found:
            paths = job(tmp_path_factory.mktemp("whole"), strategy)
            run_train(paths)
            found[strategy] = torch.load(paths.model / "model.pth", weights_only=True)
        return found[strategy]

    return weights


def job(root: Path, strategy: str, **overrides: Any) -> JobPaths:
    return write_job(root, overrides={**SETTINGS, **STRATEGIES[strategy], **overrides})


def assert_no_torn_checkpoint(paths: JobPaths) -> None:
    folders = {path.name for path in paths.checkpoints.glob("*") if path.is_dir()}
    assert folders == {one.folder.name for one in complete_checkpoints(paths.checkpoints)}


@pytest.mark.parametrize("seed", range(20) if FULL else [2])
def test_a_rank_killed_at_any_moment_costs_a_restart_and_changes_nothing(tmp_path, uninterrupted, seed):
    strategy, draw = list(STRATEGIES)[seed % 3], random.Random(seed)
    rank = draw.randrange(STRATEGIES[strategy]["nproc_per_node"])
    step, delay = draw.randint(1, STEPS - 5), draw.uniform(0, 0.5)
    print(f"{strategy}, seed {seed}: SIGKILL for rank {rank}, {delay:.2f} s after step {step}")
    expected = uninterrupted(strategy)
    paths = job(tmp_path, strategy)
    process = start_train(paths)
    try:
        wait_for(lambda: f"step {step}/" in printed(paths))
        time.sleep(delay)
        kill_rank(process, rank)
        assert process.wait(timeout=180) == 0, printed(paths)[-3000:]
    finally:
        process.kill()
    assert re.search(rf"worker rank {rank} .* SIGKILL.*; restart 1 of 3, from", printed(paths))
    assert_no_torn_checkpoint(paths)
    assert_same_weights(paths, expected)


MOMENTS = ("loading", "first step", "validation", "saving")


@pytest.mark.parametrize("seed", range(10 if FULL else 2))
def test_sigterm_at_any_moment_leaves_whole_checkpoints_and_an_exact_resume(tmp_path, uninterrupted, seed):
    draw = random.Random(seed)
    moment = MOMENTS[(3 - seed) % len(MOMENTS)]
    fault = {
        "loading": Fault(draw.randrange(2), "loading", 1, 1.0),
        "first step": Fault(draw.randrange(2), "step", 1, 1.0),
        "validation": Fault(draw.randrange(2), "validation", draw.randint(1, 2), 1.0),
        "saving": Fault(draw.randrange(2), "saving", draw.randint(1, 8), 1.0),
    }[moment]
    delay = draw.uniform(0, 1.2)
    print(f"seed {seed}: SIGTERM {delay:.2f} s into {moment}, {fault}")
    expected = uninterrupted("ddp")
    paths = job(tmp_path, "ddp")
    if moment == "loading":
        stop_when(paths, lambda: "step 10/" in printed(paths))
    before = [one.step for one in complete_checkpoints(paths.checkpoints)]
    stop_when(paths, (tmp_path / "fault-happened").exists, delay=delay, environment=fault.environment(tmp_path))
    assert_no_torn_checkpoint(paths)
    after = [one.step for one in complete_checkpoints(paths.checkpoints)]
    assert max(after, default=0) >= max(before, default=0)
    run_train(paths)
    assert_same_weights(paths, expected)


def stop_when(
    paths: JobPaths, condition: Any, *, delay: float = 0.0, environment: dict[str, str] | None = None
) -> None:
    """Start the job, ask it to stop when `condition` holds, and see that it does."""
    process = start_train(paths, **(environment or {}))
    try:
        wait_for(condition)
        time.sleep(delay)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 143, printed(paths)[-3000:]
    finally:
        process.kill()
    assert "stopped on request" in printed(paths).splitlines()[-1]


@pytest.mark.parametrize("rank", [0, 1] if FULL else [1])
@pytest.mark.parametrize("moment", ["loader", "forward", "saving", "validation"] if FULL else ["loader", "saving"])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"] if FULL else ["ddp"])
def test_a_rank_that_raises_ends_the_job_within_a_minute_and_is_named(tmp_path, strategy, moment, rank):
    paths = job(tmp_path, strategy)
    fault = Fault(rank, moment, 2, "raise")
    process = start_train(paths, **fault.environment(tmp_path))
    try:
        wait_for((tmp_path / "fault-happened").exists)
        assert process.wait(timeout=60) == 1, printed(paths)[-3000:]
    finally:
        process.kill()
    assert failure_line(paths) == f"RuntimeError: injected into {moment} [rank {rank}]"
    assert_no_torn_checkpoint(paths)
    assert "restart" not in printed(paths)


@pytest.fixture(scope="module")
def three_checkpoints(one_rank, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    module = torch.nn.Linear(50, 50)
    optimizer = torch.optim.AdamW(module.parameters())
    store = CheckpointStore(folder, keep=3, device=CPU)
    for step in (1, 2, 3):
        module(torch.randn(2, 50)).sum().backward()
        optimizer.step()
        store.save(module, optimizer, name=f"epoch=0-step={step}.ckpt", content={"step": step}, best_step=None)
    store.wait()
    return folder


@pytest.mark.parametrize("seed", range(20))
def test_a_truncated_checkpoint_gives_way_to_the_next_older_one_and_a_line_says_so(
    three_checkpoints, tmp_path, caplog, seed
):
    draw = random.Random(seed)
    shutil.copytree(three_checkpoints, tmp_path / "checkpoints")
    damaged = draw.choice(sorted((tmp_path / "checkpoints" / "epoch=0-step=3.ckpt").iterdir()))
    content = damaged.read_bytes()
    damaged.write_bytes(content[: draw.randrange(len(content))])
    assert CheckpointStore(tmp_path / "checkpoints", keep=3, device=CPU).newest().step == 2
    assert "checkpoint epoch=0-step=3.ckpt is incomplete" in caplog.text
