"""Serve a package on this machine: during a step, or for a user (python -m pipeline serve)."""

import json
import re
import sys
import tarfile
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from contracts.errors import ContractError
from contracts.paths import DEFAULT_ROOT, JobPaths
from contracts.ports import free_port
from contracts.serving import PORT
from contracts.steps import ARCHIVED_MODEL
from pipeline.local.cache import StepDirectory
from pipeline.local.docker import start_container
from pipeline.local.process import StepFailed, last_line, run_program, start_program
from pipeline.local.registry import PACKAGE_FILE, LocalRegistry

_STARTED = re.compile(r"on port (\d+)")
_POLL_SECONDS = 0.05
_MODEL = JobPaths(Path(DEFAULT_ROOT)).model  # in the container


@contextmanager
def serving(
    package: Path, directory: StepDirectory, variables: Mapping[str, str], *, step: str, image: str | None
) -> Iterator[int]:
    """Serve a package during a `with` block, and yield the port.

    Args:
        directory: receives the unpacked package and the log.
        variables: the server's environment.
        step: the step's name, for messages.
        image: the image of the server; None for a process.

    Raises:
        StepFailed: the server does not start.
    """
    root, log = directory.ml, directory.log
    _unpack(package, root)
    with log.open("ab") as sink:
        begin = sink.tell()
        published = free_port("127.0.0.1") if image else None
        if image:
            volumes, options = {f"{_MODEL}:ro": JobPaths(root).model}, [f"--publish=127.0.0.1:{published}:{PORT}"]
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


def serve_newest(root: Path, *, group: str | None, port: int) -> int:
    """Serve the newest registered version of a group under `root` until it is stopped.

    Args:
        group: None if `root` has one group.

    Returns:
        The server's exit code.

    Raises:
        ContractError: no version is registered, or several groups are.
    """
    groups = sorted(
        folder.name for folder in (root / "registry").glob("*") if LocalRegistry(root, folder.name).versions()
    )
    if not groups or (group is not None and group not in groups):
        what = f"of the group {group!r} " if groups else ""
        known = f" The groups are {', '.join(groups)}." if groups else ""
        raise ContractError(f"{root}: no model {what}is registered", f"Run python -m pipeline run first.{known}")
    if group is None and len(groups) > 1:
        raise ContractError(f"{root}: has models of several groups", f"Set --group to one of: {', '.join(groups)}.")
    model = LocalRegistry(root, group or groups[0]).versions()[0]
    (container,) = json.loads((model.folder / PACKAGE_FILE).read_text())["InferenceSpecification"]["Containers"]
    print(f"Serving version {model.version} of {group or groups[0]} ({model.approval}).", file=sys.stderr, flush=True)
    with TemporaryDirectory(prefix="pipeline-serve-") as folder:
        try:
            _unpack(model.folder / ARCHIVED_MODEL, Path(folder))
        except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
            raise ContractError(
                f"{model.folder / ARCHIVED_MODEL}: cannot be unpacked: {error}",
                "Delete the folder of this version, and run the pipeline again.",
            ) from None
        try:
            return run_program(["serve", "--root", folder, "--port", str(port)], container["Environment"], None)
        except KeyboardInterrupt:
            return 0


def _unpack(package: Path, root: Path) -> None:
    with tarfile.open(package) as archive:
        archive.extractall(JobPaths(root).model, filter="data")
