"""Record the trials of a search in a file, and draw the settings of the next one."""

import csv
import json
import warnings
import zlib
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from container.preprocessing.fingerprint import input_contents
from container.tables.data_files import find_data_files
from container.text.encoder_source import find_encoder
from contracts import artifacts
from contracts.atomic_files import AtomicFile, write_text_atomically
from contracts.fingerprint import Fingerprint
from contracts.hyperparameters import Hyperparameters
from contracts.input_files import read_as
from contracts.paths import SPLITS, JobPaths
from contracts.presets import chosen_by_data
from contracts.tuning import Choices, Range
from contracts.tuning_space import (
    encoders_of,
    is_whole,
    metric_of,
    most_validations,
    num_combinations,
    space_of,
    trial_settings,
)

_FILE = "search.json"
_COLUMNS = ("number", "state", "value", "steps", "seconds")  # of trials.csv, before the settings
_START_OVER = "Copy the file again, or start over with resume=false, which removes the search."
_STARTUP = 6  # trials with random settings, before TPE has a model of the space
_REDUCTION = 3  # of the trials that reach a rung, about one in three continues
_EQUAL = 1e-6  # the trees of fANOVA cannot divide values that differ by less
_RUNGS = (9, 3)  # parts of the validations of the longest trial
# Beside the settings with the scopes prepare and train, trials depend on these.
_LENGTH = ("batch_size", "accumulate_grad_batches", "max_epochs", "val_check_interval", "early_stop_patience")
_MESH = ("tp_size", "pp_size", "branch_size", "gradient_compression")  # the first three divide the global batch
_REPLACED = "settings that you set, so that the preset does not choose them by the data"

Ending = Literal["complete", "pruned", "fail"]


@dataclass
class Trial:
    """The record of a trial.

    Attributes:
        drawn: its value of each setting of the space: a number, or one of the listed values as JSON.
        best_values: the best value of the metric until each validation at which it was defined.
        value: of a complete trial; of a pruned one, the last of best_values.
        loss: val/loss at the best validation of a complete trial.
        planned_steps: of the trial without pruning and early stopping.
        reason: of a trial that is not complete.
    """

    number: int
    drawn: dict[str, Any]
    state: Literal["running", "complete", "pruned", "fail"] = "running"
    best_values: list[float] = field(default_factory=list)
    value: float | None = None
    loss: float | None = None
    seconds: float = 0.0
    steps: int | None = None
    epochs: float | None = None
    planned_steps: int | None = None
    reason: str = ""

    @property
    def folder(self) -> str:
        return f"trial-{self.number:04d}"

    @property
    def is_finished(self) -> bool:
        return self.state != "running"


@dataclass
class _Content:
    """The content of the file of a search."""

    fingerprint: dict[str, Any]
    trials: list[Trial]


