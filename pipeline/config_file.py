"""Reads a pipeline's configuration, YAML or JSON; an error names the file, the key and the value."""

import json
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from contracts.errors import ContractError
from contracts.spelling import did_you_mean
from pipeline.config import PipelineConfig


def load_config(path: Path) -> PipelineConfig:
    """Read a configuration; relative paths in it start at the file's own folder.

    Raises:
        ContractError: the file is missing or no mapping, a key is unknown, a value is refused.
    """
    content = _read_mapping(path, "configuration")
    named = content.get("hyperparameters_file")
    if isinstance(named, str):
        base = _read_mapping(path.parent / named, "hyperparameters_file")
        own = content.get("hyperparameters")
        content["hyperparameters"] = {**base, **own} if isinstance(own, dict) else base if own is None else own
    inputs = content.get("inputs")
    if isinstance(inputs, dict):
        content["inputs"] = {
            name: _located(path, value) if isinstance(value, str) else value for name, value in inputs.items()
        }
    try:
        return PipelineConfig.model_validate(content)
    except ValidationError as error:
        raise _refused(path, error) from None


def _located(path: Path, place: str) -> str:
    if "://" in place:
        raise ContractError(
            f"inputs: {place!r} in {path} is no local folder", "Name S3 URIs under aws.inputs; inputs is for `run`."
        )
    return str((path.parent / place).absolute())


def _read_mapping(path: Path, what: str) -> dict[str, Any]:
    if not path.is_file():
        raise ContractError(
            f"{what}: {path} does not exist", "Name a YAML or JSON file; docs/pipeline.md has examples."
        )
    text = path.read_text(encoding="utf-8")
    try:
        content = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        kind = "JSON" if path.suffix == ".json" else "YAML"
        raise ContractError(
            f"{what}: {path} is not {kind}: {' '.join(str(error).split())}", "Correct the file."
        ) from None
    if not isinstance(content, dict):
        raise ContractError(f"{what}: {path} holds a {type(content).__name__}, not a mapping", "Write name: value.")
    return content


def _refused(path: Path, error: ValidationError) -> ContractError:
    first = error.errors()[0]
    keys = [str(part) for part in first["loc"]]
    key = ".".join(keys) or "configuration"
    if first["type"] == "extra_forbidden":
        known = _fields_at(keys[:-1])
        hint = did_you_mean(keys[-1], known)
        return ContractError(f"{key}: unknown key in {path}{hint}", f"Use one of: {', '.join(known)}.")
    if first["type"] == "missing":
        return ContractError(f"{key}: is missing in {path}", "docs/pipeline.md says what it is.")
    value = "" if isinstance(first["input"], dict) else f" {first['input']!r}"
    reason = first["msg"].removeprefix("Value error, ")
    return ContractError(f"{key}:{value} in {path} is refused: {reason}", "docs/pipeline.md says what it is.")


def _fields_at(keys: list[str]) -> list[str]:
    """Return the fields of the section that a path of keys leads to."""
    section: type[BaseModel] = PipelineConfig
    for key in keys:
        for candidate in _models(section.model_fields[key].annotation) if key in section.model_fields else ():
            section = candidate
    return list(section.model_fields)


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models(part)]
