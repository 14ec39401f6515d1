"""Lets one rank of a job raise, sleep or die at a named moment, without a hook in the code under test.

Python imports this file in every process that has its folder on PYTHONPATH. The environment variable FAULT holds JSON:
rank; at, one of MOMENTS; call, the how manieth; do, "raise", "kill" or seconds to sleep; marker, a file that exists
from the moment on, so that it comes once also where workers are started again.
"""

import functools
import importlib.abc
import importlib.util
import json
import os
import signal
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
