"""A job killed anywhere resumes; a worker that dies is started again, or ends the job with its cause."""

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import threading
from pathlib import Path

import pytest
import torch

from container.job import supervisor
from container.job.failure import Failure
from contracts.file_systems import LOCK
from contracts.other_programs import NOT_UPLOADED
from testing.faults.trial import small_disk
from testing.jobs import (
    ONE_LAYER,
    TINY_ENCODER,
    failure_line,
    printed,
    run_train,
    start_train,
    start_until,
    wait_for,
    write_job,
)

pytestmark = pytest.mark.slow

LONG = {
    "max_epochs": 6, "checkpoint_every_n_steps": 3, "batch_size": 4, "load_ckpt": False, "encoder_config": ONE_LAYER,
}  # fmt: skip
TWO_WORKERS = {**LONG, "nproc_per_node": 2, "batch_size": 2, "max_epochs": 4}
SLOWLY_BUILT = {**TINY_ENCODER, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 12}  # in seconds


def workers_of(process):
    """{process id: rank} of the job's workers, from their command lines, or their names where they are forks."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            name = (folder / "comm").read_text().split()
            command = (folder / "cmdline").read_bytes().split(b"\0")
            pid = int(folder.name)
            if name[0] == "worker" and len(name) == 2 and ancestor(pid, process.pid):
                found[pid] = int(name[1])
            elif b"container.job.launch.worker" in command and ancestor(pid, process.pid):
                variables = dict(
                    entry.split(b"=", 1) for entry in (folder / "environ").read_bytes().split(b"\0") if b"=" in entry
                )
                found[pid] = int(variables[b"RANK"])
    return dict(sorted(found.items()))


def ancestor(pid, target):
    while pid > 1:
        if pid == target:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            return False
    return False


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    paths = write_job(tmp_path_factory.mktemp("whole"), overrides=LONG)
    run_train(paths)
    return torch.load(paths.model / "model.pth", weights_only=True)


@pytest.fixture(scope="module")
def uninterrupted_pair(tmp_path_factory):
    paths = write_job(tmp_path_factory.mktemp("pair"), overrides=TWO_WORKERS)
    run_train(paths)
    return torch.load(paths.model / "model.pth", weights_only=True)


def assert_same_weights(paths, expected):
    state = torch.load(paths.model / "model.pth", weights_only=True)
    for name, value in expected.items():
        assert torch.equal(state[name], value), name


def test_a_job_killed_in_the_middle_ends_with_the_weights_of_an_uninterrupted_one(tmp_path, uninterrupted):
    paths = write_job(tmp_path, overrides=LONG)
    for step in ("step 20/", "step 50/"):
        process = start_until(paths, step)
        process.kill()
        process.wait()
    assert not (paths.model / "model.pth").exists()
    log = run_train(paths)
    assert "resuming from" in log
    assert_same_weights(paths, uninterrupted)


def test_the_workers_of_a_killed_job_do_not_live_on(tmp_path):
    paths = write_job(tmp_path, overrides={**LONG, "nproc_per_node": 2})
    process = start_train(paths)
    wait_for(lambda: "step 5/" in printed(paths))
    workers = workers_of(process)
    assert len(workers) == 2
    process.kill()
    process.wait()
    wait_for(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() and alive(pid) for pid in workers), seconds=10)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_sigterm_stops_at_a_step_with_a_complete_checkpoint_and_the_next_run_resumes(tmp_path, uninterrupted):
    paths = write_job(tmp_path, overrides=LONG)
    process = start_until(paths, "step 10/")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143
    assert "stopped on request: checkpoint epoch=" in printed(paths).splitlines()[-1]
    assert not (paths.model / "model.pth").exists()
    run_train(paths)
    assert_same_weights(paths, uninterrupted)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_dies_by_sigkill_ends_the_job_within_a_minute_with_its_cause(tmp_path, rank):
    paths = write_job(tmp_path, overrides={**LONG, "nproc_per_node": 2, "max_restarts": 0})
    process = start_until(paths, "step 5/")
    pid = kill_rank(process, rank)
    assert process.wait(timeout=60) == 1
    assert failure_line(paths).startswith(f"worker rank {rank} (pid {pid}) was ended by SIGKILL")
    assert not list(paths.model.glob("*")) if paths.model.exists() else True


def kill_rank(process, rank, number=signal.SIGKILL):
    """Kill the worker of `rank`; returns its process id."""
    pid = wait_for(lambda: {number: pid for pid, number in workers_of(process).items()}.get(rank))
    os.kill(pid, number)
    return pid


def test_workers_are_started_again_from_the_newest_checkpoint_when_one_is_killed(tmp_path, uninterrupted_pair):
    paths = write_job(tmp_path, overrides=TWO_WORKERS)
    process = start_until(paths, "step 20/")
    pid = kill_rank(process, 1)
    wait_for(lambda: "training continues" in printed(paths))
    kill_rank(process, 0, signal.SIGSEGV)
    assert process.wait(timeout=120) == 0
    log = printed(paths)
    assert f"worker rank 1 (pid {pid}) was ended by SIGKILL" in log
    assert "restart 1 of 3, from checkpoint epoch=" in log
    assert "restart 2 of 3, from checkpoint epoch=" in log
    seconds = [float(value) for value in re.findall(r"training continues (\S+) s later", log)]
    assert len(seconds) == 2
    assert max(seconds) < 60
    assert_same_weights(paths, uninterrupted_pair)


def test_a_trial_whose_workers_alone_get_sigterm_goes_on_from_its_newest_checkpoint(tmp_path):
    """The worker trains on for two seconds after the signal, so the training must take longer on every machine."""
    tuning = {"trials": 1, "final_seeds": 1, "space": {"lr": {"low": 1e-3, "high": 1e-2}}}
    paths = write_job(tmp_path, overrides={**LONG, "max_epochs": 500, "load_ckpt": True, "tuning": tuning})
    folder = paths.tuning / "trial-0000" / "checkpoints"
    process = start_until(paths, lambda: any(folder.glob("epoch=*")))
    pid = kill_rank(process, 0, signal.SIGTERM)
    ended = rf"rank 0 \(pid {pid}\) was ended by SIGTERM.*; restart 1 of 3, from checkpoint epoch=.*step=(.*)\.ckpt"
    found = wait_for(lambda: re.search(ended, printed(paths)))
    wait_for(lambda: max(int(path.stem.rpartition("=")[2]) for path in folder.glob("epoch=*")) > int(found[1]))
    process.kill()


@pytest.mark.long
def test_a_worker_that_keeps_dying_ends_the_job_after_the_restarts(tmp_path):
    paths = write_job(tmp_path, overrides={**TWO_WORKERS, "max_restarts": 1, "resume": False})
    process = start_train(paths, warm=True)
    for count in (0, 1):
        wait_for(lambda count=count: printed(paths).count("training on") > count)
        kill_rank(process, 1)
    assert process.wait(timeout=60) == 1
    assert "worker rank 1" in failure_line(paths)
    assert failure_line(paths).endswith("(after 1 restart)")


def test_sigterm_during_a_restart_stops_the_job(tmp_path):
    paths = write_job(tmp_path, overrides=TWO_WORKERS)
    process = start_until(paths, "step 10/")
    kill_rank(process, 0)
    wait_for(lambda: "restart 1 of 3" in printed(paths))
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 143
    assert "stopped on request: checkpoint epoch=" in printed(paths).splitlines()[-1]
    assert printed(paths).count("training on") == 1


def test_workers_start_while_the_data_is_prepared_and_end_with_a_stop(tmp_path):
    paths = write_job(tmp_path, overrides=TWO_WORKERS)
    with preparation_waits(paths):
        process = start_train(paths, warm=True)
        workers = wait_for(lambda: len(found := workers_of(process)) == 2 and found)
        process.terminate()
        assert process.wait(timeout=60) == 143
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    assert "before training began" in printed(paths)


@contextlib.contextmanager
def preparation_waits(paths):
    """No job under `paths` prepares its data before the context ends."""
    paths.prepared.mkdir(parents=True)
    with (paths.prepared / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize("moment", ["", "Data prepared"])
def test_sigterm_before_training_begins_ends_at_once_and_leaves_nothing_half_done(tmp_path, moment):
    paths = write_job(tmp_path, overrides={**LONG, "encoder_config": SLOWLY_BUILT})
    process = start_train(paths, warm=bool(moment))  # without a moment, while modules are still being imported
    wait_for(lambda: moment in printed(paths) and signal_is_handled(process.pid))
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 143
    assert re.search("stopped on request.*; run the same (job|command) again", printed(paths))
    assert not any(path.exists() for path in paths.failure_files)
    assert not list(paths.checkpoints.glob("*.ckpt"))


def signal_is_handled(pid):
    """Whether the process has installed its SIGTERM handler."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
    return bool(caught & 1 << (signal.SIGTERM - 1))


