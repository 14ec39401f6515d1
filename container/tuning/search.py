"""Search for the best hyperparameters on this machine: trials, then the winner's seeds, then its checkpoints."""

import itertools
import json
import logging
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from optuna.trial import Trial, TrialState
from tqdm import tqdm

from container.decision.val_labels import check_val_labels
from container.preflight import choose_trial_settings
from container.preprocessing.prepare import prepare_data
from container.preprocessing.prepared import PreparedData
from container.timeline import Timeline, duration
from container.training.checkpoint_files import clear_checkpoints
from container.training.state import LOSS, TrainingState
from container.tuning.ensemble import SEEDS, SOUP
from container.tuning.results import write_results
from container.tuning.study import TuningStudy, check_metric
from container.tuning.time_limit import TimeLimit
from container.tuning.trial_workers import Running, Shares, TrialRun, remove_run, validations
from container.tuning.winner import install_winner, read_winner, remove_runs, trial_folder
from container.workers import StopHandler, StoppedBeforeTraining
from contracts.errors import ContractError
from contracts.hyperparameter_files import GivenSettings, parse_hyperparameters
from contracts.hyperparameters import Hyperparameters
from contracts.paths import JobPaths
from contracts.presets import DataFacts
from contracts.tuning_space import describe_space, metric_of, most_epochs, most_validations, space_of, trial_settings

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
    """Run the trials that are missing, train the best settings with final_seeds seeds, and install the best run.

    Args:
        hp: of the job, whose preset knows no facts of the data.
        given: what the user set; the preset chooses the other settings of each trial.

    Returns:
        The hyperparameters of the best run; its checkpoints are in `paths.checkpoints`. Or, if final_model combines the
        seeds, those of an ensemble, of which every network is trained.

    Raises:
        ContractError: no trial has a result, the search is of other data or another space, or max_hours is too short.
        StoppedBeforeTraining: stopped on request; the same command continues the search.
    """
    assert hp.tuning is not None
    if not hp.resume:
        clear_checkpoints(paths.checkpoints)
        for folder in (paths.tuning, paths.ensemble):
            shutil.rmtree(folder, ignore_errors=True)
    earlier = read_winner(paths, hp)
    shares = Shares.of(hp, num_gpus=num_gpus)
    study = TuningStudy(paths, hp, num_workers=shares.num_workers, given=given.values)
    try:
        with Search(paths, hp, given, study=study, shares=shares, stop=stop) as running:
            running.run_trials()
            best = running.choose_seed()
    except ContractError:
        if study.best is None and not study.interrupted:
            remove_runs(paths)  # another search would resume from their checkpoints
            study.discard()
        raise
    best = install_winner(paths, study, best, earlier=earlier)
    write_results(paths.output_data, study, hp, best)
    logger.info(
        "winner: %s with %s=%.6g: %s", best["folder"], metric_of(hp), best["value"], json.dumps(best["changes"])
    )
    return running.settings(best["changes"])  # of this job: it may have another calibration


