"""Find the earlier model from whose weights a job starts, and check that it fits the job."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from container.job.job import InitialModel
from container.preprocessing.prepared import PreparedData
from container.steps.archives import extract_archive
from contracts import artifacts
from contracts.errors import ContractError, shown
from contracts.fingerprint import digest_of_file
from contracts.hyperparameters import Hyperparameters
from contracts.input_files import exists, read_object
from contracts.model_classes import FROM_SCRATCH, model_class
from contracts.paths import JobPaths
from contracts.steps import ARCHIVED_MODEL

logger = logging.getLogger(__name__)

_FIX = "Name the folder of a completed training job, its model/ or its model.tar.gz."
_OF_FILES = ("vocab_size", "_name_or_path", "transformers_version", "torch_dtype", "dtype")  # no sizes of the encoder


def find_initial_model(paths: JobPaths, named: Path | None, *, scratch: Path) -> InitialModel | None:
    """Return the model of `train --initial-model`, or of the channel initial_model; None without either.

    Raises:
        ContractError: there is no model, or only what serving needs of it.
    """
    channel = paths.initial_model
    if named is None and not (channel.is_dir() and any(channel.iterdir())):
        return None
    source = channel if named is None else named
    folders = [source, source / "model"]
    archives = [each / ARCHIVED_MODEL for each in folders] + [source]
    archive = next((path for path in archives if path.name.endswith(".tar.gz") and path.is_file()), None)
    folder = next((each for each in folders if (each / artifacts.HYPERPARAMETERS).is_file()), None)
    if folder is None and archive is not None:
        folder = scratch / channel.name
        extract_archive(archive, folder)
    if folder is None:
        raise ContractError(f"initial_model: {source} has no model", _FIX)
    if not exists(folder / artifacts.MODEL_STATE):
        raise ContractError(
            f"initial_model: {source} has no {artifacts.MODEL_STATE}: it is a package for serving",
            f"{_FIX} Or package the model with INCLUDE_WEIGHTS=true.",
        )
    return InitialModel(source, folder, digest_of_file(folder / artifacts.MODEL_STATE))


def _settings(initial: InitialModel) -> dict[str, Any]:
    return read_object(initial.folder / artifacts.HYPERPARAMETERS, artifacts.MODEL_FIX)


def check_settings(initial: InitialModel, hp: Hyperparameters) -> None:
    """Raise ContractError if the job trains several networks, or another model class."""
    if hp.tuning is not None or hp.num_members > 1:
        name = "tuning" if hp.tuning is not None else "cross_fit" if hp.cross_fit else "ensemble"
        raise ContractError(
            f"initial_model: {name} trains several networks, and an initial model is the start of one",
            f"Remove {name}, or the initial model.",
        )
    earlier = model_class(str(_settings(initial).get("model_class"))).name
    if earlier != hp.architecture.name:
        raise ContractError(
            f"initial_model: {initial.source} is a {earlier}, and model_class is {hp.architecture.name}",
            f"Set model_class to {earlier}, or train without the initial model.",
        )


def warn_of_val(initial: InitialModel) -> None:
    """Warn if the earlier model trained on its val: where the job has these rows in val, it knows them."""
    if _settings(initial).get("choose_on") == "out_of_fold":
        logger.warning(
            "initial model %s: it trained on rows of its val too (choose_on is out_of_fold). Where val has these "
            "rows, its figures are too good, and so is what they choose; test is not affected",
            initial.source,
        )


def check_encoders(initial: InitialModel, hp: Hyperparameters, prepared: PreparedData) -> None:
    """Raise ContractError if an encoder has another configuration."""
    settings = _settings(initial)
    for field in hp.text_fields:
        folder = artifacts.tokenizer_folder(field.role)
        paths = initial.folder / folder / "config.json", prepared.encoders[field.role].config_folder / "config.json"
        before, after = (read_object(path, artifacts.MODEL_FIX) for path in paths)
        changed = _changed(before, after, _OF_FILES if field.tokenizer == FROM_SCRATCH else _OF_FILES[1:])
        if changed:
            setting = field.source("tokenizer", hp.model_fields_set)
            named = settings.get(setting) or settings.get("tokenizer")
            raise ContractError(
                f"initial_model: {initial.source} has the encoder {shown(named)} for {field.name!r}, with "
                f"{changed} {shown(before.get(changed))}; {setting} is {shown(field.tokenizer)}, with "
                f"{shown(after.get(changed))}",
                "Use the encoder of the earlier model, or train without the initial model.",
            )


def _changed(before: Mapping[str, Any], after: Mapping[str, Any], left_out: tuple[str, ...]) -> str | None:
    names = [name for name in [*before, *after] if name not in left_out]
    return next((name for name in names if before.get(name) != after.get(name)), None)
