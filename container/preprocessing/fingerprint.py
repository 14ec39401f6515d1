"""Describe the inputs of a job, so that a run with the same inputs reuses prepared data or goes on with a search."""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any

from container.tables.data_files import find_data_files
from container.text.encoder_source import encoder_files, find_encoder
from contracts import artifacts
from contracts.fingerprint import Fingerprint, digest_of_file
from contracts.hyperparameters import Hyperparameters
from contracts.input_files import exists, files_below, is_foreign
from contracts.model_classes import FROM_SCRATCH
from contracts.paths import SPLITS, JobPaths

FORMAT_VERSION = 9
FINGERPRINT_LENGTH = 20
EDGE_BYTES = 1 << 16
TOKENIZER_SUFFIXES = (".json", ".txt", ".model")
# Settings that enter the hash through values derived from them, such as the data files or the text fields.
RESOLVED = frozenset(
    {
        "train_filename", "val_filename", "model_class", "seed", "chunk_trancate", "max_total_chunks",
        *(f"{role}{name}" for role in ("", "primary_", "secondary_")
          for name in ("tokenizer", "max_sen_len", "text_processing_steps", "text_name")),
    }
)  # fmt: skip
FLAGS = (artifacts.USE_PRECOMPUTED_IMPUTATION, artifacts.USE_PRECOMPUTED_RISK_TABLES)


def input_fingerprint(
    paths: JobPaths,
    hp: Hyperparameters,
    *,
    files: Mapping[str, Sequence[Path]],
    encoders: Mapping[str, Path | None],
) -> str:
    """Return the hash of the input files, preprocessing settings, tokenizers, precomputed artifacts and format version.

    Args:
        files: data files by split; their path, size, time, head and tail enter the hash.
        encoders: folder of each role's encoder; None for from_scratch.

    In a warm pool, whole files are hashed: the service downloads them for each job, with other times.
    """
    precomputed = _files(paths.precomputed_artifacts)
    describe = partial(_describe, whole=paths.in_warm_pool)
    random = any(field.tokenizer == FROM_SCRATCH for field in hp.text_fields) or (
        hp.architecture.uses_table and hp.risk_table_folds > 1 and bool(hp.encoded_categories)
    )
    parts = {
        "format": FORMAT_VERSION,
        "files": {
            split: [describe(path, paths.channel(split)) for path in paths_of_split]
            for split, paths_of_split in files.items()
        },
        "settings": {name: getattr(hp, name) for name in hp.names_of("prepare") if name not in RESOLVED},
        "seed": hp.seed if random else None,
        "uses_table": hp.architecture.uses_table,
        "texts": [astuple(field.of_data) for field in hp.text_fields],
        "encoders": {role: [str(folder), tokenizer_digest(folder)] for role, folder in encoders.items() if folder},
        "flags": {name: os.environ.get(name, "false").lower() for name in FLAGS},
        "precomputed": [describe(path, paths.precomputed_artifacts) for path in precomputed],
    }  # fmt: skip
    return Fingerprint.of(parts).digest(FINGERPRINT_LENGTH)


def input_contents(paths: JobPaths, hp: Hyperparameters, *, encoders: Iterable[str]) -> dict[str, Any]:
    """Return hashes of the contents of train, val, precomputed artifacts and encoders, and the flags that are set.

    They say which input has changed, also on another machine, where files have other times.

    Args:
        encoders: values of tokenizer.
    """
    folders = {name: find_encoder(name, paths) for name in encoders}
    data = {split: find_data_files(paths.channel(split), getattr(hp, f"{split}_filename")) for split in SPLITS[:2]}
    precomputed = paths.precomputed_artifacts
    artifact_files = files_below(precomputed).files if exists(precomputed) else []
    contents: dict[str, Any] = {
        f"the encoder {name}": [_content(path) for path in encoder_files(folder)]
        for name, folder in folders.items()
        if folder is not None
    }
    contents |= {f"the data file {split}/{path.name}": _content(path) for split in data for path in data[split]}
    contents |= {f"the file {path.relative_to(precomputed.parent)}": _content(path) for path in artifact_files}
    flags = {f"the variable {name}": os.environ.get(name, "false").lower() for name in FLAGS}
    return {**contents, **{name: value for name, value in flags.items() if value != "false"}}


def _content(path: Path) -> str:
    return digest_of_file(path)[:FINGERPRINT_LENGTH]


def tokenizer_digest(folder: Path) -> str:
    """Return the hash of the tokenizer and configuration files of an encoder folder, without the weights."""
    digest = hashlib.sha256()
    for path in _files(folder):
        if path.suffix in TOKENIZER_SUFFIXES:
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_file() and not is_foreign(path.name))


def _describe(path: Path, folder: Path, *, whole: bool) -> Iterable[Any]:
    if whole:
        return [str(path.relative_to(folder)), digest_of_file(path)]
    status = path.stat()
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        digest.update(stream.read(EDGE_BYTES))
        if status.st_size > EDGE_BYTES:
            stream.seek(max(EDGE_BYTES, status.st_size - EDGE_BYTES))
            digest.update(stream.read())
    return [str(path.relative_to(folder)), status.st_size, status.st_mtime_ns, digest.hexdigest()]
