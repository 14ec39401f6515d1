"""Write the contracts of the steps into docs/pipeline_reference.md; `--check` only compares."""

import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from generated_parts import item, short_limits, update_page
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from contracts.serving import ServingSettings
from contracts.step_contract import StepContract, StepFolder
from contracts.steps import STEPS
from contracts.table_formats import CHANNEL_FILES, TABLE_FILES

EVERYWHERE = ("settings", "data_key")  # an input and a variable of every step; the page describes them once
TABLES = {"any tables": TABLE_FILES, "tables": CHANNEL_FILES}  # the page's words for files of these names
TARGET = Path(__file__).with_name("pipeline_reference.md")


def render() -> str:
    """Return the contracts as Markdown."""
    return "\n\n".join(_step(step) for step in STEPS)


def _step(step: StepContract) -> str:
    command = f" `python -m container {step.command}`." if step.command else ""
    parts = [f"### {step.name}\n\n{step.about}{command}"]
    rows = [("reads", folder) for folder in step.inputs if folder.name != EVERYWHERE[0]]
    rows += [("writes", folder) for folder in step.outputs]
    parts.append("\n".join(map(_folder, rows)))
    if step.arguments:
        parts.append("\n".join(f"`{each.flag} {'|'.join(each.choices)}`: {each.about}." for each in step.arguments))
    if step.settings is ServingSettings:
        parts.append("The settings are [those of the served model](serving.md#settings), in lower case.")
    elif step.settings.model_fields:
        lines = [_setting(name, field) for name, field in step.settings.model_fields.items() if name not in EVERYWHERE]
        parts.append("\n".join(["Variables:", "", *lines]))
    return "\n\n".join(parts)


def _folder(row: tuple[str, StepFolder]) -> str:
    verb, folder = row
    word, tables = next((each for each in TABLES.items() if set(each[1]) <= set(folder.files)), ("", ()))
    names = [f"`{pattern}`" for pattern in folder.files if pattern not in tables]
    files = ", ".join([word] * bool(word) + names)
    optional = "" if folder.required else " Optional."
    shared = " Several instances divide the files." if folder.sharded else ""
    return f"- {verb} **{folder.name}**, `{folder.container_path}`: {files}. {folder.about}{optional}{shared}"


def _setting(name: str, field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        default = "required"
    elif field.default in (None, (), {}):
        default = ""
    elif isinstance(field.default, tuple):
        default = f"`{','.join(map(str, field.default))}`"
    else:
        default = f"`{str(field.default).lower() if isinstance(field.default, bool) else field.default}`"
    kinds = (field.annotation, *get_args(field.annotation))
    choices = next((get_args(kind) for kind in kinds if _is_literal(kind)), ())
    about = f"{', '.join(choices)}. {field.description}" if choices else field.description
    return item(name.upper(), default, f"{about}{short_limits(field)}")


def _is_literal(annotation: Any) -> bool:
    return get_origin(annotation) is Literal


if __name__ == "__main__":
    sys.exit(update_page(TARGET, {"contracts": render()}))
