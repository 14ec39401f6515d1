"""Run a job on two hosts: two supervisors on this machine with separate folders, named by loopback addresses."""

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.paths import JobPaths
from contracts.ports import free_port
from testing.jobs import printed, start_train, write_job
from testing.warm import WarmProcess

HOSTS = ("127.0.0.2", "127.0.0.10")  # in natural order; in the order of strings, the second comes first


@dataclass
class TwoHosts:
    """A job over HOSTS: its folders and processes."""

    paths: tuple[JobPaths, JobPaths]
    environment: dict[str, str]
    processes: list[subprocess.Popen | WarmProcess]

    @classmethod
    def write(cls, root: Path, *, overrides: dict[str, Any], wait: float = 60, **job: Any) -> "TwoHosts":
        """Write the same job for both hosts."""
        first = write_job(root / "host-a", overrides=overrides, **job)
        shutil.copytree(first.root, root / "host-b")
        paths = (first, JobPaths(root / "host-b"))
        for host_paths, host in zip(paths, HOSTS):
            content = {"current_host": host, "hosts": sorted(HOSTS), "network_interface_name": "ethwe"}
            host_paths.resource_config.write_text(json.dumps(content))
        return cls(paths, {"CONTROL_PORT": str(free_port()), "HOST_WAIT_SECONDS": str(wait)}, [])

    def start(self, *, warm: bool = False) -> None:
        for paths in self.paths:
            (paths.root / "train.log").unlink(missing_ok=True)
        self.processes = [start_train(paths, warm=warm, **self.environment) for paths in self.paths]

    def log(self, host: int = 0) -> str:
        return printed(self.paths[host])

    def wait_for(self, text: str, *, host: int = 0, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.log(host):
            assert time.monotonic() < deadline, f"{text!r} is not in the log:\n{self.log(host)[-3000:]}"
            time.sleep(0.02)

    def end(self, *, seconds: float = 180) -> list[int]:
        """Wait until both processes end, at most `seconds`, and return their exit codes."""
        deadline = time.monotonic() + seconds
        try:
            return [process.wait(max(0.1, deadline - time.monotonic())) for process in self.processes]
        finally:
            self.kill()

    def run(self, *, expect: tuple[int, int] = (0, 0)) -> None:
        self.start(warm=True)
        codes = self.end()
        assert tuple(codes) == expect, f"{codes}\n{self.log(0)[-3000:]}\n--- {HOSTS[1]}\n{self.log(1)[-3000:]}"

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)
                process.kill()
                process.wait()
