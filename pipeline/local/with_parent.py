"""Replace this process by a program that the kernel kills when its parent dies, so that no orphan disturbs a new run.

    python with_parent.py PARENT_PID PROGRAM [ARGUMENT ...]

This is a separate program because code between fork and exec is unsafe in a process with threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # survives exec
        if os.getppid() != int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
    os.execv(sys.argv[2], sys.argv[2:])
