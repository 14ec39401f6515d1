"""The error of a request: what HTTP calls it, and what the client reads."""

import json
from http import HTTPStatus
from typing import Any

from contracts.errors import ContractError

try:  # in the inference images of SageMaker, whose toolkit answers with the status of its own kind of errors alone
    from sagemaker_inference.errors import (  # pyright: ignore[reportMissingImports]  # not in our environment
        BaseInferenceToolkitError as _ToolkitError,
    )
except ImportError:

    class _ToolkitError(Exception):
        """Elsewhere: nothing."""


class RequestError(ContractError, _ToolkitError):  # pyright: ignore[reportGeneralTypeIssues]  # so unknown
    """A request that cannot be answered, by the client's doing.

    Args:
        status: the HTTP status, e.g. 415.
        cause, fix: as of every ContractError.
    """

    def __init__(self, status: HTTPStatus, cause: str, fix: str = "") -> None:
        ContractError.__init__(self, cause, fix)
        self.status = status
        self.status_code, self.message, self.phrase = status.value, cause, status.phrase  # as the toolkit calls them


def error_body(status: HTTPStatus, cause: str, fix: str = "") -> bytes:
    """The JSON that an error is answered with."""
    error: dict[str, Any] = {"status": int(status), "reason": status.phrase, "message": cause}
    if fix:
        error["hint"] = fix
    return json.dumps({"error": error}, ensure_ascii=False).encode("utf-8", "replace")
