"""One process's numbers beside those of every parallel strategy, all through the path that a job takes.

Every run trains two tiny encoders and a table for 20 optimizer steps on the same global batches, the last of each epoch
smaller than the rest, with class weights and clipping; it validates, saves checkpoints, and predicts test with the
weights of the last one. Dropout is off.

The one definition of a relative difference, of a tensor to the single process's: max |a - b| / max |b|. Tensors are
each step's loss, each validation's, each parameter or its gradient under its name in the plain model, and the logits of
test. The attention's key biases alone are measured against the query bias of their layer: softmax takes no notice of a
constant, so in theory their gradient is zero, and in practice it is rounding noise.
"""

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from container.data.batch import PackedBatch
from container.job import Job
from container.parallel.degrees import ParallelDegrees
from container.parallel.mesh import build_mesh
from container.preprocessing.prepare import prepare_data
from container.training.job_data import JobData
from container.training.loop import Trainer
from container.training.stop import StopFlag
from container.training.train import train_and_predict
from container.training.training_run import TrainingRun
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.hyperparameters import Hyperparameters
from contracts.paths import JobPaths
from testing.jobs import CONFIGURATION, TINY_ENCODER, TWO_TEXTS, write_job
from testing.rank_pool import RankPool

TOLERANCE = 1e-5
GLOBAL_BATCH = 16
# 69 = 4 x 16 + 5: an epoch's last batch leaves ranks without a record, and the others with different numbers of them.
SPLIT_ROWS = (69, 21, 27)
STEPS = 20

ENCODER = {**TINY_ENCODER, "num_hidden_layers": 4, "num_attention_heads": 4}
SETTINGS: dict[str, Any] = {
    **CONFIGURATION,
    **TWO_TEXTS,
    "class_weights": [1.0, 3.0],
    "gradient_clip_val": 0.5,
    "max_epochs": 4,
    "val_check_interval": 10,
    "load_ckpt": False,
    "resume": False,
}
DROPOUT_OFF = {"dropout": 0.0, "fusion_dropout": 0.0, "encoder_config": {**ENCODER, "hidden_dropout_prob": 0.0}}
DROPOUT_ON = {"dropout": 0.3, "fusion_dropout": 0.3, "encoder_config": {**ENCODER, "hidden_dropout_prob": 0.3}}
# Adam turns the rounding noise of gradients that are zero in theory into full steps: its weights tell nothing.
ADAMW = {"optimizer": "AdamW", "lr": 2e-3, "weight_decay": 0.01}
SGD = {"optimizer": "SGD", "lr": 0.05, "momentum": 0.9}


