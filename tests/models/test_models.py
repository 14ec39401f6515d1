"""The model classes: shapes, gradients, what each hyperparameter changes, saving and loading."""

import json
import pickle
import traceback
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM

from container.models import word_encoders
from container.models.build import build_classifier, load_classifier
from container.models.classifier import Classifier
from container.models.record_tokens import PackedTokens
from container.models.tabular import NumericTransform, TabularBranch
from container.preprocessing.fitted import FittedPreprocessing
from container.preprocessing.numeric_transform import NumericTransformParameters
from contracts.artifacts import HYPERPARAMETERS, MODEL_STATE, tokenizer_folder
from contracts.errors import ContractError
from contracts.model_classes import MODEL_CLASSES
from testing.encoder_families import (
    MAX_LENGTH,
    Files,
    hyperparameters,
    packed_batch,
    record,
    standard_transform,
    write_config,
)
from tests.text.test_weight_files import Touch

CLASSES = tuple(MODEL_CLASSES)
_TABLES = {"none": (0,), "optional": (0, 4), "needed": (4,)}  # numbers of columns
CASES = [(name, classes, dim) for name in CLASSES for classes in (2, 3) for dim in _TABLES[MODEL_CLASSES[name].table]]
CHUNKS = [[7, 30], [20], [2], [9, 3, 5]]
EVENTS = [[4], [11, 2], [6], [3]]


def build(tmp_path: Path, *, tabular_dim: int = 0, family: str = "bert", **values: Any) -> Classifier:
    hp = hyperparameters(**values)
    files = [write_config(tmp_path / family / field.role, family) for field in hp.text_fields]
    return build_classifier(hp, files, tabular_dim=tabular_dim, numeric_transform=standard_transform(tabular_dim))


def batch_for(model: Classifier, *, num_classes: int = 2, tabular_dim: int = 0):
    return packed_batch(*(CHUNKS, EVENTS)[: len(model.branches)], tabular_dim=tabular_dim, num_classes=num_classes)


def pretrained(folder: Path, family: str = "bert", *, dtype: torch.dtype = torch.float32, **config: Any) -> Files:
    """A saved encoder with weights of its own, norms and biases included."""
    write_config(folder, family, **config)
    torch.manual_seed(7)
    model = AutoModel.from_config(AutoConfig.from_pretrained(folder))
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=0.5)
    model.to(dtype).save_pretrained(folder)
    return Files(folder, folder)


def encoder_state(files: Files, **values: Any) -> dict[str, Tensor]:
    model = build_classifier(hyperparameters(**values), [files], tabular_dim=0, numeric_transform=standard_transform(0))
    return model.branches["text"].encoder.state_dict()


@pytest.mark.parametrize(("name", "fuses_tokens"), [("bert", False), ("trimodal_cross_attn", True)])
def test_only_a_head_that_reads_tokens_costs_their_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fuses_tokens: bool
) -> None:
    model, made = build(tmp_path, model_class=name), []
    of = PackedTokens.of
    monkeypatch.setattr(PackedTokens, "of", lambda text: made.append(text) or of(text))
    batch = batch_for(model)
    model(batch)
    assert made == (list(batch.texts) if fuses_tokens else [])


@pytest.mark.parametrize(("name", "num_classes", "tabular_dim"), CASES)
def test_every_class_gives_logits_and_gradients(tmp_path: Path, name: str, num_classes: int, tabular_dim: int) -> None:
    model = build(tmp_path, model_class=name, num_classes=num_classes, tabular_dim=tabular_dim)
    batch = batch_for(model, num_classes=num_classes, tabular_dim=tabular_dim)
    logits = model(batch)
    assert logits.shape == (4, num_classes)
    loss = nn.functional.cross_entropy(logits, batch.labels)
    (loss if model.fusion.penalty is None else loss + model.fusion.penalty.sum()).backward()
    assert [key for key, parameter in model.named_parameters() if parameter.grad is None] == []
    assert (model.tabular is not None) == (tabular_dim > 0)


