import math
import os

import numpy as np
import pytest
import torch

from container.data.batch import PackedBatch
from container.failure import Failure, root_cause
from container.models.build import build_classifier
from container.parallel.degrees import ParallelDegrees
from container.parallel.execution import Gradients
from container.parallel.mesh import RankMesh
from container.training.identity import check_identity, identity
from container.training.objective import WeightedCrossEntropy
from container.training.optimizer import build_optimizer, learning_rate
from container.training.predict import softmax, weighted_log_loss
from container.training.progress import duration, metric_line
from container.training.state import EarlyStopping, Schedule, TrainingState
from contracts.errors import ContractError
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.model_classes import MODEL_CLASSES
from testing import encoder_families
from testing.jobs import CONFIGURATION

ROWS = {"train": "1", "val": "2", "test": "9"}


def hyperparameters(**overrides):
    return parse_hyperparameters({**CONFIGURATION, **overrides})


def batch(labels, weights=None):
    count = len(labels)
    return PackedBatch(
        texts=(),
        tabular=torch.zeros(count, 0),
        labels=torch.tensor(labels),
        rows=torch.arange(count),
        weights=torch.tensor(weights or [1.0] * count),
    )


def test_the_summed_loss_over_its_weights_is_torch_s_weighted_cross_entropy():
    logits, labels = torch.randn(6, 3, dtype=torch.float64), [0, 2, 1, 1, 0, 2]
    objective = WeightedCrossEntropy([1.0, 2.0, 5.0], torch.device("cpu"))
    ours = objective(logits, batch(labels)) / objective.record_weights(batch(labels)).sum()
    weights = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    torch.testing.assert_close(ours, torch.nn.functional.cross_entropy(logits, torch.tensor(labels), weight=weights))


def test_unlabelled_and_filling_records_weigh_nothing():
    logits = torch.randn(3, 2)
    objective = WeightedCrossEntropy([1.0, 2.0], torch.device("cpu"))
    padded = batch([1, -100, 0], [1.0, 1.0, 0.0])
    assert objective.record_weights(padded).tolist() == [2.0, 0.0, 0.0]
    assert objective(logits, padded).item() == pytest.approx(objective(logits[:1], batch([1])).item())


def test_the_reported_loss_equals_the_trained_one():
    logits, labels = np.random.default_rng(0).normal(size=(5, 2)), np.array([0, 1, 1, -100, 0])
    objective = WeightedCrossEntropy([1.0, 3.0], torch.device("cpu"))
    packed = batch(labels.tolist())
    trained = objective(torch.from_numpy(logits), packed) / objective.record_weights(packed).sum()
    assert weighted_log_loss(logits, labels, [1.0, 3.0]) == pytest.approx(trained.item())
    assert weighted_log_loss(logits, np.full(5, -100), [1.0, 3.0]) is None
    assert softmax(logits).sum(axis=1) == pytest.approx(np.ones(5))


def test_the_rate_warms_up_linearly_then_decays_to_the_floor():
    hp = hyperparameters(lr=1.0, warmup_steps=4, lr_decay=0.1)
    rates = [learning_rate(step, hp=hp, total_steps=14) for step in range(14)]
    assert rates[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert rates[-1] == pytest.approx(0.1)
    assert np.diff(rates[4:]) == pytest.approx(np.full(9, -0.1))


def test_without_the_scheduler_the_rate_stays_after_the_warmup():
    hp = hyperparameters(lr=1.0, warmup_steps=2, run_scheduler=False)
    assert [learning_rate(step, hp=hp, total_steps=9) for step in range(5)] == [0.5, 1.0, 1.0, 1.0, 1.0]


def test_the_default_warmup_shrinks_with_a_short_run_and_a_set_one_does_not():
    assert learning_rate(2, hp=hyperparameters(lr=1.0), total_steps=20) == 1.0
    assert learning_rate(2, hp=hyperparameters(lr=1.0, warmup_steps=300), total_steps=20) == pytest.approx(0.01)


def test_biases_and_norms_do_not_decay():
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))
    decaying, fixed = build_optimizer(hyperparameters(weight_decay=0.5), module).param_groups
    assert (len(decaying["params"]), decaying["weight_decay"]) == (1, 0.5)
    assert (len(fixed["params"]), fixed["weight_decay"]) == (3, 0.0)


