"""Log a message once per process, however often its cause occurs."""

import logging
from functools import cache


@cache
def log_once(logger: logging.Logger, level: int, message: str) -> None:
    """Log `message`, unless this process has logged it already."""
    logger.log(level, message)
