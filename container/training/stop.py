"""Stop on request: SIGTERM sets a flag, and all ranks act on it at the same step."""

import os
import signal
import threading
import time
from pathlib import Path

from contracts.program import STOP_SIGNALS, STOPPED, handle_stops

LEFT_ALONE = STOPPED  # exit code of a worker that ended because another one had failed
_REPORT_GRACE = 2.0  # seconds


class StopFlag:
    """A flag that SIGTERM and Ctrl-C set."""

    def __init__(self) -> None:
        self.requested = False

    def listen(self, stop_file: Path) -> None:
        """Handle SIGTERM and Ctrl-C in a thread: the main thread may wait in a collective that a dead rank left.

        To stop the job, the supervisor first creates `stop_file`. Without this file, torchrun's agent sent the signal
        because another rank failed: this process ends after a short time to report its own failure.
        """
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        handle_stops(lambda *_: None)
        # The signal number is written to the pipe at once; a Python handler would wait for the main thread.
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

        def wait() -> None:
            while True:
                if os.read(reader, 1)[0] not in STOP_SIGNALS:
                    continue
                if not stop_file.exists():
                    time.sleep(_REPORT_GRACE)
                    os._exit(LEFT_ALONE)
                self.requested = True

        threading.Thread(target=wait, name="stop", daemon=True).start()
