"""The commands: python -m pipeline definition|upsert|start|run|... --config FILE; --help lists all.

The commands of an operator (status, versions, deploy, ...) operate the account; with --root, the registry of `run`.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from contracts.atomic_files import write_text_atomically
from contracts.declaration import checked_number
from contracts.errors import ContractError
from contracts.input_files import check_root, check_writable
from pipeline.config import PipelineConfig
from pipeline.config_file import load_config

if TYPE_CHECKING:
    from pipeline.aws.operator import Operator
    from pipeline.local.service import LocalService

VersionNumber = Annotated[int, Field(ge=1, le=1_000_000)]
Percent = Annotated[int, Field(ge=1, le=50)]
Share = Annotated[int, Field(ge=1, le=100)]
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
        calls_aws = command.calls_aws and (options.command == "run" or getattr(options, "root", None) is None)
        with _aws_errors(f"{options.command} of {config.name!r}") if calls_aws else nullcontext():
            result = command.run(config, options)
    except ContractError as error:
        print(error, file=sys.stderr)
        return 1
    if isinstance(result, str):
        print(result.removesuffix("\n"))
    return result if isinstance(result, int) else 0


def _aws_errors(place: str) -> Any:
    from pipeline.aws.errors import aws_errors

    return aws_errors(place)


def _definition(config: PipelineConfig, _: argparse.Namespace) -> str:
    from pipeline.aws.definition import definition

    return definition(config)


def _stack(config: PipelineConfig, options: argparse.Namespace) -> str | int:
    from pipeline.aws.stack import stack

    text = stack(config, share_with=options.share_with)
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


def _run(config: PipelineConfig, options: argparse.Namespace) -> int:
    from pipeline.local.run import run

    return run(config, options.root.absolute(), image=options.docker)


def _operator(config: PipelineConfig, options: argparse.Namespace) -> "Operator":
    from pipeline.aws.operator import Operator

    return Operator.of(config, dry_run=getattr(options, "dry_run", False))


def _service(config: PipelineConfig, options: argparse.Namespace) -> "LocalService":
    from pipeline.local.service import LocalService

    return LocalService(config, options.root.absolute(), getattr(options, "dry_run", False))


def _status(config: PipelineConfig, options: argparse.Namespace) -> int:
    if options.root is not None:
        _refuse_with_root(options, "execution")
        return _service(config, options).status(wait=options.wait, logs=options.logs)
    from pipeline.aws.executions import status

    return status(_operator(config, options), options.execution, wait=options.wait, logs=options.logs)


def _versions(config: PipelineConfig, options: argparse.Namespace) -> str:
    if options.root is not None:
        return _service(config, options).versions()
    from pipeline.aws.versions import versions_table

    return versions_table(_operator(config, options))


def _compare(config: PipelineConfig, options: argparse.Namespace) -> int:
    from pipeline.comparison import compare

    if options.root is not None:
        return compare(_service(config, options).fetch, options.numbers)
    from pipeline.aws.fetch import fetch

    return compare(partial(fetch, _operator(config, options)), options.numbers)


def _decide(config: PipelineConfig, options: argparse.Namespace) -> None:
    if options.root is not None:
        return _service(config, options).decide(options.command, options.number, why=options.why)
    from pipeline.aws.versions import decide

    return decide(_operator(config, options), options.command, options.number, why=options.why)


def _deploy(config: PipelineConfig, options: argparse.Namespace) -> None:
    if options.root is not None:
        _refuse_with_root(options, *_TRAFFIC, "adopt")
        return _service(config, options).deploy(options.number)
    from pipeline.aws.endpoint import deploy
    from pipeline.aws.guard import Traffic

    chosen = [name for name in _TRAFFIC if getattr(options, name)]
    if len(chosen) > 1:
        raise ContractError(f"--{' and --'.join(chosen)}: exclude each other", "Give one of them.")
    traffic = Traffic(_TRAFFIC[chosen[0]], getattr(options, chosen[0])) if chosen else Traffic()
    return deploy(_operator(config, options), options.number, traffic=traffic, adopt=options.adopt)


def _rollback(config: PipelineConfig, options: argparse.Namespace) -> None:
    if options.root is not None:
        return _service(config, options).rollback()
    from pipeline.aws.endpoint import rollback

    return rollback(_operator(config, options))


def _delete(config: PipelineConfig, options: argparse.Namespace) -> None:
    if not options.dry_run and not options.yes:
        if not sys.stdin.isatty():
            raise ContractError("delete: nobody can answer whether to delete", "Add --yes, or --dry-run to see what.")
        if input("Delete the service and what only it uses? Write yes: ").strip() != "yes":
            raise ContractError("delete: was not confirmed", "Nothing was deleted.")
    if options.root is not None:
        return _service(config, options).delete()
    from pipeline.aws.endpoint import delete

    return delete(_operator(config, options))


def _refuse_with_root(options: argparse.Namespace, *names: str) -> None:
    """Raise ContractError for an option that has no effect on this machine."""
    for name in names:
        if getattr(options, name):
            raise ContractError(f"{name}: has no effect with --root, which has one run and one server", "Remove it.")


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            raise ContractError(f"--set {text}: is not NAME=VALUE", "Write, for example, --set Threshold=0.8")
    pairs = [text.split("=", 1) for text in texts]
    for number, (name, value) in enumerate(pairs):
        if name in dict(pairs[:number]):
            raise ContractError(f"--set {name}={value}: {name} is set twice", "Set it once.")
    return dict(pairs)


def _reason(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty")
    return text


def _option(*names: str, **arguments: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    return names, arguments


@dataclass(frozen=True)
class _Command:
    """A command.

    Attributes:
        run: returns what is printed, or the exit code; None: 0.
        options: the arguments of add_argument for each option beside --config.
    """

    about: str
    run: Callable[[PipelineConfig, argparse.Namespace], str | int | None]
    options: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = ()
    calls_aws: bool = True


_ON = _option("--root", type=Path, help="operate the registry of `run` in this folder, not AWS")
_DRY_RUN = _option("--dry-run", action="store_true", help="print what would change")
_NUMBER = _option("number", type=partial(checked_number, kind=VersionNumber), metavar="N", help="the version")
_WHY = _option("--why", required=True, type=_reason, metavar="REASON", help="kept in the registry")
_PERCENT = {"type": partial(checked_number, kind=Percent), "metavar": "PERCENT"}
_SHARE = {"type": partial(checked_number, kind=Share), "metavar": "PERCENT"}
_TRAFFIC: dict[str, Any] = {"canary": "CANARY", "linear": "LINEAR", "shadow": "SHADOW"}  # kinds of Traffic, by option

_COMMANDS = {
    "definition": _Command(
        "print the SageMaker pipeline's definition as JSON; makes no AWS calls", _definition, calls_aws=False
    ),
    "stack": _Command(
        "print the CloudFormation template of the account: bucket, key, role, policies, logs; makes no AWS calls",
        _stack,
        (
            _option("--out", type=Path, metavar="FILE", help="write the template to a file instead"),
            _option(
                "--share-with",
                action="append",
                default=[],
                metavar="ACCOUNT",
                help="let another account deploy the registered versions",
            ),
        ),
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
    "status": _Command(
        "show the steps of an execution, their states, cost and causes of failures",
        _status,
        (
            _option("execution", nargs="?", metavar="EXECUTION", help="its ID or ARN (default: the newest)"),
            _option("--wait", action="store_true", help="wait for its end; the exit code is 1 unless it succeeded"),
            _option("--logs", metavar="STEP", help="print the end of the logs of a step instead"),
            _ON,
        ),
    ),
    "versions": _Command("list the registered versions, and which one is in service", _versions, (_ON,)),
    "compare": _Command(
        "compare two versions on the same test rows: settings, metrics, paired differences",
        _compare,
        (
            _option(
                "numbers", nargs=2, type=partial(checked_number, kind=VersionNumber), metavar="N", help="the versions"
            ),
            _ON,
        ),
    ),
    "approve": _Command("approve a version, so that it can be deployed", _decide, (_NUMBER, _WHY, _DRY_RUN, _ON)),
    "reject": _Command("reject a version", _decide, (_NUMBER, _WHY, _DRY_RUN, _ON)),
    "deploy": _Command(
        "put an approved version into service, if it answers sample requests as it was registered",
        _deploy,
        (
            _NUMBER,
            _option("--canary", **_PERCENT, help="move so much of the traffic first, then the rest"),
            _option("--linear", **_PERCENT, help="move so much of the traffic in each step"),
            _option("--shadow", **_SHARE, help="copy so much of the traffic to it; the version in service answers"),
            _option("--adopt", action="store_true", help="update an endpoint that this project did not create"),
            _DRY_RUN,
            _ON,
        ),
    ),
    "rollback": _Command("put the version before into service again", _rollback, (_DRY_RUN, _ON)),
    "delete": _Command(
        "delete the endpoint and what only it uses; registered versions stay",
        _delete,
        (_option("--yes", action="store_true", help="do not ask"), _DRY_RUN, _ON),
    ),
    "schedule": _Command(
        "schedule the monitor of the newest approved model on AWS, with its alarm; prints the ARN", _schedule
    ),
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
