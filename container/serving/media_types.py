"""Parse Content-Type and Accept headers (RFC 9110, 8.3 and 12.5.1)."""

from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus

from container.serving.errors import RequestError
from contracts.serving import JSON, MEDIA_TYPES, REQUEST_TYPES, RESPONSE_TYPES


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
        RequestError: 415, a missing or unknown Content-Type, or an encoding other than UTF-8.
    """
    name, parameters = _parse(content_type or "")
    known = f"Send one of {', '.join(REQUEST_TYPES)}."
    if not name:
        raise RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Type is missing", known)
    if name not in MEDIA_TYPES:
        raise RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Type {name!r} is not known", known)
    charset = parameters.get("charset", "utf-8").lower()
    if charset not in ("utf-8", "utf8", "us-ascii"):
        cause = f"Content-Type: charset {charset!r} is not supported"
        raise RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, cause, "Send UTF-8.")
    return MediaType(MEDIA_TYPES[name], _header(parameters))


def response_type(accept: str | None) -> MediaType:
    """Return the format of a response: the one that Accept prefers; JSON if it accepts any.

    Raises:
        RequestError: 406, Accept names no supported format.
    """
    if not (accept or "").strip():
        return MediaType(JSON)
    best: tuple[float, MediaType] | None = None
    for part in str(accept).split(","):
        name, parameters = _parse(part)
        wanted = _response(name)
        quality = _quality(parameters)
        if wanted is not None and quality > 0 and (best is None or quality > best[0]):
            best = quality, MediaType(wanted, _header(parameters))
    if best is None:
        cause, fix = f"Accept {accept!r} names no format of a response", f"Accept one of {', '.join(RESPONSE_TYPES)}."
        raise RequestError(HTTPStatus.NOT_ACCEPTABLE, cause, fix)
    return best[1]


def _response(name: str) -> str | None:
    if name in ("*/*", "*"):
        return JSON
    if name.endswith("/*"):
        return next((known for known in RESPONSE_TYPES if known.startswith(name[:-1])), None)
    known = MEDIA_TYPES.get(name)
    return known if known in RESPONSE_TYPES else None


def _parse(value: str) -> tuple[str, dict[str, str]]:
    message = Message()
    message["content-type"] = " ".join(value.split())
    (name, _), *parameters = message.get_params([("", "")])
    return name.strip().lower(), {key.lower(): text for key, text in parameters}


def _quality(parameters: dict[str, str]) -> float:
    try:
        return float(parameters.get("q", 1))
    except ValueError:
        return 1.0


def _header(parameters: dict[str, str]) -> bool | None:
    return {"present": True, "absent": False}.get(parameters.get("header", "").lower())
