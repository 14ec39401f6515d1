"""Define the contract of a pipeline step: its inputs, outputs, arguments and environment variables."""

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from contracts.declaration import StrictModel, describe_limits
from contracts.errors import ContractError, shown
from contracts.json_text import parse_json
from contracts.paths import DEFAULT_ROOT
from contracts.value_types import Json, decimal_comma


def _listed(value: Any) -> Any:
    """Return a,b or ["a", "b"] as a list."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.startswith("["):
        return parse_json(text)
    return [part.strip() for part in text.split(",") if part.strip()]


def parsed(value: Any) -> Any:
    """Return the content of a text as JSON, and other values as they are."""
    return parse_json(value) if isinstance(value, str) else value


def _as_texts(labels: Any) -> Any:
    """Return a mapping from whole numbers, as YAML reads them, as one from texts."""
    if not isinstance(labels, dict):
        return labels
    return {str(label) if type(label) is int else label: new for label, new in labels.items()}


def _check_labels(labels: dict[str, Any]) -> dict[str, Any]:
    for label, new in labels.items():
        if not label.strip():
            raise ValueError("has an empty label")
        if type(new) not in (str, int) or not str(new).strip():
            raise ValueError(f"the new label of {label!r} is {shown(new)}, which is neither a text nor a whole number")
    if labels and len({str(new).strip() for new in labels.values()}) == 1:
        raise ValueError("every label becomes the same one, and a classifier needs two")
    return labels


NOT_LOOKED_UP = "not-looked-up"  # the default of what `start` looks up for an execution
Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Fractions = Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], BeforeValidator(_listed)]
JsonObject = Annotated[dict[str, Json], BeforeValidator(parsed)]
Labels = Annotated[JsonObject, BeforeValidator(_as_texts), AfterValidator(_check_labels)]


class StepSettings(StrictModel):
    """A step's environment variables; the field `train_ratio` is the variable TRAIN_RATIO."""

    @property
    def whole_inputs(self) -> bool:
        """Return whether each of several instances needs every file of every input."""
        return False

    @classmethod
    def variables(cls) -> tuple[str, ...]:
        """Return the names of the environment variables, in order."""
        return tuple(name.upper() for name in cls.model_fields)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Return the settings in `environment`; an empty variable counts as not set.

        Raises:
            ContractError: a required variable is missing, or a value is refused.
        """
        texts = {name: environment.get(name.upper(), "") for name in cls.model_fields}
        try:
            return cls.model_validate({name: value for name, value in texts.items() if value.strip()})
        except ValidationError as error:
            first = error.errors()[0]
            reason = first["msg"].removeprefix("Value error, ")
            if not first["loc"]:
                raise ContractError(f"environment variables: {reason}", "Correct one of them.") from None
            name = str(first["loc"][0])
            place, about = f"environment variable {name.upper()}", cls.model_fields[name].description
            if first["type"] == "missing":
                raise ContractError(f"{place}: is not set", f"Set it: {about}") from None
            raise ContractError(
                f"{place}: {shown(texts[name])} is invalid: {reason}",
                f"{decimal_comma(texts[name])}{about}{describe_limits(cls.model_fields[name])}",
            ) from None

    def to_environment(self) -> dict[str, str]:
        """Return these settings as environment variables, without those at their default. Byte-stable."""
        return {
            name.upper(): _text(value)
            for name, field in type(self).model_fields.items()
            if (value := getattr(self, name)) is not None and value != field.default
        }


def _check_looked_up(key: str) -> str:
    if key == NOT_LOOKED_UP:
        raise ValueError("the execution was started without the key of its data, so the step cache misses new data")
    return key


class ProcessingSettings(StepSettings):
    """Environment of every step on AWS that reads data from outside the pipeline."""

    data_key: Annotated[str, AfterValidator(_check_looked_up)] | None = Field(
        None,
        description="Start executions with `python -m pipeline start`, which sets the key, or set the parameter "
        "STEPDataKey to a text that is new for new data. It identifies the input data for SageMaker's step cache only.",
    )


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return json.dumps(list(value))
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else str(value)


@dataclass(frozen=True)
class StepFolder:
    """A logical input or output.

    Attributes:
        name: its logical name.
        folder: the folder under the root, e.g. processing/input/data.
        files: glob patterns relative to the folder. A file of an input matches one of them; each pattern of an output
            matches a file.
        about: one line.
        required: the step fails without this input, or always writes this output.
        sharded: several instances get different files of this input; of other inputs each instance gets all files.
    """

    name: str
    folder: str
    files: tuple[str, ...]
    about: str
    required: bool = True
    sharded: bool = False

    @property
    def container_path(self) -> str:
        """Return the folder inside the container of a SageMaker job."""
        return f"{DEFAULT_ROOT}/{self.folder}"

    def path(self, root: Path) -> Path:
        return root / self.folder


@dataclass(frozen=True)
class StepArgument:
    """A command line argument --name."""

    name: str
    choices: tuple[str, ...]
    default: str
    about: str

    @property
    def flag(self) -> str:
        return f"--{self.name}"


StepKind = Literal["processing", "training", "registration", "transform"]


@dataclass(frozen=True)
class StepContract:
    """A step.

    Attributes:
        name: the step's name in the pipeline.
        kind: its kind of SageMaker job; a registration has no program, and a transform asks the served model.
        command: `python -m container COMMAND`; None for a registration or a transform.
        settings: its environment variables.
    """

    name: str
    kind: StepKind
    command: str | None
    about: str
    inputs: tuple[StepFolder, ...]
    outputs: tuple[StepFolder, ...]
    settings: type[StepSettings]
    arguments: tuple[StepArgument, ...] = ()

    def input(self, name: str) -> StepFolder:
        """Return the input with a logical name."""
        return {folder.name: folder for folder in self.inputs}[name]

    def output(self, name: str) -> StepFolder:
        """Return the output with a logical name."""
        return {folder.name: folder for folder in self.outputs}[name]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments, and a flag for each setting: --split-by for SPLIT_BY, --label for LABEL_FIELD."""
        for argument in self.arguments:
            about = f"{argument.about} (default: {argument.default})"
            parser.add_argument(argument.flag, choices=argument.choices, default=argument.default, help=about)
        group = parser.add_argument_group("settings", "each flag replaces the environment variable of its name")
        for name, field in self.settings.model_fields.items():
            flag = name.replace("_", "-")
            flags = [f"--{flag}", *([f"--{flag.removesuffix('-field')}"] if flag.endswith("-field") else [])]
            about = f"{name.upper()}: {field.description}".replace("%", "%%")
            group.add_argument(*flags, dest=name.upper(), metavar="VALUE", help=about)


def processing_config(root: Path) -> Path:
    """Return the file in which SageMaker describes the inputs of a processing job and their distribution."""
    return root / "config" / "processingjobconfig.json"


def processing_resources(root: Path) -> Path:
    """Return the file in which SageMaker lists the hosts of a processing job."""
    return root / "config" / "resourceconfig.json"


def message_file(root: Path | str | os.PathLike[str]) -> Path:
    """Return the file for a processing job's error; SageMaker shows the first 1024 bytes as ExitMessage."""
    return Path(root) / "output" / "message"