@pytest.mark.long
def test_a_stop_before_the_first_step_changes_nothing(tmp_path, uninterrupted):
    paths = write_job(tmp_path, overrides=LONG)
    process = start_until(paths, "training on")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143
    run_train(paths)
    assert_same_weights(paths, uninterrupted)


def test_a_second_job_in_the_same_folder_is_refused_and_harms_nothing(tmp_path):
    paths = write_job(tmp_path, overrides={"encoder_config": ONE_LAYER})
    with preparation_waits(paths):
        first = start_until(paths, lambda: (paths.root / LOCK).is_file() and (paths.root / LOCK).stat().st_size > 0)
        second = start_train(paths, warm=True)
        assert second.wait(timeout=60) == 1
    assert "another training job is running in this folder" in printed(paths)
    assert first.wait(timeout=120) == 0
    assert not any(path.exists() for path in paths.failure_files)


def test_an_encoder_that_does_not_fit_into_memory_is_refused_with_its_size_and_is_not_retried(tmp_path):
    too_large = {**TINY_ENCODER, "hidden_size": 400_000, "intermediate_size": 400_000}
    paths = write_job(tmp_path, overrides={"encoder_config": too_large, "nproc_per_node": 2})
    log = run_train(paths, expect=1)
    assert "restart" not in log
    assert failure_line(paths).startswith("encoder_config: the encoder of model_type bert has ")
    assert "encoder_config" in paths.failure_files[0].read_text().splitlines()[1]


