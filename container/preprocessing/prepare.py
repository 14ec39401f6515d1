"""Prepare a job's data: fit on train, transform and write every split; or reuse the data of an earlier run."""

import json
import logging
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic_core import to_json

from container.cores import available_cores
from container.job.log_once import log_detail
from container.preprocessing.data_summary import log_split, summarize_split
from container.preprocessing.distributions import TableDistributions
from container.preprocessing.fingerprint import (
    ENCODER,
    FINGERPRINT_LENGTH,
    input_contents,
    prepared_fingerprint,
    tokenizer_digest,
)
from container.preprocessing.fit import fit_preprocessing, learn_label_map
from container.preprocessing.precomputed import load_precomputed, selected_features
from container.preprocessing.prepared import DISTRIBUTIONS, MARKER, SUMMARY, PreparedData, open_prepared
from container.preprocessing.risk_tables import fold_of
from container.preprocessing.scan import TableColumns, scan_held_out, scan_train
from container.preprocessing.slice_workers import SliceSettings, SliceWorkers
from container.preprocessing.split_file import write_split
from container.tables.channel_files import check_columns, input_format, iter_tables
from container.tables.data_files import find_data_files
from container.tables.values import texts
from container.text.encoder_config import read_config, with_overrides
from container.text.encoder_source import find_encoder, write_encoder_files
from container.text.tokenization import clean_texts
from container.text.vocabulary import learn_vocabulary
from contracts.artifacts import SELECTED_FEATURES, tokenizer_folder
from contracts.atomic_files import atomic_folder
from contracts.errors import ContractError
from contracts.file_systems import alone_in
from contracts.hyperparameters import Hyperparameters
from contracts.paths import SPLITS, JobPaths
from contracts.text_fields import TextField

logger = logging.getLogger(__name__)

UNFINISHED = "tmp-"
VOCABULARY_RECORDS = 200_000
VOCABULARY_CHARACTERS = 200_000_000
SCAN_ROWS = 1024


def prepare_data(
    paths: JobPaths,
    hp: Hyperparameters,
    *,
    on_inputs: Callable[[], None] = lambda: None,
    keep_others: int = 0,
    in_use: Collection[Path] = (),
) -> PreparedData:
    """Return the job's data, prepared under `paths.prepared`, or prepared there before from the same inputs.

    Args:
        on_inputs: called when the files, their columns and the encoders are found, before rows are read.
        keep_others: number of folders of data for other settings to keep, those that were used last.
        in_use: folders to keep beside them.

    Raises:
        ContractError: invalid input, with its file, column and row.
    """
    started = time.monotonic()
    files = {split: find_data_files(paths.channel(split), getattr(hp, f"{split}_filename")) for split in SPLITS}
    for split_files in files.values():
        input_format(split_files)
        check_columns(split_files, [*(hp.full_field_list or []), *TableColumns.of(hp).transformed])
    columns = _selected_columns(paths, hp)
    encoders = {field.role: find_encoder(field.tokenizer, paths) for field in hp.text_fields}
    for field in hp.text_fields:
        if encoders[field.role] is not None:
            logger.info("encoder %s: the files in %s", field.tokenizer, encoders[field.role])
    on_inputs()
    with alone_in(paths.prepared):  # so that unfinished folders in it belong to ended processes
        names = {field.tokenizer: encoders[field.role] for field in hp.text_fields}
        contents = input_contents(paths, files=files, encoders=names)
        folder = paths.prepared / prepared_fingerprint(hp, contents, encoders=encoders)
        reused = (folder / MARKER).is_file()
        for stale in paths.prepared.iterdir():
            if stale.name.startswith(UNFINISHED) and _is_ours(stale):
                shutil.rmtree(stale)
        if not reused:
            with atomic_folder(folder, temporary=paths.prepared / f"{UNFINISHED}{folder.name}") as temporary:
                _prepare(temporary, paths, hp, columns, contents=contents, files=files, encoders=encoders)
        (folder / MARKER).touch()  # used last
        _remove(paths.prepared, kept=[folder, *in_use], keep_others=keep_others)
    prepared = replace(open_prepared(folder), reused=reused)
    rows = ", ".join(f"{split} {count}" for split, count in prepared.rows.items())
    action = f"{'found prepared' if reused else 'prepared'} in {time.monotonic() - started:.1f} s"
    logger.info("Data %s: %s rows; %s.", action, rows, folder)
    return prepared


