"""Describe the inputs of a job, so that a run with the same inputs reuses prepared data or goes on with a search."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from container.text.encoder_source import encoder_files
from contracts import artifacts
from contracts.fingerprint import ContentDigests, Fingerprint
from contracts.hyperparameters import Hyperparameters
from contracts.input_files import exists, files_below, is_foreign
from contracts.model_classes import FROM_SCRATCH
from contracts.paths import JobPaths

FORMAT_VERSION = 11
FINGERPRINT_LENGTH = 20
ENCODER = "the encoder "  # begins the name of its contents
TOKENIZER_SUFFIXES = (".json", ".txt", ".model")
# Settings that enter the hash through values derived from them, such as the data files or the text fields.
RESOLVED = frozenset(
    {
        *"train_filename val_filename model_class seed chunk_trancate max_total_chunks".split(),
        *(
            f"{role}{name}"
            for role in ("", "primary_", "secondary_")
            for name in ("tokenizer", "max_sen_len", "text_processing_steps", "text_name")
        ),
    }
)
FLAGS = (artifacts.USE_PRECOMPUTED_IMPUTATION, artifacts.USE_PRECOMPUTED_RISK_TABLES)


def input_contents(
    paths: JobPaths, *, files: Mapping[str, Sequence[Path]], encoders: Mapping[str, Path | None]
) -> dict[str, Any]:
    """Return hashes of the contents of data, precomputed artifacts and encoders, and the flags that are set, by name.

    They say which input has changed, also on another machine, where files have other times.

    Args:
        files: data files by split.
        encoders: folders by value of tokenizer; None for from_scratch.
    """
    digests = ContentDigests(paths.digests)

    def content(path: Path) -> str:
        return digests.of_content(path)[:FINGERPRINT_LENGTH]

    contents: dict[str, Any] = {
        f"{ENCODER}{name}": [content(path) for path in encoder_files(folder)]
        for name, folder in encoders.items()
        if folder is not None
    }
    for split, paths_of_split in files.items():
        channel = paths.channel(split)
        contents |= {f"the data file {split}/{path.relative_to(channel)}": content(path) for path in paths_of_split}
    precomputed = paths.precomputed_artifacts
    artifact_files = files_below(precomputed).files if exists(precomputed) else []
    contents |= {f"the file {path.relative_to(precomputed.parent)}": content(path) for path in artifact_files}
    digests.save()
    flags = {f"the variable {name}": os.environ.get(name, "false").lower() for name in FLAGS}
    return {**contents, **{name: value for name, value in flags.items() if value != "false"}}


def prepared_fingerprint(
    hp: Hyperparameters, contents: Mapping[str, Any], *, encoders: Mapping[str, Path | None]
) -> str:
    """Return the hash of the inputs, preprocessing settings and format version.

    Args:
        contents: `input_contents`.
        encoders: folder of each role's encoder; None for from_scratch.
    """
    random = any(field.tokenizer == FROM_SCRATCH for field in hp.text_fields) or (
        hp.architecture.uses_table and hp.risk_table_folds > 1 and bool(hp.encoded_categories)
    )
    parts = {
        "format": FORMAT_VERSION,
        "contents": contents,
        "settings": {name: getattr(hp, name) for name in hp.names_of("prepare") if name not in RESOLVED},
        "seed": hp.seed if random else None,
        "uses_table": hp.architecture.uses_table,
        "texts": [astuple(field.of_data) for field in hp.text_fields],
        "encoders": encoders,
    }
    return Fingerprint.of(parts).digest(FINGERPRINT_LENGTH)


def tokenizer_digest(folder: Path) -> str:
    """Return the hash of the tokenizer and configuration files of an encoder folder, without the weights."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in TOKENIZER_SUFFIXES and path.is_file() and not is_foreign(path.name):
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()
