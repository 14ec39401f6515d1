"""Values for the fields of a pydantic model: within the declared types and bounds, at them, and beyond."""

import json
import types
import typing
from dataclasses import dataclass
from random import Random
from typing import Any

from pydantic.fields import FieldInfo

from testing.fuzz import values

WORDS = ("abc", "", "none", "1e5", "true", "0", "[]", "{}", "[1", '{"a":', "'", '"', "a,b", "é", "\u202e", "x" * 3000)


@dataclass(frozen=True)
class Value:
    """A value of a field.

    Attributes:
        content: as JSON would hold it.
        valid: whether the declared type and bounds accept it; None if that is not known.
    """

    content: Any
    valid: bool | None


def value_of(field: FieldInfo, rng: Random, *, mild: bool = False) -> Value:
    """Return a value; `mild` ones are valid and small enough for a tiny job."""
    annotation = field.annotation
    bounds = _bounds(field)
    if mild:
        return _valid(annotation, bounds, rng, mild=True)
    way = rng.random()
    if way < 0.65:
        return _valid(annotation, bounds, rng, mild=False)
    if way < 0.9:
        return _beyond(annotation, bounds, rng)
    return Value(_nasty(rng), None)


def _bounds(field: FieldInfo) -> dict[str, Any]:
    return {
        name: getattr(rule, name)
        for rule in field.metadata
        for name in ("ge", "gt", "le", "lt")
        if getattr(rule, name, None) is not None
    }


def _options(annotation: Any) -> list[Any]:
    """Return the alternatives of a union, without None."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [part for part in typing.get_args(annotation) if part is not type(None)]
    return [annotation]


def _may_be_none(annotation: Any) -> bool:
    return type(None) in typing.get_args(annotation)


def _valid(annotation: Any, bounds: dict[str, Any], rng: Random, *, mild: bool) -> Value:
    if _may_be_none(annotation) and rng.random() < 0.1:
        return Value(None, True)
    option = rng.choice(_options(annotation))
    origin = typing.get_origin(option) or option
    if origin is typing.Literal:
        return Value(rng.choice(typing.get_args(option)), True)
    if origin is bool:
        return Value(rng.choice((True, False)), True)
    if origin in (int, float):
        # A field that may also be a text has a validator of its own.
        return Value(_number(origin, bounds, rng, mild=mild), None if str in _options(annotation) else True)
    if origin in (list, tuple):
        inner = typing.get_args(option)[0]
        count = rng.choice((1, 1, 2, 3) if mild else (0, 1, 1, 1, 2, 2, 3, 50, 5000))
        return Value([_valid(inner, {}, rng, mild=mild).content for _ in range(count)], None)
    if origin is dict:
        return Value({} if mild else {rng.choice(values.NAMES): _nasty(rng)}, None)
    names = ("color", "price", "quantity", "chat", "label", "data.csv", "from_scratch", "val/auroc")
    return Value(rng.choice(names if mild or rng.random() < 0.6 else values.SMALL_TEXTS), None)


def _number(kind: Any, bounds: dict[str, Any], rng: Random, *, mild: bool) -> Any:
    step = 1 if kind is int else 1e-9
    low = bounds.get("ge", bounds.get("gt", 0 if mild else -(10**6)) + step * ("gt" in bounds))
    high = bounds.get("le", bounds.get("lt", max(low, 0) + 4 + step if mild else 10**6) - step * ("lt" in bounds))
    if mild:
        return min(rng.randint(int(low), int(low) + 3), high) if kind is int else rng.uniform(low, high)
    chosen = [low, high, rng.randint(int(low), int(high)) if kind is int else rng.uniform(low, high)]
    if "le" not in bounds and "lt" not in bounds:
        large = (
            (2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 10**30) if kind is int else (1e300, 1.7e308, 1e-300, 1e38)
        )
        chosen += [*large[: len(chosen)], rng.choice(large)]
    return rng.choice(chosen)


def _beyond(annotation: Any, bounds: dict[str, Any], rng: Random) -> Value:
    """Return a value that the field must refuse, where there is one."""
    options = _options(annotation)
    kinds = {typing.get_origin(option) or option for option in options}
    if kinds <= {int, float}:
        wrong: list[Any] = [float("nan"), float("inf"), "abc", "1e", [1], {"a": 1}, "++1", "0x1"]
        wrong += [bounds["ge"] - 1] if "ge" in bounds else []
        wrong += [bounds["gt"]] if "gt" in bounds else []
        wrong += [bounds["le"] + 1] if "le" in bounds else []
        wrong += [bounds["lt"]] if "lt" in bounds else []
        wrong += [1.5, "1.5"] if kinds == {int} else []
        return Value(rng.choice(wrong), False)
    if kinds == {bool}:
        return Value(rng.choice(("maybe", [True], {}, 2, 0.5)), False)
    if kinds == {typing.Literal}:
        return Value(rng.choice(("something else", 17, ["x"], {}, "AUTO ")), False)
    if kinds <= {list, tuple}:
        return Value(rng.choice((17, {"a": 1}, {})), False)
    if kinds == {dict}:
        return Value(rng.choice((17, [1], "abc", "[1]")), False)
    return Value(_nasty(rng), None)


def _nasty(rng: Random) -> Any:
    return rng.choice(
        (
            *WORDS, None, True, [], {}, [[]], [None], [1, "a"], {"": ""}, {"a": {"b": []}}, -1, 0, 1, 1.5, 1e308,
            10**400,
            [[[[[[]]]]]], ["a"] * 3000, "\ud800", "nul\0", {"price": "x"}, {"price": 1e300}, {"color": {"red": "x"}},
            {"color": {"bins": {"red": 2}, "default_bin": None}}, ["price", "price"], ["chat"], "label", float("nan"),
        )
    )  # fmt: skip


def json_text(content: Any, rng: Random) -> str:
    """Return the value as JSON text: itself, or as a string, as the service delivers it."""
    if rng.random() < 0.6 and not isinstance(content, str):
        return json.dumps(json.dumps(content))
    return json.dumps(content)
