"""Declare a hyperparameter: its group, what a change of it invalidates, and when it has an effect."""

import functools
import operator
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import Field
from pydantic.fields import FieldInfo

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
        group: section of docs/hyperparameters.md.
        scope: what a change invalidates; everything by default.
        classes: model classes that use it; empty for all.
        features: mesh axes, ddp or fsdp, any of which uses it; empty if it does not depend on them.
        needs: conditions on other hyperparameters, all of which must hold.
    """

    group: str = ""
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
    group: str,
    about: str,
    scope: Scope = "prepare",
    classes: tuple[str, ...] = (),
    features: tuple[str, ...] = (),
    needs: tuple[Need, ...] = (),
    **constraints: Any,
) -> Any:
    """Return the pydantic field of a hyperparameter; see `Declaration`."""
    declaration = Declaration(group, scope, classes, features, needs)
    return Field(default, description=about, json_schema_extra=cast(Any, {"declaration": declaration}), **constraints)


def declaration_of(field: FieldInfo) -> Declaration:
    """Return the declaration of `field`; a field that is not made by `declare` invalidates everything."""
    extra = field.json_schema_extra
    return cast(Any, extra)["declaration"] if isinstance(extra, dict) else Declaration()


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


def type_name(annotation: Any) -> str:
    """Return an annotation as text, without the names of modules."""
    if typing.get_origin(annotation) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(annotation)))}"
    return re.sub(r"\b[a-z_]+\.", "", str(annotation)) if typing.get_args(annotation) else annotation.__name__


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


def describe_limits(field: FieldInfo) -> str:
    """Return the limits of a field's numbers as text, e.g. " (at least 0, below 1)", or ""."""
    limits = [
        f"{_LIMITS[name]} {value}" if isinstance(value, int) else f"{_LIMITS[name]} {value:g}"
        for found in number_limits(field.annotation, field.metadata)
        for name, value in found.items()
    ]
    return f" ({', '.join(limits)})" if limits else ""
