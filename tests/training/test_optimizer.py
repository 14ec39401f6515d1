from copy import deepcopy

import numpy as np
import pytest
import torch

from container.models.build import build_classifier
from container.parallel.execution import GradientNorm
from container.training.optimizer import build_optimizer, learning_rate, step_optimizer
from contracts.model_classes import MODEL_CLASSES
from testing.encoder_families import hyperparameters, standard_transform, write_config


def test_the_rate_warms_up_linearly_then_decays_to_the_floor():
    hp = hyperparameters(lr=1.0, warmup_steps=4, lr_decay=0.1)
    rates = [learning_rate(step, hp=hp, total_steps=14) for step in range(14)]
    assert rates[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert rates[-1] == pytest.approx(0.1)
    assert np.diff(rates[4:]) == pytest.approx(np.full(9, -0.1))


def test_without_the_scheduler_the_rate_stays_after_the_warmup():
    hp = hyperparameters(lr=1.0, warmup_steps=2, run_scheduler=False)
    assert [learning_rate(step, hp=hp, total_steps=9) for step in range(5)] == [0.5, 1.0, 1.0, 1.0, 1.0]


def test_the_default_warmup_shrinks_with_a_short_run_and_another_one_does_not():
    assert learning_rate(2, hp=hyperparameters(lr=1.0), total_steps=20) == 1.0
    assert learning_rate(2, hp=hyperparameters(lr=1.0, warmup_steps=200), total_steps=20) == pytest.approx(0.015)


def test_biases_and_norms_do_not_decay():
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))
    decaying, fixed = build_optimizer(hyperparameters(weight_decay=0.5), module).param_groups
    assert (len(decaying["params"]), decaying["weight_decay"]) == (1, 0.5)
    assert (len(fixed["params"]), fixed["weight_decay"]) == (3, 0.0)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_a_rank_whose_parameters_are_all_frozen_has_an_optimizer_that_changes_nothing(name):
    module = torch.nn.Linear(3, 3).requires_grad_(False)
    before = module.weight.clone()
    optimizer = build_optimizer(hyperparameters(optimizer=name), module)
    for group in optimizer.param_groups:
        group["lr"] = group["lr_scale"]
    optimizer.step()
    assert torch.equal(module.weight, before)


def layer_and_copy() -> tuple[torch.nn.Linear, torch.nn.Linear]:
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 3)
    layer.weight.grad, layer.bias.grad = torch.randn(3, 3), torch.randn(3)
    copy = deepcopy(layer)
    copy.weight.grad, copy.bias.grad = layer.weight.grad.clone(), layer.bias.grad.clone()
    return layer, copy


def norm_of(*, divisor, nonfinite=0.0):
    return GradientNorm(torch.ones(()), None if divisor is None else torch.tensor(divisor), torch.tensor(nonfinite))


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
@pytest.mark.parametrize("fused", [True, False])
def test_a_step_updates_by_the_divided_gradients(name, fused):
    layer, copy = layer_and_copy()
    hp = hyperparameters(optimizer=name, lr=0.1, momentum=0.9)
    ours, plain = (build_optimizer(hp, module) for module in (layer, copy))
    for group in [] if fused else ours.param_groups:
        group["fused"] = ours.defaults["fused"] = False
    for _ in range(2):
        for ours_grad, grad in ((layer.weight.grad, copy.weight.grad), (layer.bias.grad, copy.bias.grad)):
            grad.copy_(ours_grad / 4)
        step_optimizer(ours, norm_of(divisor=4.0))
        plain.step()
        torch.testing.assert_close(layer.weight, copy.weight)
        torch.testing.assert_close(layer.weight.grad, copy.weight.grad)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("before", [0, 2])
def test_a_step_that_is_not_finite_changes_no_weight_and_no_state(name, fused, before):
    layer, copy = layer_and_copy()
    hp = hyperparameters(optimizer=name, lr=0.1, momentum=0.9, weight_decay=0.1)
    ours, plain = (build_optimizer(hp, module) for module in (layer, copy))
    for each in [] if fused else (ours, plain):  # the two ways to compute differ in the last bit on some processors
        for group in each.param_groups:
            group["fused"] = each.defaults["fused"] = False
    for _ in range(before):
        step_optimizer(ours, norm_of(divisor=None))
        plain.step()
    layer.weight.grad[0, 0] = torch.nan
    step_optimizer(ours, norm_of(divisor=torch.nan, nonfinite=1.0))
    assert torch.equal(layer.weight, copy.weight)
    layer.weight.grad.copy_(copy.weight.grad)
    layer.bias.grad.copy_(copy.bias.grad)
    step_optimizer(ours, norm_of(divisor=None))
    plain.step()
    torch.testing.assert_close(layer.weight, copy.weight, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(layer.bias, copy.bias, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", MODEL_CLASSES)
@pytest.mark.parametrize("embedding", ["none", "piecewise_linear"])
def test_no_bias_of_any_class_decays(tmp_path, name, embedding):
    numbers = {"tab_field_list": list("abcd"), "numeric_embedding": embedding} if name != "bert" else {}
    hp = hyperparameters(model_class=name, weight_decay=0.5, **numbers)
    files = [write_config(tmp_path / field.role, "bert") for field in hp.text_fields]
    transform = standard_transform(4)
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
