"""Run a function on n ranks for tests: as a job of n processes with a new process group, and a short start-up.

Every rank of every job is forked from one server process that has imported torch, transformers and the container, but
has run nothing. A job starts in a fraction of a second, and jobs share no group, mesh or cache.
"""

import contextlib
import faulthandler
import itertools
import os
import pickle
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from container.parallel.mesh import choose_device
from contracts.program import PARENT_PID, die_with_parent
from testing.warm import fork_server

MAX_RANKS = 16
# After a rank has failed, its peers fail because of the broken connection: wait this many seconds for their errors.
_PEER_FAILURES = 0.5


class RankFailed(AssertionError):
    """A rank raised, died or hung; its exception, if any, is the __cause__.

    Attributes:
        ranks: the ranks that failed; the first to fail comes first.
        crashed: a rank's process ended without a Python exception.
    """

    def __init__(self, message: str, *, ranks: list[int], crashed: bool = False) -> None:
        super().__init__(message)
        self.ranks = ranks
        self.crashed = crashed


class RankPool:
    """Runs jobs of up to MAX_RANKS ranks, one after the other. Use as a context manager.

    Args:
        timeout: maximum seconds per job.
        context: of multiprocessing, which starts the ranks; None: fork them from the server.
    """

    def __init__(self, *, timeout: float = 300, context: Any = None) -> None:
        self._timeout = timeout
        self._numbers = itertools.count()
        self._context = context or fork_server()
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def __enter__(self) -> "RankPool":
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()
        del self._store

    def run(
        self, function: Callable[..., Any], *arguments: Any, world_size: int, timeout: float | None = None, **named: Any
    ) -> list[Any]:
        """Call `function` on every rank of a process group, and return each rank's result.

        If CUDA_VISIBLE_DEVICES does not hide this machine's GPUs, each rank has the GPU of its number.

        Args:
            function: a module's function; it, its arguments and its results are pickled.

        Raises:
            RankFailed: a rank raised, died, or exceeded the timeout; all ranks of the job have ended.
        """
        assert 1 <= world_size <= MAX_RANKS
        job = next(self._numbers)
        call = pickle.dumps((function, arguments, named))
        stacks = [Path(self._folder.name) / f"job{job}-rank{rank}" for rank in range(world_size)]
        with self._processes(job, world_size, call, stacks) as (processes, pipes):
            return _collect(processes, pipes, stacks=stacks, timeout=timeout or self._timeout)

    @contextlib.contextmanager
    def _processes(self, job: int, world_size: int, call: bytes, stacks: list[Path]) -> Iterator[Any]:
        processes, pipes = [], []
        try:
            for rank in range(world_size):
                ours, theirs = self._context.Pipe(duplex=False)
                named = {"job": job, "rank": rank, "world_size": world_size, "port": self._store.port}
                process = self._context.Process(
                    target=_rank_main, args=(theirs,), kwargs={**named, "call": call, "stack": stacks[rank]}
                )
                process.start()
                theirs.close()
                processes.append(process)
                pipes.append(ours)
            yield processes, pipes
        finally:
            for process in processes:
                process.kill()
            for process, pipe in zip(processes, pipes):
                process.join()
                pipe.close()


def _collect(processes: list[Any], pipes: list[Connection], *, stacks: list[Path], timeout: float) -> list[Any]:
    """Return the results of all ranks, or raise RankFailed with the ranks that have none."""
    results: dict[int, Any] = {}
    failures: list[tuple[float, int, str, BaseException | None]] = []
    crashed = False
    deadline = time.monotonic() + timeout
    running = dict(zip(pipes, range(len(pipes))))
    while running and (remaining := deadline - time.monotonic()) > 0:
        for pipe in wait(list(running), remaining):
            rank = running.pop(pipe)
            try:
                at, result, text, error = pickle.loads(pipe.recv_bytes())
            except EOFError:
                processes[rank].join(10)
                text = f"ended with exit code {processes[rank].exitcode}\n{_stacks(stacks[rank])}"
                # It was the first to fail, even if the errors of its peers arrived earlier.
                at, error, crashed = 0.0, None, True
            if text is None:
                results[rank] = result
                continue
            if not failures:
                deadline = time.monotonic() + _PEER_FAILURES
            failures.append((at, rank, text, error))
    if failures:
        failures.sort(key=lambda failure: failure[0])
        _, rank, text, error = failures[0]
        # gloo may also abort a rank that loses a peer: then the cause is among these.
        later = [f"also rank {rank}: {_cause(text)}" for _, rank, text, _ in failures[1:]]
        message = "\n".join([f"rank {rank} of {len(pipes)}: {text}", *later])
        raise RankFailed(message, ranks=[failure[1] for failure in failures], crashed=crashed) from error
    if running:
        hung = sorted(running.values())
        for rank in hung:
            os.kill(processes[rank].pid, signal.SIGUSR1)
        time.sleep(0.3)
        where = "\n".join(f"rank {rank}:\n{_stacks(stacks[rank])}" for rank in hung)
        raise RankFailed(f"not done after {timeout:g} s: ranks {hung} of {len(pipes)}\n{where}", ranks=hung)
    return [results[rank] for rank in range(len(pipes))]


def _cause(text: str) -> str:
    """Return the message of the first exception of a traceback; those that were raised from it only add a place."""
    first = re.split(r"\n\n(?:The above exception was the direct|During handling of the above)", text)[0].strip()
    after_calls = [line for line in first.splitlines() if not line.startswith(" ")]
    return after_calls[-1] if after_calls else first


def _stacks(file: Path) -> str:
    """Return a rank's stderr and stacks, without faulthandler's list of all imported extension modules."""
    lines = file.read_text(errors="replace").splitlines() if file.exists() else []
    return "\n".join(line for line in lines if not line.startswith("Extension modules:"))


def _rank_main(pipe: Connection, *, job: int, rank: int, world_size: int, port: int, call: bytes, stack: Path) -> None:
    """Run one rank. End without the interpreter's clean-up, which takes longer than most jobs."""
    os.environ.pop(PARENT_PID, None)
    die_with_parent()
    environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    os.environ.update(
        {name: str(value) for name, value in environment.items()}, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1"
    )
    torch.set_num_threads(1)
    # The rank's stderr is part of its failure: torch's libraries write there why they abort.
    file = stack.open("w")
    os.dup2(file.fileno(), 2)
    faulthandler.enable(file)
    faulthandler.register(signal.SIGUSR1, file)
    try:
        dist.init_process_group(
            choose_device(),
            store=dist.PrefixStore(f"job{job}", dist.TCPStore("127.0.0.1", port, is_master=False)),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(minutes=10),
        )
        function, arguments, named = pickle.loads(call)
        result = pickle.dumps((time.time(), function(*arguments, **named), None, None))
        pipe.send_bytes(result)
        dist.destroy_process_group()
    except BaseException as error:
        pipe.send_bytes(_failure(error))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _failure(error: BaseException) -> bytes:
    """Return a rank's failure message, with the exception if it can be pickled."""
    at, text = time.time(), traceback.format_exc()
    with contextlib.suppress(Exception):
        content = pickle.dumps((at, None, text, error))
        pickle.loads(content)
        return content
    return pickle.dumps((at, None, text, None))
