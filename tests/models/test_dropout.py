"""Dropout's masks on the CPU: as likely as asked, scaled so that the mean stays, the same for the same seed."""

import pytest
import torch
from torch import nn

from container.models.build import build_classifier
from container.models.dropout import Dropout
from testing.encoder_families import hyperparameters, standard_transform, write_config

ONES = torch.ones(1001, 333)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.999])
def test_each_element_is_dropped_with_probability_p_and_the_mean_stays(p):
    torch.manual_seed(0)
    drawn = Dropout(p)(ONES)
    assert (drawn == 0).float().mean().item() == pytest.approx(p, abs=0.005)
    assert drawn.max().item() == pytest.approx(1 / (1 - p), rel=0.01)
    assert drawn.mean().item() == pytest.approx(1, abs=0.2 if p > 0.9 else 0.01)


def test_neighbours_are_dropped_independently():
    torch.manual_seed(0)
    dropped = (Dropout(0.5)(ONES) == 0).float().flatten()
    for distance in (1, 2, 3, 4, 333):
        both = (dropped[distance:] * dropped[:-distance]).mean().item()
        assert both == pytest.approx(0.25, abs=0.005), distance


def test_a_seed_gives_the_same_mask_with_any_number_of_threads():
    masks, threads = [], torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        torch.manual_seed(7)
        masks.append(Dropout(0.1)(ONES))
    torch.set_num_threads(threads)
    assert torch.equal(*masks)


def test_the_gradient_has_the_mask_of_the_values():
    given = ONES.clone().requires_grad_()
    drawn = Dropout(0.3)(given)
    drawn.sum().backward()
    assert torch.equal(given.grad, drawn)


@pytest.mark.parametrize("dropout", [Dropout(0.4).eval(), Dropout(0.0)])
def test_nothing_is_dropped_in_evaluation_or_without_a_probability(dropout):
    assert dropout(ONES) is ONES


@pytest.mark.parametrize("model_class", ["bert", "multimodal_bert", "multimodal_cross_attn"])
def test_every_dropout_of_a_model_draws_so(tmp_path, model_class):
    hp = hyperparameters(model_class=model_class, tab_field_list=["x"] if model_class != "bert" else [])
    files = [write_config(tmp_path, "bert")]
    model = build_classifier(hp, files, tabular_dim=1, numeric_transform=standard_transform(1))
    assert {type(module) for module in model.modules() if isinstance(module, nn.Dropout)} == {Dropout}
