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
from container.parallel.execution import GradientNorm
from container.parallel.mesh import RankMesh
from container.training.average import WeightAverage
from container.training.job_data import JobData
from container.training.loop import Trainer
from container.training.precision import LossScaler
from container.training.state import TrainingState, ValidationSchedule
from contracts.errors import ContractError
from testing.encoder_families import hyperparameters, packed_batch


def gradient_norm(value: float) -> GradientNorm:
    norm = torch.tensor(value, dtype=torch.float64)
    return GradientNorm(norm, None, norm.isfinite().logical_not().float())


RANKS = RankMesh(torch.device("cpu"), None, ParallelDegrees(), rank=0, world_size=1, coordinates={})


def trainer_of(losses: Sequence[float], norms: Sequence[float], **settings: Any) -> Trainer:
    """Return a trainer of one weight, whose steps have these losses and gradient norms; its gradient is its norm."""
    of_steps, of_gradients = iter(losses), iter(norms)
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.zeros(1))
    module.fusion, module.computed_tokens = None, lambda _: 5

    def norm_of_step(*_: Any, **__: Any) -> GradientNorm:
        norm = gradient_norm(next(of_gradients))
        module.weight.grad = norm.value[None].float()
        return norm

    execution = SimpleNamespace(
        ranks=RANKS,
        module=module,
        forward_backward=lambda *_, **__: torch.tensor(next(of_steps)),
        gradient_norm=norm_of_step,
    )
    run = SimpleNamespace(
        execution=execution,
        optimizer=torch.optim.AdamW([{"params": [module.weight], "lr_scale": 1.0}], lr=0.1, fused=True),
        average=WeightAverage(module, decay=0.5),
        scaler=LossScaler(),
        state=TrainingState(),
    )
    split: Any = SimpleNamespace(column=lambda _: pa.chunked_array([[0]]))
    fitted: Any = SimpleNamespace(fitted=SimpleNamespace(class_labels=(0, 1)))
    trainer = Trainer(
        SimpleNamespace(hp=hyperparameters(**settings)),
        run,
        data=JobData(fitted, {"train": split, "val": split}, [1.0, 1.0]),
        schedule=ValidationSchedule(100, 25, 1, 1.0),
        progress=SimpleNamespace(step=lambda **_: None, report=lambda *_: {}),
        profiler=None,
        stop=SimpleNamespace(requested=False),
    )
    trainer._has_stepped = True
    return trainer


def reported_losses(
    losses: list[float], norms: list[float], *, every: int, weights: Sequence[float] = ()
) -> list[float]:
    """Return train/loss of each progress line, of steps with these losses, gradient norms and weights (default: 1)."""
    trainer = trainer_of(losses, norms, log_every_n_steps=every)
    for weight in weights or [1.0] * len(losses):
        trainer._step([replace(packed_batch([[5]]), weights=torch.tensor([weight]))])
    return [entry["train/loss"] for entry in trainer._run.state.history]


def test_the_loss_of_a_skipped_step_does_not_enter_the_reported_mean() -> None:
    assert reported_losses([1.0, math.nan, 3.0, 5.0], [1.0, math.nan, 1.0, 1.0], every=4) == [3.0]


def test_a_step_in_which_every_record_has_weight_0_does_not_enter_the_reported_mean() -> None:
    assert reported_losses([1.0, 0.0, 3.0, 5.0], [1.0] * 4, every=4, weights=[1, 0, 2, 1]) == [3.0]


def test_a_report_without_a_step_of_the_optimizer_has_no_loss_and_the_next_one_has_its_own() -> None:
    found = reported_losses([math.inf, math.inf, 2.0, 4.0], [math.inf, math.inf, 1.0, 1.0], every=2)
    assert found == pytest.approx([math.nan, 3.0], nan_ok=True)


def snapshot(trainer: Trainer) -> list[torch.Tensor]:
    """Return copies of the weight, the optimizer's state of it, and its average."""
    run = trainer._run
    (weight,) = run.execution.module.parameters()
    return [
        tensor.detach().clone()
        for tensor in (weight, *run.optimizer.state[weight].values(), *run.average.state.values())
    ]


def test_a_step_that_is_not_finite_leaves_weights_moments_and_average_also_one_step_later() -> None:
    trainer = trainer_of([1.0] * 4, [1.0, math.nan, math.inf, 1.0])
    state = trainer._run.state
    trainer._step([packed_batch([[5]])])
    trainer._settle()
    before = snapshot(trainer)
    counted = []
    for _ in range(2):
        trainer._step([packed_batch([[5]])])
        counted.append(state.skipped)
        assert all(map(torch.equal, snapshot(trainer), before))
    assert counted == [0, 1], "the host reads the outcome of a step in the next one"
    trainer._step([packed_batch([[5]])])
    assert (state.skipped, state.nonfinite, state.step) == (2, 2, 4)
    trainer._settle()
    assert state.nonfinite == 0
    assert not any(map(torch.equal, snapshot(trainer), before))


def test_the_average_of_a_step_has_the_weights_of_that_step_although_the_host_reads_it_later() -> None:
    averages = []
    for settles in (False, True):
        trainer = trainer_of([1.0] * 3, [1.0] * 3)
        for _ in range(3):
            trainer._step([packed_batch([[5]])])
            if settles:
                trainer._settle()
        trainer._settle()
        averages.append(trainer._run.average.state["weight"])
    assert torch.equal(*averages)
    assert averages[0].abs() > 0


def test_too_many_steps_that_are_not_finite_end_the_job_in_the_next_step() -> None:
    trainer = trainer_of([1.0] * 3, [math.nan] * 3, max_nonfinite_steps=2)
    for _ in range(2):
        trainer._step([packed_batch([[5]])])
    with pytest.raises(ContractError, match="for 2 optimizer steps in a row, the last at step 2"):
        trainer._step([packed_batch([[5]])])
