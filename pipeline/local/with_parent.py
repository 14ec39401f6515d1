"""Becomes another program that the kernel kills when its parent dies, so that no orphan writes beside the next run.

    python with_parent.py PARENT_PID PROGRAM [ARGUMENT ...]

A program of its own, as code between fork and exec is not safe where there are threads.
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