def discard_prepared(paths: JobPaths) -> None:
    """Remove the data that earlier runs prepared, and what is known of their inputs: the job starts over."""
    with alone_in(paths.prepared):
        paths.digests.unlink(missing_ok=True)
        _remove(paths.prepared)


def _remove(prepared: Path, *, kept: Collection[Path] = (), keep_others: int = 0) -> None:
    """Remove complete data, except for `kept` and the `keep_others` others that were used last."""
    others = [each for each in prepared.iterdir() if _is_ours(each) and (each / MARKER).is_file() and each not in kept]
    others.sort(key=lambda other: (other / MARKER).stat().st_mtime_ns, reverse=True)
    for other in others[keep_others:]:
        removed = other.with_name(f"{UNFINISHED}{other.name}")  # of which the next run removes the rest
        shutil.rmtree(other.rename(removed))


def check_folds(prepared: PreparedData, hp: Hyperparameters) -> None:
    """Raise ContractError where the rows that are divided have fewer units than cross_fit has folds."""
    units = []
    for name in ("train", "val") if hp.pools_val else ("train",):
        with pa.memory_map(str(prepared.split(name))) as file:
            table = pa.ipc.open_file(file).read_all()
        units.append(table["group"].to_numpy() if hp.group_name else sum(map(len, units)) + table["row"].to_numpy())
    count = len(np.unique(np.concatenate(units)))
    if count < hp.cross_fit:
        named = f"groups in column {hp.group_name!r} (group_name)" if hp.group_name else "rows"
        divided = "train and val have" if hp.pools_val else "train has"
        raise ContractError(
            f"cross_fit: is {hp.cross_fit}, but {divided} {count} {named}",
            "Set cross_fit to a smaller number or to 0, or give more training rows or, with group_name, more groups.",
        )


def _selected_columns(paths: JobPaths, hp: Hyperparameters) -> TableColumns:
    """Return the columns of the settings, restricted to those of selected_features.json.

    Raises:
        ContractError: an invalid file, or one that leaves no table column to a model that needs one.
    """
    file = paths.precomputed_artifacts / SELECTED_FEATURES
    if hp.architecture.table == "none":
        if file.is_file():
            logger.warning("%s has no effect: model_class %r reads no table columns.", file, hp.model_class)
        return TableColumns.of(hp)
    selected = selected_features(paths.precomputed_artifacts, TableColumns.of(hp).table)
    columns = TableColumns.of(hp, selected)
    if hp.architecture.table == "needed" and not columns.table:
        raise ContractError(
            f"{file}: selects no table column, but model_class {hp.model_class!r} combines text with table columns",
            "Name at least one column in the file, or choose bert.",
        )
    return columns


