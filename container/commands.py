"""The commands: python -m container train|tune|serve|demo|preprocess|... [--root DIR]; --help lists all."""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from container.planning.arguments import add_plan_arguments
from contracts.atomic_files import complete_replacement
from contracts.declaration import checked_number
from contracts.errors import ContractError
from contracts.file_systems import naming_full_disk
from contracts.input_files import check_root
from contracts.paths import DEFAULT_ROOT, ROOT_VARIABLE, JobPaths
from contracts.serving import HOST, PORT, PORT_VARIABLE
from contracts.steps import PROCESSING_STEPS, TABULAR_PREPROCESSING
from contracts.table_formats import OF_SUFFIX, WRITTEN_SUFFIXES
from contracts.value_types import Hours, Minutes, Port, Reasons, Trials

# The arguments of `track`, and the hyperparameters that they replace.
TRACKING_ARGUMENTS = {
    "--uri": "mlflow_tracking_uri",
    "--experiment": "mlflow_experiment",
    "--run-name": "mlflow_run_name",
    "--tags": "mlflow_tags",
}
_READ_A_JOB = ("train", "tune", "serve", "track", "baseline")
_NEED_NO_INPUT = ("init", "demo", "load-data")  # these may create the root


def main(command_line: Sequence[str] | None = None) -> int:
    """Parse the command line, run the command and return its exit code."""
    parser = _parser()
    options = parser.parse_args(command_line)
    paths = JobPaths.resolve(options.root)
    try:
        check_root(paths.root)
    except ContractError as error:
        parser.error(error.cause)
    if options.root is not None and options.command not in _NEED_NO_INPUT and not paths.root.is_dir():
        parser.error(f"--root: {paths.root} is not a folder; create it, or correct the path")
    if options.command in _READ_A_JOB and options.root is None and not paths.root.is_dir():
        parser.error(f"{paths.root} does not exist; name the job's folder with --root DIR")
    written = [paths.root, *filter(None, [getattr(options, "output", None)]), Path(tempfile.gettempdir())]
    try:
        with naming_full_disk(*written):
            complete_replacement(paths.root)
            return _COMMANDS.get(options.command, _step)(options, paths)
    except ContractError as error:
        print(error, file=sys.stderr, flush=True)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m container",
        description="Train and serve text + table classifiers in a folder laid out like /opt/ml.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, about in (
        ("init", "make a job from a raw table: roles of columns, splits, hyperparameters"),
        ("train", "train, evaluate and export: read input/, write model/ and output/"),
        ("tune", "search for the best hyperparameters, then train, evaluate and export with them"),
        ("plan", "estimate memory, time and cost of a job on instance types, before it runs"),
        ("predict", "predict the records of files with a trained model: id, label by name, probabilities"),
        ("convert", "write raw files as one table: Parquet, CSV, TSV or JSON Lines"),
        ("compare", "compare finished jobs: settings that differ, and test metrics with paired differences"),
        ("serve", "answer GET /ping and POST /invocations with model/: a trained model or an unpacked package"),
        ("baseline", "write model/baseline.json of a finished job, whose model an earlier version trained"),
        ("track", "send a finished job to an MLflow tracking server; again, to complete or update its run"),
        ("demo", "generate a small data set and train on it"),
        *((name, f"run a pipeline step: {step.about}") for name, step in PROCESSING_STEPS.items()),
    ):
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument(
            "--root", help=f"the job's folder (default: ${ROOT_VARIABLE}, else {DEFAULT_ROOT})", default=None
        )
        if name in PROCESSING_STEPS:
            PROCESSING_STEPS[name].add_arguments(command)
            if name == TABULAR_PREPROCESSING.command:
                copied = "a training job's folder: copy the splits to its input/data"
                command.add_argument("--into-job", type=Path, metavar="DIR", help=copied)
        elif name in _ADD_ARGUMENTS:
            _ADD_ARGUMENTS[name](command)
    return parser


def _init(options: argparse.Namespace, paths: JobPaths) -> int:
    from container.init.command import init

    return init(paths, options)


def _train(options: argparse.Namespace, paths: JobPaths) -> int:
    from container.job.supervisor import train

    settings = {"resume": False if options.fresh else None, "max_minutes": options.minutes}
    settings["learning_curve"] = options.learning_curve or None
    chosen = {name: value for name, value in settings.items() if value is not None}
    return train(paths, options=chosen, initial_model=options.initial_model)


