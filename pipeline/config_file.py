"""Read a pipeline's configuration, YAML or JSON; an error names the file, the key and the value."""

import json
import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from contracts.errors import ContractError, shown
from contracts.json_text import parse_json
from contracts.spelling import did_you_mean
from contracts.tuning import KINDS
from contracts.value_types import decimal_comma
from pipeline.config import PipelineConfig

_MERGE = "tag:yaml.org,2002:merge"


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
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise ContractError(f"{key}: {path} {problem}", "Name a YAML or JSON file, such as examples/pipeline.yaml.")
    kind = "JSON" if path.suffix == ".json" else "YAML"
    try:
        text = path.read_bytes()
        content = parse_json(text) if kind == "JSON" else yaml.load(text, Loader=_Loader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ContractError(
            f"{key}: {path} cannot be read as {kind} in UTF-8: {' '.join(str(error).split())[:500]}",
            "Correct the file; indent YAML with spaces, and give each key once.",
        ) from None
    if not isinstance(content, dict):
        problem = "is empty" if content is None else f"contains a {type(content).__name__}, not a mapping"
        raise ContractError(f"{key}: {path} {problem}", "Write name: value.")
    return content


class _Loader(yaml.SafeLoader):
    """Read YAML; a key that a mapping has twice is an error.

    Of plain words, only true, false, null and decimal numbers are no texts. In YAML 1.1, the labels no, 010 and
    2024-01-31 would be false, 8 and a date.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:  # before << adds the keys of other mappings
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if key.value in seen:
                    message = f"the key {key.value!r} occurs twice"
                    raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {}
for _kind, _words in {
    "bool": "true|True|TRUE|false|False|FALSE",
    "null": "~|null|Null|NULL|",
    "int": "[-+]?(0|[1-9][0-9]*)",
    "float": r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.inf|\.nan",
    "merge": "<<",
}.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"(?:{_words})\\Z"), None)


def _refused(path: Path, error: ValidationError) -> ContractError:
    problems = error.errors()  # the cause of a missing key may be a misspelt one: unknown keys come first
    first = next((each for each in problems if each["type"] == "extra_forbidden"), problems[0])
    keys = [str(part) for part in first["loc"] if part not in KINDS]
    key = ".".join(keys) or "configuration"
    if first["type"] == "extra_forbidden":
        known = _fields_at(keys[:-1])
        hint = did_you_mean(keys[-1], known)
        return ContractError(f"{key}: unknown key in {path}{hint}", f"Use one of: {', '.join(known)}.")
    if first["type"] == "missing":
        return ContractError(f"{key}: is missing in {path}", "Add the key; docs/pipeline_reference.md describes it.")
    if (first["type"] == "invalid_key" or keys[-1:] == ["[key]"]) and not isinstance(first["input"], str):
        section = ".".join(str(part) for part in keys if part not in ("[key]", str(first["input"])))
        return ContractError(
            f"{section}: the key {first['input']} in {path} is no text",
            "Quote it if it is a key. In braces, a comma begins the next key: write numbers with a point, 0.85.",
        )
    if first["type"] == "string_type" and isinstance(first["input"], (bool, int, float)):
        return ContractError(
            f"{key}: {shown(first['input'])} in {path} is a {type(first['input']).__name__}, and the key needs a text",
            f'Quote it: "{json.dumps(first["input"])}".',
        )
    value = "" if isinstance(first["input"], dict) else f" {shown(first['input'])}"
    reason = first["msg"].removeprefix("Value error, ")
    return ContractError(
        f"{key}:{value} in {path} is invalid: {reason}",
        f"{decimal_comma(first['input'])}Correct it; docs/pipeline_reference.md describes the key.",
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