@pytest.mark.parametrize(("name", "num_classes", "tabular_dim"), CASES)
def test_the_state_loads_strictly_into_a_fresh_model(
    tmp_path: Path, name: str, num_classes: int, tabular_dim: int
) -> None:
    model = build(tmp_path, model_class=name, num_classes=num_classes, tabular_dim=tabular_dim)
    other = build(tmp_path, model_class=name, num_classes=num_classes, tabular_dim=tabular_dim, seed=1)
    batch = batch_for(model, num_classes=num_classes, tabular_dim=tabular_dim)
    assert not torch.equal(model(batch), other(batch))
    other.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(model(batch), other(batch))


@pytest.mark.parametrize("name", CLASSES)
def test_a_record_scores_the_same_alone_and_in_a_batch(tmp_path: Path, name: str) -> None:
    dim = max(_TABLES[MODEL_CLASSES[name].table])
    model = build(tmp_path, model_class=name, tabular_dim=dim).double().eval()
    batch = batch_for(model, tabular_dim=dim)
    batch = replace(batch, tabular=batch.tabular.double())
    together = model(batch)
    alone = torch.cat([model(record(batch, i)) for i in range(4)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-9)
    assert together.std(0).min() > 1e-3


def test_the_two_texts_have_weights_of_their_own(tmp_path: Path) -> None:
    model = build(tmp_path, model_class="trimodal_bert", tabular_dim=2)
    assert list(model.branches) == ["primary", "secondary"]
    first, second = (branch.encoder.state_dict() for branch in model.branches.values())
    assert not torch.equal(first["pooler.dense.weight"], second["pooler.dense.weight"])


def test_two_texts_may_use_two_families(tmp_path: Path) -> None:
    hp = hyperparameters(model_class="trimodal_bert")
    files = [write_config(tmp_path / family, family) for family in ("modernbert", "mpnet")]
    model = build_classifier(hp, files, tabular_dim=0, numeric_transform=standard_transform(0))
    assert model(batch_for(model)).shape == (4, 2)


def test_weights_depend_on_the_seed_alone_and_leave_the_global_generator_as_it_was(tmp_path: Path) -> None:
    torch.manual_seed(3)
    expected_draw = torch.randn(1)
    states = []
    for seed in (5, 5, 6):
        torch.manual_seed(3)
        states.append(build(tmp_path, model_class="trimodal_bert", tabular_dim=2, seed=seed).state_dict())
        assert torch.equal(torch.randn(1), expected_draw)
        torch.randn(11)
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert not torch.equal(states[0]["fusion.output.weight"], states[2]["fusion.output.weight"])


def test_widths_and_dropouts_follow_the_hyperparameters(tmp_path: Path) -> None:
    values = {"hidden_common_dim": 10, "dropout": 0.3, "fusion_dropout": 0.4, "fusion_hidden_dim": 9}
    model = build(tmp_path, model_class="trimodal_bert", tabular_dim=3, **values)
    assert model.branches["primary"].projection[1].weight.shape == (10, 32)
    assert model.branches["secondary"].projection[0].p == 0.3
    assert (model.tabular.linear.weight.shape, model.tabular.dropout.p) == ((10, 3), 0.3)
    assert (model.fusion.hidden.weight.shape, model.fusion.dropout.p) == ((9, 30), 0.4)


def test_the_fusion_width_defaults_to_three_halves_of_the_features(tmp_path: Path) -> None:
    assert build(tmp_path, model_class="trimodal_bert", hidden_common_dim=10).fusion.hidden.out_features == 128
    assert build(tmp_path, model_class="trimodal_bert", hidden_common_dim=100).fusion.hidden.out_features == 150


def test_bert_reads_no_table(tmp_path: Path) -> None:
    model = build(tmp_path, model_class="bert", tabular_dim=4, dropout=0.2)
    assert model.tabular is None
    assert model.fusion.output.weight.shape == (2, 32)
    assert model.fusion.dropout.p == 0.2


def test_frozen_embeddings_are_the_tables_and_nothing_else(tmp_path: Path) -> None:
    model = build(tmp_path, is_embeddings_trainable=False)
    frozen = {name.split(".")[-2] for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {"word_embeddings", "position_embeddings", "token_type_embeddings"}


@pytest.mark.parametrize("tables", [([[1.0]], [[9.0]]), ([[0.0, 31.0]], [[0.0, 61.0]])])
def test_a_table_of_one_or_two_columns_still_reaches_the_score(tmp_path: Path, tables: tuple) -> None:
    """LayerNorm over one number is constant, and over two only says which is larger."""
    model = build(tmp_path, model_class="multimodal_bert", tabular_dim=len(tables[0][0]))
    batch = packed_batch([[5]])
    first, second = (model(replace(batch, tabular=torch.tensor(table))) for table in tables)
    assert (first - second).abs().max() > 1e-2


# Pretrained encoders


def test_pretrained_weights_arrive_unchanged_in_float32(tmp_path: Path) -> None:
    files = pretrained(tmp_path / "e", dtype=torch.bfloat16)
    found = encoder_state(files, reinit_layers=0, reinit_pooler=False)
    expected = AutoModel.from_pretrained(files.weights_folder, dtype=torch.float32).state_dict()
    assert torch.equal(found["pooler.dense.weight"], expected.pop("pooler.dense.weight"))
    assert torch.equal(found["pooler.dense.bias"], expected.pop("pooler.dense.bias"))
    for name, tensor in expected.items():
        assert torch.equal(found[f"backbone.{name}"], tensor), name
        assert found[f"backbone.{name}"].dtype == torch.float32


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_the_pooler_is_reinitialized_on_request_only(tmp_path: Path, family: str) -> None:
    files = pretrained(tmp_path / "e", family)
    kept = encoder_state(files, reinit_layers=0, reinit_pooler=False)["pooler.dense.bias"]
    reinitialized = encoder_state(files, reinit_layers=0, reinit_pooler=True)["pooler.dense.bias"]
    assert kept.abs().min() > 0
    assert reinitialized.abs().max() == 0


def test_a_checkpoint_without_a_pooler_gets_a_fresh_one_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "e"
    write_config(folder, "roberta")
    AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    state = encoder_state(Files(folder, folder), reinit_layers=0, reinit_pooler=False, max_sen_len=MAX_LENGTH)
    assert state["pooler.dense.bias"].abs().max() == 0
    assert state["pooler.dense.weight"].std() > 0.1
    assert "reinit_pooler is false and has no effect" in caplog.text


@pytest.mark.parametrize("family", ["bert", "distilbert", "electra", "modernbert", "deberta-v2", "mpnet"])
def test_the_last_layers_are_reinitialized_and_the_others_kept(tmp_path: Path, family: str) -> None:
    files = pretrained(tmp_path / "e", family)
    layers = 3 if family == "modernbert" else 2
    kept = encoder_state(files, reinit_layers=0)
    reinitialized = encoder_state(files, reinit_layers=1)
    changed = {name for name in kept if not torch.equal(kept[name], reinitialized[name])} - {"pooler.dense.weight"}
    last = {name for name in kept if f"layer.{layers - 1}." in name or f"layers.{layers - 1}." in name}
    assert changed == last
    for name in changed:
        if name.endswith("bias"):
            assert reinitialized[name].abs().max() == 0
        elif "norm" in name.lower():
            assert (reinitialized[name] == 1).all()
        else:
            assert reinitialized[name].std() == pytest.approx(0.3, rel=0.1)


def test_shared_layers_are_not_reinitialized(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = pretrained(tmp_path / "e", "albert")
    kept = encoder_state(files)
    assert "the default of 2 is not applied" in caplog.text
    assert_pretrained(kept, files)


def test_a_default_of_more_layers_than_there_are_reinitializes_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = pretrained(tmp_path / "e", num_hidden_layers=1)
    kept = encoder_state(files)
    assert "the default of 2 is not applied" in caplog.text
    assert_pretrained(kept, files)


def assert_pretrained(kept: dict[str, Tensor], files: Files) -> None:
    assert files.weights_folder is not None
    expected = AutoModel.from_pretrained(files.weights_folder).state_dict()
    assert all(torch.equal(kept[f"backbone.{name}"], expected[name]) for name in expected if "pooler" not in name)


def test_weights_that_do_not_fit_their_config_are_an_error(tmp_path: Path) -> None:
    files = pretrained(tmp_path / "e")
    write_config(tmp_path / "e", "bert", intermediate_size=48)
    cause = r"'encoder.layer.0.intermediate.dense.bias' has shape \[40\] in the weights, but \[48\] by config"
    with pytest.raises(ContractError, match=cause):
        encoder_state(files)


def test_missing_weights_are_an_error(tmp_path: Path) -> None:
    files = pretrained(tmp_path / "e")
    write_config(tmp_path / "e", "bert", num_hidden_layers=4)
    with pytest.raises(ContractError, match="weights of the encoder are not in its files"):
        encoder_state(files)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers_are_an_error_that_names_one(tmp_path: Path, value: float) -> None:
    files = pretrained(tmp_path / "e")
    state = load_file(tmp_path / "e" / "model.safetensors")
    state["encoder.layer.1.output.dense.weight"][3, 5] = value
    save_file(state, tmp_path / "e" / "model.safetensors")
    with pytest.raises(ContractError, match=r"'encoder\.layer\.1\.output\.dense\.weight' .* NaN or infinite numbers"):
        encoder_state(files)


@pytest.mark.parametrize("head", [AutoModel, AutoModelForMaskedLM])
@pytest.mark.parametrize("layers", [1, 2])
def test_layers_of_the_weights_that_a_config_leaves_out_are_warned_of_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, head: Any, layers: int
) -> None:
    folder = tmp_path / "e"
    write_config(folder, "bert")
    head.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    write_config(folder, "bert", num_hidden_layers=layers)
    encoder_state(Files(folder, folder), reinit_layers=0, reinit_pooler=True)
    lines = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == (layers == 1)
    assert all(
        f"{folder}: config.json has fewer layers than the weights: 16 weights are not used" in it for it in lines
    )


def test_a_pickle_that_torch_refuses_is_an_error_without_advice_to_run_it(tmp_path: Path) -> None:
    files = write_config(tmp_path / "e", "bert")
    torch.save({"weight": torch.zeros(1), "made": torch.nn.Linear(1, 1)}, tmp_path / "e" / "pytorch_model.bin")
    with pytest.raises(ContractError, match="cannot be read: it contains objects that are no tensors") as raised:
        encoder_state(Files(files.config_folder, files.config_folder))
    assert "weights_only" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("content", ["{", "{}", '{"model_type": "no_such_family"}'])
def test_a_config_that_is_none_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ContractError, match=r"config\.json: not the configuration of a Hugging Face encoder"):
        encoder_state(Files(tmp_path))


def test_sizes_that_make_no_encoder_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="no encoder can be built with these sizes"):
        encoder_state(write_config(tmp_path / "e", "bert", num_attention_heads=5))


