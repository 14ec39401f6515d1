"""What every process of a job does first: log plainly, and never outlive its parent."""

import ctypes
import logging
import os
import signal
import sys

PARENT_PID = "TRAINER_PARENT_PID"  # environment variable: the process that started this one

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, so that no orphan writes beside the next run (Linux)."""
    if sys.platform != "linux":
        return
    parent = int(os.environ.pop(PARENT_PID, os.getppid()))
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call, possibly while this process was still importing
        os.kill(os.getpid(), signal.SIGKILL)


def set_up_logging(*, rank: int = 0, all_ranks: bool = False) -> None:
    """Log plain lines to stdout; ranks above 0 prefix theirs, and log warnings only unless `all_ranks`."""
    prefix = "" if rank == 0 else f"[rank {rank}] "
    logging.basicConfig(
        stream=sys.stdout,
        level=logging.INFO if rank == 0 or all_ranks else logging.WARNING,
        format=f"%(asctime)s {prefix}%(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
    for noisy in ("httpx", "transformers", "torch", "onnxscript", "onnx_ir", "matplotlib", "fontTools"):
        logging.getLogger(noisy).setLevel(logging.WARNING if rank == 0 else logging.ERROR)


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
