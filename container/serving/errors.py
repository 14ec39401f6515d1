"""The error of a request: what HTTP calls it, and what the client reads."""

import json
from http import HTTPStatus
from typing import Any

from contracts.errors import ContractError


class RequestError(ContractError):
    """A request that cannot be answered, by the client's doing.

    Args:
        status: the HTTP status, e.g. 415.
        cause, fix: as of every ContractError.
    """

    def __init__(self, status: HTTPStatus, cause: str, fix: str = "") -> None:
        super().__init__(cause, fix)
        self.status = status


def error_body(status: HTTPStatus, cause: str, fix: str = "") -> bytes:
    """The JSON that an error is answered with."""
    error: dict[str, Any] = {"status": int(status), "reason": status.phrase, "message": cause}
    if fix:
        error["hint"] = fix
    return json.dumps({"error": error}, ensure_ascii=False).encode("utf-8", "replace")
