"""The table of encoder families: every fact in it holds for a model of that family.

That packed families equal their padded forward is in test_packed_encoders.py; that split layers equal plain ones, in
test_tensor_parallel.py; that a pipeline's blocks are those counted from a configuration, in test_encoder_checks.py.
"""

from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch
from torch import nn

from container.models.backbone import build_encoder
from container.models.encoder import encoder_layers
from container.models.families import FAMILIES, Split, encoder_family, tensor_parallel_families
from testing.encoder_families import ALL_FAMILIES, PACKED_FAMILIES, hyperparameters, packed_text, write_config


def layers_of(folder: Path, name: str) -> tuple[nn.Module, nn.ModuleList]:
    """Return a tiny encoder of the family, and its layers by the path in the table."""
    encoder = build_encoder(hyperparameters().text_fields[0], write_config(folder, name))
    return encoder, encoder_layers(encoder.backbone, FAMILIES[name])


def test_the_tests_build_an_encoder_of_every_family_in_the_table():
    assert set(ALL_FAMILIES) == set(FAMILIES)
    assert set(PACKED_FAMILIES) == {name for name, family in FAMILIES.items() if family.packed}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_layers_lie_at_their_path_and_run_once_each_unless_they_are_shared(tmp_path, name):
    encoder, layers = layers_of(tmp_path, name)
    depth = encoder.backbone.config.num_hidden_layers
    runs = []
    for layer in layers:
        layer.register_forward_hook(lambda *_: runs.append(1))
    encoder(packed_text([[5]]))
    assert len(runs) == depth
    assert (len(layers) < depth) == FAMILIES[name].shared_layers


@pytest.mark.parametrize("name", tensor_parallel_families())
def test_a_tensor_plan_names_modules_of_every_layer_and_splits_every_matrix_in_it(tmp_path, name):
    _, layers = layers_of(tmp_path, name)
    plan = FAMILIES[name].tensor_plan
    for layer in layers:
        modules = dict(layer.named_modules())
        split = {pattern: [own for own in modules if fnmatchcase(own, pattern)] for pattern in plan}
        assert all(split.values()), split
        linear = {own for own, module in modules.items() if isinstance(module, nn.Linear)}
        assert linear == {own for pattern, names in split.items() if plan[pattern] is not Split.INPUT for own in names}


@pytest.mark.parametrize("name", tensor_parallel_families(sequence_parallel=True))
def test_a_sequence_parallel_family_has_one_module_that_runs_its_layers_and_returns_the_states(tmp_path, name):
    encoder, layers = layers_of(tmp_path, name)
    stack = encoder.backbone.get_submodule(FAMILIES[name].layers.rpartition(".")[0])
    assert layers in list(stack.children())
    returned = []
    stack.register_forward_hook(lambda _, __, output: returned.append(output.last_hidden_state))
    assert torch.equal(encoder.token_states(packed_text([[5]])), returned[0][0])


def test_a_family_that_is_not_in_the_table_runs_padded_and_whole():
    family = encoder_family("some-other-encoder")
    assert (family.packed, family.has_own_layers, family.has_stages) == (False, False, False)
    assert not family.tensor_plan
