"""A checkpoint saved under one strategy resumes under any other, and losses continue as if nothing had happened."""

import shutil
import time
from typing import Any

import numpy as np
import pytest

from container.job.job import Job, Scratch
from container.preprocessing.prepare import prepare_data
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.hyperparameters import Hyperparameters
from contracts.paths import JobPaths
from testing.jobs import write_job
from testing.parity import ADAMW, DROPOUT_OFF, DROPOUT_ON, ONE_PROCESS, SETTINGS, SGD, SPLIT_ROWS, Strategy, train_jobs
from testing.parity_strategies import STRATEGIES
from testing.tiers import long_except

pytestmark = pytest.mark.slow

SAVED_AT, STEPS = 8, 15  # five steps an epoch: step 8 is in the middle of one
BY_NAME = {strategy.name: strategy for strategy in (ONE_PROCESS, *STRATEGIES)}
TOLERANCE = 1e-6


class Uneven(Strategy):
    """Ranks whose number does not divide the global batch."""

    def hyperparameters(self, settings: dict[str, Any]) -> Hyperparameters:
        values = {name: value for name, value in {**settings, **self.settings}.items() if value is not None}
        return parse_hyperparameters(values)


class Runs:
    """Trains on one prepared data set, from the start or from a checkpoint of another run; trains nothing twice."""

    def __init__(self, pool, folder) -> None:
        self._pool = pool
        self._folder = folder
        self._prepared: dict[str, Any] = {}
        self._whole: dict[str, tuple[JobPaths, dict[str, np.ndarray]]] = {}

    def whole(self, strategy: Strategy, settings: dict[str, Any]) -> tuple[JobPaths, dict[str, np.ndarray]]:
        """An uninterrupted run: where its checkpoints are, and its losses and final logits."""
        key = f"{strategy.name} {settings}"
        if key not in self._whole:
            paths = JobPaths(self._folder / f"whole{len(self._whole)}")
            keeping = {"keep_checkpoints": 9, "checkpoint_every_n_steps": SAVED_AT, "resume": False}
            self._whole[key] = paths, self._train(strategy, paths, {**settings, **keeping})
        return self._whole[key]

    def resumed(self, saved: Strategy, strategy: Strategy, settings: dict[str, Any]) -> dict[str, np.ndarray]:
        """Return the results of `strategy` after resuming from the checkpoint of `saved` at SAVED_AT steps."""
        paths = JobPaths(self._folder / f"resumed{time.time_ns()}")
        for folder in self.whole(saved, settings)[0].checkpoints.glob(f"*step={SAVED_AT}.ckpt"):
            shutil.copytree(folder, paths.checkpoints / folder.name)
        assert len(list(paths.checkpoints.glob("*"))) == 1
        return self._train(strategy, paths, {**settings, "resume": True})

    def _train(self, strategy: Strategy, paths: JobPaths, settings: dict[str, Any]) -> dict[str, np.ndarray]:
        settings = {**SETTINGS, "max_epochs": 3, **settings}
        hp = strategy.hyperparameters(settings)
        paths.root.mkdir(parents=True, exist_ok=True)
        job = Job(paths, hp, Scratch(paths.root), self._prepare(settings))
        first, *_ = [parts[0] for parts in self._pool.run(train_jobs, [job], world_size=strategy.world_size)]
        losses = {
            f"{name} of step {entry['step']}": np.array(entry[name])
            for entry in first["history"]
            for name in ("train/loss", "val/loss")
            if name in entry
        }
        return {**losses, "logits": first["logits"]}

    def _prepare(self, settings: dict[str, Any]) -> Any:
        key = repr(settings["encoder_config"])
        if key not in self._prepared:
            paths = write_job(self._folder / f"data{len(self._prepared)}", overrides=settings, rows=SPLIT_ROWS)
            values = {name: value for name, value in settings.items() if value is not None}
            self._prepared[key] = prepare_data(paths, parse_hyperparameters(values)).folder
        return self._prepared[key]


@pytest.fixture(scope="module")
def runs(rank_pool, tmp_path_factory):
    return Runs(rank_pool, tmp_path_factory.mktemp("resume"))


def largest_difference(ours: dict[str, np.ndarray], reference: dict[str, np.ndarray]) -> tuple[float, str]:
    """Of everything that came after the checkpoint, relative to the reference's largest value."""
    late = {name for name in reference if name == "logits" or int(name.rsplit(" ", 1)[1]) > SAVED_AT}
    assert late <= ours.keys()
    assert len(late) >= STEPS - SAVED_AT + 2
    found = {name: float(np.abs(ours[name] - reference[name]).max() / np.abs(reference[name]).max()) for name in late}
    return max((value, name) for name, value in found.items())


