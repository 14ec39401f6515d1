"""Describe the job that a plan is for: its settings, its encoders, and the lengths of its texts."""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from container.data.batch import PackedBatch, PackedText
from container.job.hosts.channels import find_channels
from container.models.build import build_classifier
from container.models.classifier import Classifier
from container.models.lora import add_lora
from container.parallel.encoder_checks import EncoderShape, encoder_config
from container.planning.catalogue import Catalogue
from container.preprocessing.infer_classes import with_classes_of_train
from container.preprocessing.numeric_transform import NumericTransformParameters
from container.preprocessing.prepared import EncoderFiles
from container.tables.channel_files import iter_tables, read_head
from container.tables.data_files import find_data_files
from container.tables.values import texts
from container.text.chunk_tokenizer import ChunkTokenizer
from container.text.encoder_source import find_encoder, write_encoder_files
from container.text.tokenization import TextProcessor, clean_texts
from container.text.vocabulary import learn_vocabulary
from contracts.errors import ContractError
from contracts.hyperparameter_files import GivenSettings, choose_settings, parse_hyperparameters, read_settings
from contracts.hyperparameters import Hyperparameters
from contracts.model_classes import FROM_SCRATCH
from contracts.paths import SPLITS, JobPaths
from contracts.text_fields import ModelTextField

logger = logging.getLogger(__name__)

SAMPLE_ROWS = 2_000
_COUNTED_ROWS = 65_536  # at once
_SPREAD = 0.7  # standard deviation of the logarithm of a length, without data; as in benchmarks/encoders.py
_CHARACTERS = 4  # per token, where the tokenizer's files are missing
DEVIATIONS = 3  # above the mean: the largest of several hundred batches
_MOST_TOKENS = 1 << 25  # of a pass; an array of them takes 256 MiB
_HELD_OUT = 0.125  # rows of val, and of test, for each row of train, where only --rows is known

Lengths = tuple[tuple[int, ...], ...]  # of a record: tokens of the chunks of each of its texts


@dataclass(frozen=True)
class Workload:
    """A job before it is divided over processes.

    Attributes:
        hp: the job's settings.
        encoders: the effective config.json of each text's encoder, and its folder.
        rows: by split.
        sample: records of train, or drawn ones.
    """

    hp: Hyperparameters
    encoders: tuple[EncoderShape, ...]
    folders: tuple[Path, ...]
    rows: Mapping[str, int]
    sample: tuple[Lengths, ...]

    def changed(self, settings: Mapping[str, Any]) -> "Workload":
        """Return the job with other settings; raise ContractError if they contradict each other."""
        hp = parse_hyperparameters({**self.hp.model_dump(mode="json", exclude_unset=True), **settings})
        sample, limits = self.sample, [field.max_sen_len for field in hp.text_fields]
        if limits != [field.max_sen_len for field in self.hp.text_fields]:
            sample = tuple(
                tuple(tuple(min(limit, n) for n in text) for limit, text in zip(limits, record, strict=True))
                for record in sample
            )
        return replace(self, hp=hp, sample=sample)

    def build(self) -> Classifier:
        """Return the plain model with random weights."""
        files = [EncoderFiles(folder) for folder in self.folders]
        transform = NumericTransformParameters("none")
        model = build_classifier(self.hp, files, tabular_dim=self.tabular_dim, numeric_transform=transform)
        add_lora(model, self.hp)
        return model

    @cached_property
    def tabular_dim(self) -> int:
        """Return about the number of tabular inputs, whose memory is small."""
        hp = self.hp
        values = 1 if hp.num_classes == 2 else hp.num_classes
        return (
            2 * len(hp.tab_field_list or []) + 6 * len(hp.date_field_list or []) + values * len(hp.encoded_categories)
        )

    @cached_property
    def tokens(self) -> np.ndarray:
        """Return the tokens of each sampled record. [R]"""
        return np.array([sum(map(sum, record)) for record in self.sample], dtype=float)

    def check_size(self) -> None:
        """Raise ContractError for a pass with so many tokens that the plan itself would run out of memory."""
        mean = self.tokens.mean()
        tokens = max(mean, min(mean * self.hp.batch_size, self.hp.max_tokens_per_batch or math.inf))
        if tokens > _MOST_TOKENS:
            raise ContractError(
                f"batch_size: {self.hp.batch_size:,} records have about {tokens:,.0f} tokens, of which a plan computes "
                f"at most {_MOST_TOKENS:,}",
                "Lower batch_size, --global-batch, --tokens or max_total_chunks, or set max_tokens_per_batch.",
            )

    def batch(self, records: int, *, margin: float = DEVIATIONS) -> PackedBatch:
        """Return a batch of `records` records with about the most tokens of a run, or as max_tokens_per_batch allows.

        Args:
            margin: standard deviations of the tokens of a batch above their mean.
        """
        mean, limit = self.tokens.mean(), self.hp.max_tokens_per_batch
        if limit:
            records = max(1, min(records, int(limit / mean)))
        wanted = mean + (0 if limit else margin) * self.tokens.std() / math.sqrt(records)
        ordered = np.argsort(self.tokens, kind="stable")
        quantiles = (np.arange(records) + 0.5) / records
        chosen = ordered
        for power in np.linspace(1, 0, 65):  # the lower, the longer the records
            chosen = ordered[np.minimum((quantiles**power * len(ordered)).astype(int), len(ordered) - 1)]
            if self.tokens[chosen].mean() >= wanted:
                break
        return packed([self.sample[i] for i in chosen], tabular_dim=self.tabular_dim)


