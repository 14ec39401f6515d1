"""Learning rates that decay with the depth of a layer."""

import pytest

from container.models.blocks import flatten, restrict
from container.models.build import build_classifier
from container.training.optimizer import build_optimizer, layer_distances
from testing.encoder_families import hyperparameters, standard_transform, write_config

DEEP = ("bert", "roberta", "electra", "modernbert", "nomic_bert", "deberta-v2", "mpnet", "distilbert")
TWO = {"model_class": "trimodal_bert", "text_name": None, "primary_text_name": "a", "secondary_text_name": "b"}


def build(folder, family="bert", *, layers=4, **values):
    hp = hyperparameters(**values)
    sizes = {"n_layers": layers} if family == "distilbert" else {"num_hidden_layers": layers}
    files = [write_config(folder / family / field.role, family, **sizes) for field in hp.text_fields]
    return hp, build_classifier(hp, files, tabular_dim=0, numeric_transform=standard_transform(0))


def scales(hp, model):
    groups = build_optimizer(hp, model).param_groups
    scale_of = {id(parameter): group["lr_scale"] for group in groups for parameter in group["params"]}
    return {name: scale_of[id(parameter)] for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("family", DEEP)
def test_each_family_s_layers_are_as_far_from_the_top_as_they_lie_and_its_embeddings_farthest(tmp_path, family):
    _, model = build(tmp_path, family)
    encoder = model.branches["text"].encoder
    distances = layer_distances(model)
    of = {id(parameter): distances.get(name) for name, parameter in model.named_parameters()}
    for place, layer in enumerate(encoder.layers):
        assert {of[id(parameter)] for parameter in layer.parameters()} == {3 - place}
    assert of[id(encoder.backbone.get_input_embeddings().weight)] == 4
    assert {of[id(parameter)] for parameter in encoder.backbone.parameters()} == {0, 1, 2, 3, 4}
    assert of[id(encoder.pooler.dense.weight)] is None


def test_what_comes_after_the_layers_is_at_the_top(tmp_path):
    _, model = build(tmp_path, "modernbert")
    assert layer_distances(model)["branches.text.encoder.backbone.final_norm.weight"] == 0


def test_a_layer_s_rate_is_lr_times_the_decay_for_each_layer_above_it_and_the_head_keeps_its_own(tmp_path):
    hp, model = build(tmp_path, lr=1e-4, head_lr=1e-3, layer_lr_decay=0.5)
    found = scales(hp, model)
    backbone = "branches.text.encoder.backbone"
    assert found[f"{backbone}.encoder.layer.3.output.dense.weight"] == 1.0
    assert found[f"{backbone}.encoder.layer.1.output.dense.bias"] == 0.25
    assert found[f"{backbone}.embeddings.word_embeddings.weight"] == 0.5**4
    assert found["branches.text.encoder.pooler.dense.weight"] == found["fusion.output.weight"] == pytest.approx(10)


def test_without_decay_every_layer_learns_at_lr(tmp_path):
    hp, model = build(tmp_path, "albert")
    assert set(scales(hp, model).values()) == {1.0}


def test_a_pipeline_stage_s_layers_keep_the_rates_they_have_in_the_whole_model(tmp_path):
    hp, model = build(tmp_path, layer_lr_decay=0.5, **TWO)
    whole = scales(hp, model)
    blocks = flatten(model)
    assert len(blocks) == 13
    for own in (blocks[:3], blocks[3:8], blocks[8:12], blocks[12:]):
        _, stage = build(tmp_path, layer_lr_decay=0.5, **TWO)
        every = flatten(stage)
        names = {block.name for block in own}
        restrict(stage, [block for block in every if block.name in names], within=every, in_place=True)
        found = scales(hp, stage)
        assert found
        assert found == {name: whole[name] for name in found}