@pytest.mark.parametrize(
    ("saved", "resumed"),
    long_except(
        [("ddp 2", "fsdp 2, FULL_SHARD")],
        [
            ("ddp 2", "fsdp 2, FULL_SHARD"),
            ("fsdp 4, FULL_SHARD", "fsdp 2, FULL_SHARD"),
            ("ddp 2, token limit", "fsdp 2, FULL_SHARD"),
            ("accumulation", "pp 2, 1F1B, token limit"),
            ("fsdp 2, FULL_SHARD", "tp 2"),
            ("tp 2", "ddp 2"),
            ("pp 2, 1F1B", "ddp 2"),
            ("ddp 2", "pp 2 x dp 2"),
            ("pp 2, Interleaved1F1B", "branch 2"),
            ("hsdp 2x2", "one process"),
            ("branch 2", "one process"),
            ("one process", "branch 2 x fsdp 2"),
            ("tp 2 x fsdp 2", "pp 2 x tp 2"),
            ("pp 2 x fsdp 2", "tp 2 x fsdp 2"),
        ],
    ),
)
def test_losses_continue_under_another_strategy_as_if_nothing_had_happened(runs, saved, resumed):
    settings = {**DROPOUT_OFF, **ADAMW}
    _, uninterrupted = runs.whole(ONE_PROCESS, settings)
    value, where = largest_difference(runs.resumed(BY_NAME[saved], BY_NAME[resumed], settings), uninterrupted)
    assert value <= TOLERANCE, where


@pytest.mark.long
@pytest.mark.parametrize(
    "resumed",
    [
        Uneven("three replicas", 3, {"strategy": "ddp", "batch_size": 6}),  # 6, 5 and 5 records a step
        Uneven("three shards, accumulating", 3, {"strategy": "fsdp", "batch_size": 3}),  # 2 passes
        Uneven("one process, accumulating", 1, {"batch_size": 5}),  # 4 passes
        Uneven("three replicas, few tokens", 3, {"strategy": "ddp", "batch_size": 6, "max_tokens_per_batch": 90}),
    ],
    ids=lambda strategy: strategy.name,
)
def test_the_global_batch_stays_the_same_on_ranks_that_do_not_divide_it(runs, resumed):
    settings = {**DROPOUT_OFF, **ADAMW}
    _, uninterrupted = runs.whole(ONE_PROCESS, settings)
    value, where = largest_difference(runs.resumed(BY_NAME["ddp 2"], resumed, settings), uninterrupted)
    assert value <= TOLERANCE, where


@pytest.mark.long
@pytest.mark.parametrize("resumed", ["ddp 2", "fsdp 4, FULL_SHARD", "pp 2 x dp 2"])
def test_momentum_and_frozen_embeddings_resume_anywhere_too(runs, resumed):
    settings = {**DROPOUT_OFF, **SGD, "is_embeddings_trainable": False}
    _, uninterrupted = runs.whole(ONE_PROCESS, settings)
    value, where = largest_difference(
        runs.resumed(BY_NAME["fsdp 2, FULL_SHARD"], BY_NAME[resumed], settings), uninterrupted
    )
    assert value <= TOLERANCE, where


@pytest.mark.long
@pytest.mark.parametrize(
    ("saved", "resumed"),
    [
        ("fsdp 4, FULL_SHARD", "ddp 2"),
        ("ddp 2", "pp 2 x fsdp 2"),
        ("pp 2 x fsdp 2", "tp 2 x fsdp 2"),
        ("tp 2", "fsdp 2, SHARD_GRAD_OP"),
    ],
)
def test_the_average_of_the_weights_resumes_under_another_strategy(runs, saved, resumed):
    settings = {**DROPOUT_OFF, **ADAMW, "ema_decay": 0.9}
    _, uninterrupted = runs.whole(ONE_PROCESS, settings)
    value, where = largest_difference(runs.resumed(BY_NAME[saved], BY_NAME[resumed], settings), uninterrupted)
    assert value <= TOLERANCE, where


@pytest.mark.parametrize(
    "name",
    long_except(["ddp 2"], ["ddp 2", "ddp 2, token limit", "fsdp 2, FULL_SHARD", "tp 2", "pp 2 x dp 2", "branch 2"]),
)
def test_the_same_strategy_resumes_to_the_bit_dropout_included(runs, name):
    settings = {**DROPOUT_ON, **ADAMW}
    _, uninterrupted = runs.whole(BY_NAME[name], settings)
    assert largest_difference(runs.resumed(BY_NAME[name], BY_NAME[name], settings), uninterrupted)[0] == 0.0
