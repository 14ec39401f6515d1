"""results.json: what the steps of a check found, and of which code, on which machine."""

import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu_steps.processes import REPOSITORY
from benchmarks.gpu_steps.recorder import Findings

RESULTS, LOG = "results.json", "log.txt"
OTHERS = ("memory.json", "trace.json.gz")  # of single steps
_CODE = ("contracts", "container", "testing", "benchmarks")


@dataclass
class StepResult:
    """A step that ran.

    Attributes:
        status: passed, failed, nothing to check, running, or how its process ended.
        limit: seconds that it had.
        last_lines: of the output of a step that did not pass.
    """

    status: str
    seconds: float
    limit: float
    findings: Findings = field(default_factory=Findings)
    last_lines: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, code: int | None, findings: Findings, *, seconds: float, limit: float) -> "StepResult":
        """Return the result of a process with this exit code; None: it was killed at its time limit."""
        if code is None:
            status = "out of time"
        elif code:
            status = f"crashed (signal {-code})" if code < 0 else f"crashed (exit code {code})"
        elif not findings.facts and not findings.figures:
            status = "nothing to check"
        else:
            status = "passed" if all(fact["holds"] for fact in findings.facts) else "failed"
        return cls(status, seconds, limit, findings)


@dataclass
class Results:
    """The results in a folder; `put` writes them."""

    folder: Path
    identity: dict[str, Any]
    machine: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, StepResult] = field(default_factory=dict)
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M"))

    @classmethod
    def exists(cls, folder: Path) -> bool:
        return (folder / RESULTS).is_file()

    @classmethod
    def open(cls, folder: Path) -> "Results":
        """Read the results of a folder; exit if it has none."""
        try:
            content = json.loads((folder / RESULTS).read_text())
            steps = {
                name: StepResult(**{**step, "findings": Findings(**step["findings"])})
                for name, step in content.pop("steps").items()
            }
            return cls(folder, **content, steps=steps)
        except (OSError, ValueError, KeyError, TypeError) as error:
            sys.exit(f"{folder / RESULTS}: cannot be read as results of a check: {error}")

    def put(self, name: str, result: StepResult) -> None:
        self.steps[name] = result
        content = {
            "identity": self.identity,
            "machine": self.machine,
            "date": self.date,
            "steps": {name: asdict(step) for name, step in self.steps.items()},
        }
        staged = self.folder / f".{RESULTS}"
        staged.write_text(json.dumps(content, indent=1))
        os.replace(staged, self.folder / RESULTS)

    def passed(self, name: str) -> bool:
        return name in self.steps and self.steps[name].status == "passed"

    def figures(self, name: str) -> dict[str, Any]:
        """Return the figures of a step; empty if it did not run."""
        return self.steps[name].findings.figures if name in self.steps else {}


def identity(*, device: str, tiny: bool, gpus: int) -> dict[str, Any]:
    """Return what results are of: code, also without git, device and sizes."""
    digest = hashlib.sha256()
    for folder in _CODE:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            digest.update(str(path.relative_to(REPOSITORY)).encode() + path.read_bytes())
    git = ["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
    except OSError:
        commit = ""
    code = f"code {digest.hexdigest()[:12]}"
    return {"commit": f"{commit} {code}".strip(), "device": device, "tiny": tiny, "gpus": gpus}