# Numeric transform


def test_standard_scaling_is_the_fitted_one() -> None:
    transform = NumericTransform(NumericTransformParameters("standard", mean=(1.0, 10.0), scale=(2.0, 5.0)))
    assert transform(torch.tensor([[3.0, 0.0]])).tolist() == [[1.0, -2.0]]


@pytest.mark.parametrize("kind", ["none", "standard", "quantile"])
@pytest.mark.parametrize("value", [1e15, 1e30, float(np.finfo(np.float32).max)])
def test_the_largest_number_gives_features_that_are_numbers(kind: str, value: float) -> None:
    fitted = dict(mean=(1.0,) * 3, scale=(0.1,) * 3, quantiles=((0.0, 1.0),) * 3)
    parameters = NumericTransformParameters(kind, **fitted)  # type: ignore[arg-type]
    branch = TabularBranch(3, 5, transform=parameters, dropout=0.0)
    assert branch(torch.tensor([[value, -value, 0.5]])).isfinite().all()


def test_scaling_changes_no_row_of_training() -> None:
    rows = torch.zeros(100_000, 1)
    rows[0] = 3e9  # as far away as one of n rows can be: sqrt(n) standard deviations
    parameters = NumericTransformParameters("standard", mean=(rows.mean().item(),), scale=(rows.std().item(),))
    assert NumericTransform(parameters)(rows).max().item() == pytest.approx(len(rows) ** 0.5, rel=1e-3)


