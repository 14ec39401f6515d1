"""Show the table of steps: redrawn on a terminal, one line per event elsewhere."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import TextIO

RUNNING, DONE, CACHED, FAILED, WAITING = "running", "done", "cached", "failed", "waiting"
_REDRAW_SECONDS = 0.5


@dataclass
class Row:
    """A step in the table."""

    name: str
    state: str = WAITING
    seconds: float = 0.0
    note: str = ""


class Progress:
    """The table of steps, in the order of `names`."""

    def __init__(self, names: Iterable[str], stream: TextIO = sys.stderr) -> None:
        self._rows = {name: Row(name) for name in names}
        self._stream = stream
        self._terminal = stream.isatty()
        self._drawn = 0
        if self._terminal:
            self._draw()

    def finish(self, name: str, state: str, *, seconds: float = 0.0, note: str = "") -> None:
        """Show how a step ended."""
        row = self._rows[name]
        row.state, row.seconds, row.note = state, seconds, note
        self._show(row)

    @contextmanager
    def running(self, name: str, note: Callable[[], str]) -> Iterator[None]:
        """Show a step as running, with the current text of `note`."""
        row, began, ended = self._rows[name], time.monotonic(), Event()
        row.state = RUNNING
        self._show(row)

        def watch() -> None:
            while not ended.wait(_REDRAW_SECONDS):
                row.seconds, row.note = time.monotonic() - began, note()
                self._draw()

        watcher = Thread(target=watch, daemon=True)
        if self._terminal:
            watcher.start()
        try:
            yield
        finally:
            ended.set()
            if self._terminal:
                watcher.join()

    def lines(self) -> list[str]:
        """Return the table as text."""
        return [f"{'step':26s} {'state':8s} {'time':>8s}  note", *(_line(row) for row in self._rows.values())]

    def _show(self, row: Row) -> None:
        if self._terminal:
            self._draw()
        else:
            print(_line(row).rstrip(), file=self._stream, flush=True)

    def _draw(self) -> None:
        if self._drawn:
            self._stream.write(f"\x1b[{self._drawn}F\x1b[J")
        lines = [line[:118] for line in self.lines()]
        self._stream.write("\n".join(lines) + "\n")
        self._stream.flush()
        self._drawn = len(lines)


def _line(row: Row) -> str:
    took = f"{row.seconds:.1f} s" if row.seconds else ""
    return f"{row.name:26s} {row.state:8s} {took:>8s}  {row.note}"
