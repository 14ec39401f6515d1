"""The commands: python -m pipeline definition|upsert|start|run|... --config FILE; --help lists all."""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.atomic_files import write_text_atomically
from contracts.errors import ContractError
from contracts.input_files import check_root, check_writable
from pipeline.config import PipelineConfig
from pipeline.config_file import load_config

_ROOT = Path("pipeline_run")
_IMAGE = "text-table-trainer"


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, run the command, and return the exit code."""
    options = _parser().parse_args(arguments)
    command = _COMMANDS[options.command]
    try:
        if options.command == "run":
            check_root(options.root.absolute())
            check_writable(options.root.absolute())
        config = load_config(options.config)
        with _aws_errors(f"{options.command} of {config.name!r}") if command.calls_aws else nullcontext():
            result = command.run(config, options)
    except ContractError as error:
        print(error, file=sys.stderr)
        return 1
    if isinstance(result, int):
        return result
    print(result.removesuffix("\n"))
    return 0


def _aws_errors(place: str) -> Any:
    from pipeline.aws.errors import aws_errors

    return aws_errors(place)


def _definition(config: PipelineConfig, _: argparse.Namespace) -> str:
    from pipeline.aws.definition import definition

    return definition(config)


def _stack(config: PipelineConfig, options: argparse.Namespace) -> str | int:
    from pipeline.aws.stack import stack

    text = stack(config)
    if options.out is None:
        return text
    check_writable(options.out.absolute().parent)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(options.out, text)
    return 0


def _upsert(config: PipelineConfig, options: argparse.Namespace) -> str:
    from pipeline.aws.deploy import upsert

    return upsert(config, replace=options.replace)


def _start(config: PipelineConfig, options: argparse.Namespace) -> str:
    from pipeline.aws.deploy import start

    return start(config, _pairs(options.set))


def _schedule(config: PipelineConfig, _: argparse.Namespace) -> str:
    from pipeline.aws.monitor import schedule

    return schedule(config)


def _put_metrics(config: PipelineConfig, _: argparse.Namespace) -> str:
    from pipeline.aws.monitor import put_metrics

    return put_metrics(config)


def _run(config: PipelineConfig, options: argparse.Namespace) -> int:
    from pipeline.local.run import run

    return run(config, options.root.absolute(), image=options.docker)


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            raise ContractError(f"--set {text}: is not NAME=VALUE", "Write, for example, --set Threshold=0.8")
    pairs = [text.split("=", 1) for text in texts]
    for number, (name, value) in enumerate(pairs):
        if name in dict(pairs[:number]):
            raise ContractError(f"--set {name}={value}: {name} is set twice", "Set it once.")
    return dict(pairs)


def _option(*names: str, **arguments: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    return names, arguments


@dataclass(frozen=True)
class _Command:
    """A command.

    Attributes:
        run: returns what is printed, or the exit code.
        options: the arguments of add_argument for each option beside --config.
    """

    about: str
    run: Callable[[PipelineConfig, argparse.Namespace], str | int]
    options: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = ()
    calls_aws: bool = True


_COMMANDS = {
    "definition": _Command(
        "print the SageMaker pipeline's definition as JSON; makes no AWS calls", _definition, calls_aws=False
    ),
    "stack": _Command(
        "print the CloudFormation template of the account: bucket, key, role, policies, logs; makes no AWS calls",
        _stack,
        (_option("--out", type=Path, metavar="FILE", help="write the template to a file instead"),),
        calls_aws=False,
    ),
    "upsert": _Command(
        "create or update the pipeline on AWS; prints its ARN",
        _upsert,
        (_option("--replace", action="store_true", help="replace a pipeline of this name that upsert did not write"),),
    ),
    "start": _Command(
        "start an execution on AWS; prints its ARN",
        _start,
        (
            _option(
                "--set", action="append", default=[], metavar="NAME=VALUE", help="set a parameter of this execution"
            ),
        ),
    ),
    "schedule": _Command(
        "schedule the monitor of the newest approved model on AWS, with its alarm; prints the ARN", _schedule
    ),
    "put-metrics": _Command("put the metrics of the monitor's newest run to CloudWatch", _put_metrics),
    "run": _Command(
        "run the steps on this machine; steps without changes are not run again",
        _run,
        (
            _option("--root", type=Path, default=_ROOT, help=f"steps and registry (default: {_ROOT})"),
            _option(
                "--docker",
                nargs="?",
                const=_IMAGE,
                metavar="IMAGE",
                help=f"run in containers of IMAGE (default: {_IMAGE})",
            ),
        ),
        calls_aws=False,
    ),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline",
        description="Load, preprocess, train, measure, decide, package, test and register, on SageMaker or locally.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in _COMMANDS.items():
        subparser = commands.add_parser(name, help=command.about, description=command.about)
        about = "YAML or JSON; docs/pipeline_reference.md lists the keys"
        subparser.add_argument("--config", type=Path, required=True, help=about)
        for names, arguments in command.options:
            subparser.add_argument(*names, **arguments)
    return parser
