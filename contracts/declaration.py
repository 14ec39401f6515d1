"""Declare a hyperparameter: its group, what a change of it invalidates, and when it has an effect."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

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
