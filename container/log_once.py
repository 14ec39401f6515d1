"""Log a message once per process, even if its cause occurs again."""

import logging
from functools import cache


@cache
def log_once(logger: logging.Logger, level: int, message: str) -> None:
    """Log `message`, unless this process has already logged it."""
    logger.log(level, message)
