"""The loss that the training loop reports, with an execution whose losses and gradient norms are given."""

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import torch

from container.parallel.degrees import ParallelDegrees
from container.parallel.mesh import RankMesh
from container.training.job_data import JobData
from container.training.loop import Trainer
from container.training.precision import LossScaler
from container.training.state import TrainingState, ValidationSchedule
from testing.encoder_families import hyperparameters, packed_batch


def reported_losses(
    losses: list[float], norms: list[float], *, every: int, weights: Sequence[float] = ()
) -> list[float]:
    """Return train/loss of each progress line, of steps with these losses, gradient norms and weights (default: 1)."""
    ranks = RankMesh(torch.device("cpu"), None, ParallelDegrees(), rank=0, world_size=1, coordinates={})
    of_steps, of_gradients = iter(losses), iter(norms)
    execution = SimpleNamespace(
        ranks=ranks,
        module=SimpleNamespace(fusion=None, computed_tokens=lambda _: 5),
        forward_backward=lambda *_, **__: torch.tensor(next(of_steps)),
        clip_grad_norm=lambda *_, **__: next(of_gradients),
    )
    parameter = torch.nn.Parameter(torch.zeros(1))
    run = SimpleNamespace(
        execution=execution,
        optimizer=torch.optim.SGD([{"params": [parameter], "lr_scale": 1.0}], lr=0.1),
        average=SimpleNamespace(update=lambda _: None),
        scaler=LossScaler(),
        state=TrainingState(),
    )
    split: Any = SimpleNamespace(column=lambda _: pa.chunked_array([[0]]))
    fitted: Any = SimpleNamespace(fitted=SimpleNamespace(class_labels=(0, 1)))
    trainer = Trainer(
        SimpleNamespace(hp=hyperparameters(log_every_n_steps=every)),
        run,
        data=JobData(fitted, {"train": split, "val": split}, [1.0, 1.0]),
        schedule=ValidationSchedule(100, 25, 1, 1.0),
        progress=SimpleNamespace(step=lambda **_: None, report=lambda *_: {}),
        profiler=None,
        stop=SimpleNamespace(requested=False),
    )
    trainer._has_stepped = True
    for weight in weights or [1.0] * len(losses):
        trainer._step([replace(packed_batch([[5]]), weights=torch.tensor([weight]))])
    return [entry["train/loss"] for entry in run.state.history]


def test_the_loss_of_a_skipped_step_does_not_enter_the_reported_mean() -> None:
    assert reported_losses([1.0, math.nan, 3.0, 5.0], [1.0, math.nan, 1.0, 1.0], every=4) == [3.0]


def test_a_step_in_which_every_record_has_weight_0_does_not_enter_the_reported_mean() -> None:
    assert reported_losses([1.0, 0.0, 3.0, 5.0], [1.0] * 4, every=4, weights=[1, 0, 2, 1]) == [3.0]


def test_a_report_without_a_step_of_the_optimizer_has_no_loss_and_the_next_one_has_its_own() -> None:
    found = reported_losses([math.inf, math.inf, 2.0, 4.0], [math.inf, math.inf, 1.0, 1.0], every=2)
    assert found == pytest.approx([math.nan, 3.0], nan_ok=True)