def packed(records: Sequence[Lengths], *, tabular_dim: int) -> PackedBatch:
    """Return a batch of records with these lengths, and arbitrary tokens."""
    fields = []
    for index in range(len(records[0])):
        lengths = [length for record in records for length in record[index]]
        chunk_record = torch.repeat_interleave(torch.tensor([len(record[index]) for record in records]))
        tokens = torch.ones(sum(lengths), dtype=torch.int64)
        fields.append(PackedText.of_chunks(tokens, lengths=lengths, chunk_record=chunk_record))
    count = len(records)
    return PackedBatch(
        texts=tuple(fields),
        tabular=torch.zeros(count, tabular_dim),
        labels=torch.zeros(count, dtype=torch.int64),
        rows=torch.arange(count),
        weights=torch.ones(count),
    )


def read_workload(
    paths: JobPaths, catalogue: Catalogue, *, scratch: Path, rows: int | None = None, tokens: Sequence[float] = ()
) -> Workload:
    """Return the workload of a job's folder.

    Args:
        scratch: an empty folder for config.json of the encoders; it must stay.
        rows: of train; by default, the rows of the files.
        tokens: mean of each text, or one for all; by default, the tokens of the first rows of train.

    Raises:
        ContractError: invalid settings or files; or no data, and no rows or tokens.
    """
    paths = find_channels(paths)
    settings = read_settings(paths)
    has_data = paths.channel("train").is_dir() and any(paths.channel("train").iterdir())
    if not has_data and not (rows and tokens):
        missing = [option for option, value in (("--rows N", rows), ("--tokens MEAN", tokens)) if not value]
        raise ContractError(
            f"{paths.channel('train')}: there is no data, and {' and '.join(missing)} {_is(missing)} missing",
            f"Give {' and '.join(missing)}: the rows of train, and the mean number of tokens of a text; or put at "
            "least a sample of the data there.",
        )
    hp = _settings(settings, paths, has_data=has_data)
    if not hp.text_fields:
        cause = f"model_class: {hp.model_class!r} has no encoder, which a plan is about"
        raise ContractError(cause, "Train it on any instance, also without a GPU.")
    encoders = [_encoder(paths, hp, field, catalogue) for field in hp.text_fields]
    files = find_data_files(paths.channel("train"), hp.train_filename) if has_data else []
    if tokens:
        sample = _drawn(hp, tokens)
    else:
        sample = _sampled(hp, files, paths, scratch)
    counts = {"train": rows} if rows else _count(paths, hp)
    counts = {split: counts.get(split, round(_HELD_OUT * counts["train"])) for split in SPLITS}
    folders = []
    for shape in encoders:
        folder = scratch / f"encoder-{shape.role}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(dict(shape.config)))
        folders.append(folder)
    return Workload(hp, tuple(encoders), tuple(folders), counts, sample)


def _is(names: Sequence[str]) -> str:
    return "are" if len(names) > 1 else "is"


def _settings(given: GivenSettings, paths: JobPaths, *, has_data: bool) -> Hyperparameters:
    return choose_settings(with_classes_of_train(given, paths) if has_data else given).hp


