"""Run programs in containers of an image, with folders of this machine where SageMaker has them (run --docker)."""

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from contracts.errors import ContractError


def image_id(image: str, mounted: Iterable[Path]) -> str:
    """Return the ID of an image's content.

    Args:
        mounted: the folders that its containers will have.

    Raises:
        ContractError: Docker or the image is missing, or Docker cannot mount a folder.
    """
    for path in mounted:
        if ":" in str(path):
            raise ContractError(
                f"{path}: contains ':', at which Docker ends a folder's name", "Use another folder, or remove --docker."
            )
    command = ["docker", "image", "inspect", "--format", "{{.Id}}", image]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ContractError("docker: is not installed", "Install it, or remove --docker.") from None
    if done.returncode:
        missing = "no such image" in done.stderr.lower()
        fix = "Build it: make image" if missing else "Correct the name, start Docker, or give your user access to it."
        raise ContractError(f"--docker {image}: {done.stderr.strip()}", fix)
    return done.stdout.strip()


def start_container(
    image: str,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    log: IO[bytes],
    *,
    volumes: Mapping[str, Path],
    options: Sequence[str] = (),
) -> subprocess.Popen:
    """Start `docker run` of the image's entry point; it passes SIGTERM on to the container.

    Args:
        volumes: the folder of this machine for each path in the container; ":ro" at its end: read-only.
    """
    mounts = [f"--volume={source}:{path}" for path, source in volumes.items()]
    environment = [f"--env={name}={value}" for name, value in variables.items()]
    return subprocess.Popen(
        ["docker", "run", "--rm", *options, *mounts, *environment, image, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that a Ctrl-C reaches it once, from this process
    )
