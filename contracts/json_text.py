"""Decode JSON that others wrote; every problem is a ValueError whose message says what is wrong and where."""

import ast
import json
import json.scanner
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_MOST_LEVELS = 100
_SHOWN = 40
_QUICK_CHARACTERS = (1 << 10, 1 << 16)  # the second copies more than a short record needs


class JsonDecoder(json.JSONDecoder):
    """Decode JSON in which no object has a key twice.

    Args:
        parse_int, parse_float, parse_constant: return the value of a number, of NaN, Infinity and -Infinity.
    """

    def __init__(
        self,
        *,
        parse_int: Callable[[str], Any] | None = None,
        parse_float: Callable[[str], Any] | None = None,
        parse_constant: Callable[[str], Any] | None = None,
    ) -> None:
        super().__init__(
            object_pairs_hook=_unique_keys,
            parse_int=parse_int or _integer,
            parse_float=parse_float,
            parse_constant=parse_constant,
        )

    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        try:
            return super().raw_decode(s, idx)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


class InterruptibleDecoder(JsonDecoder):
    """Decode long values without keeping other threads from running.

    The scanner in C holds the interpreter during a call. It decodes values of up to 64 Ki characters; the slower
    scanner in Python decodes longer ones.
    """

    def __init__(self, **parsers: Callable[[str], Any]) -> None:
        super().__init__(**parsers)
        self._quick = JsonDecoder(**parsers)
        self.scan_once = json.scanner.py_make_scanner(self)  # pyright: ignore[reportAttributeAccessIssue] - no stub

    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        for most in _QUICK_CHARACTERS:
            begin = s[idx : idx + most]
            with suppress(ValueError):
                value, length = self._quick.raw_decode(begin)
                # A number may continue after the last characters, as in 1|5, 1.|5 and 1e-|5.
                if len(begin) < most or length < len(begin) - 2:
                    return value, idx + length
        return super().raw_decode(s, idx)


def parse_json(text: str | bytes) -> Any:
    """Return the content of a setting, or of a file's bytes, which may begin with a byte order mark.

    PowerShell and .NET write such marks, in UTF-8 and UTF-16.

    Raises:
        ValueError: not JSON, a key that occurs twice, nesting or an integer beyond the limits, a lone surrogate.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))
    content = JsonDecoder().decode(text.removeprefix("\ufeff"))
    _check(content, _MOST_LEVELS)
    return content


def parse_literal(text: str) -> Any:
    """Return the content of JSON, or of a Python literal such as {'a': None}.

    Raises:
        ValueError: as `parse_json`; a text that is neither JSON nor a literal.
    """
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        try:
            tree = ast.parse(text, mode="eval")
            content = ast.literal_eval(tree)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            raise error from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Set):
            raise ValueError("a set has no order; use [ ] instead of { }")
        if isinstance(node, ast.Dict):
            _unique_keys([(ast.literal_eval(key), None) for key in node.keys if key is not None])
    _check(content, _MOST_LEVELS)
    return content


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = {name: value for name, value in pairs}  # dict() would hold the interpreter
    if len(content) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ValueError(f"the key {next(name for name in counts if counts[name] > 1)!r} occurs more than once")
    return content


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:  # Python's limit
        raise ValueError(f"the integer {text[:_SHOWN]}... has {len(text)} digits, which is too many") from None


def _check(value: Any, levels: int) -> None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            near = value[max(0, error.start - _SHOWN) : error.start + 1]
            raise ValueError(f"the text {near!r} ends with a lone surrogate, which is not a character") from None
    elif isinstance(value, (dict, list, tuple, set)):
        if not levels:
            raise ValueError(f"it is nested more than {_MOST_LEVELS} levels deep")
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        for part in parts:
            _check(part, levels - 1)
