"""Run a command that is killed or stopped, or finds the disk full, at its nth use of the files of a folder."""

import errno
import os
import signal
import sys
from pathlib import Path
from typing import Any

from testing import warm

_ADDITIONS = ("os.rename", "os.mkdir")
_CHANGES = (*_ADDITIONS, "os.remove", "os.rmdir")


def run_interrupted(*command: str, folder: Path, at: int, by: str, **environment: str) -> tuple[int, str]:
    """Return the exit code, and what the command printed; 0 if it ended before that.

    Args:
        command: a program, container or pipeline, and its arguments.
        at: the number of the use: of any kind for SIGTERM and SIGINT, a change for SIGKILL, an addition for ENOSPC.
        by: name of a signal, or ENOSPC.
    """
    script = ["-P", str(Path(__file__)), str(folder), str(at), by, *map(str, command)]
    return warm.run(script, environment={**os.environ, "OMP_NUM_THREADS": "1", **environment}, timeout=300)


class _Interruption:
    """An audit hook of Python."""

    def __init__(self, folder: str, at: str, by: str) -> None:
        self._folder, self._left, self._by = folder, int(at), by

    def __call__(self, event: str, given: tuple[Any, ...]) -> None:
        if (event != "open" and event not in _CHANGES) or (event == "os.mkdir" and os.path.isdir(given[0])):
            return
        writes = event == "open" and bool(given[2] & (os.O_WRONLY | os.O_RDWR))
        counts = {"ENOSPC": writes or event in _ADDITIONS, "SIGKILL": writes or event in _CHANGES}.get(self._by, True)
        inside = str(given[0]).startswith(self._folder) or (event in _CHANGES and given[-1] != -1)
        if inside and counts:
            self._left -= 1
            if self._left == 0:
                if self._by == "ENOSPC":
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(given[0]))
                os.kill(os.getpid(), signal.Signals[self._by])


if __name__ == "__main__":
    folder, at, by, program, *arguments = sys.argv[1:]
    sys.argv = [program, *arguments]
    sys.addaudithook(_Interruption(folder, at, by))
    from contracts.program import run_program

    run_program(f"{program}.commands")
