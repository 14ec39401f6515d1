"""What a pipeline step promises: named inputs and outputs with their folders, arguments, environment variables."""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import PydanticUndefined

from contracts.errors import ContractError
from contracts.paths import DEFAULT_ROOT


def _listed(value: Any) -> Any:
    """a,b or ["a", "b"] as a list."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.startswith("["):
        return json.loads(text)
    return [part.strip() for part in text.split(",") if part.strip()]


def _object(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Fractions = Annotated[tuple[float, ...], BeforeValidator(_listed)]
JsonObject = Annotated[dict[str, Any], BeforeValidator(_object)]


class StepSettings(BaseModel):
    """A step's environment variables: field `train_ratio` is the variable TRAIN_RATIO."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())

    @property
    def whole_inputs(self) -> bool:
        """Whether each of several instances needs every file, also of inputs whose files they would share out."""
        return False

    @classmethod
    def variables(cls) -> tuple[str, ...]:
        """Names of the environment variables, in order."""
        return tuple(name.upper() for name in cls.model_fields)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """The settings that `environment` holds; an empty variable is one that is not set, others are not ours.

        Raises:
            ContractError: a required variable is missing, or a value is refused.
        """
        given = {name: environment.get(name.upper(), "") for name in cls.model_fields}
        try:
            return cls.model_validate({name: value for name, value in given.items() if value.strip()})
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0]) if first["loc"] else next(iter(cls.model_fields))
            field = cls.model_fields[name]
            if first["type"] == "missing":
                raise ContractError(
                    f"environment variable {name.upper()}: is not set", f"Set it: {field.description}"
                ) from None
            reason = first["msg"].removeprefix("Value error, ")
            if not first["loc"]:
                raise ContractError(f"environment variables: {reason}", "Correct one of them.") from None
            raise ContractError(
                f"environment variable {name.upper()}: {given[name]!r} is refused: {reason}", field.description or ""
            ) from None

    def to_environment(self) -> dict[str, str]:
        """The variables that say the same, as strings; those at their default are left out. Byte-stable."""
        return {
            name.upper(): _text(value)
            for name, value in ((name, getattr(self, name)) for name in type(self).model_fields)
            if value is not None and value != type(self).model_fields[name].default
        }


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
        folder: where it lies under the root, e.g. processing/input/data.
        files: glob patterns of the files in it, relative to the folder: of an input a file fits one of them; of an
            output each fits a file.
        about: one line.
        required: of an input: the step fails without it; of an output: it is always written.
        sharded: of an input: several instances share its files out; every other input is given to each instance whole.
    """

    name: str
    folder: str
    files: tuple[str, ...]
    about: str
    required: bool = True
    sharded: bool = False

    @property
    def container_path(self) -> str:
        """The folder inside the container of a SageMaker job."""
        return f"{DEFAULT_ROOT}/{self.folder}"

    def path(self, root: Path) -> Path:
        return root / self.folder


@dataclass(frozen=True)
class StepArgument:
    """A command line argument, spelled --name."""

    name: str
    choices: tuple[str, ...]
    default: str
    about: str

    @property
    def flag(self) -> str:
        return f"--{self.name}"


StepKind = Literal["processing", "training", "registration"]


@dataclass(frozen=True)
class StepContract:
    """One step.

    Attributes:
        name: the step's name in the pipeline.
        kind: the SageMaker job it is; a registration has no program.
        command: `python -m container COMMAND`; None for a registration.
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
        """The input of that logical name."""
        return _named(self.inputs, name)

    def output(self, name: str) -> StepFolder:
        """The output of that logical name."""
        return _named(self.outputs, name)

    def command_line(self, **arguments: str) -> list[str]:
        """What follows `python -m container`: the command, and the arguments that are not at their default."""
        assert self.command is not None, f"{self.name} has no program"
        line = [self.command]
        for argument in self.arguments:
            value = arguments.pop(argument.name, argument.default)
            if value not in argument.choices:
                raise ContractError(
                    f"{argument.name}: {value!r} is not known", f"Use one of: {', '.join(argument.choices)}."
                )
            if value != argument.default:
                line += [argument.flag, value]
        assert not arguments, f"{self.name} has no arguments {sorted(arguments)}"
        return line

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        for argument in self.arguments:
            parser.add_argument(
                argument.flag, choices=argument.choices, default=argument.default, help=f"{argument.about} "
                f"(default: {argument.default})",
            )  # fmt: skip

    def defaults(self) -> dict[str, str]:
        """The environment variables that have a default, as strings."""
        fields = self.settings.model_fields.items()
        return {
            name.upper(): _text(field.default)
            for name, field in fields
            if field.default is not PydanticUndefined and field.default is not None
        }


def _named(folders: Sequence[StepFolder], name: str) -> StepFolder:
    for folder in folders:
        if folder.name == name:
            return folder
    raise KeyError(f"{name!r} is none of {[folder.name for folder in folders]}")


def processing_config(root: Path) -> Path:
    """What SageMaker says of a processing job: its inputs and how they are distributed."""
    return root / "config" / "processingjobconfig.json"


def processing_resources(root: Path) -> Path:
    """The hosts of a processing job."""
    return root / "config" / "resourceconfig.json"


def message_file(root: Path | str | os.PathLike[str]) -> Path:
    """Where a processing job says why it ended; SageMaker shows the first 1024 bytes as ExitMessage."""
    return Path(root) / "output" / "message"
