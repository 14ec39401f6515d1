"""Count this host's GPUs, without importing torch."""

import itertools
import os
import re
from collections.abc import Mapping
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
_DEVICES = Path("/dev")
_DRIVER = Path("/proc/driver/nvidia/version")
_CUDA_COMPAT = Path("/usr/local/cuda/compat")  # where NVIDIA's package cuda-compat puts its libraries


def count_gpus(environment: Mapping[str, str] = os.environ, devices: Path = _DEVICES) -> int:
    """Return the number of GPUs that CUDA shows to this host's processes."""
    visible = environment.get(VISIBLE)
    if visible is None:
        return len(list(devices.glob("nvidia[0-9]*")))
    names = (name.strip() for name in visible.split(","))
    shown = list(itertools.takewhile(lambda name: name and not name.startswith("-"), names))
    # A process can use one MIG instance: CUDA shows the first.
    return min(1, len(shown)) if visible.strip().startswith("MIG-") else len(shown)


def cuda_compat(folder: Path = _CUDA_COMPAT, driver: Path = _DRIVER) -> Path | None:
    """Return the folder of the image's CUDA driver libraries if this host's driver is older than they are, else None.

    With a newer driver they fail: error 803, "unsupported display driver / cuda driver combination".
    """
    host = re.search(r"Kernel Module.*? (\d+\.[\d.]+)", driver.read_text()) if driver.is_file() else None
    libraries = [_numbers(path.name.removeprefix("libcuda.so.")) for path in folder.glob("libcuda.so.*.*")]
    return folder if host and libraries and _numbers(host[1]) < max(libraries) else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))
