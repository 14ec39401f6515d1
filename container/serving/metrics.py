"""Count the requests of a server, and write the counts as Prometheus text (SERVING_METRICS)."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds
_PREFIX = "text_table_server"


class Latencies:
    """A histogram of the seconds that requests took."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS) + 1)
        self._total = 0.0

    def add(self, seconds: float) -> None:
        """Count a request; the caller holds a lock."""
        self._counts[bisect_left(_BOUNDS, seconds)] += 1
        self._total += seconds

    def lines(self, name: str) -> Iterator[str]:
        """Yield the histogram: the number of requests up to each bound, their sum and their number."""
        below = 0
        for bound, count in zip((*_BOUNDS, "+Inf"), self._counts, strict=True):
            below += count
            yield f'{name}_bucket{{le="{bound}"}} {below}'
        yield f"{name}_sum {self._total:.6f}"
        yield f"{name}_count {below}"


def metrics_page(statuses: Counter[int], latencies: Latencies, gauges: Mapping[str, tuple[int, str]]) -> str:
    """Return the page.

    Args:
        statuses: number of responses by status; errors are those from 400 on.
        gauges: value and meaning, by name.
    """
    requests, seconds = f"{_PREFIX}_requests_total", f"{_PREFIX}_request_seconds"
    lines = [f"# HELP {requests} Responses to /invocations.", f"# TYPE {requests} counter"]
    lines += [f'{requests}{{status="{status}"}} {count}' for status, count in sorted(statuses.items())]
    lines += [f"# HELP {seconds} Time of requests to /invocations.", f"# TYPE {seconds} histogram"]
    lines += latencies.lines(seconds)
    for name, (value, about) in gauges.items():
        full = f"{_PREFIX}_{name}"
        lines += [f"# HELP {full} {about}", f"# TYPE {full} gauge", f"{full} {value}"]
    return "\n".join([*lines, ""])
