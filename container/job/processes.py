"""Set up a process of a job: its logging, and its end when its parent ends."""

import faulthandler
import gc
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TextIO

from container.job.log_once import DETAIL

_CLOCK = "%H:%M:%S"


def end_with_parent() -> None:
    """Have a thread end this process, which is one of a pool, when the process that started it has ended."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None, "a process of a pool has a parent"
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def set_up_logging(*, rank: int = 0, all_ranks: bool = False) -> None:
    """Log lines to stdout; ranks above 0 add a prefix, and log warnings only unless `all_ranks`.

    If native code crashes, the stack of each Python thread goes to stderr.
    """
    faulthandler.enable(2)  # stderr, which a notebook may have replaced
    prefix = "" if rank == 0 else f"[rank {rank}] "
    logging.basicConfig(
        handlers=[_Console(sys.stdout)],
        level=logging.INFO if rank == 0 or all_ranks else logging.WARNING,
        format=f"%(asctime)s {prefix}%(message)s",
        datefmt=_CLOCK,
        force=True,
    )
    for noisy in ("httpx", "transformers", "torch", "onnxscript", "onnx_ir", "matplotlib", "fontTools"):
        logging.getLogger(noisy).setLevel(logging.WARNING if rank == 0 else logging.ERROR)


@contextmanager
def log_level(name: str, level: int) -> Iterator[None]:
    """Log of `name` and below it only what has this level or more."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


def log_to_file(path: Path) -> None:
    """Append this process's log to a file too; details are then not printed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        logging.getLogger(__name__).warning("%s cannot be written: %s", path, error)
        return
    file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    root = logging.getLogger()
    for handler in root.handlers:
        if isinstance(handler, _Console):
            handler.addFilter(lambda record: not getattr(record, DETAIL, False))
    root.addHandler(file)


class _Console(logging.StreamHandler[TextIO]):
    """Print lines above a progress bar, if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        bars = sys.modules.get("tqdm")
        with bars.tqdm.external_write_mode(file=self.stream) if bars else nullcontext():
            super().emit(record)


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """Lose the line, e.g. if the disk is full; the job ends with the error of its own files."""

    def close(self) -> None:
        with suppress(OSError):  # the file of the process from which this one was forked
            super().close()


@contextmanager
def without_ctrl_c() -> Iterator[None]:
    """Start processes that a Ctrl-C does not reach: this process receives it, and ends them."""
    resource_tracker.ensure_running()  # its own start would end the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # new processes inherit it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def without_collection() -> Iterator[None]:
    """Pause the garbage collector where many lasting objects arise: it takes a fifth of the time and finds nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def missing_for_compile() -> str | None:
    """Return what torch.compile needs at run time and this machine lacks; None if it has everything."""
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "gcc", "clang", "cc")):
        return "this machine has no C++ compiler"
    header = Path(sysconfig.get_path("include"), "Python.h")  # inductor and Triton compile modules for Python
    return None if header.exists() else f"this machine has no {header}"
