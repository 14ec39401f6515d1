"""Stopping on request: SIGTERM sets a flag, and all ranks act on it at the same step."""

import os
import signal
import threading
from pathlib import Path

LEFT_ALONE = 128 + signal.SIGTERM  # exit code of a worker that ended because another one had failed
_SIGNALS = {signal.SIGTERM, signal.SIGINT}


class StopRequested(Exception):
    """All ranks agreed to stop here."""


class StopFlag:
    """Becomes true when this process is asked to end."""

    def __init__(self) -> None:
        self.requested = False

    def listen(self, stop_file: Path) -> None:
        """Hear SIGTERM and Ctrl-C, in a thread: the main thread may be waiting in a collective that a dead rank left.

        When the job is to stop, its supervisor has made `stop_file` first. Without it, torchrun's agent asks, because
        another rank failed: there is no step to finish, and this process ends at once.

        To be called before any other thread is started: they all leave these signals to this one.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

        def wait() -> None:
            while True:
                signal.sigwait(_SIGNALS)
                if not stop_file.exists():
                    os._exit(LEFT_ALONE)
                self.requested = True

        threading.Thread(target=wait, name="stop", daemon=True).start()
