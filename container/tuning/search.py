"""Search for the best hyperparameters on this machine: run trials, then install the best one's checkpoints."""

import json
import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, Trial, TrialState
from tqdm import tqdm

from container.decision.val_labels import check_val_labels
from container.errors import StoppedBeforeTraining
from container.launch.run_queue import Run, RunQueue, Shares, remove_run
from container.launch.workers import StopHandler
from container.preflight import choose_trial_settings
from container.preprocessing.prepare import prepare_data
from container.preprocessing.prepared import PreparedData
from container.timeline import Timeline, duration
from container.training.checkpoint_files import clear_checkpoints
from container.training.state import TrainingState
from container.tuning.results import write_results
from container.tuning.study import TuningStudy, check_metric
from container.tuning.time_limit import TimeLimit
from container.tuning.winner import Winner, install_winner, newest_step, read_winner, remove_trials, trial_folder
from contracts.errors import ContractError
from contracts.hyperparameter_files import GivenSettings, parse_hyperparameters
from contracts.hyperparameters import Hyperparameters
from contracts.monitored_metric import LOSS
from contracts.other_programs import remove_folder
from contracts.paths import JobPaths
from contracts.presets import DataFacts
from contracts.tuning_space import describe_space, most_epochs, most_validations, space_of, trial_settings

logger = logging.getLogger(__name__)

_POLL = 0.1  # seconds
_SECONDS = "seconds"  # of a trial, as its attribute
_FACTS = "facts"  # of the data, as a note of the study
_OTHER_DATA = 10  # settings whose prepared data stays: a range of a setting would fill the disk


def search(
    paths: JobPaths,
    hp: Hyperparameters,
    given: GivenSettings,
    *,
    num_gpus: int,
    stop: StopHandler,
) -> Hyperparameters:
    """Run the trials that are missing, and install the checkpoints of the best one.

    Args:
        hp: of the job, whose preset knows no facts of the data.
        given: what the user set; the preset chooses the other settings of each trial.

    Returns:
        The settings of the best trial, whose checkpoints are in `paths.checkpoints`; with final_seeds above 1, those of
        an ensemble of as many networks, the first of which is the best trial's.

    Raises:
        ContractError: no trial has a result, the search is of other data or another space, or max_hours is too short.
        StoppedBeforeTraining: stopped on request; the same command continues the search.
    """
    assert hp.tuning is not None
    if not hp.resume:
        clear_checkpoints(paths.checkpoints)
        for folder in (paths.tuning, paths.ensemble):
            remove_folder(folder)
    earlier = read_winner(paths)
    shares = Shares.of(hp, num_gpus=num_gpus)
    study = TuningStudy(paths, hp, num_workers=shares.num_workers, given=given.values)
    try:
        with Search(paths, hp, given, study=study, queue=RunQueue(shares), stop=stop) as running:
            best = running.run_trials()
    except ContractError:
        if study.best is None and not study.interrupted:
            remove_trials(paths)  # another search would resume from their checkpoints
            study.discard()
        raise
    winner = _winner(paths, hp, best, changes=study.settings(best), earlier=earlier)
    install_winner(paths, winner, earlier=earlier)
    write_results(paths.output_data, study, hp, asdict(winner))
    logger.info(
        "winner: %s with %s=%.6g: %s", winner.folder, study.metric.name, winner.value, json.dumps(winner.changes)
    )  # fmt: skip
    settings = running.settings(winner.changes)  # of this job: it may have another calibration
    if winner.networks == 1:
        return settings
    several = {"ensemble": winner.networks, "ensemble_model": winner.model}
    return parse_hyperparameters({**settings.model_dump(mode="json", exclude_unset=True), **several})


def _winner(
    paths: JobPaths, hp: Hyperparameters, best: FrozenTrial, *, changes: dict[str, Any], earlier: Winner | None
) -> Winner:
    assert hp.tuning is not None
    assert best.value is not None
    networks = hp.tuning.final_seeds
    step = newest_step(JobPaths(paths.tuning / trial_folder(best.number)).checkpoints)
    if earlier is not None and earlier.trial == best.number:
        step = earlier.step
    return Winner(
        best.number, best.value, changes, hp.seed, networks, hp.ensemble_model if networks > 1 else None, step,
    )  # fmt: skip