class TuningStudy:
    """The trials of a search, in one file that is replaced as a whole: a kill at any moment loses no finished trial.

    The settings of a trial are a function of the seed, its number and the earlier trials, so that a search that was
    killed draws the same settings as one that was not.

    Args:
        num_workers: processes of each trial, which determine its global batch.
        given: the settings that the user set; the preset of `hp` chooses the others for each trial.

    Attributes:
        trials: those that have begun, in order.
        validations: of the longest trial, or None, as in `most_validations`; they decide when a trial may end early.

    Raises:
        ContractError: the search began with another space or metric, other settings or data, or its file is damaged.
    """

    def __init__(self, paths: JobPaths, hp: Hyperparameters, *, num_workers: int, given: Container[str] = ()) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        self._hp = hp
        self.metric = metric_of(hp)
        self._space = space_of(hp)
        self.validations = most_validations(hp, hp.model_fields_set, None)
        self._file = paths.tuning / _FILE
        self._fingerprint = _fingerprint(paths, hp, num_workers=num_workers, given=given)
        self.trials: list[Trial] = []
        if self._file.is_file():
            content = read_as(self._file, _Content, _START_OVER)
            self._fingerprint.check(
                content.fingerprint,
                began=f"the search in {paths.tuning} began with",
                fix="Undo the change, or start over with resume=false, which removes the search.",
            )
            self.trials = content.trials

    def save(self) -> None:
        """Replace the file of the search."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        content = asdict(_Content(dict(self._fingerprint.parts), self.trials))
        write_text_atomically(self._file, json.dumps(content, indent=1))

    def discard(self) -> None:
        """Remove the file, so that the next search may have other inputs."""
        self._file.unlink(missing_ok=True)

    @property
    def finished(self) -> int:
        return sum(trial.is_finished for trial in self.trials)

    @property
    def complete(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.state == "complete"]

    @property
    def best(self) -> Trial | None:
        """Return the best complete trial; None if no trial is complete.

        With class_weights in the space, val/loss does not compare trials, because it depends on them.
        """
        comparable = "class_weights" not in self._space
        rank = self.metric.rank
        return min(self.complete, key=lambda each: rank(each.value, each.loss if comparable else None), default=None)

    @property
    def trained(self) -> Trial | None:
        """Return the best trial, or else one that has validated; None if there is none."""
        return self.best or next((trial for trial in self.trials if trial.best_values), None)

    @property
    def interrupted(self) -> bool:
        """Return whether a trial has validated and has not ended."""
        return any(trial.best_values and not trial.is_finished for trial in self.trials)

    @property
    def is_exhausted(self) -> bool:
        """Return whether every combination of the space has been tried."""
        tried = {json.dumps(trial.drawn, sort_keys=True) for trial in self.trials}
        return len(tried) >= num_combinations(self._space)

    def begin(self) -> Trial:
        """Draw the settings of another trial; the first one has those of the job, as far as the space contains them."""
        number = len(self.trials)
        study = self._optuna_study(sampler(f"{self._hp.seed} {number}"))
        if not number:
            given = self._hp.model_dump(mode="json")
            known = {name: each for name in self._space for each in _as_drawn(self._space[name], given[name])}
            study.enqueue_trial(known)
        trial = Trial(number, dict(study.ask(self._distributions).params))
        self.trials.append(trial)
        self.save()
        return trial

    def report(self, trial: Trial, value: float) -> None:
        """Record the value of the next validation of a trial."""
        trial.best_values.append(min([*trial.best_values[-1:], value], key=self.metric.rank))
        self.save()

    def is_losing(self, trial: Trial) -> bool:
        """Return whether a trial should end after the last validation that it has reported.

        The rule is asynchronous successive halving (ASHA, Li et al., 2020): after the validation of a rung, a trial
        continues only if it is among the best third of the trials that came as far. The rule uses recorded values
        only, so a trial that was killed before its end was recorded ends when the search goes on. Failed trials do not
        compete: a trial that diverges may be the best one before.
        """
        step = len(trial.best_values)
        if step not in _rungs(self.validations):
            return False
        reached = (each for each in self.trials if each.state != "fail" and len(each.best_values) >= step)
        values = [each.best_values[step - 1] for each in reached]
        rank = self.metric.rank
        better = sum(rank(each) < rank(trial.best_values[-1]) for each in values)
        return better >= max(1, len(values) // _REDUCTION)

    def finish(self, trial: Trial, state: Ending, **facts: Any) -> None:
        """Record the end of a trial, with other attributes of it."""
        for name, fact in facts.items():
            setattr(trial, name, fact)
        if state == "pruned" and trial.best_values:
            trial.value = trial.best_values[-1]
        trial.state = state
        self.save()

    def same_as(self, trial: Trial) -> int | None:
        """Return the number of the first trial before `trial` with the same settings; None if there is none."""
        before = self.trials[: trial.number]
        return next((each.number for each in before if each.drawn == trial.drawn), None)

    def changes(self, trial: Trial) -> dict[str, Any]:
        """Return the values that a trial changes, by hyperparameter."""
        return {
            name: value if isinstance(self._space[name], Range) else json.loads(value)
            for name, value in trial.drawn.items()
        }

    def importance(self) -> dict[str, float]:
        """Return the share of each setting in the variation of the metric; empty if the complete trials do not vary."""
        values = [trial.value for trial in self.complete if trial.value is not None]
        if not values or max(values) - min(values) < _EQUAL:
            return {}
        # fANOVA: Optuna's default, PED-ANOVA, describes the best tenth of the trials, often a single one.
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        return optuna.importance.get_param_importances(self._optuna_study(sampler("")), evaluator=evaluator)

    def _optuna_study(self, drawn_by: BaseSampler) -> optuna.Study:
        direction = "minimize" if self.metric.minimizes else "maximize"
        study = optuna.create_study(direction=direction, sampler=drawn_by)
        study.add_trials([self._as_optuna(trial) for trial in self.trials])
        return study

    def _as_optuna(self, trial: Trial) -> FrozenTrial:
        return create_trial(
            state=TrialState[trial.state.upper()],
            value=trial.value if trial.state == "complete" else None,
            params=trial.drawn,
            distributions=self._distributions,
            intermediate_values=dict(enumerate(trial.best_values, 1)),
        )

    @property
    def _distributions(self) -> dict[str, BaseDistribution]:
        return {name: _distribution(name, values) for name, values in self._space.items()}


def sampler(seed: str) -> BaseSampler:
    return TPESampler(seed=zlib.crc32(seed.encode()), n_startup_trials=_STARTUP, multivariate=True, constant_liar=True)


def _rungs(most: int | None) -> set[int]:
    """Return the validations after which a trial may end early: about a ninth and a third of those of the longest."""
    if most is None:  # it depends on the batch size
        return {1, _REDUCTION}
    return {max(1, round(most / part)) for part in _RUNGS}


def _as_drawn(values: Range | Choices, value: Any) -> list[Any]:
    """Return a setting of the job as a trial has it, in a list; an empty list if the space does not contain it."""
    if not isinstance(values, Range):
        return [json.dumps(each) for each in values if each == value][:1]
    return [value] if value is not None and values.low <= value <= values.high else []


def _distribution(name: str, values: Range | Choices) -> BaseDistribution:
    if not isinstance(values, Range):
        return CategoricalDistribution([json.dumps(value) for value in values])
    log = values.scale == "log"
    if is_whole(name):
        return IntDistribution(int(values.low), int(values.high), log=log)
    return FloatDistribution(float(values.low), float(values.high), log=log)


def _fingerprint(paths: JobPaths, hp: Hyperparameters, *, num_workers: int, given: Container[str]) -> Fingerprint:
    """Return what must not change in a search: the metric, the space, the other settings and the inputs."""
    space, settings = space_of(hp), trial_settings(hp, {})
    encoders = {name: find_encoder(name, paths) for name in encoders_of(hp)}
    files = {split: find_data_files(paths.channel(split), getattr(hp, f"{split}_filename")) for split in SPLITS[:2]}
    names = {*hp.names_of("prepare", "train"), *_LENGTH, *_MESH} - {*space, "early_stop_metric"}
    return Fingerprint.of(
        {
            "tuning.metric": metric_of(hp).name,
            "nproc_per_node (processes of a trial)": num_workers,
            **{f"tuning.space.{name}": values for name, values in _plain(space).items()},
            **{name: settings[name] for name in sorted(names) if name in settings},
            _REPLACED: sorted(name for name in names & chosen_by_data(hp) if name in given),
            "strategy": hp.strategy if hp.strategy in ("tp", "pp", "branch") else "data parallel",
            **input_contents(paths, files=files, encoders=encoders),
        }
    )


def _plain(space: Mapping[str, Range | Choices]) -> dict[str, Any]:
    return {name: each.model_dump() if isinstance(each, Range) else each for name, each in space.items()}


def write_results(out: Path, study: TuningStudy, hp: Hyperparameters, best: Trial) -> None:
    """Write tuning/trials.csv and tuning/summary.json into `out`."""
    assert hp.tuning is not None
    networks = hp.tuning.final_seeds
    trials = [{**asdict(trial), "settings": study.changes(trial)} for trial in study.trials]
    names = list(space_of(hp))
    folder = out / artifacts.TUNING
    folder.mkdir(parents=True, exist_ok=True)
    with AtomicFile(folder / "trials.csv") as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*_COLUMNS, *names])
        for trial in trials:
            writer.writerow([*(trial[name] for name in _COLUMNS), *(_cell(trial["settings"][name]) for name in names)])
    summary = {
        "metric": study.metric.name,
        "minimizes": study.metric.minimizes,
        "trials": trials,
        "importance": study.importance(),
        "winner": {
            "trial": best.number,
            "value": best.value,
            "changes": study.changes(best),
            "networks": networks,
            "model": hp.ensemble_model if networks > 1 else None,
        },
    }
    write_text_atomically(folder / artifacts.TUNING_SUMMARY, json.dumps(summary, indent=1))


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (list, dict)) else value