def test_no_scaling_changes_nothing() -> None:
    table = torch.randn(3, 2)
    assert torch.equal(NumericTransform(NumericTransformParameters("none"))(table), table)


def test_quantile_scaling_follows_its_definition_also_where_quantiles_are_equal() -> None:
    quantiles = ((0.0, 1.0, 1.0, 1.0, 5.0), (2.0, 2.0, 2.0, 2.0, 2.0), (-4.0, -2.0, 0.0, 2.0, 4.0))
    transform = NumericTransform(NumericTransformParameters("quantile", quantiles=quantiles))
    values = np.array([-9.0, 0.0, 0.25, 1.0, 1.5, 2.0, 4.0, 5.0, 99.0])
    found = transform(torch.tensor(values, dtype=torch.float32)[:, None].expand(-1, 3)).numpy()
    assert not found[:, 1].any()  # one value in train
    for column, q in enumerate(quantiles):
        if q[0] == q[-1]:
            continue
        for row, x in enumerate(values):
            steps = [
                min(max((x - low) / (high - low), 0), 1) if high > low else (1 + np.sign(x - low)) / 2
                for low, high in pairwise(q)
            ]
            assert found[row, column] == pytest.approx(np.sqrt(3) * (2 * np.mean(steps) - 1), abs=1e-6), (column, x)


