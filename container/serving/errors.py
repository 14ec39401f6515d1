"""Define the error of a request: its HTTP status, and the body for the client."""

import json
import logging
import uuid
from http import HTTPStatus
from typing import Any

from container.errors import DeadlineError
from contracts.errors import ContractError

logger = logging.getLogger(__name__)

try:  # SageMaker's inference images: their toolkit returns the status of its own error class only
    from sagemaker_inference.errors import (  # pyright: ignore[reportMissingImports]  # not in our environment
        BaseInferenceToolkitError as _ToolkitError,
    )
except ImportError:

    class _ToolkitError(Exception):
        """Stand in for the toolkit's class in other environments."""


class RequestError(ContractError, _ToolkitError):  # pyright: ignore[reportGeneralTypeIssues]  # the class may be unknown
    """A client's error; `cause` and `fix` as for every ContractError."""

    def __init__(self, status: HTTPStatus, cause: str, fix: str = "") -> None:
        ContractError.__init__(self, cause, fix)
        self.status = status
        self.status_code, self.message, self.phrase = status.value, cause, status.phrase  # the toolkit's names


def bad_request(cause: str, fix: str) -> RequestError:
    return RequestError(HTTPStatus.BAD_REQUEST, cause, fix)


def as_request_error(error: BaseException, timeout: float) -> RequestError:
    """Return the client's error for an exception; log an error of the server with a number that the client gets."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, ContractError):
        return bad_request(error.cause, error.fix)
    if isinstance(error, DeadlineError):
        cause, fix = f"not computed within {timeout:g} s", "Send fewer records at once, or add instances."
        return RequestError(HTTPStatus.SERVICE_UNAVAILABLE, cause, fix)
    number = uuid.uuid4().hex[:12]
    logger.error("request %s failed", number, exc_info=error)
    return RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, f"a server error; the log shows it as request {number}")


def check_limit(count: int, unit: str, limit: int) -> None:
    """Raise RequestError 413 if `count` exceeds `limit`."""
    if count > limit:
        fix = "Send only columns of the model." if unit == "columns" else "Send the records in several requests."
        raise RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, above_limit(count, unit, limit), fix)


def above_limit(count: int, unit: str, limit: int) -> str:
    """Return the cause of a request with at least `count` of a unit."""
    return f"the request has at least {count} {unit}; at most {limit} are accepted"


def error_body(status: HTTPStatus, cause: str, fix: str = "") -> bytes:
    """Return the JSON body of an error response."""
    error: dict[str, Any] = {"status": int(status), "reason": status.phrase, "message": cause}
    if fix:
        error["hint"] = fix
    return json.dumps({"error": error}, ensure_ascii=False).encode("utf-8", "replace")
