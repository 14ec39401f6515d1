"""Parse Content-Type and Accept headers (RFC 9110, 8.3 and 12.5.1)."""

import re
from collections.abc import Container
from dataclasses import dataclass
from http import HTTPStatus

from container.serving.errors import RequestError
from contracts.serving import JSON, MEDIA_TYPES, REQUEST_TYPES, RESPONSE_TYPES

# The grammar of RFC 9110, 5.6. A name does not end in "*": no media type here has parameters in RFC 8187's form.
_TOKEN = r"[!#$%&'+.^_`|~0-9A-Za-z-]++"
_QUOTED = r'"(?:[^"\\]|\\.)*+"'
_NAME = re.compile(rf"\s*+((?:{_TOKEN}|\*)(?:/(?:{_TOKEN}|\*))?+)?+\s*+")
_PARAMETER = re.compile(rf";\s*+(?:({_TOKEN})\s*+=\s*+({_QUOTED}|{_TOKEN}))?+\s*+")
_LISTED = re.compile(rf"(?:[^,\"]|{_QUOTED})++")  # a member of a list that commas separate
HEADERS = {"present": True, "absent": False}
_SHOWN = 100  # characters of a header in a message
_QUALITY = re.compile(r"0?\.[0-9]+|0\.?|1(?:\.0*)?")  # Java's default Accept has q=.2


@dataclass(frozen=True)
class MediaType:
    """A format of contracts.serving.

    Attributes:
        header: the parameter `header` of text/csv (RFC 7111): True for present, False for absent, None if omitted.
    """

    name: str
    header: bool | None = None


def request_type(content_type: str | None) -> MediaType:
    """Return the format of a request's body.

    Raises:
        RequestError: 415, a missing, malformed or unknown Content-Type, or an encoding other than UTF-8.
    """
    known = f"Send one of {', '.join(REQUEST_TYPES)}."
    try:
        name, parameters = _parse(content_type or "")
    except ValueError as error:
        raise RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Type is malformed: {error}", known) from error
    if not name:
        raise RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Type is missing", known)
    if name not in MEDIA_TYPES:
        raise RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Type {_shown(name)} is not known", known)
    charset = parameters.get("charset", "utf-8").lower()
    if charset not in ("utf-8", "utf8", "us-ascii"):
        cause = f"Content-Type: charset {_shown(charset)} is not supported"
        raise RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, cause, "Send UTF-8.")
    return MediaType(MEDIA_TYPES[name], _header(parameters))


def response_type(accept: str | None) -> MediaType:
    """Return the format of a response: the one that Accept prefers; JSON if it accepts any.

    Raises:
        RequestError: 406, Accept is malformed or names no supported format.
    """
    if not (accept or "").strip():
        return MediaType(JSON)
    fix = f"Accept one of {', '.join(RESPONSE_TYPES)}."
    best: tuple[float, MediaType] | None = None
    try:
        ranges = [_parse(part) for part in _LISTED.findall(str(accept))]
        refused = {MEDIA_TYPES.get(name) for name, parameters in ranges if not _quality(parameters)}
        for name, parameters in ranges:
            wanted = _response(name, refused)
            quality = _quality(parameters)
            if wanted is not None and quality > 0 and (best is None or quality > best[0]):
                best = quality, MediaType(wanted, _header(parameters))
    except ValueError as error:
        raise RequestError(HTTPStatus.NOT_ACCEPTABLE, f"Accept is malformed: {error}", fix) from error
    if best is None:
        cause = f"Accept {_shown(str(accept))} names no format of a response"
        raise RequestError(HTTPStatus.NOT_ACCEPTABLE, cause, fix)
    return best[1]


def _response(name: str, refused: Container[str | None]) -> str | None:
    """Return the format for a media range; a wildcard does not stand for formats that other ranges refuse."""
    if name == "*" or name.endswith("/*"):
        kind = "" if name in ("*/*", "*") else name[:-1]
        return next((known for known in RESPONSE_TYPES if known.startswith(kind) and known not in refused), None)
    known = MEDIA_TYPES.get(name)
    return known if known in RESPONSE_TYPES else None


def _parse(value: str) -> tuple[str, dict[str, str]]:
    """Return a media type ("" if empty) and its parameters; raise ValueError where the text is neither."""
    match = _NAME.match(value)
    assert match is not None  # the pattern matches an empty text too
    name, end = (match[1] or "").lower(), match.end()
    parameters: dict[str, str] = {}
    while end < len(value):
        match = _PARAMETER.match(value, end)
        if match is None:
            raise ValueError(f"{_shown(value[end:])} is not a parameter NAME=VALUE")
        end = match.end()
        if match[1] is None:
            continue
        key, text = match[1].lower(), match[2]
        if key in parameters:
            raise ValueError(f"the parameter {_shown(key)} occurs more than once")
        parameters[key] = re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text
    return name, parameters


def _quality(parameters: dict[str, str]) -> float:
    text = parameters.get("q", "1")
    if not _QUALITY.fullmatch(text):
        raise ValueError(f"q={_shown(text)} is not a number from 0 to 1")
    return float(text)


def _header(parameters: dict[str, str]) -> bool | None:
    return HEADERS.get(parameters.get("header", "").lower())


def _shown(text: str) -> str:
    """Return the beginning of a header for a message."""
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
