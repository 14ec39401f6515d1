"""Two texts through one encoder: one set of weights, everywhere; and where that cannot be."""

import pytest
import torch

from container.export.onnx import export_onnx
from container.models.build import build_classifier
from container.models.encoder import encode_texts
from contracts.consistency import check_parallelism
from contracts.errors import ContractError
from testing.encoder_families import hyperparameters, packed_batch, standard_transform, write_config
from tests.models.pretrained_parity import PretrainedParity

TWO_TEXTS = {"model_class": "trimodal_bert", "tokenizer": "pretrained", "encoder_config": {}, "reinit_layers": 0}


def build(folder, *, share_encoder, family="bert"):
    hp = hyperparameters(**TWO_TEXTS, share_encoder=share_encoder)
    files = [write_config(folder / family, family)] * 2
    model = build_classifier(hp, files, tabular_dim=0, numeric_transform=standard_transform(0)).eval()
    return hp, model


def test_the_encoder_is_one_and_each_text_has_its_own_projection(tmp_path):
    _, model = build(tmp_path, share_encoder=True)
    primary, secondary = model.branches.values()
    assert primary.encoder is secondary.encoder
    assert primary.projection is not secondary.projection
    _, apart = build(tmp_path, share_encoder=False)
    counts = [sum(parameter.numel() for parameter in made.parameters()) for made in (model, apart)]
    assert counts[0] < 0.7 * counts[1]


def test_it_gives_the_gradients_of_two_encoders_that_are_equal_added_up(tmp_path):
    _, shared = build(tmp_path, share_encoder=True)
    _, apart = build(tmp_path, share_encoder=False)
    apart.load_state_dict(shared.state_dict())
    batch = packed_batch([[5, 7], [9, 3]], [[4], [6]])
    for model in (shared, apart):
        model(batch).square().sum().backward()
    first, second = (dict(branch.encoder.named_parameters()) for branch in apart.branches.values())
    for name, parameter in shared.branches["primary"].encoder.named_parameters():
        torch.testing.assert_close(parameter.grad, first[name].grad + second[name].grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("family", "passes"), [("bert", [(1, 31)]), ("deberta-v2", [(3, 9), (2, 6)])])
def test_it_encodes_both_texts_in_one_pass_where_it_needs_no_padding(tmp_path, family, passes):
    _, model = build(tmp_path, share_encoder=True, family=family)
    shapes = []
    backbone = model.branches["primary"].encoder.backbone
    backbone.register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    model(packed_batch([[5, 7], [9]], [[4], [6]]))
    assert shapes == passes


def test_a_text_has_the_features_that_it_has_without_the_other(tmp_path):
    _, model = build(tmp_path, share_encoder=True)
    texts = [[5, 7], [9, 3]], [[4], [8, 8, 2]]
    batch = packed_batch(*texts)
    for index, (branch, features) in enumerate(zip(model.branches.values(), model.encode(batch), strict=True)):
        text = batch.texts[index]
        alone = branch(*encode_texts([branch], [text]), text, num_records=len(batch.rows))
        torch.testing.assert_close(features, alone)


@pytest.mark.long
def test_the_exported_graph_holds_its_weights_once(tmp_path):
    sizes = []
    for shared in (True, False):
        hp, model = build(tmp_path, share_encoder=shared)
        report = export_onnx(model, hp, tmp_path / f"{shared}.onnx", samples=[packed_batch([[5], [9, 3]], [[4], [6]])])
        assert report.max_difference < 1e-5
        encoder = sum(p.numel() for p in model.branches["primary"].encoder.parameters())
        sizes.append(report.num_bytes)
    assert sizes[1] - sizes[0] > 0.9 * 4 * encoder


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokenizer": "from_scratch"}, "from_scratch builds a vocabulary for each text"),
        ({"secondary_reinit_layers": 1}, "reinit_layers is 0 for 'chat' and 1 for 'events'"),
        ({"primary_is_embeddings_trainable": False}, "is_embeddings_trainable is False for 'chat' and True for"),
    ],
)
def test_encoders_that_cannot_be_one_are_refused(settings, message):
    with pytest.raises(ContractError, match=f"share_encoder: is true, but .*{message}"):
        hyperparameters(**{**TWO_TEXTS, **settings}, share_encoder=True)


@pytest.mark.parametrize("axis", ["pp", "branch"])
def test_it_is_refused_where_the_texts_are_on_different_ranks(axis):
    hp = hyperparameters(**TWO_TEXTS, share_encoder=True)
    check_parallelism(hp, {"fsdp", "dp_shard"}, pipeline_ranks=1)
    with pytest.raises(ContractError, match=f"share_encoder: is true, but {axis} puts"):
        check_parallelism(hp, {axis}, pipeline_ranks=2)


@pytest.fixture(scope="module")
def parity(rank_pool, tmp_path_factory):
    return PretrainedParity(rank_pool, tmp_path_factory.mktemp("shared"), share_encoder=True, layer_lr_decay=0.8)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["ddp 2", "fsdp 2, FULL_SHARD", "fsdp 2, SHARD_GRAD_OP", "tp 2", "tp 2, sequence parallel", "tp 2 x fsdp 2"]
)
def test_a_strategy_gives_the_numbers_of_one_process_with_it(parity, name):
    parity.check(name)
