"""Run the commands under faults of the machine: calls that a file system refuses, a full disk, a closed terminal.

    python -m testing.faults [--fault NAME] [--command NAME]

Each trial is a process of a command under one fault. It must complete, or end with exit code 1 and name the fault.
"""

from dataclasses import dataclass, field
from pathlib import Path

from testing.locales import MONTHS

SHIM = Path(__file__).parent / "shim"
COMMANDS = ("init", "train", "predict", "serve", "pipeline")


@dataclass(frozen=True)
class Fault:
    """A fault of the machine.

    Attributes:
        about: for docs/testing.md; faults of one kind have the same.
        named: what the message of a command contains that cannot complete, by command; the others complete.
        wrapper: words before the command.
        call: one of CALLS in testing/faults/shim, which fails; None: none does.
        language: of the caller's dates.
        room: of the disk, as a share of what the command writes; None: enough.
    """

    about: str
    named: dict[str, str] = field(default_factory=dict)
    wrapper: tuple[str, ...] = ()
    call: str | None = None
    language: str | None = None
    room: float | None = None


def _disk(percent: int) -> Fault:
    named = {command: "the disk is full" for command in COMMANDS if command != "serve"}
    about = "a disk with 10, 50 or 90 % of the space"
    return Fault(about, named, room=percent / 100)


FAULTS = {
    "fsync": Fault("`fsync` of a folder: EINVAL", call="fsync"),
    "flock": Fault("`flock`: ENOLCK or ENOSYS", call="flock"),
    "flock-enosys": Fault("`flock`: ENOLCK or ENOSYS", call="flock-enosys"),
    "chmod": Fault("`chmod`, `utime`: EPERM", call="chmod"),
    "link": Fault("`link`: EPERM", call="link"),
    "symlink": Fault("`symlink`: EPERM", {"pipeline": "refuses symbolic links"}, call="symlink"),
    "rename": Fault("`rename` to another folder: EXDEV", call="rename"),
    "clock": Fault("a clock that jumps", call="clock"),
    **{language: Fault(f"`LC_TIME`: {', '.join(MONTHS)}", call="locale", language=language) for language in MONTHS},
    "disk-10": _disk(10),
    "disk-50": _disk(50),
    "disk-90": _disk(90),
    "loopback": Fault(
        "no loopback",
        dict.fromkeys(("train", "pipeline"), "127.0.0.1: "),
        wrapper=("unshare", "--map-root-user", "--net"),
    ),
    "closed": Fault(
        "closed standard streams",
        wrapper=("bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash"),
    ),
}


def table() -> list[str]:
    """Return the lines of the table in docs/testing.md."""
    rows = [("fault", "commands that end and name it"), ("--", "--")]
    rows += dict.fromkeys((fault.about, ", ".join(fault.named) or "none") for fault in FAULTS.values())
    return [f"| {' | '.join(row)} |" for row in rows]
