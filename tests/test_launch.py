"""How workers are watched: which ended first, what the others may still say, which failure is the cause."""

import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from container.failure import Failure, PeerFailed
from container.job import Job, Restart, write_json_aside
from container.training.launch import Ended, failure_of, wait_for_all
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.paths import JobPaths
from tests.jobs import CONFIGURATION


def worker(program: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-S", "-c", program])


@pytest.fixture
def job(tmp_path):
    return Job(JobPaths(tmp_path), parse_hyperparameters(CONFIGURATION), tmp_path, tmp_path, started=time.time())


def said(job: Job, error: Exception, *, rank: int, at: float) -> None:
    failure = {**asdict(Failure.from_exception(error, rank=rank)), "at": at}
    write_json_aside(job.error_file(rank), failure)


def test_workers_that_end_well_are_waited_for(job):
    ended = wait_for_all([worker("pass"), worker("import time; time.sleep(0.3)")], last_words=0.1)
    assert [(end.rank, end.exitcode) for end in ended] == [(0, 0), (1, 0)]
    assert failure_of(job, ended) is None


def test_ranks_left_alone_are_killed_soon_and_are_no_cause(job):
    hangs, dies = "import time; time.sleep(60)", "import os; os.kill(os.getpid(), 9)"
    started = time.monotonic()
    ended = wait_for_all([worker(hangs), worker(dies), worker(hangs)], last_words=0.2)
    assert time.monotonic() - started < 10
    assert [(end.rank, end.left_alone) for end in ended[:1]] == [(1, False)]
    assert {(end.rank, end.exitcode, end.left_alone) for end in ended[1:]} == {(0, -9, True), (2, -9, True)}
    failure = failure_of(job, ended)
    assert failure.killed
    assert failure.cause.startswith(f"worker rank 1 (pid {ended[0].pid}) was ended by SIGKILL")


def test_a_rank_may_still_say_why_it_could_not_go_on(job, tmp_path):
    says = f"import time; time.sleep(0.3); open({str(tmp_path / 'said')!r}, 'w'); raise SystemExit(1)"
    ended = wait_for_all([worker(says), worker("raise SystemExit(1)")], last_words=5)
    assert Path(tmp_path / "said").exists()
    assert [(end.rank, end.left_alone) for end in ended] == [(1, False), (0, False)]


def test_the_cause_is_the_rank_that_was_killed_not_the_peer_whose_words_are_unknown(job):
    said(job, RuntimeError("something that nobody has seen before"), rank=0, at=99.99)
    ended = [Ended(1, 7, -signal.SIGKILL, 100.0), Ended(0, 6, 1, 100.1)]
    assert failure_of(job, ended).killed


def test_the_cause_is_the_error_not_the_peer_that_aborted_over_it(job):
    said(job, ValueError("a bad record"), rank=0, at=99.9)
    ended = [Ended(0, 6, 1, 100.0), Ended(1, 7, -signal.SIGABRT, 100.1)]
    assert failure_of(job, ended).cause == "ValueError: a bad record"


def test_the_cause_is_the_rank_that_failed_not_the_one_that_was_told_of_it(job):
    said(job, PeerFailed("rank 1: OSError: [Errno 5] Input/output error"), rank=0, at=99.0)
    said(job, OSError(5, "Input/output error"), rank=1, at=99.9)
    failure = failure_of(job, [Ended(0, 6, 1, 100.0), Ended(1, 7, 1, 100.1)])
    assert (failure.rank, failure.echo) == (1, False)


def test_what_an_attempt_left_is_not_taken_for_the_next_one_s(job):
    said(job, ValueError("old"), rank=0, at=1.0)
    write_json_aside(job.pid_file(0), 7)
    write_json_aside(job.restart_file, asdict(Restart(1, of=3, cause="a crash", at=2.0)))
    job.forget_workers()
    assert (job.error_files(), job.pid_files()) == ([], [])
    assert job.restart == Restart(1, of=3, cause="a crash", at=2.0)


def test_a_failure_says_how_often_the_workers_were_restarted():
    failure = Failure.from_exit(-9, who="worker rank 1 (pid 7)", rank=1)
    assert failure.after(0) == failure
    assert failure.after(1).cause.endswith("(after 1 restart)")
    assert failure.after(3).cause.endswith("(after 3 restarts)")
