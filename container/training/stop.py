"""Stopping on request: SIGTERM sets a flag, and all ranks act on it at the same step."""

import os
import signal
import threading
import time
from pathlib import Path

LEFT_ALONE = 128 + signal.SIGTERM  # exit code of a worker that ended because another one had failed
LAST_WORDS = 2.0  # seconds
_SIGNALS = {signal.SIGTERM, signal.SIGINT}


class StopAgreed(Exception):
    """All ranks agreed to stop here."""


class StopFlag:
    """Becomes true when this process is asked to end."""

    def __init__(self) -> None:
        self.requested = False

    def listen(self, stop_file: Path) -> None:
        """Hear SIGTERM and Ctrl-C, in a thread: the main thread may be waiting in a collective that a dead rank left.

        When the job is to stop, its supervisor has made `stop_file` first. Without it, torchrun's agent asks, because
        another rank failed: there is no step to finish, and this process ends, with a moment to say what it failed of.
        """
        heard, told = os.pipe()
        os.set_blocking(told, False)
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)
        # The number is written to the pipe as the signal comes, on whichever thread; handlers wait for the main thread.
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)

        def wait() -> None:
            while True:
                if os.read(heard, 1)[0] not in _SIGNALS:
                    continue
                if not stop_file.exists():
                    time.sleep(LAST_WORDS)
                    os._exit(LEFT_ALONE)
                self.requested = True

        threading.Thread(target=wait, name="stop", daemon=True).start()