@pytest.mark.parametrize("name", MODEL_CLASSES)
@pytest.mark.parametrize("embedding", ["none", "periodic"])
def test_no_bias_of_any_class_decays(tmp_path, name, embedding):
    numbers = {"tab_field_list": list("abcd"), "numeric_embedding": embedding} if name != "bert" else {}
    hp = encoder_families.hyperparameters(model_class=name, weight_decay=0.5, **numbers)
    files = [encoder_families.write_config(tmp_path / field.role, "bert") for field in hp.text_fields]
    transform = encoder_families.standard_transform(4)
    model = build_classifier(hp, files, tabular_dim=4, numeric_transform=transform)
    decaying = {
        id(weight)
        for group in build_optimizer(hp, model).param_groups
        if group["weight_decay"]
        for weight in group["params"]
    }
    assert decaying
    assert not [
        where for where, weight in model.named_parameters() if id(weight) in decaying and where.endswith("bias")
    ]


def test_the_backbone_learns_at_lr_and_the_rest_at_head_lr():
    module = torch.nn.ModuleDict({"backbone": torch.nn.Linear(3, 3), "output": torch.nn.Linear(3, 2)})
    groups = build_optimizer(hyperparameters(lr=1e-4, head_lr=1e-3, weight_decay=0.1), module).param_groups
    found = {id(parameter): group["lr_scale"] for group in groups for parameter in group["params"]}
    assert [found[id(parameter)] for parameter in module["backbone"].parameters()] == [1.0, 1.0]
    assert [found[id(parameter)] for parameter in module["output"].parameters()] == pytest.approx([10, 10])


@pytest.mark.parametrize(
    ("interval", "expected"),
    [(1.0, [10, 20]), (0.5, [5, 10, 15, 20]), (0.25, [3, 5, 8, 10, 13, 15, 18, 20]), (7, [7, 14, 20])],
)
def test_validation_falls_on_even_parts_of_an_epoch_or_every_n_steps(interval, expected):
    schedule = Schedule(records=80, steps_per_epoch=10, max_epochs=2, val_check_interval=interval)
    assert [step for step in range(21) if schedule.validation_due(step)] == expected


def test_patience_counts_epochs_not_validations():
    early, state = EarlyStopping("val_auroc", patience=1), TrainingState()
    history = [(0.25, 0.9), (0.5, 0.8), (1.0, 0.8), (1.25, 0.8)]
    stopped = []
    for progress, value in history:
        early.update(state, {"val/auroc": value}, progress=progress)
        stopped.append(state.stopped_early)
    assert stopped == [False, False, False, True]
    assert state.best_progress == 0.25


def test_a_lower_loss_is_better_and_a_higher_score_is():
    for metric, better in (("val/loss", 0.1), ("val/auroc", 0.9)):
        early, state = EarlyStopping(metric, patience=9), TrainingState()
        assert early.update(state, {metric: 0.5}, progress=1)
        assert early.update(state, {metric: better}, progress=2)
        assert not early.update(state, {metric: 0.5}, progress=3)


def test_an_undefined_metric_is_never_the_best():
    early, state = EarlyStopping("val/auroc", patience=1), TrainingState()
    assert not early.update(state, {"val/auroc": None}, progress=5)
    assert (state.best_step, state.stopped_early) == (None, False)


def test_a_loss_that_is_no_number_is_never_the_best():
    early, state = EarlyStopping("val/loss", patience=1), TrainingState()
    assert not early.update(state, {"val/loss": math.nan}, progress=1)
    assert early.update(state, {"val/loss": 0.7}, progress=2)


