"""Compare rows of the parity table (testing/parity_strategies.py) with one process."""

from collections.abc import Iterable

from benchmarks.gpu_steps.recorder import Recorder
from testing.parity import GPU_TOLERANCE, TOLERANCE, ParityCheck, ParityJobs
from testing.parity_strategies import BY_NAME


def compare_rows(check: Recorder, jobs: ParityJobs, names: Iterable[str], *, seconds: float) -> None:
    """Record the largest differences of losses, gradients, weights and predictions of each row.

    Args:
        seconds: that a row takes at most.
    """
    parity = ParityCheck(jobs)
    for name in names:
        if not check.has_time(seconds, name):
            continue
        with check.part(name):
            found = parity.compare(BY_NAME[name])
            parts = {part: getattr(found, part).value for part in ("losses", "gradients", "weights", "predictions")}
            check.add("parity", {"strategy": name, **parts})
            limit = GPU_TOLERANCE if check.on_gpu else TOLERANCE
            check.at_most(f"{name} ({found.largest.where})", found.largest.value, limit)
