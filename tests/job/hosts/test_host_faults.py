"""A random host or worker of one or two hosts is killed at a random step: every job ends in time, or resumes right.

Two trials run with the long tests; `make host-faults` (FULL_FAULTS=1) runs 20. Each prints what it drew.
"""

import os
import random
import signal
import time

import pytest
import torch

from testing.jobs import NO_DROPOUT, failure_line, printed, run_train, start_train, wait_for, write_job
from testing.two_hosts import HOSTS, TwoHosts
from tests.training.test_interruptions import workers_of

pytestmark = [pytest.mark.slow, pytest.mark.long]

FULL = bool(os.environ.get("FULL_FAULTS"))
SECONDS = 180  # that a trial may take, from the kill to its end
STEPS = 45
SETTINGS = {
    **NO_DROPOUT, "batch_size": 2, "max_epochs": 3, "load_ckpt": False, "early_stop_patience": 100,
    "checkpoint_every_n_steps": 4, "log_every_n_steps": 1,
}  # fmt: skip


class OneHost:
    """As TwoHosts, of one."""

    def __init__(self, root) -> None:
        self.paths = (write_job(root, overrides={**SETTINGS, "nproc_per_node": 2}),)

    def start(self):
        (self.paths[0].root / "train.log").unlink(missing_ok=True)
        self.processes = [start_train(self.paths[0])]

    def end(self, *, seconds):
        try:
            return [self.processes[0].wait(seconds)]
        finally:
            self.kill()

    def kill(self):
        if self.processes[0].poll() is None:
            self.processes[0].kill()
            self.processes[0].wait()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Final weights of the same global batch on one host that nothing happens to."""
    paths = write_job(tmp_path_factory.mktemp("whole"), overrides={**SETTINGS, "nproc_per_node": 2})
    run_train(paths)
    return torch.load(paths.model / "model.pth", weights_only=True)


@pytest.mark.parametrize("seed", range(20) if FULL else [0, 1])
def test_a_host_or_worker_killed_at_any_step_ends_or_resumes_right(tmp_path, uninterrupted, seed):
    draw = random.Random(seed)
    hosts, what = 1 + seed % 2, draw.choice(["host", "worker"])
    victim, step, delay = draw.randrange(hosts), draw.randint(1, STEPS - 5), draw.uniform(0, 0.5)
    print(f"seed {seed}: {what} {victim} of {hosts} hosts is killed {delay:.2f} s after step {step}")
    overrides = {**SETTINGS, "nproc_per_node": 1}
    job = OneHost(tmp_path) if hosts == 1 else TwoHosts.write(tmp_path, overrides=overrides)
    job.start()
    try:
        wait_for(lambda: f"step {step}/" in printed(job.paths[0]))
        time.sleep(delay)
        process = job.processes[victim]
        pid = process.pid if what == "host" else draw.choice(list(workers_of(process)))
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        codes = job.end(seconds=SECONDS)
        print(f"seed {seed}: ended with {codes} {time.monotonic() - killed:.1f} s later")
        if what == "worker":
            assert set(codes) == {0}, printed(job.paths[0])[-3000:]
            assert "; restart 1 of 3" in printed(job.paths[0])
        else:
            assert codes[victim] == -signal.SIGKILL
            if hosts == 2:
                assert codes[1 - victim] == 1
                assert failure_line(job.paths[1 - victim]).startswith(f"host {HOSTS[victim]} was lost")
            job.start()
            assert set(job.end(seconds=SECONDS)) == {0}, printed(job.paths[0])[-3000:]
            assert "resuming from" in printed(job.paths[0])
    finally:
        job.kill()
    state = torch.load(job.paths[0].model / "model.pth", weights_only=True)
    for name, value in uninterrupted.items():
        torch.testing.assert_close(state[name], value, rtol=1e-3, atol=1e-4, msg=name)