@pytest.mark.parametrize("kind", ["standard", "quantile"])
def test_the_fitted_scaling_is_part_of_the_state_and_not_trained(kind: str) -> None:
    parameters = NumericTransformParameters(kind, mean=(1.0,), scale=(2.0,), quantiles=((0.0, 1.0),))
    branch = TabularBranch(1, 5, transform=parameters, dropout=0.0)
    fitted = {name for name in branch.state_dict() if name.startswith("transform")}
    assert fitted == ({"transform.mean", "transform.scale"} if kind == "standard" else {"transform.quantiles"})
    assert not any(name.startswith("transform") for name, _ in branch.named_parameters())


# A model/ folder


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Classifier]:
    """A model/ folder as a job leaves it, as far as loading needs it."""
    folder = tmp_path / "model"
    hp = hyperparameters(model_class="trimodal_bert", num_classes=3, tab_field_list=["price", "weight"])
    files = [write_config(folder / tokenizer_folder(field.role), "bert") for field in hp.text_fields]
    model = build_classifier(hp, files, tabular_dim=2, numeric_transform=standard_transform(2)).eval()
    torch.save(model.state_dict(), folder / MODEL_STATE)
    (folder / HYPERPARAMETERS).write_text(json.dumps(hp.model_dump(mode="json")))
    FittedPreprocessing(
        text_fields=tuple(text.of_data for text in hp.text_fields),
        id_name="id",
        label_name="label",
        numeric_columns=("price", "weight"),
        imputation={"price": 0.0, "weight": 0.0},
        categorical_columns=(),
        risk_tables={},
        numeric_transform=standard_transform(2),
        class_labels=("c0", "c1", "c2"),
        is_binary=False,
        tokenizer_digests={},
    ).save(folder)
    return folder, model


def test_a_saved_model_scores_the_same(saved: tuple[Path, Classifier]) -> None:
    folder, model = saved
    loaded = load_classifier(folder)
    batch = batch_for(model, tabular_dim=2)
    assert not loaded.training
    assert torch.equal(loaded(batch), model(batch))


