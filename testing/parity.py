"""Compare the numbers of every parallel strategy with those of one process, by the code path of a job.

Every run trains two tiny encoders and a table with a date for 20 optimizer steps on the same global batches, with
weights of records and classes, and clipping. The last batch of each epoch is smaller. The run validates, saves
checkpoints, and predicts test with the last weights. Dropout is off.

The relative difference of a tensor a to the single process's tensor b is max |a - b| / max |b|. The tensors are the
loss of each step and validation, each parameter and its gradient under its name in the plain model, and the logits of
test. Key biases of attention are divided by the maximum of their layer's query bias instead: softmax ignores a
constant, so their gradient is zero in theory and rounding noise in practice.
"""

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from container.data.batch import PackedBatch
from container.job.job import Job, Scratch
from container.parallel.degrees import ParallelDegrees
from container.parallel.mesh import build_mesh, shares_gpu
from container.preprocessing.prepare import prepare_data
from container.training.job_data import JobData
from container.training.loop import Trainer
from container.training.stop import StopFlag
from container.training.train import train_and_predict
from container.training.training_run import TrainingRun
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.hyperparameters import Hyperparameters
from contracts.paths import JobPaths
from contracts.settings.processes import ProcessSettings
from testing.jobs import CONFIGURATION, DATE_AND_WEIGHT, TINY_ENCODER, TWO_TEXTS, write_job
from testing.rank_pool import RankPool

TOLERANCE = 1e-5
GPU_TOLERANCE = 1e-4  # GPUs add the gradients of an embedding, and parts of a product, in any order
GLOBAL_BATCH = 16
# 69 = 4 x 16 + 5: in an epoch's last batch some ranks have no record, and the others have different numbers of them.
SPLIT_ROWS = (69, 21, 27)
STEPS = 20

ENCODER = {**TINY_ENCODER, "num_hidden_layers": 4, "num_attention_heads": 4}
SETTINGS: dict[str, Any] = {
    **CONFIGURATION,
    **TWO_TEXTS,
    **DATE_AND_WEIGHT,
    "bf16": False,
    "compile": False,
    "class_weights": [1.0, 3.0],
    "gradient_clip_val": 0.5,
    "max_epochs": 4,
    "val_check_interval": 10,
    "load_ckpt": False,
    "resume": False,
}
DROPOUT_OFF = {"dropout": 0.0, "fusion_dropout": 0.0, "encoder_config": {**ENCODER, "hidden_dropout_prob": 0.0}}
DROPOUT_ON = {"dropout": 0.3, "fusion_dropout": 0.3, "encoder_config": {**ENCODER, "hidden_dropout_prob": 0.3}}
# Adam turns rounding noise into full steps where gradients are zero in theory, so its weights are not compared.
ADAMW = {"optimizer": "AdamW", "lr": 2e-3, "weight_decay": 0.01}
SGD = {"optimizer": "SGD", "lr": 0.05, "momentum": 0.9}


