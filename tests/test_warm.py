"""Commands that are forked instead of started: they end, fail, print and are stopped as processes of their own."""

import os
import signal
import subprocess
from importlib.util import find_spec

import pytest

from testing import warm
from testing.jobs import start_train, wait_for, write_job
from testing.warm import PRELOADED, WarmProcess, run


def test_every_preloaded_module_of_the_project_exists():
    own = [name for name in PRELOADED if name.partition(".")[0] in ("container", "pipeline", "testing")]
    assert own
    assert [name for name in own if find_spec(name) is None] == []  # the server ignores modules that do not exist


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


def test_a_job_puts_temporary_files_into_its_tmpdir_and_a_signal_ends_it_with_the_signals_code(tmp_path):
    (temporary := tmp_path / "temporary").mkdir()
    process = start_train(write_job(tmp_path / "job"), warm=True, TMPDIR=str(temporary))
    wait_for(lambda: any(temporary.iterdir()))
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout=60) == -signal.SIGKILL
    assert process.poll() == process.returncode == -signal.SIGKILL


def test_a_command_that_exceeds_its_timeout_is_killed(tmp_path, monkeypatch):
    started = []

    class Recorded(WarmProcess):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            started.append(self)

    monkeypatch.setattr(warm, "WarmProcess", Recorded)
    command = ["-m", "container", "train", "--root", str(write_job(tmp_path).root)]
    with pytest.raises(subprocess.TimeoutExpired):
        run(command, environment={**os.environ, "TMPDIR": str(tmp_path)}, timeout=0.2)
    assert started[0].wait(timeout=10) == -signal.SIGKILL


def test_a_process_that_is_killed_while_it_prints_does_not_keep_the_lock_of_others(tmp_path):
    lines = (
        "import os, subprocess, sys",
        "from tqdm import tqdm",
        "tqdm.get_lock()",
        "if sys.argv[1:]: tqdm.get_lock().acquire(); os.kill(os.getpid(), 9)",
        "subprocess.run([sys.executable, '-P', __file__, 'child'])",
        "tqdm.get_lock().acquire()",
        "print('acquired')",
    )
    (tmp_path / "main.py").write_text("\n".join(lines))
    assert run(["-P", str(tmp_path / "main.py")], environment=dict(os.environ), timeout=60) == (0, "acquired\n")
