"""Serve a package with a process or a container, for as long as it is asked."""

import re
import shutil
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path

from contracts.paths import DEFAULT_ROOT, JobPaths
from contracts.ports import LOOPBACK, free_port
from contracts.serving import PORT
from pipeline.local.cache import StepDirectory
from pipeline.local.docker import start_container
from pipeline.local.process import StepFailed, last_line, start_program

_STARTED = re.compile(r"on port (\d+)")
_POLL_SECONDS = 0.05
_MODEL = JobPaths(Path(DEFAULT_ROOT)).model  # in the container


@contextmanager
def serving(
    package: Path, directory: StepDirectory, variables: Mapping[str, str], *, step: str, image: str | None = None
) -> Iterator[int]:
    """Serve a package during a `with` block, and yield the port.

    Args:
        directory: receives the unpacked package and the log.
        variables: the server's environment.
        step: what serves, for the error.
        image: the image of the server; None for a process.

    Raises:
        StepFailed: the server does not start.
    """
    root, log = directory.ml, directory.log
    shutil.rmtree(root, ignore_errors=True)
    with tarfile.open(package) as archive:
        archive.extractall(JobPaths(root).model, filter="data")
    with log.open("ab") as sink:
        begin = sink.tell()
        published = free_port(LOOPBACK) if image else None
        if image:
            volumes, options = {f"{_MODEL}:ro": JobPaths(root).model}, [f"--publish={LOOPBACK}:{published}:{PORT}"]
            process = start_container(image, ["serve"], variables, sink, volumes=volumes, options=options)
        else:
            process = start_program(["serve", "--root", str(root), "--port", "0"], variables, sink)
        try:
            while not (started := _STARTED.search(log.read_bytes()[begin:].decode(errors="replace"))):
                if process.poll() is not None:
                    raise StepFailed(step, f"the server did not start: {last_line(log)}", log)
                time.sleep(_POLL_SECONDS)
            yield published or int(started[1])
        finally:
            process.terminate()  # `docker run` passes the signal on to the container
            process.wait()


def ask(
    port: int, path: str, body: bytes = b"", *, content_type: str, accept: str, seconds: float
) -> tuple[int, bytes]:
    """Send a request to a server of this machine, GET without a body; return the status and the body of its answer."""
    headers = {"Content-Type": content_type, "Accept": accept}
    with closing(HTTPConnection(LOOPBACK, port, timeout=seconds)) as connection:
        connection.request("POST" if body else "GET", path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()
