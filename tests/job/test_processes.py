"""A process of a job: its log, printed and in a file, and its end with its parent."""

import logging
import os
import pty
import re
import signal
import subprocess
import sys

from container.job.log_once import log_detail
from container.job.processes import log_to_file, set_up_logging


def test_details_are_in_the_file_alone(capsys, tmp_path):
    set_up_logging()
    log_to_file(tmp_path / "output/data/log.txt")
    logging.getLogger("container.x").info("trained")
    log_detail(logging.getLogger("container.x"), "imputed %d", 3)
    assert [line.split(" ", 1)[1] for line in capsys.readouterr().out.splitlines()] == ["trained"]
    in_file = (tmp_path / "output/data/log.txt").read_text().splitlines()
    assert [line[24:] for line in in_file] == ["trained", "imputed 3"]


def test_without_a_file_details_are_printed(capsys):
    set_up_logging()
    log_detail(logging.getLogger("container.x"), "imputed %d", 3)
    assert "imputed 3" in capsys.readouterr().out


def test_a_second_run_appends(capsys, tmp_path):
    for text in ("first", "second"):
        set_up_logging()
        log_to_file(tmp_path / "log.txt")
        logging.getLogger("container.x").info(text)
    assert [line[24:] for line in (tmp_path / "log.txt").read_text().splitlines()] == ["first", "second"]


def test_a_file_that_cannot_be_written_does_not_end_the_job(capsys, tmp_path):
    set_up_logging()
    (tmp_path / "output").touch()
    log_to_file(tmp_path / "output/log.txt")
    logging.getLogger("container.x").info("trained")
    shown = capsys.readouterr().out
    assert "output/log.txt cannot be written" in shown
    assert "trained" in shown


def test_a_line_clears_the_bar_of_a_terminal_and_does_not_share_its_row():
    code = (
        "import logging, sys; from tqdm import tqdm; from container.job.processes import set_up_logging;"
        "set_up_logging(); bar = tqdm(total=4, file=sys.stderr, ncols=60, nrows=20); bar.update(2);"
        "bar.refresh(); logging.getLogger('container.x').info('validated'); bar.close()"
    )
    main, terminal = pty.openpty()
    subprocess.run([sys.executable, "-c", code], stdout=terminal, stderr=terminal, check=True)
    shown = os.read(main, 65536).decode()
    assert "2/4" in shown
    assert re.search(r"\r +\r\d\d:\d\d:\d\d validated\r\n", shown), repr(shown)


def test_a_process_whose_parent_died_before_it_could_ask_dies_too():
    code = "from contracts.program import die_with_parent; die_with_parent(2**22 - 1)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
