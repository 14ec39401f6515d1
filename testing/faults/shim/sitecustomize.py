"""Inject faults into every Python process that has this folder on PYTHONPATH, without a hook in the code under test.

REFUSED_CALL names a call of CALLS, which then fails as on a file system that lacks it. FAULT lets one rank of a job
raise, sleep or die at a named moment; it holds JSON: rank; at, one of MOMENTS; call, the how manieth; do, "raise",
"kill" or seconds to sleep; marker, a file that exists from the moment on, so that it comes once also where workers are
started again.
"""

import errno
import fcntl
import functools
import importlib.abc
import importlib.util
import itertools
import json
import locale
import os
import signal
import stat
import sys
import time
from pathlib import Path

MOMENTS = {
    "loader": ("container.data.split", "PreparedSplit.pack"),
    "forward": ("container.models.classifier", "Classifier.forward"),
    "step": ("container.training.loop", "Trainer._step"),
    "validation": ("container.training.predict", "predict_split"),
    "saving": ("torch.distributed.checkpoint.filesystem", "FileSystemWriter.write_data"),
    "loading": ("torch.distributed.checkpoint.filesystem", "FileSystemReader.read_data"),
}


class Patch(importlib.abc.MetaPathFinder):
    """Replaces a function as soon as its module is imported, before anyone imports it from there."""

    def __init__(self, fault):
        self._fault = fault
        self._module, self._function = MOMENTS[fault["at"]]
        self._calls = 0

    def find_spec(self, name, path, target=None):
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_replace(module):
            execute(module)
            *owner, function = self._function.split(".")
            place = getattr(module, owner[0]) if owner else module
            setattr(place, function, self._faulty(getattr(place, function)))

        spec.loader.exec_module = execute_and_replace
        return spec

    def _faulty(self, function):
        marker = Path(self._fault["marker"])

        @functools.wraps(function)
        def faulty(*arguments, **named):
            self._calls += 1
            if self._calls == self._fault["call"] and not marker.exists():
                marker.touch()
                self._act()
            return function(*arguments, **named)

        return faulty

    def _act(self):
        if self._fault["do"] == "raise":
            raise RuntimeError(f"injected into {self._fault['at']}")
        if self._fault["do"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self._fault["do"])


if "FAULT" in os.environ and "RANK" in os.environ:
    wanted = json.loads(os.environ["FAULT"])
    if wanted["rank"] == int(os.environ["RANK"]):
        sys.meta_path.insert(0, Patch(wanted))


def refuse(owner, name, number, *, when=lambda *_: True, replace=setattr):
    """Replace a function by one that raises the system's error `number` where `when` holds for its arguments."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def refused(*arguments, **named):
        if when(*arguments):
            raise OSError(number, os.strerror(number))
        return function(*arguments, **named)

    replace(owner, name, refused)


def is_folder(descriptor, *_):
    return stat.S_ISDIR(os.fstat(descriptor).st_mode)


def leaves_folder(source, target, *_):
    return Path(source).absolute().parent != Path(target).absolute().parent


def jump():
    """Let the clock jump by an hour, forwards and backwards, at each reading."""
    now, readings = time.time, itertools.count()
    time.time = lambda: now() + 3600 * (next(readings) % 2)


def refuse_all(owner, names, number, **options):
    for name in names:
        refuse(owner, name, number, **options)


CALLS = {
    "fsync": lambda: refuse(os, "fsync", errno.EINVAL, when=is_folder),
    "flock": lambda: refuse(fcntl, "flock", errno.ENOLCK),
    "flock-enosys": lambda: refuse(fcntl, "flock", errno.ENOSYS),
    "chmod": lambda: refuse_all(os, ("chmod", "fchmod", "utime"), errno.EPERM),
    "link": lambda: refuse(os, "link", errno.EPERM),
    "symlink": lambda: refuse(os, "symlink", errno.EPERM),
    "rename": lambda: refuse_all(os, ("rename", "replace"), errno.EXDEV, when=leaves_folder),
    "clock": jump,
    "locale": lambda: locale.setlocale(locale.LC_TIME, ""),  # as some libraries do
}
if "REFUSED_CALL" in os.environ:
    CALLS[os.environ["REFUSED_CALL"]]()