def _plan(options: argparse.Namespace, paths: JobPaths) -> int:
    if options.calibrate is not None:  # before libgomp is loaded: its threads would spin otherwise
        from container.job.launch.workers import unset_defaults

        os.environ.update({**unset_defaults(os.environ), **os.environ})
    from container.planning.command import plan

    here = options.root is None and options.hyperparameters is not None  # the plan is written to this folder
    return plan(JobPaths(Path.cwd()) if here else paths, options)


def _tune(options: argparse.Namespace, paths: JobPaths) -> int:
    from container.job.supervisor import train

    given = {"trials": options.trials, "max_hours": options.max_hours}
    return train(paths, tuning={name: value for name, value in given.items() if value is not None})


def _predict(options: argparse.Namespace, paths: JobPaths) -> int:
    from container.monitoring.watch import ColumnWatch
    from container.serving.predict import predict
    from container.tables.reading import Reading

    if options.top is not None and options.explain is None:
        raise ContractError("--top: has no effect without --explain", "Add --explain column, text or word.")
    model, reading = options.model or paths.model, Reading.of(options, paths)
    top, watch = options.top, ColumnWatch.of(model)
    code = predict(
        model, options.input, options.output, reading=reading, level=options.explain, top=top, watch=watch.add
    )
    watch.report()
    return code


def _convert(options: argparse.Namespace, _: JobPaths) -> int:
    from container.tables.convert import convert
    from container.tables.reading import Reading

    return convert(options.tables, options.output, reading=Reading.of(options))


def _compare(options: argparse.Namespace, _: JobPaths) -> int:
    from container.evaluation.compare import compare

    return compare(options.jobs, split=options.split)


def _serve(options: argparse.Namespace, paths: JobPaths) -> int:
    from container.serving.server import serve

    return serve(paths.model, port=options.port, host=options.host)


def _track(options: argparse.Namespace, paths: JobPaths) -> int:
    from container.tracking.send import track

    given = {name: getattr(options, name) for name in TRACKING_ARGUMENTS.values()}
    given["mlflow_tags"] = given["mlflow_tags"] and dict(given["mlflow_tags"])
    return track(paths, {name: value for name, value in given.items() if value is not None})


def _baseline(_: argparse.Namespace, paths: JobPaths) -> int:
    from container.monitoring.older_model import write_baseline

    return write_baseline(paths)


def _demo(_: argparse.Namespace, paths: JobPaths) -> int:
    from container.demo import demo

    return demo(paths)


def _step(options: argparse.Namespace, paths: JobPaths) -> int:
    from container.steps.program import run_step

    step = PROCESSING_STEPS[options.command]
    values = {argument.name: getattr(options, argument.name) for argument in step.arguments}
    flags = {name: value for name in step.settings.variables() if (value := getattr(options, name)) is not None}
    code = run_step(options.command, paths.root, values, {**os.environ, **flags})
    if code == 0 and getattr(options, "into_job", None) is not None:
        from container.steps.preprocess.step import copy_into_job

        return copy_into_job(paths.root, options.into_job)
    return code


_COMMANDS: dict[str, Callable[[argparse.Namespace, JobPaths], int]] = {
    command.__name__.removeprefix("_"): command
    for command in (_init, _train, _tune, _convert, _predict, _compare, _serve, _track, _demo, _plan, _baseline)
}


_READ_FORMATS = f"{', '.join(OF_SUFFIX)}, gzipped or not"


def _add_reading_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--delimiter", metavar="SIGN", help="of text files (default: found)")
    command.add_argument("--encoding", metavar="NAME", help="of text files that are not UTF-8 (default: found)")
    about = "backslash: \\n in a cell of a text file is a line break, as databases write (default: found)"
    command.add_argument("--escapes", choices=("backslash", "none"), help=about)
    command.add_argument("--sheet", metavar="NAME", help="of workbooks (default: the first)")


def _add_init_arguments(command: argparse.ArgumentParser) -> None:
    _add_reading_arguments(command)
    about = f"files or a folder ({_READ_FORMATS}): one table, or files named train, val and test"
    command.add_argument("tables", type=Path, nargs="+", metavar="TABLE", help=about)
    about = "column of the label (default: label, target, class, y or outcome)"
    command.add_argument("--label", metavar="NAME", help=about)
    about = 'write another label, e.g. "Yes =yes"; nothing after the sign: no label'
    command.add_argument("--map-label", action="extend", nargs="+", default=[], metavar="OLD=NEW", help=about)
    for option in ("id", "text", "number", "category", "date", "ignore"):
        about = f"columns with the role {option}"
        command.add_argument(f"--{option}", action="extend", nargs="+", default=[], metavar="NAME", help=about)
    command.add_argument("--group", metavar="NAME", help="keep rows with the same value in one split")
    about = "dates, times or numbers: the oldest rows become train, the newest test"
    command.add_argument("--time", metavar="NAME", help=about)
    about = "a job that init made: its splits are repeated, by its id, else by the number of the row"
    command.add_argument("--splits-of", type=Path, metavar="JOB", help=about)
    for option, example in (("number", "price=1.234,5"), ("date", "day=%%d/%%m/%%Y")):
        about = f"how a column of {option}s is written, e.g. {example}"
        command.add_argument(f"--{option}-format", action="append", default=[], metavar="NAME=NOTATION", help=about)
    about = "words for a missing number or date"
    command.add_argument("--null", action="extend", nargs="+", default=[], metavar="WORD", help=about)
    command.add_argument("--tokenizer", metavar="NAME", help="the encoder: a folder or a Hugging Face id")
    command.add_argument("--force", action="store_true", help="replace the input of a job that is in the folder")