def test_a_resumed_run_may_train_longer_but_not_differently():
    saved = identity(hyperparameters(), "abc", ROWS)
    check_identity(saved, identity(hyperparameters(max_epochs=9, nproc_per_node=4), "abc", ROWS), folder="c")
    with pytest.raises(ContractError, match=r"lr: .* trained with 0\.002, this run has 0\.5"):
        check_identity(saved, identity(hyperparameters(lr=0.5), "abc", ROWS), folder="c")
    with pytest.raises(ContractError, match="other data or preprocessing"):
        check_identity(saved, identity(hyperparameters(), "xyz", ROWS), folder="c")
    with pytest.raises(ContractError, match="other data or preprocessing"):
        check_identity(saved, identity(hyperparameters(), "abc", {**ROWS, "train": "3"}), folder="c")


def test_a_metric_line_is_read_by_the_documented_regular_expression():
    import re

    line = metric_line({"step": 10, "val/loss": 0.25, "val/auroc": 0.9912, "val/f1_score": None})
    assert re.search(r"val/auroc=([0-9.eE+-]+|nan);", line).group(1) == "0.9912"
    assert "\n" not in line
    assert "\r" not in line


def test_durations_read_as_a_person_says_them():
    assert [duration(s) for s in (5, 600, 9000, math.inf)] == ["5 s", "10 min", "2.5 h", "unknown"]


def test_the_root_cause_is_not_the_peer_that_lost_its_connection():
    echo = Failure("RuntimeError: Connection closed by peer", rank=0, echo=True, at=1.0)
    killed = Failure.from_exit(-9, who="worker rank 1 (pid 7)", rank=1, at=2.0)
    assert root_cause([echo, killed]) is killed
    assert "rank 1 (pid 7) was ended by SIGKILL" in killed.text().splitlines()[0]


def test_a_failure_text_starts_with_the_cause_then_says_what_to_change():
    try:
        raise ContractError("text_name: missing", "Set text_name.")
    except ContractError as error:
        lines = Failure.from_exception(error, rank=3).text().splitlines()
    assert lines[:2] == ["text_name: missing [rank 3]", "What to change: Set text_name."]
    assert "Traceback" in lines[3]


def test_a_terminal_gets_a_bar_and_a_log_file_plain_lines():
    import pty
    import subprocess
    import sys

    code = (
        "import logging, tempfile, pathlib; logging.basicConfig(level='INFO');"
        "from container.training.progress import Progress;"
        "p = Progress(reports=True, total_steps=4, max_epochs=1, step=0, tensorboard=pathlib.Path(tempfile.mkdtemp()));"
        "[p.step(rows=1, tokens=9, computed=9) for _ in range(4)];"
        "p.report(4, 1.0, {'train/loss': 0.5, 'lr': 0.1}); p.close()"
    )
    main, terminal = pty.openpty()
    on_terminal = subprocess.run([sys.executable, "-c", code], stderr=terminal, stdout=subprocess.PIPE, check=True)
    shown = os.read(main, 65536).decode()
    assert "4/4" in shown
    assert "\r" in shown
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert "\r" not in plain.stderr + plain.stdout
    assert "train/loss=0.5;" in plain.stderr
    assert on_terminal.returncode == 0


def test_the_gradient_norm_of_a_large_weight_is_exact():
    weight = torch.nn.Parameter(torch.zeros(20_000, 768))
    weight.grad = torch.randn(20_000, 768, generator=torch.Generator().manual_seed(0)) * 1e-3
    model = torch.nn.Module()
    model.weight = weight
    alone = RankMesh(torch.device("cpu"), None, ParallelDegrees(), rank=0, world_size=1, coordinates={})
    expected = weight.grad.double().square().sum().sqrt().item()
    assert Gradients(model, alone).clip(math.inf, scaled_by=1.0) == pytest.approx(expected, rel=1e-6)