def _encoder(paths: JobPaths, hp: Hyperparameters, field: ModelTextField, catalogue: Catalogue) -> EncoderShape:
    """Return the encoder of a text, from its files, or from the catalogue if they are not found."""
    try:
        config = encoder_config(paths, hp, field)
    except ContractError:
        known = catalogue.encoders.get(field.tokenizer.rpartition("/")[2])
        if known is None:
            raise
        logger.info("encoder %s: its files are not here; its sizes are those of the catalogue", field.tokenizer)
        config = {"model_type": "bert", **known}
    return EncoderShape(field.role, field.tokenizer, config)


def _drawn(hp: Hyperparameters, tokens: Sequence[float]) -> tuple[Lengths, ...]:
    """Return records whose texts have lognormal lengths with these means."""
    means = list(tokens) * (len(hp.text_fields) if len(tokens) == 1 else 1)
    if len(means) != len(hp.text_fields) or min(means) < 1:
        raise ContractError(
            f"--tokens: {', '.join(f'{mean:g}' for mean in tokens)} for {len(hp.text_fields)} texts",
            "Give the mean number of tokens of a text, at least 1: one number for all texts, or one for each.",
        )
    random = np.random.default_rng(0)
    columns = []
    for field, mean in zip(hp.text_fields, means, strict=True):
        drawn = np.maximum(1, random.lognormal(np.log(mean) - _SPREAD**2 / 2, _SPREAD, SAMPLE_ROWS).round().astype(int))
        columns.append([_chunks(int(length), field) for length in drawn])
    return tuple(zip(*columns, strict=True))


def _chunks(length: int, field: ModelTextField) -> tuple[int, ...]:
    full, rest = divmod(length, field.max_sen_len)
    return ((field.max_sen_len,) * min(full, field.max_chunks or full) + (rest,) * bool(rest))[: field.max_chunks]


def _sampled(hp: Hyperparameters, files: Sequence[Path], paths: JobPaths, scratch: Path) -> tuple[Lengths, ...]:
    columns = []
    for field in hp.text_fields:
        table = read_head(files, field.columns, SAMPLE_ROWS).table
        cells = [texts(table[name]) for name in field.columns]
        tokenizer = _tokenizer(hp, field, cells, paths, scratch / f"tokenizer-{field.role}")
        if tokenizer is None:
            lengths = [2 + sum(len(cell or "") for cell in row) // _CHARACTERS for row in zip(*cells, strict=True)]
            columns.append([_chunks(length, field) for length in lengths])
            continue
        encoded = TextProcessor(field, tokenizer).process(*cells)
        of_records = np.split(encoded.chunk_lengths, np.cumsum(encoded.chunk_counts)[:-1])
        columns.append([tuple(lengths.tolist()) for lengths in of_records])
    return tuple(zip(*columns, strict=True))


def _tokenizer(
    hp: Hyperparameters, field: ModelTextField, cells: Sequence[Sequence[str | None]], paths: JobPaths, target: Path
) -> ChunkTokenizer | None:
    """Return the tokenizer of a text, learned on the sample for from_scratch; None if its files are not found."""
    if field.tokenizer == FROM_SCRATCH:
        pieces = (piece for column in cells for record in clean_texts(field, column) for piece in record)
        learn_vocabulary(pieces, target, encoder_config=hp.encoder_config, seed=hp.seed, max_sen_len=field.max_sen_len)
        return ChunkTokenizer.from_folder(target)
    try:
        folder = find_encoder(field.tokenizer, paths)
    except ContractError:
        return None
    assert folder is not None, "only from_scratch has none"
    if not (folder / "tokenizer.json").is_file():
        write_encoder_files(folder, target)
        return ChunkTokenizer.from_folder(target)
    return ChunkTokenizer.from_folder(folder)


def _count(paths: JobPaths, hp: Hyperparameters) -> dict[str, int]:
    """Return the rows of each split that has files."""
    counts = {}
    for split in SPLITS:
        folder = paths.channel(split)
        if folder.is_dir():
            files = find_data_files(folder, getattr(hp, f"{split}_filename"))
            parts = iter_tables(files, [hp.label_name], rows_per_batch=_COUNTED_ROWS)
            counts[split] = sum(part.table.num_rows for part in parts)
    return counts
