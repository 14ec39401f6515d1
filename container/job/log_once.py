"""Log the details of a job, which only its log file contains; log a message once per process."""

import logging
from functools import cache

DETAIL = "detail"  # attribute of a record that is not printed if a file contains it


def log_detail(logger: logging.Logger, message: str, *args: object) -> None:
    """Log a line for the log file of a job."""
    logger.info(message, *args, extra={DETAIL: True}, stacklevel=2)


@cache
def log_once(logger: logging.Logger, level: int, message: str, *, detail: bool = False) -> None:
    """Log `message`, unless this process has already logged it, even if its cause occurs again; see `log_detail`."""
    logger.log(level, message, extra={DETAIL: detail})
