"""Search for the best hyperparameters on this machine: run trials, and return the best one."""

import json
import logging
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from container.decision.val_labels import check_val_labels
from container.evaluation.metrics import check_defined
from container.job.launch.run_queue import Run, RunQueue, Shares, remove_run
from container.job.preflight import choose_trial_settings
from container.job.timeline import Timeline, duration
from container.preprocessing.prepare import prepare_data
from container.preprocessing.prepared import PreparedData
from container.training.checkpoint_files import clear_checkpoints
from container.training.state import TrainingState
from container.tuning.study import Ending, Trial, TuningStudy, write_results
from contracts.errors import ContractError
from contracts.hyperparameter_files import GivenSettings, parse_hyperparameters
from contracts.hyperparameters import Hyperparameters
from contracts.other_programs import remove_folder
from contracts.paths import JobPaths
from contracts.presets import DataFacts, class_totals
from contracts.program import Stopped
from contracts.tuning_space import describe_space, most_epochs, most_validations, space_of, trial_settings

logger = logging.getLogger(__name__)

_POLL = 0.1  # seconds
_HOUR = 3600.0
_OTHER_DATA = 10  # settings whose prepared data stays: a range of a setting would fill the disk


@dataclass(frozen=True)
class BestTrial:
    """The result of a search.

    Attributes:
        folder: of the best trial, with its checkpoints.
        hp: settings of the job that makes the model: those of the trial, or of an ensemble of final_seeds networks.
    """

    folder: Path
    hp: Hyperparameters


def search(paths: JobPaths, hp: Hyperparameters, given: GivenSettings, *, num_gpus: int) -> BestTrial:
    """Run the trials that are missing, and write the results of the search.

    Args:
        hp: of the job, whose preset knows no facts of the data.
        given: what the user set; the preset chooses the other settings of each trial.

    Raises:
        ContractError: no trial has a result, the search is of other data or another space, or max_hours is too short.
        Stopped: stopped on request; the same command continues the search.
    """
    assert hp.tuning is not None
    if not hp.resume:
        clear_checkpoints(paths.checkpoints)
        for folder in (paths.tuning, paths.ensemble):
            remove_folder(folder)
    shares = Shares.of(hp, num_gpus=num_gpus)
    study = TuningStudy(paths, hp, num_workers=shares.num_workers, given=given.values)
    try:
        with Search(paths, hp, given, study=study, queue=RunQueue(shares)) as running:
            best = running.run_trials()
            changes = study.changes(best)
            settings = running.settings(changes)  # of this job: it may have another calibration
    except ContractError:
        if study.best is None and not study.interrupted:
            for trial in study.trials:  # another search would resume from their checkpoints
                remove_run(paths.tuning / trial.folder)
            study.discard()
        raise
    write_results(paths.output_data, study, hp, best)
    logger.info("winner: %s with %s=%.6g: %s", best.folder, study.metric.name, best.value, json.dumps(changes))
    networks = hp.tuning.final_seeds
    if networks > 1:
        several = {"ensemble": networks, "ensemble_model": hp.ensemble_model}
        settings = parse_hyperparameters({**settings.model_dump(mode="json", exclude_unset=True), **several})
    return BestTrial(paths.tuning / best.folder, settings)


class TimeLimit:
    """The time of a search, which several processes may continue one after the other.

    Args:
        shares: of the trials.

    Attributes:
        spent: seconds of the earlier processes, by the duration of the trials that they ran.
    """

    def __init__(self, study: TuningStudy, hp: Hyperparameters, shares: Shares) -> None:
        assert hp.tuning is not None
        self._study = study
        self._tuning = hp.tuning
        self._distills = hp.tuning.final_seeds > 1 and hp.ensemble_model == "distill"
        self._parallel = shares.parallel
        winner = hp.model_copy(update={"nproc_per_node": shares.num_workers})
        networks = Shares.of_members(winner, self._tuning.final_seeds, num_gpus=len(shares.devices))
        self._networks_at_once = networks.parallel
        self._began = time.monotonic()
        self.spent = sum(trial.seconds for trial in study.trials) / shares.parallel

    @property
    def seconds(self) -> float:
        return self.spent + time.monotonic() - self._began

    def allows(self, max_epochs: int) -> bool:
        """Return whether a trial of `max_epochs` can finish before max_hours, and after it the winner's networks."""
        hours = self._tuning.max_hours
        if hours is None or not self._study.finished:
            return True
        return self.seconds + self._rounds() * self._estimate(max_epochs) <= hours * _HOUR

    def check(self, max_epochs: int) -> None:
        """Raise ContractError if max_hours was too short for each of the first trials, and no other has a result.

        Args:
            max_epochs: of the longest trial.
        """
        hours = self._tuning.max_hours
        taken = [trial.seconds for trial in self._study.complete]
        if hours is not None and 0 < len(taken) <= self._parallel and min(taken) > hours * _HOUR:
            enough = math.ceil(self._rounds() * self._estimate(max_epochs) / _HOUR * 100) / 100
            raise ContractError(
                f"tuning.max_hours: {hours:g} h is too short for one trial: the first took {min(taken):.0f} s",
                f"Set max_hours to at least {enough:g}, or lower max_epochs.",
            )

    def _rounds(self) -> int:
        """Return the number of runs, one after the other, of a trial, the winner's other networks, and distillation."""
        return 1 + math.ceil((self._tuning.final_seeds - 1) / self._networks_at_once) + self._distills

    def _estimate(self, max_epochs: int) -> float:
        """Return the seconds of a run without early stopping, as slow in each epoch as the slowest complete trial."""
        each = (trial.seconds / trial.epochs * max_epochs for trial in self._study.complete if trial.epochs)
        return max(each, default=0.0)


