"""Keep the trials of a search in an Optuna study, and draw the settings of the next trial."""

import hashlib
import json
import logging
import os
import sqlite3
import warnings
import zlib
from collections.abc import Container, Mapping
from contextlib import closing
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from container.evaluation.metrics import classification_metrics
from container.preprocessing.fingerprint import FLAGS
from container.tables.data_files import find_data_files
from container.text.encoder_source import encoder_files, find_encoder
from contracts.atomic_files import AtomicFile, temporary_path, write_text_atomically
from contracts.errors import ContractError, first_line, shown
from contracts.hyperparameters import Hyperparameters
from contracts.input_files import exists, files_below, read_object
from contracts.monitored_metric import LOSS
from contracts.paths import JobPaths
from contracts.presets import chosen_by_data
from contracts.tuning import Choices, Range
from contracts.tuning_space import (
    is_whole,
    metric_of,
    most_validations,
    num_combinations,
    space_of,
    trial_settings,
)

logger = logging.getLogger(__name__)

_FILE, _BACKUP, _IDENTITY, _NAME = "study.db", "study-backup.db", "search.json", "search"
_START_OVER = "Copy the file again, or start over with resume=false, which removes the search."
_STARTUP = 6  # trials with random settings, before TPE has a model of the space
_REDUCTION = 3  # of the trials that reach a rung, about one in three continues
_EQUAL = 1e-6  # the trees of fANOVA cannot divide values that differ by less
_RUNGS = (9, 3)  # parts of the validations of the longest trial
# Beside the settings with the scopes prepare and train, trials depend on these.
_LENGTH = ("batch_size", "accumulate_grad_batches", "max_epochs", "val_check_interval", "early_stop_patience")
_MESH = ("tp_size", "pp_size", "branch_size", "gradient_compression")  # the first three divide the global batch
_REPLACED = "settings that you set, so that the preset does not choose them by the data"