@dataclass(frozen=True)
class Strategy:
    """A row of the parity table: settings of parallelism. Its batch_size follows from the global batch."""

    name: str
    world_size: int
    settings: dict[str, Any] = field(default_factory=dict)

    def hyperparameters(self, settings: dict[str, Any]) -> Hyperparameters:
        """Return `settings` with those of this strategy.

        Raises:
            ContractError: the settings contradict the strategy.
        """
        values = {name: value for name, value in {**settings, **self.settings}.items() if value is not None}
        whole = parse_hyperparameters({**values, "batch_size": GLOBAL_BATCH})
        degrees = ParallelDegrees.resolve(whole, self.world_size)
        parts = degrees.dp_replicate * degrees.dp_shard * values.get("accumulate_grad_batches", 1)
        assert GLOBAL_BATCH % parts == 0
        return parse_hyperparameters({**values, "batch_size": GLOBAL_BATCH // parts})

    def alone(self) -> "Strategy":
        """Return one process with the same settings, without those of parallelism."""
        return Strategy(
            "one process", 1, {name: value for name, value in self.settings.items() if not about_processes(name)}
        )


ONE_PROCESS = Strategy("one process", 1)


def about_processes(name: str) -> bool:
    return name in {"accumulate_grad_batches", "max_tokens_per_batch", *ProcessSettings.model_fields}


@dataclass(frozen=True)
class HeldBytes:
    """Bytes of this rank's tensors after an optimizer step; each storage is counted once."""

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
    """The results of a run.

    Attributes:
        losses: train/loss and val/loss, by name and step.
        gradients: for each parameter name, the copies of all ranks; of the first step, after clipping.
        weights: for each parameter name, the copies of all ranks, after the last step.
        logits: logits of test. [N, K]
        held: memory of each rank.
    """

    losses: dict[str, np.ndarray]
    gradients: dict[str, list[np.ndarray]]
    weights: dict[str, list[np.ndarray]]
    logits: np.ndarray
    held: list[HeldBytes]


@dataclass(frozen=True)
class Difference:
    """The largest relative difference in a group of tensors, and the name of the tensor."""

    value: float
    where: str


class ParityJobs:
    """Trains strategies on one prepared data set.

    Args:
        folder: folder for the data, checkpoints and logs of the runs.
    """

    def __init__(self, pool: RankPool, folder: Path) -> None:
        self._pool = pool
        self._folder = folder
        self._prepared: dict[str, Path] = {}
        self._number = itertools.count()

    def train(self, strategy: Strategy, *runs: dict[str, Any]) -> list[Trained]:
        """Train under `strategy` once with each of `runs`, which override SETTINGS.

        Raises:
            ContractError: the settings contradict the strategy.
            RankFailed: a rank failed.
        """
        jobs = [self.job(strategy, run) for run in runs]
        by_rank = self._pool.run(train_jobs, jobs, world_size=strategy.world_size)
        return [_merged(parts) for parts in zip(*by_rank)]

    def job(self, strategy: Strategy, run: dict[str, Any]) -> Job:
        """Return a new job under `strategy`, with a folder of its own; `run` overrides SETTINGS."""
        settings = {**SETTINGS, **run}
        paths = JobPaths(self._folder / f"run{next(self._number)}")
        return Job(paths, strategy.hyperparameters(settings), Scratch(paths.root), self._prepare(settings))

    def _prepare(self, settings: dict[str, Any]) -> Path:
        names = ("encoder_config", "model_class", "num_classes", "tab_field_list", "text_name")
        key = repr([settings.get(name) for name in names])
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
    """Train each job as a worker does, and return the results of this rank."""
    # torch warns that gathering whole tensors is slow if two axes split the same dimension.
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    return [_train(job) for job in jobs]


def _train(job: Job) -> dict[str, Any]:
    gradients: dict[str, np.ndarray] = {}
    held: list[HeldBytes] = []
    runs: list[TrainingRun] = []
    step = Trainer._step

    def recorded_step(trainer: Trainer, *microbatches: Sequence[PackedBatch]) -> None:
        step(trainer, *microbatches)
        if not runs:
            run = trainer._run
            runs.append(run)
            gradients.update(_whole({name: p.grad for name, p in _trainable(run.execution.module)}))
            held.append(HeldBytes.by(run.execution.module, run.optimizer))

    ranks = build_mesh(ParallelDegrees.resolve(job.hp, dist.get_world_size()))
    with mock.patch.object(Trainer, "_step", recorded_step):
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
    """Return copies of the whole tensors; every rank of a mesh must gather the same ones in the same order."""
    return {
        name: (_gathered(tensor) if isinstance(tensor, DTensor) else tensor).detach().cpu().numpy().copy()
        for name, tensor in tensors.items()
        if tensor is not None
    }


def _gathered(tensor: DTensor) -> Tensor:
    if not shares_gpu():
        return tensor.full_tensor()
    # gloo crashes in this gather of CUDA tensors (torch 2.11).
    local, mesh = tensor.to_local().detach().cpu(), _cpu_mesh(tensor.device_mesh)
    whole = {"shape": tensor.shape, "stride": tensor.stride()}
    return DTensor.from_local(local, mesh, tensor.placements, **whole).full_tensor()


@cache
def _cpu_mesh(mesh: DeviceMesh) -> DeviceMesh:
    return DeviceMesh("cpu", mesh.mesh, mesh_dim_names=mesh.mesh_dim_names)


def _storage_bytes(tensors: Sequence[Tensor]) -> int:
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    storages = [tensor.untyped_storage() for tensor in local]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


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
    """The differences between a strategy and one process.

    Attributes:
        losses: losses of training and validation with AdamW.
        gradients: gradients of the first step, after clipping.
        weights: weights after the last step of SGD.
        predictions: logits of test with both optimizers.
    """

    losses: Difference
    gradients: Difference
    weights: Difference
    predictions: Difference

    @property
    def largest(self) -> Difference:
        return max(
            (self.losses, self.gradients, self.weights, self.predictions), key=lambda difference: difference.value
        )

    @property
    def holds(self) -> bool:
        return self.largest.value <= tolerance()


class ParityCheck:
    """Compares strategies with one process, which it trains once for all strategies with the same model."""

    def __init__(self, jobs: ParityJobs) -> None:
        self._jobs = jobs
        self._references: dict[str, list[Trained]] = {}

    def reference(self, strategy: Strategy) -> tuple[Trained, Trained]:
        """Return the results of one process with the model of `strategy`, with AdamW and with SGD."""
        alone = strategy.alone()
        key = repr(alone)
        if key not in self._references:
            self._references[key] = self._run(alone)
        adamw, sgd = self._references[key]
        return adamw, sgd

    def compare(self, strategy: Strategy) -> Parity:
        """Compare with one process; raise the errors of ParityJobs.train."""
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
        """Return the largest difference in a run with SGD; `settings` override the defaults."""
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
        return max((largest_difference(*group) for group in groups), key=lambda difference: difference.value)

    def _run(self, strategy: Strategy) -> list[Trained]:
        return self._jobs.train(strategy, {**DROPOUT_OFF, **ADAMW}, {**DROPOUT_OFF, **SGD})


def tolerance() -> float:
    """Return the largest difference that is ok on this machine's devices; tests hide its GPUs from themselves."""
    return GPU_TOLERANCE if torch.cuda.is_available() else TOLERANCE


def disagreement(trained: Trained) -> Difference:
    """Return the largest difference between the ranks' copies of a weight."""
    return largest_difference(trained.weights, _first_copies(trained.weights))


def _first_copies(copies: dict[str, list[np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: arrays[0] for name, arrays in copies.items()}


def largest_difference(ours: dict[str, list[np.ndarray]], reference: dict[str, np.ndarray]) -> Difference:
    """Return the largest relative difference over all copies of all tensors; infinity if a tensor is missing."""
    missing = sorted(ours.keys() ^ reference.keys())
    if missing:
        return Difference(float("inf"), f"{missing[0]} is on one side only")
    largest = Difference(0.0, "")
    for name, expected in reference.items():
        scale = np.abs(reference[name.replace(".key.bias", ".query.bias")]).max()
        for copy in ours[name]:
            if copy.shape != expected.shape or not np.isfinite(copy).all():
                return Difference(float("inf"), f"{name}: shape {copy.shape}, finite: {np.isfinite(copy).all()}")
            value = float(np.abs(copy.astype(np.float64) - expected).max() / scale)
            if not value <= largest.value:
                largest = Difference(value, name)
    return largest


def difference(ours: Trained, reference: Trained) -> Difference:
    """Return the largest difference of losses, weights and test logits from those on rank 0 of `reference`."""
    losses = largest_difference({name: [loss] for name, loss in ours.losses.items()}, reference.losses)
    weights = largest_difference(ours.weights, _first_copies(reference.weights))
    logits = largest_difference({"test": [ours.logits]}, {"test": reference.logits})
    return max((losses, weights, logits), key=lambda largest: largest.value)
