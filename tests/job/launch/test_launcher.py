"""Workers: their environment, which ended, how soon the others do, which failure is the cause."""

import io
import json
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from container.errors import PeerFailed
from container.job.failure import Failure
from container.job.job import Attempt, Restart, Scratch, write_json
from container.job.launch import launcher
from container.job.launch.ended import Ended, Signalled
from container.job.launch.launcher import failure_of
from container.job.launch.workers import DEFAULTS, unset_defaults
from container.training.stop import LEFT_ALONE
from testing.jobs import REPOSITORY, run_python, wait_for


@pytest.fixture
def scratch(tmp_path):
    return Scratch(tmp_path)


def said(scratch: Scratch, error: Exception, *, rank: int, at: float) -> None:
    failure = {**asdict(Failure.from_exception(error, rank=rank)), "at": at}
    write_json(scratch.error_file(rank), failure)


def run(tmp_path: Path, program: str, num_workers: int) -> list[Ended]:
    """The program on every rank; in a process of its own, as in a job."""
    code = (
        "import json, sys; from dataclasses import asdict; from container.job.launch.launcher import run_workers\n"
        f"ended = run_workers(['-S', '-c', {program!r}], {num_workers})\n"
        f"open({str(tmp_path / 'ended')!r}, 'w').write(json.dumps([asdict(end) for end in ended]))"
    )
    run_python(code)
    return [Ended(**end) for end in json.loads((tmp_path / "ended").read_text())]


def test_workers_that_end_well_are_waited_for(scratch, tmp_path):
    ended = run(tmp_path, f"import os; open({str(tmp_path)!r} + '/rank' + os.environ['RANK'], 'w')", 2)
    assert failure_of(scratch, ended) is None
    assert sorted(path.name for path in tmp_path.glob("rank*")) == ["rank0", "rank1"]