class TuningStudy:
    """The trials of a search, in SQLite: a kill at any moment loses no finished trial.

    The settings of a trial are a function of the seed, its number and the finished trials, so that a search that was
    killed draws the same settings as one that was not.

    Args:
        num_workers: processes of each trial, which determine its global batch.
        given: the settings that the user set; the preset of `hp` chooses the others for each trial.

    Attributes:
        validations: of the longest trial, or None, as in `most_validations`; they decide when a trial may end early.
    """

    def __init__(self, paths: JobPaths, hp: Hyperparameters, *, num_workers: int, given: Container[str] = ()) -> None:
        self._hp = hp
        self.metric = metric_of(hp)
        self._space = space_of(hp)
        self.validations = most_validations(hp, hp.model_fields_set, None)
        folder = paths.tuning
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        _check_identity(folder / _IDENTITY, _identity(paths, hp, num_workers=num_workers, given=given))
        self._file, self._backup, self._identity_file = folder / _FILE, folder / _BACKUP, folder / _IDENTITY
        if not self._file.is_file() and not self._backup.is_file():
            self._create(folder)
        try:
            self._load()
        except ContractError as error:
            if not self._backup.is_file():
                raise
            logger.warning("%s; the search goes on from the last finished trial, with %s", error.cause, self._backup)
            self._file.with_name(f"{_FILE}-journal").unlink(missing_ok=True)  # SQLite would apply it to the backup
            os.replace(self._backup, self._file)
            self._load()
            self.back_up()

    def _load(self) -> None:
        try:
            if not self._file.is_file():
                raise FileNotFoundError("the file is missing")
            self._storage = _storage(self._file)
            self._study = optuna.load_study(study_name=_NAME, storage=self._storage)
            self._study.get_trials()
        except Exception as error:  # of SQLite, SQLAlchemy or Optuna: the file is damaged, or of another version
            raise ContractError(
                f"{self._file}: contains no search that can be continued: {first_line(error)}", _START_OVER
            ) from error

    def back_up(self) -> None:
        """Replace the backup by a copy of the study: a sync of the folder may read study.db while it is written."""
        with AtomicFile(self._backup) as temporary:
            temporary.unlink(missing_ok=True)
            with closing(sqlite3.connect(self._file)) as source, closing(sqlite3.connect(temporary)) as copy:
                source.backup(copy)

    def discard(self) -> None:
        """Remove the study, so that the next search may have other inputs."""
        self._storage.engine.dispose()
        for file in (self._backup, self._file, self._identity_file):
            file.unlink(missing_ok=True)

    def _create(self, folder: Path) -> None:
        """Create the study completely or not at all; its first trial has the settings of the job."""
        temporary = temporary_path(folder / _FILE)
        temporary.unlink(missing_ok=True)
        storage = _storage(temporary)
        direction = "minimize" if self.metric.minimizes else "maximize"
        study = optuna.create_study(storage=storage, study_name=_NAME, direction=direction)
        given = self._hp.model_dump(mode="json")
        study.enqueue_trial({name: each for name in self._space for each in _as_drawn(self._space[name], given[name])})
        storage.engine.dispose()
        os.replace(temporary, folder / _FILE)

    @property
    def trials(self) -> list[FrozenTrial]:
        """Return the trials that have begun, in order."""
        return [trial for trial in self._study.get_trials() if trial.state != TrialState.WAITING]

    @property
    def finished(self) -> int:
        """Return the number of finished trials."""
        return sum(trial.state.is_finished() for trial in self.trials)

    @property
    def best(self) -> FrozenTrial | None:
        """Return the best complete trial; None if no trial is complete.

        Of equal values, the lower val/loss decides, unless the space has class_weights, on which it depends.
        """
        complete = [trial for trial in self.trials if trial.state == TrialState.COMPLETE]
        loss = None if "class_weights" in self._space else LOSS
        return min(complete, key=lambda each: self.metric.rank(each.value, each.user_attrs.get(loss)), default=None)

    @property
    def trained(self) -> FrozenTrial | None:
        """Return a trial that has validated; None if there is none."""
        return next((trial for trial in self.trials if trial.intermediate_values or trial.value is not None), None)

    @property
    def interrupted(self) -> bool:
        """Return whether a trial has validated and has not ended."""
        return any(trial.intermediate_values and not trial.state.is_finished() for trial in self.trials)

    def begin(self, unfinished: FrozenTrial | None = None) -> Trial:
        """Begin a new trial, or continue an unfinished one."""
        trial = self._study.ask() if unfinished is None else Trial(self._study, unfinished._trial_id)
        self._study.sampler = sampler(f"{self._hp.seed} {trial.number}")
        _ = trial.relative_params  # of TPE, drawn together
        for name, values in self._space.items():
            # Of a trial that was killed here, some settings are drawn already.
            self._study.sampler = sampler(f"{self._hp.seed} {trial.number} {name}")
            _suggest(trial, name, values)
        return trial

    def report(self, trial: Trial, *, step: int, value: float) -> bool:
        """Record the best value of a trial up to validation `step`; return whether the trial should end there.

        The rule is asynchronous successive halving (ASHA, Li et al., 2020): after the validation of a rung, a trial
        continues only if it is among the best third of the trials that came as far. The rule uses recorded values
        only, so a trial that was killed before its end was recorded ends when the search goes on. Failed trials do not
        compete: a trial that diverges may be the best one before.
        """
        competing = {each.number: each.intermediate_values for each in self.trials if each.state != TrialState.FAIL}
        if step not in competing[trial.number]:
            trial.report(value, step)
            competing[trial.number][step] = value
        if step not in _rungs(self.validations):
            return False
        values = [reported[step] for reported in competing.values() if step in reported]
        better = sum(self.metric.rank(each) < self.metric.rank(value) for each in values)
        return better >= max(1, len(values) // _REDUCTION)

    def same_as(self, trial: Trial) -> int | None:
        """Return the number of the first trial before `trial` with the same settings; None if there is none."""
        before = (each for each in self.trials if each.number < trial.number)
        return next((each.number for each in before if each.params == trial.params), None)

    @property
    def is_exhausted(self) -> bool:
        """Return whether every combination of the space has been tried."""
        tried = {json.dumps(trial.params, sort_keys=True) for trial in self.trials}
        return len(tried) >= num_combinations(self._space)

    def settings(self, trial: Trial | FrozenTrial) -> dict[str, Any]:
        """Return the values that a trial changes, by hyperparameter."""
        spaces = ((name, self._space[name], value) for name, value in trial.params.items())
        return {
            name: _exact(values, value) if isinstance(values, Range) else json.loads(value)
            for name, values, value in spaces
        }

    def finish(self, trial: Trial, state: TrialState, *, value: float | None = None, **facts: Any) -> None:
        """Record the end of a trial, with facts about it."""
        for name, fact in facts.items():
            trial.set_user_attr(name, fact)
        self._study.tell(trial, value if state == TrialState.COMPLETE else None, state=state)
        self.back_up()

    def note(self, name: str, value: Any) -> None:
        """Record a fact about the search."""
        self._study.set_user_attr(name, value)

    @property
    def notes(self) -> Mapping[str, Any]:
        return self._study.user_attrs

    def importance(self) -> dict[str, float]:
        """Return the share of each setting in the variation of the metric; empty if the complete trials do not vary."""
        complete = (trial for trial in self.trials if trial.state == TrialState.COMPLETE)
        values = [trial.value for trial in complete if trial.value is not None]
        if not values or max(values) - min(values) < _EQUAL:
            return {}
        # fANOVA: Optuna's default, PED-ANOVA, describes the best tenth of the trials, often a single one.
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        return optuna.importance.get_param_importances(self._study, evaluator=evaluator)


def sampler(seed: str) -> BaseSampler:
    return TPESampler(seed=zlib.crc32(seed.encode()), n_startup_trials=_STARTUP, multivariate=True, constant_liar=True)


def check_metric(hp: Hyperparameters, val_classes: Mapping[str, int]) -> None:
    """Raise ContractError if the search's metric is undefined on val, even for a model without an error.

    Args:
        val_classes: labelled val records of each class, by label.
    """
    metric = metric_of(hp).name
    labels = np.repeat(np.arange(len(val_classes)), list(val_classes.values()))
    name = "accuracy" if metric == "val/loss" else metric.removeprefix("val/")  # both need one label
    right = np.eye(len(val_classes))[labels]
    reason = classification_metrics(labels, right, [name], class_labels=list(val_classes)).undefined.get(name)
    if reason is not None:
        raise ContractError(
            f"tuning.metric: {metric} is undefined on val: {reason}",
            "Add labelled records of the other classes to val, or choose another metric.",
        )


def _rungs(most: int | None) -> set[int]:
    """Return the validations after which a trial may end early: about a ninth and a third of those of the longest."""
    if most is None:  # it depends on the batch size
        return {1, _REDUCTION}
    return {max(1, round(most / part)) for part in _RUNGS}


def _storage(path: Path) -> RDBStorage:
    # A path in the URL would be decoded: instead of a?b, it would open a. Any thread may use a connection of the pool.
    connect = partial(sqlite3.connect, path, timeout=60, check_same_thread=False)
    return RDBStorage(f"sqlite:///{_FILE}", engine_kwargs={"creator": connect})


def _as_drawn(values: Range | Choices, value: Any) -> list[Any]:
    """Return a setting of the job as a trial has it, in a list; an empty list if the space does not contain it."""
    if not isinstance(values, Range):
        return [json.dumps(each) for each in values if each == value][:1]
    if value is None or not values.low <= value <= values.high:
        return []
    if not values.step:
        return [value]
    steps = (value - values.low) / values.step
    on_grid = min(values.low + round(steps) * values.step, values.high)  # as Optuna rounds: 0.1 + 2 * 0.1 is not 0.3
    return [type(value)(on_grid)] if abs(steps - round(steps)) < 1e-8 else []


def _exact(values: Range, value: Any) -> Any:
    """Return a value at a step of a range as it is written in decimals: 0.3 for 0.1 + 2 * 0.1."""
    if not values.step:
        return value
    steps = round((value - values.low) / values.step)
    return type(value)(Decimal(repr(values.low)) + steps * Decimal(repr(values.step)))


def _suggest(trial: Trial, name: str, values: Range | Choices) -> None:
    if not isinstance(values, Range):
        trial.suggest_categorical(name, [json.dumps(value) for value in values])
        return
    log = values.scale == "log"
    if is_whole(name):
        step = int(values.step or 1)
        trial.suggest_int(name, int(values.low), int(values.high), step=step, log=log)
    else:
        trial.suggest_float(name, float(values.low), float(values.high), step=values.step, log=log)


def _identity(paths: JobPaths, hp: Hyperparameters, *, num_workers: int, given: Container[str]) -> dict[str, Any]:
    """Return what must not change in a search, by name: the metric, the space, the other settings and the data."""
    space, settings = space_of(hp), trial_settings(hp, {})
    precomputed = paths.precomputed_artifacts
    names = {*hp.names_of("prepare", "train"), *_LENGTH, *_MESH} - {*space, "early_stop_metric"}
    return {
        "tuning.metric": metric_of(hp).name,
        "nproc_per_node (processes of a trial)": num_workers,
        **{
            f"tuning.space.{name}": each.model_dump() if isinstance(each, Range) else each
            for name, each in space.items()
        },
        **{name: settings[name] for name in names if name in settings},
        _REPLACED: sorted(name for name in names & chosen_by_data(hp) if name in given),
        "strategy": hp.strategy if hp.strategy in ("tp", "pp", "branch") else "data parallel",
        **{
            f"the encoder {name}": [_digest(path) for path in encoder_files(folder)]
            for name in _encoders(hp)
            if (folder := find_encoder(name, paths).folder) is not None
        },
        **{
            f"the data file {split}/{path.name}": _digest(path)
            for split in ("train", "val")
            for path in find_data_files(paths.channel(split), getattr(hp, f"{split}_filename"))
        },
        **{
            f"the file {path.relative_to(precomputed.parent)}": _digest(path)
            for path in (files_below(precomputed).files if exists(precomputed) else [])
        },
        **{
            f"the variable {name}": value
            for name in FLAGS
            if (value := os.environ.get(name, "false").lower()) != "false"
        },
    }


def _encoders(hp: Hyperparameters) -> list[str]:
    """Return the encoders of the job and of its space."""
    names = {text.tokenizer for text in hp.text_fields}
    for setting, values in space_of(hp).items():
        if setting.endswith("tokenizer") and not isinstance(values, Range):
            names |= {name for name in values if name}
    return sorted(names)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _check_identity(file: Path, current: Mapping[str, Any]) -> None:
    """Record the identity of a new search; raise ContractError if a search of another identity has begun."""
    content = json.loads(json.dumps(current))
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(file, json.dumps(content, indent=1))
        return
    saved = {_REPLACED: content[_REPLACED], **read_object(file, _START_OVER)}  # an earlier version did not save it
    changed = sorted(name for name in {**saved, **content} if saved.get(name) != content.get(name))
    if changed:
        name, *others = changed
        raise ContractError(
            f"{name}: the search in {file.parent} began with {shown(saved.get(name))}, this run has "
            f"{shown(content.get(name))}" + (f" (also changed: {', '.join(others)})" if others else ""),
            "Undo the change, or start over with resume=false, which removes the search.",
        )
