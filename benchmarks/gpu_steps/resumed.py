"""Kill a run while it trains, run it again, and compare its losses with those of a run that was not killed."""

import os
import signal
import time
from typing import Any
from unittest import mock

from benchmarks.gpu_steps.recorder import Recorder
from benchmarks.gpu_steps.runs import forked_runs
from container.job.job import Job
from container.training.checkpoint_files import complete_checkpoints
from container.training.loop import Trainer
from testing.parity import ADAMW, DROPOUT_ON, ONE_PROCESS, STEPS, train_jobs
from testing.rank_pool import RankFailed

SAVED_EVERY, KILLED_AT = 4, 14  # steps
TOLERANCE = 1e-3  # the backward of an embedding adds in any order, so bits differ on a GPU


def run(check: Recorder) -> None:
    with forked_runs(check.folder) as (pool, jobs):
        for precision in ("float32", "bfloat16") if check.on_gpu else ("float32",):
            if not check.has_time(15, precision):
                continue
            with check.part(precision):
                settings = {**DROPOUT_ON, **ADAMW, "bf16": precision == "bfloat16"}
                ((expected,),) = pool.run(train_jobs, [jobs.job(ONE_PROCESS, settings)], world_size=1)
                job = jobs.job(ONE_PROCESS, {**settings, "resume": True, "checkpoint_every_n_steps": SAVED_EVERY})
                crashed = False
                try:
                    pool.run(train_until_killed, job, world_size=1)
                except RankFailed as killed:
                    crashed = killed.crashed
                check.holds(f"{precision}: the run was killed", crashed)
                saved = complete_checkpoints(job.paths.checkpoints)
                check.holds(f"{precision}: a checkpoint is complete", bool(saved), value=[each.step for each in saved])
                killed_at = time.time()
                ((resumed,),) = pool.run(train_jobs, [job], world_size=1)
                again = [entry for entry in resumed["history"] if entry["time"] > killed_at and "train/loss" in entry]
                check.holds(f"{precision}: the second run resumed", 0 < len(again) < STEPS, value=len(again))
                check.at_most(f"{precision}: losses", _difference(resumed, expected), TOLERANCE)


def train_until_killed(job: Job) -> None:
    """Train, and be killed at the beginning of a step, while a checkpoint may still be written."""
    step = Trainer._step

    def killed_step(trainer: Trainer, *batches: Any) -> None:
        if trainer._run.state.step == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        step(trainer, *batches)

    with mock.patch.object(Trainer, "_step", killed_step):
        train_jobs([job])


def _difference(found: dict[str, Any], expected: dict[str, Any]) -> float:
    """Return the largest relative difference of a loss; infinity if steps are missing."""
    ours, theirs = (
        {entry["step"]: entry["train/loss"] for entry in run["history"] if "train/loss" in entry}
        for run in (found, expected)
    )
    if ours.keys() != theirs.keys():
        return float("inf")
    return max(abs(ours[step] - loss) / abs(loss) for step, loss in theirs.items())