@dataclass
class Running:
    """A trial in progress.

    Attributes:
        reported: validations that the study has.
        data: the folder of its prepared data.
        state: the newest one.
    """

    run: Run
    hp: Hyperparameters
    trial: Trial
    reported: int
    data: Path
    state: TrainingState = field(default_factory=TrainingState)
    since: float = field(default_factory=time.monotonic)

    def measure_time(self) -> None:
        """Add the time since the last call to that of the trial."""
        now = time.monotonic()
        self.trial.seconds = round(self.trial.seconds + now - self.since, 1)
        self.since = now

    def ends_after(self, entry: Mapping[str, Any]) -> bool:
        """Return whether training ends after the validation `entry` of the history."""
        stopped = self.state.stopped_early and entry is self.state.history[-1]
        return stopped or entry["epoch"] >= self.hp.max_epochs

    def length(self, entry: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the steps until `entry` of the history, or its end, and those of a trial without pruning."""
        last = entry or (self.state.history or [{"step": 0, "epoch": 0.0}])[-1]
        planned = round(last["step"] / last["epoch"] * self.hp.max_epochs) if last["epoch"] else 0
        return {"steps": last["step"], "epochs": last["epoch"], "planned_steps": planned}


class Search:
    """The trials of a search in progress; a context manager that stops the running ones."""

    def __init__(
        self, paths: JobPaths, hp: Hyperparameters, given: GivenSettings, *, study: TuningStudy, queue: RunQueue
    ) -> None:
        assert hp.tuning is not None
        self._paths = paths
        self._hp = hp
        self._given = given
        self._tuning = hp.tuning
        self._study = study
        self._facts: DataFacts | None = None  # of the training data
        self._most_epochs = most_epochs(hp, given.values, None)
        self._queue = queue
        self._metric = study.metric.name
        self._running: list[Running] = []
        self._time = TimeLimit(study, hp, queue.shares)
        self._bar = tqdm(total=self._tuning.trials, unit="trial", file=sys.stderr, disable=not sys.stderr.isatty())

    def __enter__(self) -> "Search":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._queue.__exit__()
        for running in self._running:
            running.measure_time()
        self._study.save()
        self._bar.close()
        if isinstance(error, Stopped):
            error.where = f"the search has {self._study.finished} of {self._tuning.trials} trials"

    def run_trials(self) -> Trial:
        """Run trials until the study has as many as wanted, or no other can finish in time; return the best one."""
        unfinished = [trial for trial in self._study.trials if not trial.is_finished]
        self._bar.update(self._study.finished)
        logger.info(
            f"search for the best {self._metric}: {self._study.finished} of {self._tuning.trials} trials are finished, "
            f"{self._queue.shares.parallel} at a time with nproc_per_node {self._queue.shares.num_workers}"
        )
        logger.info("space of the search: %s", describe_space(space_of(self._hp)))
        self._prepare_known()
        while True:
            while self._queue.has_room and (unfinished or self._wants_another()):
                self._start_trial(unfinished.pop(0) if unfinished else self._study.begin())
            if not self._running:
                break
            self._wait()
        if self._study.is_exhausted:
            logger.info("every combination of the space has been tried: the search has no further trials")
        best = self._study.best
        if best is None:
            first = min(self._study.trials, key=lambda trial: (trial.state != "fail", trial.number))
            raise ContractError(
                f"tuning: no trial has a result; trial {first.number}: {first.reason}",
                f"Correct the cause, and run again. The logs of the trials are in {self._paths.tuning}.",
            )
        self._time.check(self._most_epochs)
        self._remove_losers()
        return best

    def _wants_another(self) -> bool:
        wanted = len(self._study.trials) < self._tuning.trials and not self._study.is_exhausted
        return wanted and self._time.allows(self._most_epochs)

    def settings(self, changes: dict[str, Any]) -> Hyperparameters:
        """Return the hyperparameters of a trial; raise ContractError for a combination that is invalid.

        Args:
            changes: what the search drew.
        """
        num_workers = self._queue.shares.num_workers
        hp = choose_trial_settings(self._paths, self._given.of_trial(changes), self._facts, num_workers=num_workers)
        # The winner must have the global batch of its trial, also on a machine with more GPUs than a trial uses.
        fixed = {"nproc_per_node": num_workers, "resume": True}
        return parse_hyperparameters(trial_settings(hp, {**changes, **fixed}))

    def _prepare_known(self) -> None:
        """Prepare the data of an earlier trial that has trained: an error here has another cause than a draw."""
        trained = self._study.trained
        if trained is not None:
            self._learn(self._prepare(self.settings(self._study.changes(trained))))

    def _learn(self, prepared: PreparedData) -> None:
        """Take what depends on the facts of the data: settings that a preset chooses, also the length of trials."""
        check_defined(self._metric, prepared.summary["splits"]["val"]["classes"], setting="tuning.metric")
        self._facts = DataFacts.read(prepared.summary)
        self._most_epochs = most_epochs(self._hp, self._given.values, self._facts)
        self._study.validations = most_validations(self._hp, self._given.values, self._facts)

    def _prepare(self, hp: Hyperparameters) -> PreparedData:
        """Prepare the data of a run, or find it; the data of other settings may serve later runs."""
        in_use = [running.data for running in self._running]
        return prepare_data(self._paths, hp, keep_others=_OTHER_DATA, in_use=in_use)

    def _start_trial(self, trial: Trial) -> None:
        """Begin a trial. A combination that is invalid or was tried before ends it.

        Data that not even one trial can use ends the search.
        """
        same = self._study.same_as(trial)
        if same is not None:
            self._finish(trial, "pruned", reason=f"same settings as trial {same}")
            return
        changes, is_valid = self._study.changes(trial), False
        try:
            hp = self.settings(changes)
            is_valid = True
            self._start(trial, hp)
        except ContractError as error:
            if is_valid and self._facts is None:
                raise
            self._prepare_known()
            self._finish(trial, "pruned", reason=f"invalid: {error.cause}")

    def _start(self, trial: Trial, hp: Hyperparameters) -> None:
        """Prepare the data of the settings, if no earlier trial has, and begin the trial."""
        timeline = Timeline()
        self._queue.warm_up()
        prepared = self._prepare(hp)
        if self._facts is None:
            self._learn(prepared)
            hp = self.settings(self._study.changes(trial))
        check_val_labels(hp, class_totals(prepared.summary["splits"]["val"]))
        timeline.mark("prepare data")
        folder = self._paths.tuning / trial.folder
        following = self._tuning.trials - self._study.finished - len(self._running) - 1
        run = self._queue.submit(folder, hp, prepared=prepared.folder, timeline=timeline, following=following)
        # A process that was killed may have reported the last value without deciding about the trial.
        reported = max(0, len(trial.best_values) - 1)
        self._running.append(Running(run, hp, trial, reported, prepared.folder))

    def _wait(self) -> None:
        """Wait a moment; report new validations, and record the ends of trials."""
        time.sleep(_POLL)
        ended = self._queue.poll()  # before their last states are read
        for running in list(self._running):
            state = running.run.new_state()
            if state is not None:
                running.state = TrainingState(**state)
                self._report(running)
            if running.run in ended:
                self._running.remove(running)
                self._end(running)
                self._remove_losers()

    def _report(self, running: Running) -> None:
        """Report new validations to the study; prune a trial that is worse than the others were there."""
        entries = [entry for entry in running.state.history if entry.get(self._metric) is not None]
        trial = running.trial
        for number, entry in enumerate(entries[running.reported :], running.reported + 1):
            if trial.is_finished:
                return
            running.reported = number
            running.measure_time()
            if number > len(trial.best_values):
                self._study.report(trial, entry[self._metric])
            if self._study.is_losing(trial) and not running.ends_after(entry):
                running.run.abandon()
                reason = f"{self._metric}={trial.best_values[-1]:.6g} after {entry['epoch']:.3g} epochs"
                self._finish(trial, "pruned", reason=reason, **running.length(entry))

    def _end(self, running: Running) -> None:
        """Record the result of a trial that has ended."""
        if running.trial.is_finished:  # pruned
            return
        running.measure_time()
        run, state = running.run, running.state
        if run.completed and state.best_value is not None:
            result = {"value": state.best_value, "loss": state.best_loss}
            self._finish(running.trial, "complete", **result, **running.length())
            return
        ended = f"{self._metric} was never defined" if run.completed else "the workers ended without a result"
        self._finish(running.trial, "fail", reason=run.failure.cause if run.failure else ended, **running.length())

    def _finish(self, trial: Trial, state: Ending, **facts: Any) -> None:
        """Record the end of a trial, and log a line."""
        self._study.finish(trial, state, **facts)
        best, finished = self._study.best, self._study.finished
        left = (self._tuning.trials - finished) * self._time.seconds / finished
        logger.info(
            f"trial {trial.number} {state}: {trial.reason or f'{self._metric}={trial.value:.6g}'}; "
            f"{f'best {best.value:.6g} (trial {best.number})' if best is not None else 'no result yet'}; {finished} of "
            f"{self._tuning.trials} trials, {duration(left)} left; {json.dumps(self._study.changes(trial))}"
        )
        self._bar.update()

    def _remove_losers(self) -> None:
        """Remove the checkpoints of every finished trial except for the best one."""
        best = self._study.best
        for trial in self._study.trials:
            if trial.is_finished and trial is not best:
                remove_run(self._paths.tuning / trial.folder)
