"""Record what a step finds, in a file that is complete at any moment: a step may be killed."""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Request:
    """What a step is asked to do; travels as JSON.

    Attributes:
        module, function: called with the Recorder.
        device: cuda or cpu.
        tiny: shapes and tables that take a CPU seconds.
        gpus: number of GPUs; on a CPU, of processes.
        folder: for temporary files, removed after the step.
        found: the file of its findings.
        out: the folder of the whole check.
        log: its output is appended to this file.
        ends_at: on the monotonic clock; the step is killed then.
        variables: of the environment, in addition.
    """

    module: str
    function: str
    device: str
    tiny: bool
    gpus: int
    folder: str
    found: str
    out: str
    log: str
    ends_at: float
    variables: dict[str, str] = field(default_factory=dict)


@dataclass
class Findings:
    """The content of the file.

    Attributes:
        figures: measured values, by name.
        facts: what was expected, what was found, and whether it holds.
        notes: what was left out, and what only a GPU shows.
    """

    figures: dict[str, Any] = field(default_factory=dict)
    facts: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "Findings":
        return cls(**json.loads(path.read_text())) if path.is_file() else cls()


class Recorder:
    """Passed to the function of a step, which records figures and facts with it."""

    def __init__(self, request: Request) -> None:
        self.device, self.tiny, self.gpus = request.device, request.tiny, request.gpus
        self.folder, self.out = Path(request.folder), Path(request.out)
        self.on_gpu = self.device == "cuda"
        self._path = Path(request.found)
        self._ends_at = request.ends_at
        self.findings = Findings()

    @property
    def seconds_left(self) -> float:
        return self._ends_at - time.monotonic()

    def figure(self, name: str, value: Any) -> None:
        self.findings.figures[name] = value
        self._write(f"{name}: {json.dumps(value)}")

    def add(self, name: str, row: dict[str, Any]) -> None:
        """Append a row to the figure `name`, a table."""
        self.findings.figures.setdefault(name, []).append(row)
        self._write(f"{name}: {json.dumps(row)}")

    def at_most(self, fact: str, value: float, limit: float) -> None:
        """Record a difference; NaN never holds."""
        self._fact({"fact": fact, "value": value, "limit": limit, "holds": bool(value <= limit)})

    def holds(self, fact: str, found: bool, *, value: Any = None) -> None:
        self._fact({"fact": fact, "value": value, "holds": bool(found)})

    def note(self, text: str) -> None:
        self.findings.notes.append(text)
        self._write(f"note: {text}")

    def only_on_gpu(self, what: str) -> bool:
        """Return whether this is a GPU; otherwise note what was not shown."""
        if not self.on_gpu:
            self.note(f"only a GPU shows: {what}")
        return self.on_gpu

    def has_time(self, seconds: float, what: str) -> bool:
        """Return whether `seconds` remain before the limit; if not, add a note that names the omitted part."""
        enough = self.tiny or self.seconds_left >= seconds
        if not enough:
            self.note(f"left out, with {self.seconds_left:.0f} s left: {what}")
        return enough

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Record an error of this part as a fact that does not hold, and go on with the next part."""
        try:
            yield
        except Exception as error:
            print(f"{name}:\n{traceback.format_exc()}", flush=True)
            lines = str(error).strip().splitlines() or [""]
            self.holds(f"{name}: no error", False, value=f"{type(error).__name__}: {lines[0]}"[:300])

    def fork(self, name: str, work: Callable[[], object]) -> None:
        """Run `work` as a part in a process of its own, a fork of this one, which must not have used CUDA."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with self.part(name):
                    work()
                code = 0
            finally:
                sys.stdout.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self.findings = Findings.read(self._path)
        if code:
            self.holds(f"{name}: its process ends with code 0", False, value=code)

    def _fact(self, fact: dict[str, Any]) -> None:
        self.findings.facts.append(fact)
        self._write(f"{'holds' if fact['holds'] else 'DOES NOT HOLD'}: {json.dumps(fact)}")

    def _write(self, line: str) -> None:
        print(line, flush=True)
        staged = self._path.with_suffix(".new")
        staged.write_text(json.dumps(asdict(self.findings)))
        os.replace(staged, self._path)
