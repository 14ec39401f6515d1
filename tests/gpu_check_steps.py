"""Steps that end in every way, for tests/test_gpu_check.py."""

import ctypes
import os
import subprocess
import sys
import time

from benchmarks.gpu_steps import Step
from benchmarks.gpu_steps.recorder import Recorder

LEFT_BEHIND = "import os, time; os.setsid(); time.sleep(600)"


def hangs(check: Recorder) -> None:
    check.figure("before", 1)
    subprocess.Popen([sys.executable, "-c", LEFT_BEHIND])
    time.sleep(600)


def crashes(check: Recorder) -> None:
    check.figure("pid", os.getpid())
    ctypes.string_at(0)


def raises(check: Recorder) -> None:
    raise ValueError("the cause")


def differs(check: Recorder) -> None:
    check.at_most("a difference", 2.0, 1.0)
    with check.part("a part"):
        raise ValueError("of a part")
    check.at_most("not a number", float("nan"), 1.0)


def passes(check: Recorder) -> None:
    check.at_most("a difference", 0.5, 1.0)


STEPS = tuple(
    Step(function.__name__, seconds, "", f"{__name__}:{function.__name__}")
    for function, seconds in ((hangs, 3), (crashes, 30), (raises, 30), (differs, 30), (passes, 60))
)
