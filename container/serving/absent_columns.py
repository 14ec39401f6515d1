"""Say which columns of the model no record of a request has: once per hour and column, with a count."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Collection

from container.serving.errors import bad_request

logger = logging.getLogger(__name__)

_SECONDS = 3600.0


class AbsentColumns:
    """The columns that requests lacked since the start.

    Args:
        refuse: whether such a request is refused.
    """

    def __init__(self, *, refuse: bool) -> None:
        self.requests: Counter[str] = Counter()
        self._refuse = refuse
        self._said: dict[str, float] = {}
        self._lock = threading.Lock()

    def count(self, columns: Collection[str]) -> None:
        """Count a request without these columns.

        Raises:
            RequestError: 400, such requests are refused.
        """
        if not columns:
            return
        now = time.monotonic()
        with self._lock:
            self.requests.update(columns)
            due = [name for name in sorted(columns) if now - self._said.get(name, -_SECONDS) >= _SECONDS]
            self._said |= dict.fromkeys(due, now)
        for name in due:
            logger.warning(
                "column %r is absent from every record of a request (of %d requests since the start); it counts as "
                "missing. SERVING_STRICT_COLUMNS=true refuses such requests.",
                name,
                self.requests[name],
            )
        if self._refuse:
            names = ", ".join(map(repr, sorted(columns)))
            raise bad_request(f"no record has the column {names}", "Send it; null stands for a missing value.")
