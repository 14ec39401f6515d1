"""Count this host's GPUs, without importing torch."""

import itertools
import os
from collections.abc import Mapping
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
_DEVICES = Path("/dev")


def count_gpus(environment: Mapping[str, str] = os.environ, devices: Path = _DEVICES) -> int:
    """Return the number of GPUs that CUDA shows to this host's processes."""
    visible = environment.get(VISIBLE)
    if visible is None:
        return len(list(devices.glob("nvidia[0-9]*")))
    names = (name.strip() for name in visible.split(","))
    shown = list(itertools.takewhile(lambda name: name and not name.startswith("-"), names))
    # A process can use one MIG instance: CUDA shows the first.
    return min(1, len(shown)) if visible.strip().startswith("MIG-") else len(shown)