def test_one_worker_has_the_variables_of_torchrun_and_its_end_is_reported(scratch, tmp_path):
    program = (
        f"import json, os, signal; json.dump(dict(os.environ), open({str(tmp_path / 'environment')!r}, 'w')); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    (ended,) = run(tmp_path, program, 1)
    assert (ended.rank, ended.exitcode) == (0, -9)
    assert failure_of(scratch, [ended]).cause.startswith(f"worker rank 0 (pid {ended.pid}) was ended by SIGKILL")
    environment = json.loads((tmp_path / "environment").read_text())
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    assert [environment[name] for name in names] == ["0", "0", "1", "1", "127.0.0.1"]
    assert int(environment["MASTER_PORT"]) > 0


def test_with_one_worker_the_launcher_imports_no_torch(tmp_path):
    code = (
        "import sys; from container.job.launch.launcher import run_workers\n"
        "assert run_workers(['-S', '-c', ''], 1) == []\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert run_python(code).returncode == 0


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_signal_to_the_launcher_ends_its_only_worker(tmp_path, stubborn):
    pid = tmp_path / "pid"
    worker = (
        f"import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_{'IGN' if stubborn else 'DFL'}); "
        f"open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    )
    code = (
        "from container.job.launch import launcher\n"
        "launcher._GRACE = 0.5\n"
        "try:\n"
        f"    launcher.run_workers(['-S', '-c', {worker!r}], 1)\n"
        "except launcher.Signalled as error:\n"
        "    raise SystemExit(error.number)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY)
    wait_for(lambda: pid.exists() and pid.read_text())
    process.terminate()
    assert process.wait(60) == signal.SIGTERM
    assert not Path(f"/proc/{pid.read_text()}").exists()


def test_ranks_that_lose_their_peer_end_soon_and_are_not_the_cause(scratch, tmp_path):
    program = f"""
import ctypes, os, sys
sys.path.insert(0, {str(REPOSITORY)!r})
from pathlib import Path
from container.training.stop import StopFlag
StopFlag().listen(Path({str(tmp_path / "stop")!r}))
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), 9)
for _ in range(9):  # like a collective: the main thread is not in Python (a signal interrupts one sleep)
    ctypes.CDLL(None).sleep(25)
Path({str(tmp_path / "outlived")!r}).touch()
"""
    ended = run(tmp_path, program, 3)
    assert not (tmp_path / "outlived").exists()
    assert [(end.rank, end.exitcode) for end in ended] == [(1, -9)]
    failure = failure_of(scratch, ended)
    assert failure.killed
    assert failure.cause.startswith(f"worker rank 1 (pid {ended[0].pid}) was ended by SIGKILL")


def test_the_cause_is_the_rank_that_was_killed_not_the_peer_with_an_unknown_error(scratch):
    said(scratch, RuntimeError("something that nobody has seen before"), rank=0, at=99.99)
    ended = [Ended(1, 7, -signal.SIGKILL, 100.0), Ended(0, 6, 1, 100.0)]
    assert failure_of(scratch, ended).killed


def test_the_cause_is_the_error_not_the_peer_that_aborted_over_it(scratch):
    said(scratch, ValueError("a bad record"), rank=0, at=99.9)
    ended = [Ended(0, 6, 1, 100.0), Ended(1, 7, -signal.SIGABRT, 100.0)]
    assert failure_of(scratch, ended).cause == "ValueError: a bad record"


def test_the_cause_is_the_rank_that_failed_not_the_one_that_received_its_error(scratch):
    said(scratch, PeerFailed("rank 1: OSError: [Errno 5] Input/output error"), rank=0, at=99.0)
    said(scratch, OSError(5, "Input/output error"), rank=1, at=99.9)
    failure = failure_of(scratch, [Ended(0, 6, 1, 100.0), Ended(1, 7, 1, 100.0)])
    assert (failure.rank, failure.echo) == (1, False)


def test_workers_that_alone_got_a_sigterm_were_killed_by_it(scratch):
    failure = failure_of(scratch, [Ended(1, 7, -signal.SIGTERM, 100.0), Ended(0, 6, LEFT_ALONE, 99.0)])
    assert failure.cause == "worker rank 0 (pid 6) was ended by SIGTERM: another program sent it to this process"
    assert failure.killed


def test_a_signal_that_ends_the_launcher_is_no_error_of_the_job(scratch, monkeypatch):
    def signalled(*_, **__):
        raise Signalled(signal.SIGTERM)

    monkeypatch.setattr(launcher, "run_workers", signalled)
    for name in ("die_with_parent", "set_up_logging"):  # they change this process
        monkeypatch.setattr(launcher, name, lambda: None)
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(asdict(Attempt(0, "127.0.0.1", 0)))))
    launcher.main([str(scratch.folder), "2"])
    assert Failure(**json.loads(scratch.attempt_file(0).read_text())).killed


def test_files_of_an_earlier_attempt_are_not_read_by_the_next_one(scratch):
    said(scratch, ValueError("old"), rank=0, at=1.0)
    write_json(scratch.pid_file(0), 7)
    write_json(scratch.restart_file, asdict(Restart(1, of=3, cause="a crash", at=2.0)))
    scratch.forget_workers()
    assert (scratch.error_files(), scratch.pid_files()) == ([], [])
    assert scratch.restart == Restart(1, of=3, cause="a crash", at=2.0)


def test_a_failure_says_how_often_the_workers_were_restarted():
    failure = Failure.from_exit(-9, who="worker rank 1 (pid 7)", rank=1)
    assert failure.after(0) == failure
    assert failure.after(1).cause.endswith("(after 1 restart)")
    assert failure.after(3).cause.endswith("(after 3 restarts)")


def test_the_collector_ignores_the_modules_of_a_worker_and_works_on(tmp_path):
    (tmp_path / "module.py").write_text(
        "import gc\ndef main(arguments):\n    return 0 if gc.isenabled() and gc.get_freeze_count() > 1000 else 1\n"
    )
    program = (
        "import sys; sys.path.append(sys.argv[1]); from container.job.start import main; sys.exit(main('module', []))"
    )
    assert run_python(program, str(tmp_path)).returncode == 0


def test_waiting_threads_follow_the_policy_of_the_user() -> None:
    assert unset_defaults({}) == dict(DEFAULTS)
    assert "GOMP_SPINCOUNT" not in unset_defaults({"OMP_WAIT_POLICY": "PASSIVE"}), "the number would replace the policy"


def test_the_allocator_follows_the_settings_of_the_user_under_their_older_name() -> None:
    assert "PYTORCH_ALLOC_CONF" not in unset_defaults({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"})