def test_a_job_waits_for_a_killed_one_to_end(tmp_path):
    paths = write_job(tmp_path)
    ending = contextlib.ExitStack()
    ending.enter_context(supervisor._alone_in(paths))
    timer = threading.Timer(0.5, ending.close)
    timer.start()
    with supervisor._alone_in(paths):
        timer.join()


def test_a_full_disk_does_not_keep_the_cause_from_being_written(tmp_path):
    paths = write_job(tmp_path)
    with small_disk(tmp_path, "1m"):
        with supervisor._alone_in(paths):
            filled = subprocess.run(["dd", "if=/dev/zero", f"of={tmp_path / 'filler'}", "bs=512"], capture_output=True)
            assert b"No space left" in filled.stderr
            assert supervisor._fail(paths, Failure("the cause", "the fix")) == 1
        assert failure_line(paths) == "the cause"


def test_a_full_disk_while_saving_is_named_and_leaves_the_earlier_checkpoint(tmp_path):
    paths = write_job(tmp_path, overrides={**LONG, "keep_checkpoints": 50})
    paths.checkpoints.mkdir()
    with small_disk(paths.checkpoints, "3m"):
        run_train(paths, expect=1)
        assert re.fullmatch(
            rf"{paths.checkpoints}: the disk is full: .* MB of 3.1 MB are free. A checkpoint needs 0.\d MB, and "
            r"keep_checkpoints=50 keeps up to 52. \[rank 0\]", failure_line(paths),
        )  # fmt: skip
        kept = [path for path in paths.checkpoints.glob("*.ckpt") if path.is_dir()]
        assert kept
        assert all((path / "manifest.json").is_file() for path in kept)
        assert not list((paths.checkpoints / NOT_UPLOADED).glob("*"))
