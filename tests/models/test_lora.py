"""LoRA: what is adapted and trained, that merged weights are plain ones, and where it is refused."""

import copy

import pytest
import torch

from container.models.build import build_classifier
from container.models.lora import add_lora, merge_lora
from container.predictor import Predictor
from contracts.consistency import check_parallelism
from contracts.errors import ContractError
from contracts.hyperparameter_files import parse_hyperparameters
from testing.encoder_families import HiddenCasts, hyperparameters, packed_batch, standard_transform, write_config
from testing.jobs import CONFIGURATION, run_train, table, write_job
from tests.contracts.test_every_hyperparameter import pretrained_tiny
from tests.models.pretrained_parity import PretrainedParity

LORA = {"tokenizer": "pretrained_tiny", "encoder_config": {}, "reinit_layers": 0, "lora_rank": 2}


def build(folder, family="bert", config=None, **values):
    hp = hyperparameters(reinit_layers=0, **values)
    files = [write_config(folder / family, family, **(config or {}))]
    model = build_classifier(hp, files, tabular_dim=0, numeric_transform=standard_transform(0)).eval()
    plain = copy.deepcopy(model)
    add_lora(model, hp)
    return plain, model


def adapted(model):
    return {name.partition(".lora_A")[0] for name, _ in model.named_parameters() if ".lora_A" in name}


def test_of_the_backbone_only_adapters_are_trained_and_the_rest_of_the_model_is(tmp_path):
    _, model = build(tmp_path, lora_rank=4)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {name for name in trained if "backbone" in name} == {
        f"{name}.lora_{part}.default.weight" for name in adapted(model) for part in "AB"
    }
    assert trained >= {"branches.text.encoder.pooler.dense.weight", "fusion.output.weight"}


@pytest.mark.parametrize(
    ("family", "attention", "linear"),
    [("bert", 8, 12), ("distilbert", 8, 12), ("modernbert", 6, 12), ("nomic_bert", 8, 14), ("albert", 4, 6)],
)
def test_the_layers_that_are_adapted(tmp_path, family, attention, linear):
    counts = [len(adapted(build(tmp_path, family, lora_rank=2, lora_target=t)[1])) for t in ("attention", "linear")]
    assert counts == [attention, linear]


def test_layers_that_take_no_part_get_no_adapters_which_replicas_would_wait_for(tmp_path):
    sizes = {"entity_vocab_size": 20, "entity_emb_size": 16, "max_position_embeddings": 66}
    _, model = build(tmp_path, "bert", config={"model_type": "luke", **sizes}, lora_rank=2)
    model(packed_batch([[5], [9, 3]])).sum().backward()
    learns = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert any("lora_A" in name for name in learns)
    assert learns == {name for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_at_first_nothing_changes_and_every_process_draws_the_same(tmp_path):
    plain, model = build(tmp_path, lora_rank=4)
    torch.manual_seed(5)
    _, again = build(tmp_path, lora_rank=4)
    batch = packed_batch([[5], [9, 3]])
    torch.testing.assert_close(model(batch), plain(batch))
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_under_autocast_adapters_of_attention_add_no_casts_of_the_hidden_states(tmp_path):
    counts = []
    for model in build(tmp_path, lora_rank=4):
        with HiddenCasts(model.branches["text"].encoder.width) as casts:
            model(packed_batch([[5], [9, 3]]))
        counts.append(casts.count)
    assert counts[0] > 0
    assert counts[1] == counts[0]


def test_merged_weights_have_plain_names_and_give_the_same_logits(tmp_path):
    plain, model = build(tmp_path, lora_rank=4, lora_target="linear")
    for name, parameter in model.named_parameters():
        if ".lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    batch = packed_batch([[5], [9, 3]])
    before = model(batch)
    assert not torch.allclose(before, plain(batch), atol=1e-3)
    merge_lora(model)
    assert model.state_dict().keys() == plain.state_dict().keys()
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(plain(batch), before, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokenizer": "from_scratch"}, "lora_rank: is 2, but the encoder of 'chat' is from_scratch"),
        ({"model_class": "lstm"}, "lora_rank: is 2, but lstm has no transformer to adapt"),
        ({"reinit_layers": 2}, "reinit_layers: is 2 for 'chat', but with lora_rank 2"),
    ],
)
def test_what_would_leave_random_weights_frozen_is_refused(settings, message):
    with pytest.raises(ContractError, match=message):
        parse_hyperparameters({**CONFIGURATION, **LORA, **settings})


def test_it_is_refused_under_tensor_parallelism_with_what_works_instead():
    hp = parse_hyperparameters({**CONFIGURATION, **LORA})
    check_parallelism(hp, {"ddp"}, pipeline_ranks=1)
    with pytest.raises(ContractError, match=r"lora_rank: is 2, but tp") as refused:
        check_parallelism(hp, {"tp"}, pipeline_ranks=1)
    assert "dp_shard_size (fsdp) or pp_size" in refused.value.fix
    assert "set strategy to auto" in refused.value.fix  # with strategy tp, a tp_size of 1 has no effect


@pytest.mark.slow
@pytest.mark.long
def test_a_job_with_adapters_serves_plain_weights(tmp_path):
    pretrained_tiny(tmp_path / "encoder")
    settings = {**LORA, "tokenizer": str(tmp_path / "encoder"), "lora_alpha": 64.0, "lr": 0.02, "max_epochs": 1}
    paths = write_job(tmp_path / "job", overrides=settings)
    assert "of them are trained" in run_train(paths)
    state = torch.load(paths.model / "model.pth", weights_only=True)
    assert "branches.text.encoder.backbone.encoder.layer.0.attention.self.query.weight" in state
    assert not [name for name in state if "lora" in name or "base_layer" in name]
    records = table(8, seed=5).drop(columns="label")
    onnx, pytorch = (Predictor.load(paths.model, backend=backend).predict(records) for backend in ("onnx", "torch"))
    assert abs(onnx - pytorch).max() < 1e-4


@pytest.fixture(scope="module")
def parity(rank_pool, tmp_path_factory):
    return PretrainedParity(rank_pool, tmp_path_factory.mktemp("lora"), **LORA)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", ["ddp 2", "fsdp 2, FULL_SHARD", "pp 2, 1F1B", "pp 2, ZBVZeroBubble", "branch 2"])
def test_a_strategy_gives_the_numbers_of_one_process_with_adapters(parity, name):
    ours = parity.check(name)
    assert any(".lora_B" in weight for weight in ours.weights)
    assert not any(".base_layer" in weight for weight in ours.weights)
