"""Declare a hyperparameter: what a change of it invalidates, and when it has an effect."""

import functools
import operator
import re
import types
import typing
from argparse import ArgumentTypeError
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, TypeAdapter, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, ErrorDetails
from pydantic_core.core_schema import no_info_after_validator_function

# What a change invalidates. Each scope includes the later ones: new prepared data require new training.
Scope = Literal["prepare", "train", "after", "run"]


class Need(NamedTuple):
    """A condition without which a hyperparameter has no effect.

    Attributes:
        holds: takes the hyperparameters and the features, as in `check_parallelism`.
        reason: why the hyperparameter has no effect if the condition does not hold; ends a sentence.
    """

    holds: Callable[[Any, Collection[str]], bool]
    reason: str


@dataclass(frozen=True)
class Declaration:
    """The facts of a hyperparameter beyond its type, default and description.

    Attributes:
        scope: what a change invalidates; everything by default.
        classes: model classes that use it; empty for all.
        features: mesh axes, ddp or fsdp, any of which uses it; empty if it does not depend on them.
        needs: conditions on other hyperparameters, all of which must hold.
    """

    scope: Scope = "prepare"
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()

    def obstacle(self, hp: Any, features: Collection[str]) -> str | None:
        """Return the reason why the hyperparameter has no effect under `hp`, or None if it has one."""
        if self.classes and hp.architecture.name not in self.classes:
            return f"it applies to {', '.join(self.classes)} only"
        if self.features and not set(self.features) & set(features):
            return f"it applies to {', '.join(self.features)} only"
        return next((need.reason for need in self.needs if not need.holds(hp, features)), None)


def declare(
    default: Any = ...,
    *,
    scope: Scope = "prepare",
    classes: tuple[str, ...] = (),
    features: tuple[str, ...] = (),
    needs: tuple[Need, ...] = (),
    about: str | None = None,
    **constraints: Any,
) -> Any:
    """Return the pydantic field of a hyperparameter; see `Declaration`.

    Args:
        about: the description, if it is computed; otherwise the docstring after the field is the description.
    """
    declaration = Declaration(scope, classes, features, needs)
    return Field(default, description=about, json_schema_extra=cast(Any, {"declaration": declaration}), **constraints)


def declaration_of(field: FieldInfo) -> Declaration:
    """Return the declaration of `field`; a field that is not made by `declare` invalidates everything."""
    extra = field.json_schema_extra
    return cast(Any, extra)["declaration"] if isinstance(extra, dict) else Declaration()


class StrictModel(BaseModel):
    """Values of a user, of which true and false are no numbers; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_booleans_as_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        kinds = plain_types(plain_type(cls.model_fields[str(info.field_name)].annotation))
        if isinstance(value, bool) and bool not in kinds and kinds & {int, float}:
            raise ValueError("true and false are no numbers")
        return value


class Settings(StrictModel):
    """A group of hyperparameters; the docstring after a field describes it."""

    model_config = ConfigDict(defer_build=True, use_attribute_docstrings=True)  # no job uses a group alone

    @classmethod
    def __pydantic_init_subclass__(cls, **_kwargs: Any) -> None:
        for field in cls.model_fields.values():
            field.description = " ".join((field.description or "").split())  # in one line


_WRONG_TYPE = ("_type", "_parsing", "literal_error")  # ends of the names of pydantic's errors
_LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def is_union(annotation: Any) -> bool:
    """Return whether an annotation has alternatives, as in `int | None`."""
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def plain_type(annotation: Any) -> Any:
    """Return an annotation without the constraints of its parts."""
    parts = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return plain_type(parts[0])
    if not parts or origin is Literal:
        return annotation
    plain = [plain_type(part) for part in parts]
    return functools.reduce(operator.or_, plain) if is_union(annotation) else origin[tuple(plain)]


def plain_types(annotation: Any) -> set[Any]:
    """Return the alternatives of an annotation, without their arguments; a literal's are the types of its values."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return set().union(*(plain_types(part) for part in typing.get_args(annotation)))
    if origin is typing.Literal:
        return {type(value) for value in typing.get_args(annotation)}
    return {origin or annotation}


