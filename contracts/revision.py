"""The commit of the code that runs."""

import os
import subprocess
from pathlib import Path

_VARIABLE = "TRAINER_REVISION"  # the Dockerfile sets it
UNKNOWN = "unknown"


def revision() -> str:
    """Return the commit of the image, or of the checkout, with -dirty after a change; unknown without both."""
    if given := os.environ.get(_VARIABLE):
        return given
    checkout = Path(__file__).resolve().parents[1]
    if not (checkout / ".git").exists():
        return UNKNOWN
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
