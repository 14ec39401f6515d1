"""Use the Docker engine by its command line."""

import json
import os
import shutil
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

IMAGE = os.environ.get("IMAGE", "text-table-trainer:test")


def why_no_engine() -> str | None:
    """Return why no engine can be used; None if one is available."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    answer = subprocess.run(["docker", "info"], capture_output=True, text=True, check=False)
    return None if answer.returncode == 0 else f"no Docker engine answers: {answer.stderr.strip()}"


def docker(*arguments: str | Path, expect: int | None = 0, timeout: float = 600) -> str:
    """Run `docker ...`, and return stdout and stderr together."""
    done = subprocess.run(
        ["docker", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout
    )
    if expect is not None:
        assert done.returncode == expect, f"docker {arguments[0]}: exit code {done.returncode}\n{done.stdout[-4000:]}"
    return done.stdout


@dataclass(frozen=True)
class Container:
    """A container in the background."""

    name: str

    @classmethod
    def start(cls, *arguments: str | Path) -> "Container":
        """Run `docker run --detach ARGUMENTS`, which end with the image and its command."""
        name = f"trainer-test-{uuid.uuid4().hex[:8]}"
        docker("run", "--detach", "--name", name, *arguments)
        return cls(name)

    @property
    def log(self) -> str:
        return docker("logs", self.name)

    def wait_for(self, text: str, *, seconds: float = 180) -> str:
        """Wait until the log contains `text`; raise AssertionError if the container ends without it."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            running = self.inspect()["State"]["Running"]
            log = self.log
            if text in log:
                return log
            assert running, f"ended without {text!r}:\n{log[-4000:]}"
            time.sleep(0.05)
        raise AssertionError(f"{text!r} did not come within {seconds} s:\n{self.log[-4000:]}")

    def wait_for_handler(self, number: int, *, seconds: float = 30) -> None:
        """Wait until process 1 has a handler for signal `number`, which Python installs when it starts."""
        status = Path(f"/proc/{self.inspect()['State']['Pid']}/status")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            caught = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt"))
            if int(caught.split()[1], 16) >> (number - 1) & 1:
                return
            time.sleep(0.005)
        raise AssertionError(f"signal {number} has no handler after {seconds} s")

    def stop(self) -> None:
        """Run `docker stop` with the service's grace period."""
        docker("stop", "--time", "120", self.name)

    def wait(self, *, seconds: float = 300) -> int:
        """Wait for the end, and return the exit code."""
        return int(docker("wait", self.name, timeout=seconds).strip())

    def inspect(self) -> dict:
        return json.loads(docker("inspect", self.name))[0]

    def remove(self) -> None:
        docker("rm", "--force", "--volumes", self.name, expect=None)