def type_name(annotation: Any, *, quote: str = "") -> str:
    """Return an annotation without constraints as text, e.g. "list[float] or balanced"; None is left out.

    Args:
        quote: written before and after each word of a literal.
    """
    if typing.get_origin(annotation) is Literal:
        return " or ".join(f"{quote}{value}{quote}" for value in typing.get_args(annotation))
    if is_union(annotation):
        return " or ".join(type_name(kind, quote=quote) for kind in _alternatives(annotation))
    if not typing.get_args(annotation):
        return annotation.__name__
    return "list of names" if "Literal" in str(annotation) else re.sub(r"\b[a-z_]+\.", "", str(annotation))


def _alternatives(annotation: Any) -> list[Any]:
    return [kind for kind in typing.get_args(annotation) if kind is not type(None)]


def reason_of(problems: Sequence[ErrorDetails], annotation: Any) -> str:
    """Return why a value is invalid, from pydantic's errors of the value, of which a union has one for each type.

    Args:
        annotation: the type of the value.
    """
    kind = plain_type(annotation)
    others = [each for each in problems if not each["type"].endswith(_WRONG_TYPE)]
    if not others and is_union(kind) and len(_alternatives(kind)) > 1:
        return f"it is not {type_name(kind)}"
    first = (others or problems)[0]
    inside = "".join(f"{part}: " for part in first["loc"][1:] if isinstance(part, str) and part.isidentifier())
    return inside + first["msg"].removeprefix("Value error, ")


def number_limits(annotation: Any, rules: Iterable[Any] = ()) -> list[dict[str, float]]:
    """Return the limits of each kind of number in an annotation, its items included, by pydantic's names (ge, lt).

    Args:
        rules: the metadata of the annotation's field.
    """
    if typing.get_origin(annotation) is Annotated:
        kind, *extra = typing.get_args(annotation)
        return number_limits(kind, [rule for each in extra for rule in getattr(each, "metadata", ())])
    if annotation in (int, float):
        return [{name: getattr(rule, name) for rule in rules for name in _LIMITS if hasattr(rule, name)}]
    if typing.get_origin(annotation) is Literal:
        return []
    passed = rules if is_union(annotation) else ()
    return [found for part in typing.get_args(annotation) for found in number_limits(part, passed)]


def checked_number(text: str, *, kind: Any) -> Any:
    """Return the number of a command's argument; raise ArgumentTypeError unless it is in the bounds of its kind.

    Args:
        kind: one of the types in contracts/value_types.py.
    """
    (plain,) = plain_types(plain_type(kind))
    try:
        if "_" in text or not text.isascii():  # which Python reads as digits
            raise ValueError
        return TypeAdapter(kind).validate_python(plain(text))
    except ValueError:
        limits = describe_limits(FieldInfo.from_annotation(kind))
        raise ArgumentTypeError(f"{text!r} is not a {'whole ' * (plain is int)}number{limits}") from None


@dataclass(frozen=True)
class Pattern:
    """Metadata of a text's type: a regular expression that the whole text must match, and its meaning in words.

    Attributes:
        words: completes the sentence "it is not ...".
    """

    regex: str
    words: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self._check, handler(source))

    def _check(self, text: str) -> str:
        if not re.fullmatch(self.regex, text):
            raise ValueError(f"it is not {self.words}")
        return text


def _patterns(annotation: Any) -> list[Pattern]:
    """Return the patterns of the texts in an annotation."""
    if isinstance(annotation, Pattern):
        return [annotation]
    return [pattern for part in typing.get_args(annotation) for pattern in _patterns(part)]


def describe_limits(field: FieldInfo) -> str:
    """Return the limits of a field's numbers and texts as text, e.g. " (at least 0, below 1)", or ""."""
    limits = [
        f"{_LIMITS[name]} {value}" if isinstance(value, int) else f"{_LIMITS[name]} {value:g}"
        for found in number_limits(field.annotation, field.metadata)
        for name, value in found.items()
    ]
    limits += [pattern.words for part in (*field.metadata, field.annotation) for pattern in _patterns(part)]
    return f" ({', '.join(dict.fromkeys(limits))})" if limits else ""
