"""Divide the cores of a machine: how many a process may use, and how many threads its work feeds."""

import logging
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from container.job.log_once import log_once

logger = logging.getLogger(__name__)

CORES = "TRAINER_CORES"  # environment variable: the share of the machine's cores that a process of ours gets
OMP_THREADS = "OMP_NUM_THREADS"
_GIVEN = "TRAINER_OMP_NUM_THREADS"  # what the user set OMP_NUM_THREADS to, for the processes of ours
_VALUES_PER_THREAD = 2_000_000  # numbers that a fit reads in a pass; with fewer, threads wait for each other
_MOST_THREADS = 2**31 - 1  # that C's int holds: torch ignores more
_CGROUPS, _OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def available_cores() -> int:
    """Return the number of cores that this process may use: its affinity, the container's quota, its share."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    if quota is not None:
        cores = min(cores, math.ceil(quota))
    return max(1, min(cores, int(os.environ.get(CORES, cores))))


def cpu_quota(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUPS) -> float | None:
    """Return the processor time per second that the container may use; None without a limit.

    Args:
        cgroups: where the kernel mounts the control groups, of version 1 or 2.
        own: the file that names those of this process.
    """
    limits = []
    for folder in _cgroup_folders("cpu", cgroups, own):
        quota, period = "max", "100000"
        if (of_both := _content(folder / "cpu.max")) is not None:
            quota, period = of_both.split()
        elif (of_v1 := _content(folder / "cpu.cfs_quota_us")) is not None:
            quota, period = of_v1, _content(folder / "cpu.cfs_period_us") or period
        if quota != "max" and int(quota) > 0:
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def memory_limit(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUPS) -> int | None:
    """Return the bytes of memory that the container may use; None without a limit. See `cpu_quota`."""
    folders = _cgroup_folders("memory", cgroups, own)
    found = [_content(folder / name) for folder in folders for name in ("memory.max", "memory.limit_in_bytes")]
    return min((int(limit) for limit in found if limit not in (None, "max")), default=None)


def _cgroup_folders(controller: str, cgroups: Path, own: Path) -> list[Path]:
    """Return the folders of this process's control groups and of those above, as far as they are mounted here."""
    folders = []
    for line in (_content(own) or "0::/").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mounts = [cgroups / controllers, cgroups / controller] if controllers else [cgroups, cgroups / "unified"]
        parts = Path(path).parts[1:]
        folders += [mount.joinpath(*parts[:end]) for mount in mounts for end in range(len(parts) + 1)]
    return folders


def _content(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:  # not mounted, or of the other version
        return None


def share_of_cores(processes: int) -> dict[str, str]:
    """Return the environment variables of each of `processes` processes that run at the same time.

    Torch, pyarrow and the libraries of numpy and scikit-learn read OMP_NUM_THREADS when they are imported.
    """
    given, share = given_threads(os.environ), str(max(1, available_cores() // processes))
    return {OMP_THREADS: share, CORES: share} | ({} if given is None else {OMP_THREADS: str(given), _GIVEN: str(given)})


def given_threads(environment: Mapping[str, str]) -> int | None:
    """Return the number of threads that the user's OMP_NUM_THREADS asks for, as torch reads it; None without one."""
    if _GIVEN in environment:
        return int(environment[_GIVEN])
    text = environment.get(OMP_THREADS)
    if text is None or CORES in environment:  # a share of the cores, which is no wish of the user
        return None
    number = re.match(r"\s*\+?0*([1-9][0-9]*)", text)  # C's strtol, which ignores what follows the digits
    if number is None or int(number[1]) > _MOST_THREADS:
        log_once(logger, logging.WARNING, f"{OMP_THREADS} is {text!r}, which is no number of threads: it has no effect")
        return None
    return int(number[1])


def candidates(cores: int) -> list[int]:
    """Return the numbers of threads to compare: the powers of 2 below `cores`, and `cores`."""
    return [*(1 << power for power in range((cores - 1).bit_length())), cores]


def threads_of(values: int) -> int:
    """Return how many threads a fit over `values` numbers, rows times features, feeds."""
    return min(given_threads(os.environ) or available_cores(), max(1, values // _VALUES_PER_THREAD))


@contextmanager
def threads_for(values: int) -> Iterator[int]:
    """Limit the threads of numpy's and scikit-learn's libraries in a block to those that `values` numbers feed."""
    from threadpoolctl import threadpool_limits

    number = threads_of(values)
    with threadpool_limits(number):
        yield number
