"""Define the error of a request: its HTTP status, and the body for the client."""

import json
from http import HTTPStatus
from typing import Any

from contracts.errors import ContractError

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


def error_body(status: HTTPStatus, cause: str, fix: str = "") -> bytes:
    """Return the JSON body of an error response."""
    error: dict[str, Any] = {"status": int(status), "reason": status.phrase, "message": cause}
    if fix:
        error["hint"] = fix
    return json.dumps({"error": error}, ensure_ascii=False).encode("utf-8", "replace")
