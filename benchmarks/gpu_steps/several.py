"""The steps for several GPUs, one process on each, over NCCL. On a CPU, over gloo."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.gpu_steps.job import demo_job
from benchmarks.gpu_steps.parity import compare_rows
from benchmarks.gpu_steps.processes import REPOSITORY
from benchmarks.gpu_steps.recorder import Recorder
from benchmarks.gpu_steps.runs import forked_runs
from container.training.checkpoint_files import complete_checkpoints
from contracts.paths import JobPaths
from testing.parity_strategies import BY_NAME

STOPPED = 128 + signal.SIGTERM
MOST_SECONDS = 60.0  # until a stopped job has saved, or a job goes on after a killed worker
_STEP = re.compile(r"step (\d+)/")
_DEEP = {"hidden_size": 96, "num_hidden_layers": 8, "num_attention_heads": 2, "intermediate_size": 192}


def data_parallel(check: Recorder) -> None:
    _rows(check, lambda name: name.startswith(("ddp", "fsdp")))


def hybrid(check: Recorder) -> None:
    _rows(check, lambda name: "hsdp" in name or " x fsdp" in name)


def slices(check: Recorder) -> None:
    _rows(check, lambda name: name.startswith(("tp", "branch")) and "fsdp" not in name)


def pipelines(check: Recorder) -> None:
    _rows(check, lambda name: name.startswith("pp") and "fsdp" not in name)


def _rows(check: Recorder, chosen: Callable[[str], bool]) -> None:
    """Compare the chosen rows of the parity table, those that fit the GPUs, with one process."""
    rows = [row for name, row in BY_NAME.items() if chosen(name)]
    fitting = [row.name for row in rows if row.world_size <= check.gpus]
    if check.tiny:
        fitting = fitting[:1]
    if not fitting:
        check.note(f"each of these needs more than {check.gpus} GPUs: {', '.join(row.name for row in rows)}")
        return
    with forked_runs(check.folder) as (_, jobs):
        compare_rows(check, jobs, fitting, seconds=20)


def communicators(check: Recorder) -> None:
    """Run whole jobs with pipelines, which validate in the middle: no communicator that opens late waits forever."""
    for schedule in ("1F1B", "Interleaved1F1B", "ZBVZeroBubble")[: 1 if check.tiny else None]:
        ranks = min(4, check.gpus) // 2 * 2
        layers = (
            {**_DEEP, "vocab_size": 2000} if not check.tiny else {**_DEEP, "num_hidden_layers": 4, "vocab_size": 500}
        )
        settings = {
            "strategy": "pp", "pp_schedule": schedule, "num_microbatches": 8, "nproc_per_node": ranks,
            "val_check_interval": 0.25, "encoder_config": layers, "max_epochs": 1, "explain": 0,
        }  # fmt: skip
        if not check.has_time(25, schedule):
            continue
        with check.part(schedule):
            job = RunningJob(check, schedule, **settings)
            check.holds(f"{schedule}: the job completes", job.wait() == 0, value=job.process.returncode)


def stops(check: Recorder) -> None:
    settings = {
        "strategy": "ddp", "nproc_per_node": check.gpus, "checkpoint_every_n_steps": 2, "log_every_n_steps": 1,
        "max_epochs": 50, "explain": 0, "val_check_interval": 1.0,
    }  # fmt: skip
    with check.part("SIGTERM inside a collective"):
        _stopped(check, settings)
    if check.has_time(45, "a killed worker"):
        with check.part("a killed worker"):
            _restarted(check, settings)


def _stopped(check: Recorder, settings: dict[str, Any]) -> None:
    """Pause the last rank, so that the others wait for it in a collective, and stop the job meanwhile."""
    job = RunningJob(check, "stopped", **settings)
    job.wait_for_step(3)
    paused = job.workers()[-1]
    os.kill(paused, signal.SIGSTOP)
    time.sleep(2)
    job.process.send_signal(signal.SIGTERM)
    time.sleep(2)
    os.kill(paused, signal.SIGCONT)
    started = time.monotonic()
    code = job.wait(MOST_SECONDS)
    check.holds("a stopped job ends with exit code 143", code == STOPPED, value=code)
    check.figure("seconds until a stopped job ended", round(time.monotonic() - started, 1))
    saved = complete_checkpoints(job.paths.checkpoints)
    check.holds("a stopped job has a complete checkpoint", bool(saved), value=[each.step for each in saved])


def _restarted(check: Recorder, settings: dict[str, Any]) -> None:
    """Kill a worker in the middle of a step; the job goes on from its newest checkpoint."""
    job = RunningJob(check, "restarted", **settings)
    job.wait_for_step(5)
    os.kill(job.workers()[-1], signal.SIGKILL)
    started = time.monotonic()
    found = job.wait_for("training continues")
    check.figure("seconds until training continues", round(time.monotonic() - started, 1))
    check.holds("after a killed worker training continues", found)
    job.process.send_signal(signal.SIGTERM)
    job.wait(MOST_SECONDS)


class RunningJob:
    """A job of the demo's data in processes of its own; its output is in a file, and printed at its end."""

    def __init__(self, check: Recorder, name: str, **settings: Any) -> None:
        self.paths = JobPaths(check.folder / name)
        self._log = check.folder / f"{name}.log"
        command = demo_job(check, name, bf16=False, **settings)
        with self._log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT)

    def wait(self, seconds: float | None = None) -> int:
        try:
            return self.process.wait(seconds)
        finally:
            self.process.kill()
            print(self._log.read_text(), flush=True)

    def wait_for(self, text: str, seconds: float = MOST_SECONDS) -> bool:
        """Return whether the job logs a line with `text` in time."""
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at and self.process.poll() is None:
            if text in self._log.read_text():
                return True
            time.sleep(0.1)
        return False

    def wait_for_step(self, step: int) -> None:
        ends_at = time.monotonic() + 2 * MOST_SECONDS
        while max((int(found) for found in _STEP.findall(self._log.read_text())), default=0) < step:
            if self.process.poll() is not None or time.monotonic() > ends_at:
                print(self._log.read_text(), flush=True)
                raise RuntimeError(f"the job did not reach step {step}; its exit code is {self.process.poll()}")
            time.sleep(0.1)

    def workers(self) -> list[int]:
        """Return the processes of the ranks, in their order."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                variables = path.read_bytes().split(b"\0")
                command = (path.parent / "cmdline").read_bytes()
                ranks = [int(each[5:]) for each in variables if each.startswith(b"RANK=")]
                if ranks and b"container.job.launch.worker" in command and self._is_mine(int(path.parent.name)):
                    found[ranks[0]] = int(path.parent.name)
        assert found, "the job has workers"
        return [found[rank] for rank in sorted(found)]

    def _is_mine(self, pid: int) -> bool:
        while pid > 1 and pid != self.process.pid:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return pid == self.process.pid
