"""The commands: python -m pipeline definition|upsert|start|schedule|put-metrics|run --config FILE."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from contracts.errors import ContractError
from contracts.input_files import check_root, check_writable
from pipeline.config_file import load_config

_ROOT = Path("pipeline_run")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, run the command, and return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except ContractError as error:
        print(error, file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    if options.command == "run":
        check_root(options.root.absolute())
        check_writable(options.root.absolute())
    config = load_config(options.config)
    if options.command == "definition":
        from pipeline.aws.definition import definition

        print(definition(config), end="")
        return 0
    if options.command in ("schedule", "put-metrics"):
        from pipeline.aws.errors import aws_errors
        from pipeline.aws.monitor import put_metrics, schedule

        with aws_errors(f"{options.command} of {config.name!r}"):
            print(schedule(config) if options.command == "schedule" else put_metrics(config))
        return 0
    if options.command in ("upsert", "start"):
        from pipeline.aws.deploy import start, upsert
        from pipeline.aws.errors import aws_errors

        with aws_errors(f"{options.command} of {config.name!r}"):
            replace = options.command == "upsert" and options.replace
            print(start(config, _pairs(options.set)) if options.command == "start" else upsert(config, replace=replace))
        return 0
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline",
        description="Load, preprocess, train, measure, decide, package, test and register, on SageMaker or locally.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, about in (
        ("definition", "print the SageMaker pipeline's definition as JSON; makes no AWS calls"),
        ("upsert", "create or update the pipeline on AWS; prints its ARN"),
        ("start", "start an execution on AWS; prints its ARN"),
        ("schedule", "schedule the monitor of the newest approved model on AWS, with its alarm; prints the ARN"),
        ("put-metrics", "put the metrics of the monitor's newest run to CloudWatch"),
        ("run", "run the steps on this machine; steps without changes are not run again"),
    ):
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument(
            "--config", type=Path, required=True, help="YAML or JSON; docs/pipeline_reference.md lists the keys"
        )
        if name == "upsert":
            command.add_argument(
                "--replace", action="store_true", help="replace a pipeline of this name that upsert did not write"
            )
        if name == "start":
            command.add_argument(
                "--set", action="append", default=[], metavar="NAME=VALUE", help="set a parameter of this execution"
            )
        if name == "run":
            command.add_argument("--root", type=Path, default=_ROOT, help=f"steps and registry (default: {_ROOT})")
            image = "text-table-trainer"
            containers = f"run in containers of IMAGE (default: {image})"
            command.add_argument("--docker", nargs="?", const=image, metavar="IMAGE", help=containers)
    return parser
