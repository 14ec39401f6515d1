"""Read a pipeline's configuration, YAML or JSON; an error names the file, the key and the value."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from contracts.errors import ContractError
from contracts.json_text import parse_json
from contracts.spelling import did_you_mean
from pipeline.config import PipelineConfig


class _UniqueKeys(yaml.SafeLoader):
    """Load plain YAML in which no mapping has a key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        if len(set(names)) < len(names):
            raise ValueError(f"the key {max(names, key=names.count)!r} occurs more than once{node.start_mark}")
        return super().construct_mapping(node, deep)


def load_config(path: Path) -> PipelineConfig:
    """Read a configuration; relative paths start at the file's folder.

    Raises:
        ContractError: the file is missing or is not a mapping, a key is unknown, a value is refused.
    """
    content = _read_mapping(path, "configuration")
    file = content.get("hyperparameters_file")
    if isinstance(file, str):
        defaults = _read_mapping(path.parent / file, "hyperparameters_file")
        given = content.get("hyperparameters")
        if given is None or isinstance(given, dict):
            content["hyperparameters"] = {**defaults, **(given or {})}
    inputs = content.get("inputs")
    if isinstance(inputs, dict):
        content["inputs"] = {
            name: _absolute(path, value) if isinstance(value, str) else value for name, value in inputs.items()
        }
    try:
        return PipelineConfig.model_validate(content)
    except ValidationError as error:
        raise _refused(path, error) from None


def _absolute(path: Path, folder: str) -> str:
    if "://" in folder:
        raise ContractError(
            f"inputs: {folder!r} in {path} is not a local folder", "Name S3 URIs under aws.inputs; inputs is for `run`."
        )
    return str((path.parent / folder).absolute())


def _read_mapping(path: Path, key: str) -> dict[str, Any]:
    if not path.is_file():
        raise ContractError(f"{key}: {path} does not exist", "Name a YAML or JSON file; docs/pipeline.md has examples.")
    kind = "JSON" if path.suffix == ".json" else "YAML"
    try:
        text = path.read_text(encoding="utf-8")
        content = parse_json(text) if kind == "JSON" else yaml.load(text, _UniqueKeys)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ContractError(
            f"{key}: {path} is not {kind}: {' '.join(str(error).split())}", "Correct the file."
        ) from None
    if not isinstance(content, dict):
        raise ContractError(f"{key}: {path} contains a {type(content).__name__}, not a mapping", "Write name: value.")
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
        return ContractError(f"{key}: is missing in {path}", "Add the key; docs/pipeline.md describes it.")
    value = "" if isinstance(first["input"], dict) else f" {first['input']!r}"
    reason = first["msg"].removeprefix("Value error, ")
    return ContractError(
        f"{key}:{value} in {path} is invalid: {reason}", "Correct it; docs/pipeline.md describes the key."
    )


def _fields_at(keys: list[str]) -> list[str]:
    """Return the fields of the section at a path of keys."""
    section: type[BaseModel] = PipelineConfig
    for key in keys:
        if key in section.model_fields:
            section = next(iter(_models(section.model_fields[key].annotation)), section)
    return list(section.model_fields)


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models(part)]