@dataclass(frozen=True)
class Strategy:
    """A row of the table: how the work is spread. Its batch_size follows from the global batch."""

    name: str
    world_size: int
    settings: dict[str, Any] = field(default_factory=dict)

    def hyperparameters(self, settings: dict[str, Any]) -> Hyperparameters:
        """`settings` under this strategy.

        Raises:
            ContractError: the strategy is refused.
        """
        values = {name: value for name, value in {**settings, **self.settings}.items() if value is not None}
        whole = parse_hyperparameters({**values, "batch_size": GLOBAL_BATCH})
        degrees = ParallelDegrees.resolve(whole, self.world_size)
        parts = degrees.dp_replicate * degrees.dp_shard * values.get("accumulate_grad_batches", 1)
        assert GLOBAL_BATCH % parts == 0
        return parse_hyperparameters({**values, "batch_size": GLOBAL_BATCH // parts})

    def alone(self) -> "Strategy":
        """One process with the same settings, but for those that say how the work is spread."""
        return Strategy(
            "one process", 1, {name: value for name, value in self.settings.items() if not about_processes(name)}
        )


ONE_PROCESS = Strategy("one process", 1)


def about_processes(name: str) -> bool:
    return name == "accumulate_grad_batches" or Hyperparameters.declarations()[name].group == "processes"


@dataclass(frozen=True)
class HeldBytes:
    """Bytes of this rank's own parts after an optimizer step: of the storages they lie in, each counted once."""

    parameters: int
    gradients: int
    optimizer: int

    @classmethod
    def by(cls, module: nn.Module, optimizer: torch.optim.Optimizer) -> "HeldBytes":
        parameters = [parameter for _, parameter in _trainable(module)]
        return cls(
            parameters=_storage_bytes(parameters),
            gradients=_storage_bytes([parameter.grad for parameter in parameters if parameter.grad is not None]),
            optimizer=_storage_bytes([v for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)]),
        )


@dataclass(frozen=True)
class Trained:
    """What a run left, on the ranks that have it.

    Attributes:
        losses: train/loss and val/loss, by name and step.
        gradients: of the first step, after clipping: for each name the copies that ranks hold.
        weights: after the last step, likewise.
        logits: of test. [N, K]
        held: by rank.
    """

    losses: dict[str, np.ndarray]
    gradients: dict[str, list[np.ndarray]]
    weights: dict[str, list[np.ndarray]]
    logits: np.ndarray
    held: list[HeldBytes]


@dataclass(frozen=True)
class Difference:
    """The largest relative difference of a group of tensors, and whose it is."""

    value: float
    where: str


class ParityJobs:
    """Trains strategies on one prepared data set.

    Args:
        folder: for data, checkpoints and logs of the runs.
    """

    def __init__(self, pool: RankPool, folder: Path) -> None:
        self._pool = pool
        self._folder = folder
        self._prepared: dict[str, Path] = {}
        self._number = itertools.count()

    def train(self, strategy: Strategy, *runs: dict[str, Any]) -> list[Trained]:
        """Train under `strategy` once with each of `runs`, which are laid over SETTINGS.

        Raises:
            ContractError: the strategy is refused.
            RankFailed: a rank failed.
        """
        jobs = []
        for run in runs:
            settings = {**SETTINGS, **run}
            paths = JobPaths(self._folder / f"run{next(self._number)}")
            hp = strategy.hyperparameters(settings)
            jobs.append(Job(paths, hp, paths.root, self._prepare(settings)))
        by_rank = self._pool.run(train_jobs, jobs, world_size=strategy.world_size)
        return [_merged(parts) for parts in zip(*by_rank)]

    def _prepare(self, settings: dict[str, Any]) -> Path:
        key = repr([settings.get(name) for name in ("encoder_config", "model_class", "num_classes", "tab_field_list")])
        if key not in self._prepared:
            paths = write_job(
                self._folder / f"data{len(self._prepared)}",
                overrides=settings,
                rows=SPLIT_ROWS,
                classes=settings.get("num_classes", 2),
            )
            values = {name: value for name, value in settings.items() if value is not None}
            self._prepared[key] = prepare_data(paths, parse_hyperparameters(values)).folder
        return self._prepared[key]


def train_jobs(jobs: list[Job]) -> list[dict[str, Any]]:
    """On every rank: train each job as a worker does; what this rank knows of it."""
    # To gather whole tensors for comparison, torch finds, is slow where two axes cut the same dimension.
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    return [_train(job) for job in jobs]


def _train(job: Job) -> dict[str, Any]:
    gradients: dict[str, np.ndarray] = {}
    held: list[HeldBytes] = []
    runs: list[TrainingRun] = []
    step = Trainer._step

    def noted_step(trainer: Trainer, microbatches: Sequence[PackedBatch]) -> None:
        step(trainer, microbatches)
        if not runs:
            run = trainer._run
            runs.append(run)
            gradients.update(_whole({name: p.grad for name, p in _trainable(run.execution.module)}))
            held.append(HeldBytes.by(run.execution.module, run.optimizer))

    ranks = build_mesh(ParallelDegrees.resolve(job.hp, dist.get_world_size()))
    with mock.patch.object(Trainer, "_step", noted_step):
        trained = train_and_predict(job, ranks, data=JobData.open(job), stop=StopFlag())
    return {
        "history": trained.state.history,
        "gradients": gradients,
        "weights": _whole(dict(_trainable(runs[0].execution.module))),
        "logits": trained.logits["test"],
        "held": held[0],
    }


def _trainable(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]


def _whole(tensors: dict[str, Tensor | None]) -> dict[str, np.ndarray]:
    """Copies of the whole tensors on this rank; every rank of a mesh gathers the same ones in the same order."""
    return {
        name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().numpy().copy()
        for name, tensor in tensors.items()
        if tensor is not None
    }


def _storage_bytes(tensors: Sequence[Tensor]) -> int:
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in local}.values())


def _merged(parts: tuple[dict[str, Any], ...]) -> Trained:
    history = parts[0]["history"]
    losses = {
        f"{name} of step {entry['step']}": np.array(entry[name])
        for entry in history
        for name in ("train/loss", "val/loss")
        if name in entry
    }
    copies: dict[str, dict[str, list[np.ndarray]]] = {"gradients": {}, "weights": {}}
    for kind, by_name in copies.items():
        for part in parts:
            for name, array in part[kind].items():
                by_name.setdefault(name, []).append(array)
    held = [part["held"] for part in parts]
    return Trained(losses, copies["gradients"], copies["weights"], parts[0]["logits"], held)


