"""Print the states of steps and the progress of what a command waits for, within 80 columns."""

import sys
import textwrap
from dataclasses import dataclass, field

COLUMNS = 80


@dataclass(frozen=True)
class StepState:
    """The state of a step in an execution.

    Attributes:
        seconds: duration, so far or in all; 0: not started.
        note: the cause of a failure, or a short fact.
        dollars: cost at the catalogue's prices; None: unknown.
    """

    name: str
    state: str
    seconds: float = 0.0
    note: str = ""
    dollars: float | None = None

    def lines(self) -> list[str]:
        """Return the line of the table; what does not fit follows below it."""
        took = f"{self.seconds:,.1f} s" if self.seconds else ""
        cost = "" if self.dollars is None else f"${self.dollars:,.2f}"
        line = f"{self.name:26s} {self.state:9s} {took:>10s} {cost:>8s}  "
        if len(line) + len(self.note) <= COLUMNS:
            return [f"{line}{self.note}".rstrip()]
        indented = {"initial_indent": "  ", "subsequent_indent": "  ", "break_on_hyphens": False}
        return [line.rstrip(), *textwrap.wrap(self.note, COLUMNS, **indented)]


@dataclass
class Progress:
    """A line on stderr: replaced on a terminal; elsewhere printed when its first words change."""

    shown: str = field(default="", init=False)

    def show(self, state: str, detail: str = "") -> None:
        """Show the state, and a detail that changes more often."""
        line = f"{state}{detail}"[: COLUMNS - 1]
        if sys.stderr.isatty():
            print(f"\r{line:{COLUMNS - 1}s}", end="", file=sys.stderr, flush=True)
        elif state != self.shown:
            print(line, file=sys.stderr, flush=True)
        self.shown = state

    def end(self) -> None:
        """End the line."""
        if sys.stderr.isatty() and self.shown:
            print(file=sys.stderr, flush=True)