def test_a_damaged_state_is_an_error_that_names_the_file(saved: tuple[Path, Classifier]) -> None:
    folder, _ = saved
    path = folder / MODEL_STATE
    damages = {b"": "is empty", b"no archive": "is no file of torch.save", path.read_bytes()[:1000]: "is cut"}
    for content, what in damages.items():
        path.write_bytes(content)
        with pytest.raises(ContractError, match=rf"model\.pth: {what}"):
            load_classifier(folder)
    path.unlink()
    with pytest.raises(ContractError, match=r"model\.pth: does not exist"):
        load_classifier(folder)


@pytest.mark.parametrize("change", [{"unknown": 1}, {"hidden_common_dim": "wide"}])
def test_a_changed_setting_is_an_error_that_names_the_file(saved: tuple[Path, Classifier], change: dict) -> None:
    folder, _ = saved
    path = folder / HYPERPARAMETERS
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ContractError, match=rf"{next(iter(change))}: .*in {path}"):
        load_classifier(folder)


def test_a_malicious_state_is_refused_and_runs_nothing(saved: tuple[Path, Classifier], tmp_path: Path) -> None:
    folder, _ = saved
    target = tmp_path / "touched"
    for write in (torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))):
        write({"weight": Touch(target)}, folder / MODEL_STATE)
        with pytest.raises(ContractError, match=r"model\.pth: .*(no state dict|no file of torch\.save)"):
            load_classifier(folder)
    assert not target.exists()


def test_a_state_of_another_model_is_an_error_that_names_the_file(saved: tuple[Path, Classifier]) -> None:
    folder, model = saved
    state = model.state_dict()
    state.pop("fusion.output.bias")
    for wrong in (state, {**model.state_dict(), "more": torch.zeros(1)}):
        torch.save(wrong, folder / MODEL_STATE)
        with pytest.raises(ContractError, match=r"model\.pth: does not match hyperparameters\.json"):
            load_classifier(folder)


def test_unreadable_hyperparameters_are_an_error_that_names_the_file(saved: tuple[Path, Classifier]) -> None:
    folder, _ = saved
    (folder / HYPERPARAMETERS).write_text("{")
    with pytest.raises(ContractError, match=r"hyperparameters\.json: cannot be read"):
        load_classifier(folder)


def test_an_lstm_runs_without_the_autocast_that_computes_it_in_float16(tmp_path):
    model = build(tmp_path, model_class="lstm")
    lowered = []
    model.branches["text"].encoder.recurrent.register_forward_pre_hook(
        lambda *_: lowered.append(torch.is_autocast_enabled("cuda"))
    )
    torch.set_autocast_enabled("cuda", True)
    try:
        model(batch_for(model))
        assert torch.is_autocast_enabled("cuda"), "for what follows"
    finally:
        torch.set_autocast_enabled("cuda", False)
    assert lowered == [False]


@pytest.mark.parametrize("channels", [[8], [8, 6, 4]])
def test_zeros_after_the_last_chunk_do_not_change_a_convolution(tmp_path, monkeypatch, channels):
    model = build(tmp_path, model_class="multimodal_cnn", kernel_size=[2, 5], num_channels=channels)
    encoder, (text,) = model.branches["text"].encoder, batch_for(model).texts
    expected = encoder(text)
    monkeypatch.setattr(word_encoders, "_length_step", lambda _: 1024)
    torch.testing.assert_close(encoder(text), expected)


def test_on_a_gpu_convolutions_have_few_lengths(tmp_path):
    model = build(tmp_path, model_class="multimodal_cnn").to("meta")
    lengths = set()
    for stack in model.branches["text"].encoder.stacks:
        stack[0].register_forward_pre_hook(lambda _, inputs: lengths.add(inputs[0].shape[-1]))
    for chunks in ([[7], [30]], [[400], [2]], [[900]]):
        model(packed_batch(chunks).to("meta"))
    assert len(lengths) == len(model.branches["text"].encoder.stacks)