@dataclass
class Running:
    """A trial in progress.

    Attributes:
        reported: validations that the study has.
        spent: seconds of the earlier processes that ran the trial.
        data: the folder of its prepared data.
    """

    run: Run
    hp: Hyperparameters
    trial: Trial
    reported: int
    spent: float = 0.0
    data: Path = Path()
    since: float = field(default_factory=time.monotonic)
    state: dict[str, Any] = field(default_factory=dict)
    pruned: bool = False

    @property
    def seconds(self) -> float:
        return round(self.spent + time.monotonic() - self.since, 1)

    def validations(self, metric: str) -> list[dict[str, Any]]:
        """Return the entries of the validations at which the metric was defined."""
        return [entry for entry in self.state["history"] if entry.get(metric) is not None]

    def ends_after(self, entry: Mapping[str, Any]) -> bool:
        """Return whether training ends after the validation `entry` of the history."""
        stopped = self.state.get("stopped_early", False) and entry is self.state["history"][-1]
        return stopped or entry["epoch"] >= self.hp.max_epochs

    def facts(self, entry: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return facts for the report: the steps until `entry` of the history, and those of a trial without pruning."""
        history = self.state.get("history") or [{"step": 0, "epoch": 0.0}]
        last = history[-1] if entry is None else entry
        planned = round(last["step"] / last["epoch"] * self.hp.max_epochs) if last["epoch"] else 0
        return {"seconds": self.seconds, "steps": last["step"], "epochs": last["epoch"], "planned_steps": planned}


class Search:
    """The trials of a search in progress; a context manager that stops the running ones."""

    def __init__(
        self,
        paths: JobPaths,
        hp: Hyperparameters,
        given: GivenSettings,
        *,
        study: TuningStudy,
        queue: RunQueue,
        stop: StopHandler,
    ) -> None:
        assert hp.tuning is not None
        known = study.notes.get(_FACTS)  # to an earlier process of this search
        self._paths = paths
        self._hp = hp
        self._given = given
        self._has_data = known is not None  # prepared for a trial
        self._tuning = hp.tuning
        self._study = study
        self._plan(None if known is None else DataFacts(**known))
        self._queue = queue
        self._stop = stop
        self._metric = study.metric.name
        self._running: list[Running] = []
        self._time = TimeLimit(study, hp, parallel=queue.shares.parallel)
        self._bar = tqdm(total=self._tuning.trials, unit="trial", file=sys.stderr, disable=not sys.stderr.isatty())

    def _plan(self, facts: DataFacts | None) -> None:
        """Compute the length of the longest trial, in which a preset may choose max_epochs by facts of the data."""
        self._facts = facts
        self._most_epochs = most_epochs(self._hp, self._given.values, facts)
        self._study.validations = most_validations(self._hp, self._given.values, facts)

    def __enter__(self) -> "Search":
        self._stop.interrupts = False  # an interrupted transaction would lock the study
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._queue.__exit__()
        for running in self._running:
            self._save_seconds(running)
        self._time.save()
        self._bar.close()
        self._stop.interrupts = error is None
        if isinstance(error, StoppedBeforeTraining):
            error.where = f"the search has {self._study.finished} of {self._tuning.trials} trials"

    def run_trials(self) -> FrozenTrial:
        """Run trials until the study has as many as wanted, or no other can finish in time; return the best one."""
        trials = self._study.trials
        unfinished = [trial for trial in trials if not trial.state.is_finished()]
        self._bar.update(len(trials) - len(unfinished))
        logger.info(
            "search for the best %s: %d of %d trials are finished, %d at a time with nproc_per_node %d",
            self._metric, len(trials) - len(unfinished), self._tuning.trials, self._queue.shares.parallel,
            self._queue.shares.num_workers,
        )  # fmt: skip
        logger.info("space of the search: %s", describe_space(space_of(self._hp)))
        while True:
            while self._queue.has_room:
                timeline = Timeline()
                if unfinished:
                    trial = self._study.begin(unfinished.pop(0))
                elif self._wants_another():
                    trial = self._study.begin()
                else:
                    break
                self._start_trial(trial, timeline)
            if not self._running:
                break
            self._wait()
        if self._study.is_exhausted:
            logger.info("every combination of the space has been tried: the search has no further trials")
        best = self._study.best
        if best is None:
            first = min(self._study.trials, key=lambda trial: (trial.state != TrialState.FAIL, trial.number))
            raise ContractError(
                f"tuning: no trial has a result; trial {first.number}: {first.user_attrs['reason']}",
                f"Correct the cause, and run again. The logs of the trials are in {self._paths.tuning}.",
            )
        self._time.check(self._most_epochs)
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

    def _start_trial(self, trial: Trial, timeline: Timeline) -> None:
        """Begin a trial. A combination that is invalid or was tried before ends it.

        Data that not even one trial can use ends the search.
        """
        same = self._study.same_as(trial)
        if same is not None:
            self._finish(trial, TrialState.PRUNED, reason=f"same settings as trial {same}")
            return
        changes, is_valid = self._study.settings(trial), False
        try:
            self.settings(changes)
            is_valid = True
            self._start(self._paths.tuning / trial_folder(trial.number), changes, timeline=timeline, trial=trial)
        except ContractError as error:
            if is_valid and not self._has_data:
                raise
            self._check_known_settings()
            self._finish(trial, TrialState.PRUNED, reason=f"invalid: {error.cause}")

    def _check_known_settings(self) -> None:
        """Raise the error of settings that an earlier trial has trained with: it has another cause than the draw."""
        trained = self._study.trained
        if trained is not None:
            self._prepare(self.settings(self._study.settings(trained)))

    def _start(self, folder: Path, changes: dict[str, Any], *, trial: Trial, timeline: Timeline) -> None:
        """Prepare the data of the settings, if no earlier trial has, and begin the trial."""
        self._queue.warm_up()
        with self._stop.interrupting():
            prepared = self._prepare(self.settings(changes))
        val_classes = prepared.summary["splits"]["val"]["classes"]
        if not self._has_data:
            facts = DataFacts.read(prepared.summary)
            self._plan(facts)
            check_metric(self._hp, val_classes)
            self._study.note(_FACTS, asdict(facts))
        hp = self.settings(changes)
        check_val_labels(hp, val_classes)
        self._has_data = True
        timeline.mark("prepare data")
        following = self._tuning.trials - self._study.finished - len(self._running) - 1
        run = self._queue.submit(folder, hp, prepared=prepared.folder, timeline=timeline, following=following)
        # A process that was killed may have reported the last value without deciding about the trial: it counts again.
        reported = max(0, len(self._study.trials[trial.number].intermediate_values) - 1)
        spent = trial.user_attrs.get(_SECONDS, 0.0)
        self._running.append(Running(run, hp, trial, reported, spent, prepared.folder))

    def _prepare(self, hp: Hyperparameters) -> PreparedData:
        """Prepare the data of a run, or find it; the data of other settings may serve later runs."""
        in_use = [running.data for running in self._running]
        return prepare_data(self._paths, hp, keep_others=_OTHER_DATA, in_use=in_use)

    def _wait(self) -> None:
        """Wait a moment; report new validations, and record the ends of trials."""
        with self._stop.interrupting():
            time.sleep(_POLL)
        ended = self._queue.poll()  # before their last states are read
        for running in list(self._running):
            state = running.run.new_state()
            if state is not None:
                running.state = state
                self._report(running)
            if running.run in ended:
                self._running.remove(running)
                self._end(running)
                self._remove_losers()

    def _report(self, running: Running) -> None:
        """Report new validations to the study; prune a trial that is worse than the others were there."""
        entries = running.validations(self._metric)
        for i in range(running.reported, len(entries)):
            if running.pruned:
                return
            value = min((entry[self._metric] for entry in entries[: i + 1]), key=self._study.metric.rank)
            is_losing = self._study.report(running.trial, step=i + 1, value=value)
            running.reported = i + 1
            self._save_seconds(running)
            if is_losing and not running.ends_after(entries[i]):
                running.pruned = True
                running.run.abandon()
                reason = f"{self._metric}={value:.6g} after {entries[i]['epoch']:.3g} epochs"
                self._finish(running.trial, TrialState.PRUNED, reason=reason, **running.facts(entries[i]))

    def _save_seconds(self, running: Running) -> None:
        """Record the time of a trial and of the search until now, for a process that continues them."""
        if not running.pruned:
            running.trial.set_user_attr(_SECONDS, running.seconds)
        self._time.save()

    def _end(self, running: Running) -> None:
        """Record the result of a trial that has ended."""
        value, failure = running.state.get("best_value"), running.run.failure
        ended = f"{self._metric} was never defined" if running.run.completed else "the workers ended without a result"
        reason = failure.cause if failure is not None else ended
        completed = running.run.completed and value is not None
        if running.pruned:
            return
        if completed:
            decides_ties = {LOSS: TrainingState(**running.state).best_loss}
            self._finish(running.trial, TrialState.COMPLETE, value=value, **running.facts(), **decides_ties)
        else:
            self._finish(running.trial, TrialState.FAIL, reason=reason, **running.facts())

    def _finish(self, trial: Trial, state: TrialState, *, value: float | None = None, **facts: Any) -> None:
        """Record the end of a trial, and log a line."""
        self._study.finish(trial, state, value=value, **facts)
        self._time.save()
        best, finished = self._study.best, self._study.finished
        left = (self._tuning.trials - finished) * self._time.seconds / finished
        logger.info(
            "trial %d %s: %s; %s; %d of %d trials, %s left; %s", trial.number, state.name.lower(),
            facts.get("reason") or f"{self._metric}={value:.6g}",
            f"best {best.value:.6g} (trial {best.number})" if best is not None else "no result yet",
            finished, self._tuning.trials, duration(left), json.dumps(self._study.settings(trial)),
        )  # fmt: skip
        self._bar.update()

    def _remove_losers(self) -> None:
        """Remove the checkpoints of every finished trial except for the best one."""
        best = self._study.best
        kept = {each.trial.number for each in self._running} | ({best.number} if best is not None else set())
        for trial in self._study.trials:
            if trial.state.is_finished() and trial.number not in kept:
                remove_run(self._paths.tuning / trial_folder(trial.number))
