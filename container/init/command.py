"""init: make a job from a raw table."""

import argparse
import json
import shlex
import tempfile
from dataclasses import asdict
from pathlib import Path

from container.init.earlier import earlier_splits, write_record
from container.init.leaks import Doubt
from container.init.notations import WrittenAs
from container.init.profile import read_tables
from container.init.report import page, summary_lines, table_lines
from container.init.roles import Role
from container.init.settings import hyperparameters_of, tokenizer_in
from container.init.splits import label_counts, split_rows, write_splits
from container.init.warnings import warnings_of
from container.job.processes import set_up_logging
from container.tables.reading import Reading
from contracts.atomic_files import replace_together
from contracts.errors import ContractError
from contracts.input_files import check_writable, exists
from contracts.paths import SPLITS, JobPaths

PAGE = "init.md"
# The options that give columns a role.
ROLE_OPTIONS: dict[str, Role] = {
    "id": "id",
    "text": "text",
    "number": "number",
    "category": "category",
    "date": "date",
    "ignore": "ignored",
}


def init(paths: JobPaths, options: argparse.Namespace) -> int:
    """Write input/data/{train,val,test}, the hyperparameters and init.md; print what was found, last how to train.

    Returns:
        0.

    Raises:
        ContractError: there is no job in the tables, or one in the folder.
    """
    set_up_logging()
    if options.time and options.splits_of:
        raise ContractError("--time and --splits-of: each would split the rows in another way", "Use one of them.")
    _check_root(paths, options)
    written = WrittenAs.of_options(options.number_format, options.date_format, options.null)
    with tempfile.TemporaryDirectory(prefix="init-") as scratch:
        raw = read_tables(
            options.tables,
            label=options.label,
            given=_given(options),
            read_as=Reading.of(options, paths),
            scratch=Path(scratch),
            group=options.group,
            time=options.time,
            label_changes=options.map_label,
            written=written,
        )
        print(*(f"{note}." for note in raw.notes), *table_lines(raw), "", sep="\n", flush=True)
        earlier = None if options.splits_of is None else earlier_splits(raw, options.splits_of)
        splits = split_rows(raw, group=options.group, time=options.time, earlier=earlier)
        tokenizer = tokenizer_in(paths.pretrained) if options.tokenizer is None else (options.tokenizer, "--tokenizer")
        settings, why = hyperparameters_of(raw, tokenizer=tokenizer, group=options.group)
        with replace_together(paths.root, map(paths.channel, SPLITS)) as folder:
            new = JobPaths(folder)
            repeated = write_splits(raw, splits, {split: new.channel(split) for split in SPLITS})
            new.config.mkdir(parents=True)
            write_record(raw, splits.codes, new.split_record)
            if repeated.absent:
                raw = raw.without(repeated.absent, "no value in the rows of train")
                settings, why = hyperparameters_of(raw, tokenizer=tokenizer, group=options.group)
            counts = label_counts(raw, splits)
            doubts = list(warnings_of(raw, counts=counts, repeated=repeated, group=options.group, time=options.time))
            doubts += map(Doubt, splits.notes)
            doubts += [Doubt(f"{name}: is left out, because no row of train has a value.") for name in repeated.absent]
            if raw.nested:
                doubts.append(Doubt(f"{', '.join(raw.nested)}: left out, because the cells contain lists or objects."))
            warnings = [doubt.text for doubt in doubts]
            next(iter(raw.parts.values())).found.save(new)
            _write_json(new.hyperparameter_files[-1], settings)
            _write_json(new.init_record, {"warnings": [asdict(doubt) for doubt in doubts]})
            command = f"python -m container train --root {shlex.quote(str(paths.root))}"
            about = {"how": splits.how, "warnings": warnings, "settings": settings, "why": why, "command": command}
            (new.root / PAGE).write_text(page(raw, counts, **about), encoding="utf-8")
    file = paths.hyperparameter_files[-1]
    print(*summary_lines(raw, counts, splits.how), *(f"{name}: {text}." for name, text in why.items()), sep="\n")
    print(*(f"Warning: {sentence}\n" for sentence in warnings), sep="", end="")
    print(f"\nWritten: {file}, {paths.root / PAGE} and the splits. Train with:\n{command}", flush=True)
    return 0


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _check_root(paths: JobPaths, options: argparse.Namespace) -> None:
    """Raise ContractError where the folder has a job, unless its input may be replaced, or a table is part of it."""
    check_writable(paths.root)
    replaced = [paths.channel(split).resolve() for split in SPLITS]
    for table in options.tables:
        place = table.resolve()
        if any(
            place.is_relative_to(folder) or (folder.is_relative_to(place) and exists(folder)) for folder in replaced
        ):
            raise ContractError(f"TABLE: {table} is in a folder that init replaces", "Move it out of the job's folder.")
    there = [*(paths.channel(split) for split in SPLITS), *paths.hyperparameter_files, paths.model, paths.checkpoints]
    found = [path for path in there if exists(path) and not (path.is_dir() and not any(path.iterdir()))]
    if found and not options.force:
        raise ContractError(
            f"--root: {paths.root} has a job: {', '.join(str(path.relative_to(paths.root)) for path in found)}",
            "Name another folder, or use --force to replace its input; the results of an earlier training stay.",
        )


def _given(options: argparse.Namespace) -> dict[str, tuple[Role, str]]:
    roles: dict[str, tuple[Role, str]] = {}
    for option, role in ROLE_OPTIONS.items():
        for name in getattr(options, option):
            if roles.setdefault(name, (role, f"--{option}")) != (role, f"--{option}"):
                raise ContractError(f"--{option}: {name!r} is also given by {roles[name][1]}", "Give it one role.")
    return roles