@dataclass(frozen=True)
class Parity:
    """How far a strategy's numbers are from one process's.

    Attributes:
        losses: of training and validation under AdamW.
        gradients: of the first step, after clipping.
        weights: after the last step of SGD.
        predictions: logits of test after either.
    """

    losses: Difference
    gradients: Difference
    weights: Difference
    predictions: Difference

    @property
    def largest(self) -> Difference:
        return max((self.losses, self.gradients, self.weights, self.predictions), key=lambda found: found.value)

    @property
    def holds(self) -> bool:
        return self.largest.value <= TOLERANCE


class ParityCheck:
    """Compares strategies to one process, which it trains once for all strategies with the same model."""

    def __init__(self, jobs: ParityJobs) -> None:
        self._jobs = jobs
        self._references: dict[str, list[Trained]] = {}

    def reference(self, strategy: Strategy) -> tuple[Trained, Trained]:
        """One process with the model of `strategy`, after AdamW and after SGD."""
        alone = strategy.alone()
        key = repr(alone)
        if key not in self._references:
            self._references[key] = self._run(alone)
        adamw, sgd = self._references[key]
        return adamw, sgd

    def compare(self, strategy: Strategy) -> Parity:
        """Raises what ParityJobs.train raises."""
        (adamw, sgd), (adamw_alone, sgd_alone) = self._run(strategy), self.reference(strategy)
        return Parity(
            losses=largest_difference({name: [loss] for name, loss in adamw.losses.items()}, adamw_alone.losses),
            gradients=largest_difference(sgd.gradients, _first_copies(sgd_alone.gradients)),
            weights=largest_difference(sgd.weights, _first_copies(sgd_alone.weights)),
            predictions=largest_difference(
                {"AdamW, test": [adamw.logits], "SGD, test": [sgd.logits]},
                {"AdamW, test": adamw_alone.logits, "SGD, test": sgd_alone.logits},
            ),
        )

    def compare_sgd(self, strategy: Strategy, settings: dict[str, Any]) -> Difference:
        """The largest difference of anything after SGD alone, of a run with `settings` laid over."""
        (ours,) = self._jobs.train(strategy, {**DROPOUT_OFF, **SGD, **settings})
        key = repr((strategy.alone(), settings))
        if key not in self._references:
            self._references[key] = self._jobs.train(strategy.alone(), {**DROPOUT_OFF, **SGD, **settings})
        (alone,) = self._references[key]
        groups = (
            ({name: [loss] for name, loss in ours.losses.items()}, alone.losses),
            (ours.gradients, _first_copies(alone.gradients)),
            (ours.weights, _first_copies(alone.weights)),
            ({"test": [ours.logits]}, {"test": alone.logits}),
        )
        return max((largest_difference(*group) for group in groups), key=lambda found: found.value)

    def _run(self, strategy: Strategy) -> list[Trained]:
        return self._jobs.train(strategy, {**DROPOUT_OFF, **ADAMW}, {**DROPOUT_OFF, **SGD})


def disagreement(trained: Trained) -> Difference:
    """How far the ranks' copies of a weight are from each other."""
    return largest_difference(trained.weights, _first_copies(trained.weights))


def _first_copies(copies: dict[str, list[np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: arrays[0] for name, arrays in copies.items()}


def largest_difference(ours: dict[str, list[np.ndarray]], reference: dict[str, np.ndarray]) -> Difference:
    """The largest relative difference of all copies of all tensors; infinite where one is missing."""
    missing = sorted(ours.keys() ^ reference.keys())
    if missing:
        return Difference(float("inf"), f"{missing[0]} is on one side only")
    found = Difference(0.0, "")
    for name, expected in reference.items():
        scale = np.abs(reference[name.replace(".key.bias", ".query.bias")]).max()
        for copy in ours[name]:
            if copy.shape != expected.shape or not np.isfinite(copy).all():
                return Difference(float("inf"), f"{name}: shape {copy.shape}, finite: {np.isfinite(copy).all()}")
            value = float(np.abs(copy.astype(np.float64) - expected).max() / scale)
            if not value <= found.value:
                found = Difference(value, name)
    return found


def difference(ours, reference):
    """The largest difference of losses, weights and test logits between two runs; of `reference` rank 0 counts."""
    losses = largest_difference({name: [loss] for name, loss in ours.losses.items()}, reference.losses)
    weights = largest_difference(ours.weights, {name: copies[0] for name, copies in reference.weights.items()})
    logits = largest_difference({"test": [ours.logits]}, {"test": reference.logits})
    return max((losses, weights, logits), key=lambda found: found.value)
