"""Read which reasons a request asks for: the field "explain" of JSON, or a header, which any Content-Type can have."""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from container.attribution.parts import LEVELS, Question
from container.serving.errors import RequestError, bad_request
from contracts.errors import ContractError, shown
from contracts.serving import ServingSettings

FIELD = "explain"
HEADER = "X-Amzn-SageMaker-Custom-Attributes"
_FORM = (
    f'Send one of {", ".join(LEVELS)}, or in JSON {{"level": "column", "top": 5}}; in {HEADER}: explain=column,top=5.'
)
_SEPARATOR = re.compile(r"[,;\s]+")
_YES, _NO = ("", "true", "True", True), ("false", "False", "off", False, None, {})
_LARGEST = 9  # digits of `top`


def asked_in_header(attributes: str | None) -> Any:
    """Return what the custom attributes ask for, as in the JSON field; None if nothing."""
    items = (item.partition("=")[::2] for item in _SEPARATOR.split(attributes or ""))
    found = {name.strip().lower(): value.strip() for name, value in items}
    if FIELD not in found:
        return None
    level = found[FIELD]
    return {"level": level, "top": found["top"]} if "top" in found and level not in _NO else level


def read_question(asked: Any, limits: ServingSettings) -> Question | None:
    """Return the question of a JSON field or header; None if it asks for no reasons.

    Raises:
        RequestError: 400, an unknown level or a `top` that is no number of parts; 403, the server does not allow it.
    """
    if asked in _NO:
        return None
    given: Mapping[str, Any] = asked if isinstance(asked, Mapping) else {"level": asked}
    if unknown := given.keys() - {"level", "top"}:
        raise bad_request(f"{FIELD}: {shown(sorted(unknown)[0])} is not known", _FORM)
    level: Any = given.get("level", True)
    try:
        question = Question(level=LEVELS[0] if level in _YES else level, top=_number(given.get("top")))
    except ContractError as error:
        raise bad_request(f"{FIELD}: {error.cause}", error.fix) from error
    allowed = limits.serving_explain
    if allowed == "off" or (allowed == "column" and question.level != "column"):
        cause = f"{FIELD}: reasons at level {question.level!r} are not allowed: SERVING_EXPLAIN is {allowed}"
        fix = "Ask for level 'column'." if allowed == "column" else "Send the request without it."
        raise RequestError(HTTPStatus.FORBIDDEN, cause, fix)
    return question


def _number(value: Any) -> Any:
    """Return the number of a text: the decoder of requests reads numbers as text."""
    is_number = isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= _LARGEST
    return int(value) if is_number else value
