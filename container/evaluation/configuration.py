"""List the settings of a job with their values and defaults."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticUndefined, to_jsonable_python

from contracts.hyperparameters import Hyperparameters


@dataclass(frozen=True)
class Setting:
    """One hyperparameter; `default` is None if it is required."""

    name: str
    about: str
    value: str
    default: str | None
    changed: bool


def settings(hyperparameters: Mapping[str, Any]) -> list[Setting]:
    """Return every hyperparameter in the order of the contract; those without a default count as changed."""
    listed = []
    for name, field in Hyperparameters.model_fields.items():
        if name in hyperparameters:
            required = field.default is PydanticUndefined
            default = None if required else to_jsonable_python(field.default)
            value, default_text = hyperparameters[name], None if required else _text(default)
            changed = required or value != default
            listed.append(Setting(name, field.description or "", _text(value), default_text, changed))
    return listed


def _text(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_text(item)}" for key, item in value.items()) or "none"
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)
