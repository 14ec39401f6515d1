"""Two hosts train together, stop together, and end together when one of them fails; each is a supervisor of its own."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
import torch

from contracts import artifacts
from testing.jobs import NO_DROPOUT, failure_line, metrics, run_train, write_job
from testing.tiers import long_except
from testing.two_hosts import HOSTS, TwoHosts
from tests.training.test_interruptions import workers_of

pytestmark = pytest.mark.slow

SETTINGS = {**NO_DROPOUT, "nproc_per_node": 1, "batch_size": 4, "checkpoint_every_n_steps": 3}
LONG = {**SETTINGS, "max_epochs": 30, "load_ckpt": False, "early_stop_patience": 100}


@pytest.fixture
def job(tmp_path):
    made = []

    def write(**overrides):
        wait = overrides.pop("wait", 60)
        made.append(TwoHosts.write(tmp_path, overrides=overrides, wait=wait))
        return made[-1]

    yield write
    for one in made:
        one.kill()


@pytest.fixture
def running(job):
    """A function that starts a long job and returns it when it has printed a line."""

    def start(line="step 10/"):
        pair = job(**LONG)
        pair.start()
        pair.wait_for(line)
        return pair

    return start


def weights(paths):
    return torch.load(paths.model / "model.pth", weights_only=True)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One host with the same global batch."""
    paths = write_job(tmp_path_factory.mktemp("alone"), overrides={**SETTINGS, "nproc_per_node": 2})
    run_train(paths)
    return paths


@pytest.mark.parametrize(
    "strategy",
    long_except([{}], [{}, {"strategy": "fsdp"}, {"nproc_per_node": 2, "batch_size": 2, "strategy": "hsdp"}]),
)
def test_two_hosts_train_the_weights_of_one_with_the_same_global_batch(job, alone, strategy):
    pair = job(**{**SETTINGS, **strategy})
    pair.run()
    assert "2 hosts with" in pair.log(0)
    for name, value in weights(alone).items():
        torch.testing.assert_close(weights(pair.paths[0])[name], value, rtol=1e-4, atol=1e-5, msg=name)
    assert metrics(pair.paths[0])["test/loss"] == pytest.approx(metrics(alone)["test/loss"], rel=1e-4)
    # One model in the job: what the hosts' folders hold becomes one archive.
    written = [[path.name for path in own.model.rglob("*") if path.is_file()] for own in pair.paths]
    assert set(artifacts.REQUIRED_MODEL_FILES) <= set(written[0]) | {"tokenizer"}
    assert written[1] == []
    assert not (pair.paths[1].output_data / artifacts.METRICS).exists()


@pytest.mark.long
def test_every_host_holds_the_same_complete_checkpoints(job):
    pair = job(**{**SETTINGS, "strategy": "fsdp"})
    pair.run()
    first, second = (
        {path.relative_to(own.checkpoints): path.read_bytes() for path in own.checkpoints.rglob("*") if path.is_file()}
        for own in pair.paths
    )
    assert first == second
    assert any(path.name == ".metadata" for path in first)
    assert len([path for path in first if path.suffix == ".distcp"]) >= 2


@pytest.mark.long
def test_a_stop_of_one_host_stops_both_at_one_step_and_the_next_run_resumes(running, tmp_path):
    pair = running()
    pair.processes[1].send_signal(signal.SIGTERM)
    assert pair.end(seconds=60) == [143, 143]
    for host in (0, 1):
        assert re.search(r"stopped on request: checkpoint epoch=\d+-step=\d+.ckpt is complete", pair.log(host))
    pair.run()
    assert "resuming from" in pair.log(0)
    paths = write_job(tmp_path / "whole", overrides={**LONG, "nproc_per_node": 2})
    run_train(paths)
    for name, value in weights(paths).items():
        torch.testing.assert_close(weights(pair.paths[0])[name], value, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.long
@pytest.mark.parametrize("host", [0, 1])
def test_a_worker_that_is_killed_is_restarted_with_those_of_the_other_host(running, host):
    pair = running()
    os.kill(next(iter(workers_of(pair.processes[host]))), signal.SIGKILL)
    pair.wait_for("restart 1 of 3", host=0)
    assert pair.end() == [0, 0], pair.log(0)[-3000:]
    for one in (0, 1):
        assert f"was ended by SIGKILL: usually the machine ran out of memory [host {HOSTS[host]}]" in pair.log(one)
    assert (pair.paths[0].model / "model.pth").is_file()


@pytest.mark.long
@pytest.mark.parametrize("host", [0, 1])
@pytest.mark.parametrize("phase", ["train: ", "step 10/"])
def test_a_host_that_dies_ends_the_job_on_the_other_with_its_name(running, host, phase):
    pair = running(phase)
    pair.processes[host].kill()
    killed = time.monotonic()
    codes = pair.end(seconds=120)
    print(f"host {host} killed at {phase!r}: the other ended {time.monotonic() - killed:.1f} s later")
    assert codes[1 - host] == 1
    assert failure_line(pair.paths[1 - host]).startswith(f"host {HOSTS[host]} was lost")


@pytest.mark.long
def test_a_host_that_hangs_ends_the_job_on_the_other_within_two_minutes(running):
    pair = running()
    hung = pair.processes[1]
    pids = [hung.pid, *descendants(hung.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert pair.processes[0].wait(timeout=120) == 1
        assert failure_line(pair.paths[0]) == f"host {HOSTS[1]} was lost: it sent nothing for 30 s"
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def descendants(pid):
    children = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*children, *(below for child in children for below in descendants(child))]


@pytest.mark.long
def test_a_host_that_never_comes_is_named(job):
    pair = job(**SETTINGS, wait=5)
    pair.start()
    pair.processes[1].kill()
    assert pair.processes[0].wait(timeout=60) == 1
    assert failure_line(pair.paths[0]).startswith(f"host {HOSTS[1]} did not connect within 5 s")


@pytest.mark.long
def test_a_failure_of_one_host_s_input_is_the_cause_on_both(job):
    pair = job(**SETTINGS)
    for file in pair.paths[1].channel("val").iterdir():
        file.write_text(file.read_text().replace("order_id", "order", 1))
    pair.run(expect=(1, 1))
    assert failure_line(pair.paths[0]) == failure_line(pair.paths[1])
    assert "order_id" in failure_line(pair.paths[0])


@pytest.mark.long
def test_hosts_that_were_given_other_rows_say_so(job):
    pair = job(**SETTINGS)
    for file in pair.paths[1].channel("train").iterdir():
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:-4]))
    pair.run(expect=(1, 1))
    assert "host 127.0.0.10 prepared other data than host 127.0.0.2" in failure_line(pair.paths[0])


@pytest.mark.long
def test_hosts_with_other_settings_say_so(job):
    pair = job(**SETTINGS)
    path = pair.paths[1].config / "hyperparameters.json"
    path.write_text(path.read_text().replace('"batch_size": "4"', '"batch_size": "8"'))
    pair.run(expect=(1, 1))
    assert failure_line(pair.paths[0]).startswith("settings: host 127.0.0.10 has")
