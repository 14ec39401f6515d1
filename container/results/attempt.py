"""Make a part of the results whose error costs the part, and not the job: the model is complete."""

import logging
from contextlib import ContextDecorator
from types import TracebackType
from typing import Self

from container.errors import NotMade
from contracts.errors import first_line

logger = logging.getLogger(__name__)


class Attempt(ContextDecorator):
    """Suppress an error of the block, and keep its reason; a function that it decorates then returns None.

    Attributes:
        problem: why the part was not made; empty otherwise.
    """

    def __init__(self, part: str) -> None:
        """`part`: as the log calls it."""
        self._part = part
        self.problem = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if isinstance(error, NotMade):
            self.problem = str(error)
        elif isinstance(error, Exception):  # of any type, e.g. out of memory
            self.problem = f"{type(error).__name__}: {first_line(error)}"
            logger.error("%s: none, because of %s", self._part, self.problem, exc_info=error)
        return isinstance(error, Exception)