def _prepare(
    target: Path,
    paths: JobPaths,
    hp: Hyperparameters,
    columns: TableColumns,
    *,
    contents: Mapping[str, Any],
    files: Mapping[str, Sequence[Path]],
    encoders: Mapping[str, Path | None],
) -> None:
    target.mkdir(parents=True)
    precomputed = load_precomputed(
        paths.precomputed_artifacts,
        numeric_columns=columns.numeric,
        categorical_columns=columns.categorical,
    )
    train = str(paths.channel("train"))
    started = time.monotonic()
    statistics = {"train": scan_train(files["train"], hp, columns)}
    labels = learn_label_map(statistics["train"], hp, where=train)
    for split in SPLITS[1:]:
        dates = statistics["train"].dates
        statistics[split] = scan_held_out(files[split], hp, columns, labels=labels, dates=dates, channel=split)
    fitted, folds = fit_preprocessing(statistics["train"], hp, labels=labels, precomputed=precomputed, where=train)
    scanned = sum(split.rows for split in statistics.values())
    log_detail(logger, "Read %d rows and fitted on train in %.1f s.", scanned, time.monotonic() - started)
    tokenizer_digests = {}
    for field in hp.text_fields:
        encoder = target / tokenizer_folder(field.role)
        _write_encoder(encoder, encoders[field.role], field, hp, files=files["train"], rows=statistics["train"].rows)
        tokenizer_digests[field.role] = tokenizer_digest(encoder)
    fitted = replace(fitted, tokenizer_digests=tokenizer_digests)
    fitted.save(target)
    summary: dict[str, Any] = {"class_labels": list(fitted.class_labels), "splits": {}}
    digests = {name: content for name, content in contents.items() if name.startswith(ENCODER)}
    with SliceWorkers(target, folds, num_workers=hp.preprocess_workers or available_cores()) as workers:
        for split in SPLITS:
            written = write_split(
                target / f"{split}.arrow",
                files[split],
                columns,
                roles=[field.role for field in hp.text_fields],
                expected_rows=statistics[split].rows,
                workers=workers,
                settings=SliceSettings(is_train=split == "train", drop_unlabelled=hp.drop_unlabelled),
            )
            digests[split] = written.digest
            summary["splits"][split] = summarize_split(statistics[split], written, fitted, train=statistics["train"])
            log_split(split, summary["splits"][split])
            if split == "train":
                distributions = TableDistributions.of(statistics[split], written, fitted, files=files[split])
                (target / DISTRIBUTIONS).write_bytes(to_json(distributions))
    (target / SUMMARY).write_text(json.dumps(summary, indent=1, allow_nan=False), "utf-8")
    marker = {
        "rows": {split: described["rows"] for split, described in summary["splits"].items()},
        "weights": {role: str(source) if source else None for role, source in encoders.items()},
        "input_format": input_format(files["train"]),
        "digests": digests,
    }
    (target / MARKER).write_text(json.dumps(marker, indent=1), "utf-8")


def _write_encoder(
    target: Path, source: Path | None, field: TextField, hp: Hyperparameters, *, files: Sequence[Path], rows: int
) -> None:
    target.mkdir(parents=True, exist_ok=True)
    setting, tokenizer = (field.source(name, hp.model_fields_set) for name in ("max_sen_len", "tokenizer"))
    if source is None:
        messages = _vocabulary_texts(files, field, rows=rows, seed=hp.seed)
        learn_vocabulary(
            messages,
            target,
            encoder_config=hp.encoder_config,
            seed=hp.seed,
            max_sen_len=field.max_sen_len,
            length_setting=setting,
            tokenizer_setting=tokenizer,
            where=f"the text of column {field.name!r} in train",
        )
    else:
        write_encoder_files(source, target)
        if hp.encoder_config:
            config = with_overrides(read_config(target), hp.encoder_config)
            (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _vocabulary_texts(files: Sequence[Path], field: TextField, *, rows: int, seed: int) -> Iterator[str]:
    """Yield cleaned messages of train: of all records, or of a sample drawn by row number."""
    every = -(-rows // VOCABULARY_RECORDS)
    if every > 1:
        logger.info("The vocabulary of %r is learned on every %dth of %d records.", field.name, every, rows)
    characters = 0
    for part in iter_tables(files, field.columns, rows_per_batch=SCAN_ROWS):
        numbers = np.arange(part.first_row, part.first_row + part.table.num_rows)
        sample = np.flatnonzero(fold_of(numbers, seed=seed, num_folds=every) == 0)
        for messages in chain(*(clean_texts(field, texts(part.table[each].take(sample))) for each in field.columns)):
            characters += sum(map(len, messages))
            yield from messages
        if characters > VOCABULARY_CHARACTERS:
            logger.info("The vocabulary of %r is learned on its first %d characters.", field.name, characters)
            return


def _is_ours(folder: Path) -> bool:
    """Return whether a folder has the name of prepared data, complete or not; all others belong to the user."""
    named = re.fullmatch(f"({UNFINISHED})?[0-9a-f]{{{FINGERPRINT_LENGTH}}}", folder.name)
    return named is not None and folder.is_dir() and not folder.is_symlink()