def _add_convert_arguments(command: argparse.ArgumentParser) -> None:
    _add_reading_arguments(command)
    about = f"files or folders of one table ({_READ_FORMATS})"
    command.add_argument("tables", type=Path, nargs="+", metavar="IN", help=about)
    command.add_argument("output", type=Path, metavar="OUT", help=f"a file: {', '.join(WRITTEN_SUFFIXES)}")


def _add_train_arguments(command: argparse.ArgumentParser) -> None:
    about = "start over (resume=false): the earlier results stay until the new ones are complete"
    command.add_argument("--fresh", action="store_true", help=about)
    about = "start from the weights of an earlier job: its folder, its model folder or its model.tar.gz"
    command.add_argument("--initial-model", type=Path, metavar="JOB", help=about)
    about = "measure whether more rows would help: the report has the AUROC at 25, 50, 75 and 100 %% of them"
    command.add_argument("--learning-curve", action="store_true", help=about)
    about = "end with all artifacts within so many minutes; overrides max_minutes"
    command.add_argument("--minutes", type=partial(checked_number, kind=Minutes), metavar="N", help=about)


def _add_tune_arguments(command: argparse.ArgumentParser) -> None:
    for flag, kind, about in (("--trials", Trials, "number of trials"), ("--max-hours", Hours, "duration")):
        setting = flag.removeprefix("--").replace("-", "_")
        command.add_argument(flag, type=partial(checked_number, kind=kind), help=f"{about}; overrides tuning.{setting}")


def _add_serve_arguments(command: argparse.ArgumentParser) -> None:
    about = f"port to listen on (default: ${PORT_VARIABLE}, else {PORT})"
    command.add_argument("--port", type=partial(checked_number, kind=Port), help=about)
    about = f"address to listen on, such as 127.0.0.1 for this machine alone (default: {HOST}, all addresses)"
    command.add_argument("--host", metavar="ADDRESS", default=HOST, help=about)


def _add_compare_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("jobs", type=Path, nargs="+", metavar="DIR", help="the folders of two or more jobs")
    about = "compare NAME_predictions.* of output/data (default: test, or out_of_fold where test has few records)"
    command.add_argument("--split", metavar="NAME", help=about)


def _add_predict_arguments(command: argparse.ArgumentParser) -> None:
    _add_reading_arguments(command)
    command.add_argument("--model", type=Path, help="a model folder or an unpacked package (default: the root's)")
    about = f"files or folders of one table ({_READ_FORMATS})"
    command.add_argument("--input", type=Path, nargs="+", required=True, metavar="FILE", help=about)
    command.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="the predictions: .csv, .tsv, .jsonl or .parquet"
    )
    command.add_argument(
        "--explain",
        metavar="LEVEL",
        help="add a column with reasons: of columns (column), texts (text) or words (word)",
    )
    about = "the largest N reasons of each record (default: all)"
    command.add_argument("--top", type=partial(checked_number, kind=Reasons), metavar="N", help=about)


def _add_tracking_arguments(command: argparse.ArgumentParser) -> None:
    for flag, name in TRACKING_ARGUMENTS.items():
        about = f"replaces the job's {name}"
        if name == "mlflow_tags":
            command.add_argument(flag, dest=name, help=about, nargs="*", type=_tag, metavar="KEY=VALUE")
        else:
            command.add_argument(flag, dest=name, help=about)


def _tag(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


_ADD_ARGUMENTS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "init": _add_init_arguments,
    "plan": add_plan_arguments,
    "train": _add_train_arguments,
    "tune": _add_tune_arguments,
    "convert": _add_convert_arguments,
    "predict": _add_predict_arguments,
    "compare": _add_compare_arguments,
    "serve": _add_serve_arguments,
    "track": _add_tracking_arguments,
}
