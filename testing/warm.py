"""Start `python -m container ...` in a fraction of a second: fork it from a server that has imported everything.

A job is three Python processes, and torch, transformers and pandas take longer to import than a test's job takes to
train. Here they are forked from one server process: the command itself, and by it the launcher and the workers. All
else is as with real processes: parents, process ids, signals, exit codes, sessions, environment, output and working
directory. What the fork cannot show (that a cold `python -m container` starts, and what it imports) is tested with real
processes: pass `warm=False` where that is the fact.
"""

import contextlib
import inspect
import logging
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
from tqdm import tqdm

PRELOADED = [
    "torch",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.onnx",
    "transformers.models.bert.modeling_bert",
    "container.job.supervisor",
    "container.job.launch.elastic",
    "container.job.launch.launcher",
    "container.job.launch.worker",
    "container.evaluation.charts",
    "container.serving.server",
    "container.steps.program",
    "container.commands",
    "pipeline.commands",
    "onnxruntime",
    "pytest",
    "testing.fuzz.child",
    "testing.rank_pool",
]
REPOSITORY = Path(__file__).parent.parent
_START_PYTHON = subprocess.Popen._execute_child  # type: ignore[attr-defined]


def fork_server() -> Any:
    """Return the multiprocessing context of the one server that jobs and ranks are forked from."""
    # Threads of the server would not exist in its forks, and they could not use CUDA if it had asked CUDA for GPUs.
    settings = {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    with _environment(OMP_NUM_THREADS="1", **settings):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()
    return context


def run(command: Sequence[str], *, environment: Mapping[str, str], timeout: float) -> tuple[int, str]:
    """Run `python *command` to its end; returns its exit code and what it wrote to stdout and stderr."""
    with tempfile.NamedTemporaryFile() as output:
        process = WarmProcess(command, environment=environment, output=Path(output.name))
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        return code, output.read().decode()


class WarmProcess:
    """A forked `python *command`; has the methods of subprocess.Popen that tests use.

    Args:
        command: -m, a module and its arguments.
        environment: of the process, whole.
        output: the file that stdout and stderr are appended to.
        errors: the file for stderr, where it is another one.
    """

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], output: Path, errors: Path | None = None
    ) -> None:
        self._process = fork_server().Process(
            target=_command,
            args=([str(part) for part in command], dict(environment), [str(output), str(errors or output)]),
        )
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _command(command: list[str], environment: dict[str, str], outputs: list[str]) -> NoReturn:
    """Become the command, in a fresh fork of the server."""
    for number, path in enumerate(outputs, start=1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(file, number)
        os.close(file)
    subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]
    _become(command, environment, REPOSITORY)


def _execute_child(self: subprocess.Popen, args: Any, *rest: Any) -> None:
    """Fork where Python is to run a module or script of the project; start everything else as a new process."""
    given = inspect.signature(_START_PYTHON).bind(self, args, *rest).arguments
    stdin, stdin_writer, stdout_reader, stdout, stderr_reader, stderr = pipes = [
        given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
    ]
    command = [] if isinstance(args, str) else [str(part) for part in args]
    if command[:1] != [sys.executable] or _program(command[1:]) is None:
        _START_PYTHON(self, args, *rest)
        return
    sys.stdout.flush()
    sys.stderr.flush()
    self.pid = os.fork()
    if self.pid:
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        return
    try:
        for parents_end in (stdin_writer, stdout_reader, stderr_reader):
            if parents_end != -1:
                os.close(parents_end)
        for number, end in enumerate((stdin, stdout, stderr)):
            if end != -1:
                os.dup2(end, number)
        _close_as_exec_does(keep=given["pass_fds"])
        if given["start_new_session"]:
            os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _become(command[1:], dict(os.environ if given["env"] is None else given["env"]), given["cwd"])
    finally:
        os._exit(1)


def _close_as_exec_does(*, keep: Collection[int]) -> None:
    """Close the files that a new program would not inherit, such as the lock of a job's folder."""
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        with contextlib.suppress(OSError):  # listing the folder has one of its own
            if descriptor > 2 and descriptor not in keep and not os.get_inheritable(descriptor):
                os.close(descriptor)
    logging.getLogger().handlers.clear()  # one may write to a file that is closed now
    tracker = resource_tracker._resource_tracker  # its pipe is closed: the new process starts one when it needs one
    tracker._fd = tracker._pid = None  # type: ignore[attr-defined]


def _program(command: Sequence[str]) -> Callable[[], Any] | None:
    """Return what runs `python *command` in this process, or None for a command that needs a process of its own."""
    match command:
        case ["-m", module, *_] if module.partition(".")[0] in ("container", "pipeline"):
            return partial(runpy.run_module, module, run_name="__main__", alter_sys=True)
        case ["-P", script, *_]:
            return partial(runpy.run_path, script, run_name="__main__")
    return None


def _become(command: list[str], environment: Mapping[str, str], folder: str | Path | None) -> NoReturn:
    """Run `python *command` in this process to its end."""
    pa.enable_signal_handlers(False)  # else Arrow has a pipe, which _close_as_exec_does closes: the next fork aborts
    tqdm.set_lock(threading.RLock())  # forks share the default one, which a process that is killed would keep
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # the server's, where it is known already; TMPDIR may be another one now
    # A fork keeps the server's command line and environment in /proc: this is what shows which process it is.
    module = command[2] if command[1] == "container.job.start" else command[1]
    Path("/proc/self/comm").write_text(f"{module.rpartition('.')[2]} {environment.get('RANK', '')}".strip())
    if folder is not None:
        os.chdir(folder)
    for path in environment.get("PYTHONPATH", "").split(os.pathsep):  # as an interpreter does at its start
        if path and (start := Path(path, "sitecustomize.py")).is_file():
            runpy.run_path(str(start))
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.argv = command[1:]
    code = 0
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*found in sys.modules", category=RuntimeWarning)
            program = _program(command)
            assert program is not None
            program()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
