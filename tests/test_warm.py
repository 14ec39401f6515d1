"""Commands that are forked instead of started: they end, fail, print and are stopped as processes of their own."""

import os
import signal

from testing.jobs import start_train, write_job
from testing.warm import run


def test_a_command_prints_and_ends_with_its_exit_code():
    code, printed = run(["-m", "container", "--help"], environment=dict(os.environ), timeout=60)
    assert code == 0
    assert printed.startswith("usage: python -m container")
    code, printed = run(["-m", "container", "nothing"], environment=dict(os.environ), timeout=60)
    assert code == 2
    assert "invalid choice: 'nothing'" in printed


def test_a_command_has_the_environment_that_it_is_given(tmp_path):
    command = ["-m", "container", "load-data", "--root", str(tmp_path)]
    code, printed = run(command, environment={**os.environ, "GENERATE_ROWS": "many"}, timeout=60)
    assert code == 1
    assert "GENERATE_ROWS: 'many'" in printed


def test_a_signal_ends_a_command_with_the_signals_code(tmp_path):
    process = start_train(write_job(tmp_path), warm=True)
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout=60) == -signal.SIGKILL
    assert process.poll() == process.returncode == -signal.SIGKILL
