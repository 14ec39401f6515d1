import logging
import math
import os
import subprocess
import sys

import pytest

from container.training.progress import _FINISH_SECONDS, Progress, duration, metric_line
from testing.jobs import REPOSITORY


def test_a_metric_line_is_read_by_the_documented_regular_expression():
    import re

    line = metric_line({"step": 10, "val/loss": 0.25, "val/auroc": 0.9912, "val/f1_score": None})
    assert re.search(r"val/auroc=([0-9.eE+-]+|nan);", line).group(1) == "0.9912"
    assert "\n" not in line
    assert "\r" not in line


def test_durations_read_as_a_person_says_them():
    assert [duration(s) for s in (5, 600, 9000, math.inf)] == ["5 s", "10 min", "2.5 h", "unknown"]


def test_a_terminal_gets_a_bar_and_a_log_file_plain_lines():
    import pty

    code = (
        "import logging, tempfile, pathlib; logging.basicConfig(level='INFO');"
        "from container.training.progress import Progress;"
        "p = Progress(reports=True, total_steps=4, max_epochs=1, step=0, tensorboard=pathlib.Path(tempfile.mkdtemp()));"
        "[p.step(rows=1, tokens=9, computed=9) for _ in range(4)];"
        "p.report(4, 1.0, {'train/loss': 0.5, 'lr': 0.1}); p.close()"
    )
    main, terminal = pty.openpty()
    on_terminal = subprocess.run([sys.executable, "-c", code], stderr=terminal, stdout=subprocess.PIPE, check=True)
    shown = os.read(main, 65536).decode()
    assert "4/4" in shown
    assert "\r" in shown
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert "\r" not in plain.stderr + plain.stdout
    assert "train/loss=0.5;" in plain.stderr
    assert on_terminal.returncode == 0


def test_time_left_is_the_mean_of_the_run_and_includes_what_follows_training(monkeypatch, tmp_path):
    now = [0.0]
    monkeypatch.setattr("container.training.progress.time.perf_counter", lambda: now[0])
    progress = Progress(reports=False, total_steps=11, max_epochs=1, step=0, tensorboard=tmp_path)
    assert progress._seconds_left(0) == math.inf
    for step in range(1, 6):
        now[0] += 100 if step == 1 else 2  # the first step allocates
        progress.step(rows=1, tokens=1, computed=1)
    assert progress._seconds_left(5) == 6 * 2 + _FINISH_SECONDS
    progress.validated({}, records=1, seconds=3.0, best=False)
    assert progress._seconds_left(11) == 2 * 3.0 + _FINISH_SECONDS


def test_the_time_left_of_one_of_several_networks_is_that_of_its_training(monkeypatch, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    now = [0.0]
    monkeypatch.setattr("container.training.progress.time.perf_counter", lambda: now[0])
    progress = Progress(reports=True, total_steps=4, max_epochs=1, step=0, tensorboard=tmp_path, ends_job=False)
    for _ in range(2):
        now[0] += 2
        progress.step(rows=1, tokens=1, computed=1)
    progress.report(2, 0.5, {"train/loss": 0.5, "lr": 0.1})
    progress.close()
    assert caplog.text.rstrip().endswith("4 s left of this training")


FULL = """
import resource, sys
from pathlib import Path
from container.training.progress import summary_writer

resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
try:
    with summary_writer(Path(sys.argv[1])) as writer:
        for step in range(100):
            writer.add_scalar("train/loss", 0.5, step)
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.slow  # a process that imports torch
def test_an_error_of_tensorboards_thread_is_raised_and_not_printed(tmp_path):
    ran = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, cwd=REPOSITORY)
    assert (ran.stdout, ran.stderr) == ("File too large\n", "")