class Search:
    """The trials of a search in progress; a context manager that stops the running ones."""

    def __init__(
        self,
        paths: JobPaths,
        hp: Hyperparameters,
        given: GivenSettings,
        *,
        study: TuningStudy,
        shares: Shares,
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
        self._shares = shares
        self._stop = stop
        self._metric = metric_of(hp)
        self._running: list[Running] = []
        self._spares: dict[int, TrialRun] = {}
        self._time = TimeLimit(study, hp.tuning, parallel=shares.parallel)
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
        for running in self._running:
            running.run.request_stop()
        for run in (*(running.run for running in self._running), *self._spares.values()):
            run.close()
        for running in self._running:
            self._save_seconds(running)
        self._time.save()
        self._bar.close()
        self._stop.interrupts = error is None
        if isinstance(error, StoppedBeforeTraining):
            error.where = f"the search has {self._study.finished} of {self._tuning.trials} trials"

    def run_trials(self) -> None:
        """Run trials until the study has as many as wanted, or no other can finish in time."""
        trials = self._study.trials
        unfinished = [trial for trial in trials if not trial.state.is_finished()]
        self._bar.update(len(trials) - len(unfinished))
        logger.info(
            "search for the best %s: %d of %d trials are finished, %d at a time with nproc_per_node %d",
            self._metric, len(trials) - len(unfinished), self._tuning.trials, self._shares.parallel,
            self._shares.num_workers,
        )  # fmt: skip
        logger.info("space of the search: %s", describe_space(space_of(self._hp)))
        while True:
            while len(self._running) < self._shares.parallel:
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
        if self._study.best is None:
            first = min(self._study.trials, key=lambda trial: (trial.state != TrialState.FAIL, trial.number))
            raise ContractError(
                f"tuning: no trial has a result; trial {first.number}: {first.user_attrs['reason']}",
                f"Correct the cause, and run again. The logs of the trials are in {self._paths.tuning}.",
            )
        self._time.check(self._most_epochs)

    def _wants_another(self) -> bool:
        wanted = len(self._study.trials) < self._tuning.trials and not self._study.is_exhausted
        return wanted and self._time.allows(self._most_epochs)

    def choose_seed(self) -> dict[str, Any]:
        """Train the best settings with each of the seeds; return the best run."""
        best = self._study.best
        assert best is not None
        changes = self._study.settings(best)
        kind, first = self._tuning.final_model, self.settings(changes)
        folders = {self._hp.seed: trial_folder(best.number)}
        started: list[str] = []
        for i in range(1, self._tuning.final_seeds):
            seed = (self._hp.seed + i) % SEEDS
            prefix = "" if kind == "best" else f"{kind}-"
            folders[seed] = f"{prefix}seed-{seed}-of-{trial_folder(best.number)}"
            if folders[seed] in self._study.notes and (kind == "best" or self._study.notes[folders[seed]] is not None):
                continue  # a seed that failed has another chance if its network is needed
            if not self._time.allows(first.max_epochs, seeds=False):
                logger.warning("max_hours: no time is left for seed %d and later ones", seed)
                break
            while len(self._running) >= self._shares.parallel:
                self._wait()
            running = [each.folder.name for each in self._running]
            if kind != "best" and any(self._study.notes.get(each) is None for each in started if each not in running):
                break  # the networks of consecutive seeds are combined
            started.append(folders[seed])
            self._start(
                self._paths.tuning / folders[seed],
                {**changes, "seed": seed} | ({"ensemble_model": kind} if kind == SOUP else {}),
                timeline=Timeline(),
                data_of=None if kind == "best" else first,
                initial_seed=self._hp.seed if kind == SOUP else None,
            )
        while self._running:
            self._wait()
        values = {self._hp.seed: best.value}
        values |= {seed: self._study.notes[folder] for seed, folder in folders.items() if folder in self._study.notes}
        trained = list(itertools.takewhile(lambda each: values[each] is not None, values))
        combined = {each: folders[each] for each in trained} if kind != "best" and len(trained) > 1 else {}
        candidates = values
        if kind != "best" and not combined:  # the runs of the other seeds are no jobs of their own
            logger.warning(
                "final_model: %s needs the network of a second seed, which has no result; using the best trial", kind
            )
            candidates = {self._hp.seed: best.value}
        seed = min(candidates, key=lambda each: self._study.rank(values[each]))
        own = {"ensemble": len(combined), "ensemble_model": kind} if combined else {"seed": seed}
        return {
            "folder": folders[seed],
            "trial": best.number,
            "value": values[seed],
            "changes": {**changes, **own},
            "seeds": values,
            "combined": combined,
            "final_model": kind if combined else "best",
            "asked": kind,
        }

    def settings(self, changes: dict[str, Any]) -> Hyperparameters:
        """Return the hyperparameters of a run; raise ContractError for a combination that is invalid.

        Args:
            changes: what the search drew, and what distinguishes runs with equal settings, such as the seed.
        """
        drawn = {name: value for name, value in changes.items() if name in space_of(self._hp)}
        num_workers = self._shares.num_workers
        hp = choose_trial_settings(self._paths, self._given.of_trial(drawn), self._facts, num_workers=num_workers)
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

    def _start(
        self,
        folder: Path,
        changes: dict[str, Any],
        *,
        timeline: Timeline,
        trial: Trial | None = None,
        data_of: Hyperparameters | None = None,
        initial_seed: int | None = None,
    ) -> None:
        """Prepare the data of the settings, or of `data_of`, if no earlier run has, and begin the run."""
        slot = min(set(range(self._shares.parallel)) - {running.run.slot for running in self._running})
        self._add_spare(slot)
        with self._stop.interrupting():
            prepared = self._prepare(data_of or self.settings(changes))
        val_classes = prepared.summary["splits"]["val"]["classes"]
        if not self._has_data:
            facts = DataFacts.read(prepared.summary)
            self._plan(facts)
            check_metric(self._hp, val_classes)
            self._study.note(_FACTS, asdict(facts))
        hp = self.settings(changes)
        check_val_labels(hp, val_classes)
        self._has_data = True
        run = self._spares.pop(slot)
        timeline.mark("prepare data")
        run.train(folder, hp, prepared=prepared.folder, initial_seed=initial_seed, timeline=timeline)
        # A process that was killed may have reported the last value without deciding about the trial: it counts again.
        reported = 0 if trial is None else max(0, len(self._study.trials[trial.number].intermediate_values) - 1)
        spent = 0.0 if trial is None else trial.user_attrs.get(_SECONDS, 0.0)
        self._running.append(Running(run, folder, hp, trial, reported, spent, prepared.folder))
        if self._study.finished + len(self._running) < self._tuning.trials + self._tuning.final_seeds - 1:
            self._add_spare(slot)

    def _prepare(self, hp: Hyperparameters) -> PreparedData:
        """Prepare the data of a run, or find it; the data of other settings may serve later runs."""
        in_use = [running.data for running in self._running]
        return prepare_data(self._paths, hp, keep_others=_OTHER_DATA, in_use=in_use)

    def _add_spare(self, slot: int) -> None:
        """Start the workers of the slot's next run, if they have not been started."""
        if slot not in self._spares:
            self._spares[slot] = TrialRun(self._shares, slot)

    def _wait(self) -> None:
        """Wait a moment; report new validations, and record the ends of runs."""
        with self._stop.interrupting():
            time.sleep(_POLL)
        for running in list(self._running):
            ended = running.run.ended  # before its last state is read
            state = running.run.new_state()
            if state is not None:
                running.state = state
                self._report(running)
            if ended:
                self._running.remove(running)
                running.run.close()
                self._end(running)
                self._remove_losers()

    def _report(self, running: Running) -> None:
        """Report new validations to the study; prune a trial that is worse than the others were there."""
        entries = validations(running.state, self._metric)
        for i in range(running.reported, len(entries)):
            if running.trial is None or running.pruned:
                return
            value = min((entry[self._metric] for entry in entries[: i + 1]), key=self._study.rank)
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
        if running.trial is not None and not running.pruned:
            running.trial.set_user_attr(_SECONDS, running.seconds)
        self._time.save()

    def _end(self, running: Running) -> None:
        """Record the result of a run that has ended."""
        value, failure = running.state.get("best_value"), running.run.failure
        reason = failure.cause if failure is not None else f"{self._metric} was never defined"
        completed = running.run.completed and value is not None
        if running.pruned:
            return
        if running.trial is None:
            logger.info(
                "%s: %s", running.folder.name, f"{self._metric}={value:.6g}" if completed else f"failed: {reason}"
            )
            self._study.note(running.folder.name, value if completed else None)
            self._study.back_up()
        elif completed:
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
        running = [each.folder.name for each in self._running]
        for trial in self._study.trials:
            folder = trial_folder(trial.number)
            if trial.state.is_finished() and folder not in running and (best is None or trial.number != best.number):
                remove_run(self._paths.tuning / folder)
