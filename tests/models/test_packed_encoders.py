"""Every family's packed forward equals Hugging Face's own padded forward, in values and gradients."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from container.data.batch import PackedText
from container.job.log_once import log_once
from container.models import attention
from container.models.attention import PackedLayout
from container.models.backbone import build_encoder
from container.models.encoder import TextEncoder, mean_over_groups
from container.models.families import encoder_family
from container.models.record_tokens import PackedTokens
from contracts.errors import ContractError
from testing.encoder_families import (
    MAX_LENGTH,
    PACKED_FAMILIES,
    PADDED_FAMILIES,
    HiddenCasts,
    hyperparameters,
    packed_text,
    write_config,
)
from testing.packed_forward import Kernels, padded, padded_states, reference_of

CHUNKS = [[7, 30], [MAX_LENGTH], [2]]
FIELD = hyperparameters().text_fields[0]
# transformers' eager attention computes its softmax in float32 for ModernBERT, where a masked row becomes NaN.
REFERENCES = [(family, "sdpa") for family in PACKED_FAMILIES] + [
    (family, "eager") for family in PACKED_FAMILIES if family != "modernbert"
]


def build(folder: Path, family: str, *, pooling: str | None = "first", **overrides: object) -> TextEncoder:
    torch.manual_seed(0)
    return build_encoder(FIELD, write_config(folder / family, family, **overrides), pooling=pooling).double()


def assert_same_gradients(encoder: TextEncoder, reference: nn.Module) -> None:
    expected = dict(reference.named_parameters())
    for name, parameter in encoder.backbone.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        scale = 1 + expected[name].grad.abs().max()
        assert (parameter.grad - expected[name].grad).abs().max() / scale < 1e-9, name


def _compare(encoder: TextEncoder, reference: nn.Module, states: Callable[[PackedText], Tensor]) -> None:
    text = packed_text(CHUNKS)
    expected, found = padded_states(reference, text, pad=encoder.pad_token_id), states(text)
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    direction = torch.randn_like(expected)
    (expected * direction).sum().backward()
    (found * direction).sum().backward()
    assert_same_gradients(encoder, reference)


@pytest.mark.parametrize(("family", "attention"), REFERENCES)
def test_packed_states_and_gradients_equal_the_padded_forward(tmp_path: Path, family: str, attention: str) -> None:
    encoder = build(tmp_path, family, pooling=None)
    assert encoder.packed
    _compare(encoder, reference_of(encoder, tmp_path / family, attention), encoder.token_states)


@pytest.mark.parametrize("family", PADDED_FAMILIES)
def test_a_family_that_cannot_be_packed_runs_padded_with_the_same_result(tmp_path: Path, family: str) -> None:
    encoder = build(tmp_path, family, pooling=None)
    assert not encoder.packed
    _compare(encoder, reference_of(encoder, tmp_path / family, None), encoder.token_states)


@pytest.mark.parametrize("family", [*PACKED_FAMILIES, *PADDED_FAMILIES])
def test_the_dense_form_gives_the_same_chunk_vectors_and_finite_ones_for_padding_chunks(
    tmp_path: Path, family: str
) -> None:
    encoder = build(tmp_path, family)
    text = packed_text(CHUNKS)
    input_ids, mask = padded(text, pad=0, length=MAX_LENGTH)
    input_ids = torch.cat([input_ids, torch.zeros_like(input_ids[:1])])
    mask = torch.cat([mask, torch.zeros_like(mask[:1])])
    found = encoder.forward_dense(input_ids, mask)
    torch.testing.assert_close(found[:-1], encoder(text), rtol=0, atol=1e-9)
    assert found.isfinite().all()


@pytest.mark.parametrize("family", [name for name in PACKED_FAMILIES if encoder_family(name).attention])
def test_the_last_layer_computes_first_tokens_only_with_the_same_vectors_and_gradients(
    tmp_path: Path, family: str
) -> None:
    only, every = (build(tmp_path, family) for _ in range(2))
    every.compute_every_token()
    rows = []
    for encoder in (only, every):
        query = encoder.layers[-1].get_submodule("attention.self.query")
        norm = [module for module in encoder.layers[-1].modules() if isinstance(module, nn.LayerNorm)][-1]
        for module in (query, norm):
            module.register_forward_hook(lambda _, __, output: rows.append(output.shape[1]))
    text = packed_text(CHUNKS)
    dense = padded(text, pad=0)
    for encoder in (only, every):
        (encoder(text) + encoder.forward_dense(*dense)).square().sum().backward()
    counts = [len(text.lengths), 1, len(text.tokens), MAX_LENGTH]
    assert rows == [count for count in counts for _ in range(2)]
    torch.testing.assert_close(only(text), every(text), rtol=0, atol=1e-12)
    assert_same_gradients(only, every.backbone)


def test_threads_compute_first_tokens_of_different_batches_at_the_same_time(tmp_path: Path) -> None:
    encoder = build(tmp_path, "bert")
    texts = [packed_text(CHUNKS), packed_text([[60], [2, 9], [3], [20, 1]])] * 2
    with torch.inference_mode():
        expected = [encoder(text) for text in texts]

    def compute(i: int) -> bool:
        with torch.inference_mode():
            return all(torch.allclose(encoder(texts[i]), expected[i]) for _ in range(40))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(len(texts)) as pool:
            assert all(pool.map(compute, range(len(texts))))
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("family", [*PACKED_FAMILIES, *PADDED_FAMILIES])
def test_every_trainable_parameter_gets_a_gradient(tmp_path: Path, family: str) -> None:
    encoder = build(tmp_path, family)
    encoder(packed_text([[5], [9, 3]])).square().sum().backward()
    without = [name for name, parameter in encoder.named_parameters() if parameter.grad is None]
    assert without == []


def test_chunks_do_not_see_each_other(tmp_path: Path) -> None:
    encoder = build(tmp_path, "modernbert", pooling=None)
    text = packed_text(CHUNKS)
    before = encoder.token_states(text)
    text.tokens[7:37] = 5
    after = encoder.token_states(text)
    changed = (before - after).abs().amax(1) > 0
    assert changed.nonzero().flatten().tolist() == list(range(7, 37))


def test_modernbert_layers_see_their_window_and_no_further(tmp_path: Path) -> None:
    """One local layer of window 8: a token at distance 4 is seen, one at distance 5 is not."""
    encoder = build(tmp_path, "modernbert", num_hidden_layers=1, layer_types=["sliding_attention"], pooling=None)
    text = packed_text([[MAX_LENGTH]])
    before = encoder.token_states(text)
    text.tokens[30] = 3 + (text.tokens[30] - 2) % 80
    changed = (before - encoder.token_states(text)).abs().amax(1) > 0
    assert changed.nonzero().flatten().tolist() == list(range(26, 35))


def test_attention_dropout_is_off_in_training(tmp_path: Path) -> None:
    encoder = build(tmp_path, "bert", attention_probs_dropout_prob=0.5).train()
    text = packed_text(CHUNKS)
    assert torch.equal(encoder(text), encoder(text))


def test_hidden_dropout_follows_the_config(tmp_path: Path) -> None:
    encoder = build(tmp_path, "bert", hidden_dropout_prob=0.5).train()
    text = packed_text(CHUNKS)
    assert not torch.equal(encoder(text), encoder(text))


def test_float32_is_close_to_the_padded_forward(tmp_path: Path) -> None:
    encoder = build(tmp_path, "modernbert", pooling=None).float()
    reference = reference_of(encoder, tmp_path / "modernbert", "eager").float()
    text = packed_text(CHUNKS)
    expected = padded_states(reference, text, pad=encoder.pad_token_id)
    torch.testing.assert_close(encoder.token_states(text), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["bert", "distilbert", "nomic_bert"])
def test_autocast_casts_the_input_of_attention_once_and_that_of_the_feed_forward_once(
    tmp_path: Path, family: str
) -> None:
    encoder = build(tmp_path, family, pooling=None).float()
    with HiddenCasts(encoder.width) as casts:
        encoder.token_states(packed_text(CHUNKS))
    assert casts.count == 2 * encoder.backbone.config.num_hidden_layers


def attend_in_groups(query: Tensor, key: Tensor, value: Tensor, *others: Any, scale: float | None) -> tuple[Tensor]:
    """Compute what torch's memory-efficient kernel computes. [1, N, heads, head_dim] -> [1, N, heads, head_dim]"""
    bias, of_queries, of_keys, longest_query, longest_key, dropout, mask_type, _ = others
    assert (bias, longest_query, longest_key, dropout, mask_type) == (None, 78, 51, 0.0, 0)
    groups = zip(*(
        tensor[0].transpose(0, 1).tensor_split(at[1:-1], dim=1)
        for tensor, at in zip((query, key, value), (of_queries, of_keys, of_keys))
    ))  # fmt: skip
    contexts = [torch.nn.functional.scaled_dot_product_attention(*group, scale=scale) for group in groups]
    return (torch.cat(contexts, dim=1).transpose(0, 1)[None],)


def test_the_kernel_for_float32_gets_the_groups_of_queries_and_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.aten, "_efficient_attention_forward", attend_in_groups)
    queries = PackedTokens((70, 3, 5), torch.tensor([0, 70, 73, 78]), 70)
    keys = PackedTokens((2, 9, 40), torch.tensor([0, 2, 11, 51]), 40)
    vectors = [torch.randn(rows, 16) for rows in (78, 51, 51)]
    found = attention._memory_efficient_attention(
        *(tensor.unflatten(1, (2, 8)) for tensor in vectors),
        (queries.boundaries, keys.boundaries),
        longest=(attention.rounded_length(70), attention.rounded_length(40)),
        scale=None,
    )
    torch.testing.assert_close(found.flatten(1), queries.attend(*vectors, keys=keys, heads=2))


def test_a_kernel_attends_from_first_tokens_as_the_loop_over_chunks_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(*tensors: Tensor, longest: tuple[int, int], **_: Any) -> Tensor:
        assert longest == (1, 64)
        *tensors, (of_queries, of_keys) = tensors
        groups = zip(*(
            tensor.transpose(0, 1).tensor_split(at[1:-1].long(), dim=1)
            for tensor, at in zip(tensors, (of_queries, of_keys, of_keys))
        ))  # fmt: skip
        contexts = [torch.nn.functional.scaled_dot_product_attention(*group) for group in groups]
        return torch.cat(contexts, dim=1).transpose(0, 1)

    text = packed_text(CHUNKS)
    layout = PackedLayout.of(text)
    query = torch.randn(1, 2, len(text.lengths), 8)
    key, value = torch.randn(2, 1, 2, len(text.tokens), 8)
    by_chunk = layout.attend(query, key, value, scale=None, window=None)
    monkeypatch.setattr(attention, "varlen_attention", kernel)
    torch.testing.assert_close(layout.attend(query, key, value, scale=None, window=None), by_chunk)


def test_the_backward_of_a_packed_encoder_fills_no_tensor_with_the_gradient_of_a_part(tmp_path: Path) -> None:
    encoder = build(tmp_path, "bert", pooling=None).float().to("meta")
    with Kernels("select") as kernels:
        encoder.token_states(packed_text(CHUNKS).to("meta")).sum().backward()
    assert "aten.select_backward" not in kernels.names


def assert_bounds_of_the_backward(kernels: Kernels) -> None:
    """Check what the kernel's backward checks on a GPU, and meta tensors do not (pytorch issue 129523)."""
    backward = [given for name, given in zip(kernels.names, kernels.arguments) if name.endswith("attention_backward")]
    assert backward, "there was a backward"
    for given in backward:
        assert 0 < given["max_seqlen_q"] <= given["query"].size(1)
        assert 0 < given["max_seqlen_k"] <= given["key"].size(1)


# Tensors on the meta device take every path of a GPU that depends on dtypes and shapes.
@pytest.mark.parametrize("family", sorted(PACKED_FAMILIES.keys() - {"modernbert"}))
def test_on_a_gpu_one_kernel_attends_inside_all_chunks_in_float32(tmp_path: Path, family: str) -> None:
    encoder = build(tmp_path, family, pooling=None).float().to("meta")
    layers = encoder.backbone.config.num_hidden_layers
    with Kernels() as kernels:
        encoder.token_states(packed_text(CHUNKS).to("meta")).sum().backward()
    expected = ["aten._efficient_attention_forward", "aten._efficient_attention_backward"]
    assert kernels.names == [name for name in expected for _ in range(layers)]


def test_on_a_gpu_the_last_layer_has_a_query_of_each_first_token(tmp_path: Path) -> None:
    encoder = build(tmp_path, "bert").float().to("meta")
    text = packed_text(CHUNKS)
    with Kernels() as kernels:
        encoder(text.to("meta")).sum().backward()
    assert_bounds_of_the_backward(kernels)
    rows = [(given["query"].size(1), given["key"].size(1)) for given in kernels.arguments[:2]]
    assert rows == [(len(text.tokens), len(text.tokens)), (len(text.lengths), len(text.tokens))]


@pytest.mark.parametrize("chunks", [[[5]], [[5, 64], [1]], [[7, 30], [60], [2]]], ids=str)
def test_in_float32_no_bound_of_a_length_exceeds_the_number_of_tokens(tmp_path: Path, chunks: list[list[int]]) -> None:
    encoder = build(tmp_path, "bert", pooling=None).float().to("meta")
    with Kernels() as kernels:
        encoder.token_states(packed_text(chunks).to("meta")).sum().backward()
    assert_bounds_of_the_backward(kernels)


@pytest.mark.parametrize("of_text", [(3,), (3, 90)])
def test_in_float32_no_bound_exceeds_the_tokens_of_texts_or_of_two_fields(of_text: tuple[int, ...]) -> None:
    text = PackedTokens(of_text, torch.empty(len(of_text) + 1, device="meta").int(), max(of_text))
    vectors = torch.empty(sum(of_text), 16, device="meta", requires_grad=True)
    fields, of_fields = text.of_fields(torch.empty(len(of_text), 2, 16, device="meta", requires_grad=True))
    with Kernels() as kernels:
        from_fields = of_fields.attend(fields, vectors, vectors, keys=text, heads=2)
        from_text = text.attend(vectors, fields, fields, keys=of_fields, heads=2)
        (from_fields.sum() + from_text.sum()).backward()
    assert_bounds_of_the_backward(kernels)


@pytest.mark.parametrize("family", PACKED_FAMILIES)
def test_on_a_gpu_the_flash_kernel_attends_inside_all_chunks_in_half_precision(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "has_flash", lambda _: True)
    encoder = build(tmp_path, family, pooling=None).bfloat16().to("meta")
    layers = encoder.backbone.config.num_hidden_layers
    with Kernels() as kernels:
        encoder.token_states(packed_text(CHUNKS).to("meta")).sum().backward()
    expected = ["aten._flash_attention_forward", "aten._flash_attention_backward"]
    assert kernels.names == [name for name in expected for _ in range(layers)]
    windows = {(given["window_size_left"], given["window_size_right"]) for given in kernels.arguments}
    assert windows == ({(-1, -1), (4, 4)} if family == "modernbert" else {(-1, -1)})


@pytest.mark.parametrize(
    ("change", "known"),
    [
        (("num_splits=None)", "num_splits=None, bool fast=False)"), True),
        (("num_splits=None)", "num_splits=None, bool fast)"), False),
        (("float dropout_p, ", ""), False),
        (("SymInt max_q, SymInt max_k", "SymInt max_k, SymInt max_q"), False),
        (("(Tensor output, ", "(Tensor softmax_logsumexp, "), False),
    ],
    ids=["an option more", "an argument more", "an argument less", "another order", "another result"],
)
def test_the_private_operator_is_used_only_with_the_arguments_that_are_known(change, known) -> None:
    schema = str(torch.ops.aten._flash_attention_forward.default._schema)
    assert attention.is_known_operator(schema)
    assert attention.flash_operator is not None
    changed = schema.replace(*change)
    assert changed != schema
    assert attention.is_known_operator(changed) == known


def test_a_torch_with_another_operator_attends_by_varlen_attn_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(attention, "flash_operator", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    attention.has_flash.cache_clear()
    with caplog.at_level("INFO"):
        assert all(attention.has_flash(torch.device("cuda", 0)) for _ in range(2))
    attention.has_flash.cache_clear()
    (message,) = caplog.messages
    assert message.endswith("has another _flash_attention_forward")
    monkeypatch.setattr(attention, "has_flash", lambda _: True)
    encoder = build(tmp_path, "modernbert", pooling=None).bfloat16().to("meta")
    with Kernels() as kernels:
        encoder.token_states(packed_text(CHUNKS).to("meta"))
    assert set(kernels.names) == {"torch_attn._varlen_attn"}
    assert {tuple(given["window_size"]) for given in kernels.arguments} == {(-1, -1), (4, 4)}


def test_queries_in_float32_beside_values_in_half_precision_use_the_flash_kernel() -> None:
    """As rotary positions give them under autocast."""
    half, boundaries = torch.empty(20, 2, 8, dtype=torch.bfloat16, device="meta"), torch.empty(3, device="meta").int()
    with Kernels() as kernels:
        context = attention.varlen_attention(
            half.float(), half.float(), half, (boundaries, boundaries), longest=(64, 64), flash=True
        )
    assert kernels.names == ["aten._flash_attention_forward"]
    assert context is not None and context.dtype == torch.bfloat16  # noqa: PT018  None has no dtype


def test_on_a_gpu_tokens_attend_inside_all_records_by_one_kernel_in_float32() -> None:
    tokens = PackedTokens((70, 3, 5), torch.empty(4, device="meta").int(), 70)
    vectors = torch.empty(78, 16, device="meta")
    with Kernels() as kernels:
        assert tokens.attend(vectors, vectors, vectors, keys=tokens, heads=2).shape == vectors.shape
    assert kernels.names == ["aten._efficient_attention_forward"]


def compare_with_float64(
    encoder: TextEncoder, text: PackedText, *, device: str, dtype: torch.dtype, tolerance: float
) -> Kernels:
    """Compare states and gradients in `dtype` with those in float64 on the CPU; return the kernels of the forward."""
    expected = encoder.token_states(text)
    direction = torch.randn_like(expected)
    gradients = torch.autograd.grad((expected * direction).sum(), list(encoder.backbone.parameters()))
    encoder = encoder.float().to(device)
    with Kernels() as kernels, torch.autocast(device, dtype, enabled=dtype != torch.float32):
        found = encoder.token_states(text.to(device))
    torch.testing.assert_close(found.double().cpu(), expected, rtol=0, atol=tolerance)
    names, weights = zip(*encoder.backbone.named_parameters())
    found_gradients = torch.autograd.grad((found * direction.to(found)).sum(), weights)
    for name, ours, exact in zip(names, found_gradients, gradients, strict=True):
        # Key biases have an exact gradient of zero, and rounding noise here.
        assert (ours.double().cpu() - exact).abs().max() / (1 + exact.abs().max()) < tolerance, name
    return kernels


each_precision = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, 0.1), (torch.float32, 1e-3)], ids=["bfloat16", "float32"]
)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@each_precision
@pytest.mark.parametrize("family", PACKED_FAMILIES)
def test_lower_precision_gives_nearly_the_same_states_and_gradients_on_the_cpu(
    tmp_path: Path, family: str, dtype: torch.dtype, tolerance: float
) -> None:
    encoder = build(tmp_path, family, initializer_range=0.05, pooling=None)
    compare_with_float64(encoder, packed_text(CHUNKS), device="cpu", dtype=dtype, tolerance=tolerance)


@pytest.mark.gpu
@needs_gpu
@each_precision
@pytest.mark.parametrize("family", PACKED_FAMILIES)
@pytest.mark.parametrize("chunks", [CHUNKS, [[5]]], ids=["many", "few"])
def test_the_variable_length_kernels_give_the_same_states_and_gradients(
    tmp_path: Path, family: str, chunks: list[list[int]], dtype: torch.dtype, tolerance: float
) -> None:
    encoder = build(tmp_path, family, initializer_range=0.05, pooling=None)
    kernels = compare_with_float64(encoder, packed_text(chunks), device="cuda", dtype=dtype, tolerance=tolerance)
    kernel = "aten._flash_attention_forward" if dtype == torch.bfloat16 else "aten._efficient_attention_forward"
    if family != "modernbert" or dtype == torch.bfloat16:  # only the flash kernel has windows
        assert set(kernels.names) == {kernel}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])])
@each_precision
@pytest.mark.parametrize("head_size", [32, 64, 96, 128])
def test_head_sizes_and_lengths_give_the_same_states_and_gradients(
    tmp_path: Path, head_size: int, dtype: torch.dtype, tolerance: float, device: str
) -> None:
    sizes = {"hidden_size": 2 * head_size, "num_attention_heads": 2, "max_position_embeddings": 512}
    encoder = build(tmp_path, "bert", initializer_range=0.05, pooling=None, **sizes)
    empty_text, chunks = [2], [[1], [512], [63, 64, 65], [300, 7]]
    text = packed_text([empty_text, *chunks])
    compare_with_float64(encoder, text, device=device, dtype=dtype, tolerance=tolerance)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "window", "reason"),
    [
        (torch.float32, 64, 8, "windows have no kernel in float32"),
        (torch.float32, 12, None, "no kernel takes heads of size 12"),
        (torch.bfloat16, 64, 8, "only flash attention has a kernel for it, on GPUs since Ampere"),
    ],
    ids=["window", "head size", "old GPU"],
)
def test_the_warning_of_slow_attention_gives_the_reason_once(
    caplog: pytest.LogCaptureFixture, dtype: torch.dtype, head_dim: int, window: int | None, reason: str
) -> None:
    log_once.cache_clear()
    for _ in range(2):
        attention.warn_if_slow(SimpleNamespace(is_cuda=True, dtype=dtype, shape=(1, 4, 9, head_dim)), window=window)
    (message,) = caplog.messages
    assert reason in message
    assert "bf16" not in message, "it may be set already"


def test_a_family_that_is_not_in_the_table_computes_its_padded_states(tmp_path: Path) -> None:
    folder = tmp_path / "ernie"
    encoder = build_encoder(
        FIELD, write_config(folder, "bert", model_type="ernie", use_task_id=False), pooling=None
    ).double()
    assert not encoder.packed
    _compare(encoder, reference_of(encoder, folder, None), encoder.token_states)


def test_weights_that_a_family_outside_the_table_does_not_use_are_frozen(tmp_path: Path) -> None:
    sizes = {"entity_vocab_size": 20, "entity_emb_size": 16, "max_position_embeddings": MAX_LENGTH + 2}
    files = write_config(tmp_path / "luke", "bert", model_type="luke", **sizes)
    encoder = build_encoder(FIELD, files)
    encoder(packed_text([[5], [9]])).square().sum().backward()
    trainable = {name for name, parameter in encoder.named_parameters() if parameter.requires_grad}
    assert trainable == {name for name, parameter in encoder.named_parameters() if parameter.grad is not None}
    assert "backbone.entity_embeddings.entity_embeddings.weight" not in trainable


def test_a_family_whose_padding_reaches_the_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="fnet do not mask padding"):
        build_encoder(FIELD, write_config(tmp_path / "fnet", "bert", model_type="fnet"))


@pytest.mark.parametrize(("family", "autocasts"), [("deberta", False), ("megatron-bert", True)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_an_encoder_that_fails_under_autocast_computes_in_float32(
    tmp_path: Path, family: str, autocasts: bool, dtype: torch.dtype
) -> None:
    encoder = build_encoder(FIELD, write_config(tmp_path / family, "bert", model_type=family))
    text = packed_text(CHUNKS)
    exact = encoder.token_states(text)
    with torch.autocast("cpu", dtype):
        states = encoder.token_states(text)
    states.float().sum().backward()
    assert torch.equal(states, exact) == (not autocasts)


def test_a_model_that_does_not_read_token_ids_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="perceiver cannot be run on token ids"):
        build_encoder(FIELD, write_config(tmp_path / "perceiver", "bert", model_type="perceiver", d_latents=32))


def test_chunks_longer_than_the_table_of_positions_are_refused(tmp_path: Path) -> None:
    longest = FIELD.max_sen_len - 1
    files = write_config(
        tmp_path / "luke", "bert", model_type="luke", pad_token_id=1, max_position_embeddings=longest + 2
    )
    with pytest.raises(ContractError, match=f"has positions for {longest} tokens"):
        build_encoder(FIELD, files)


def test_a_records_feature_is_the_mean_of_its_own_chunks() -> None:
    chunks = torch.tensor([[1.0, 2.0], [3.0, 6.0], [10.0, 20.0]])
    found = mean_over_groups(chunks, torch.tensor([0, 0, 1]), num_groups=2)
    assert found.tolist() == [[2.0, 4.0], [10.0, 20.0]]


def test_on_the_cpu_attention_in_bfloat16_is_computed_in_float32() -> None:
    text = packed_text([[5], [9]])
    query, key, value = torch.randn(3, 1, 2, 14, 8).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = PackedLayout.of(text).attend(query, key, value, scale=None, window=None)
    exact = PackedLayout.of(text).attend(query.float(), key.float(), value.float(), scale=None, window=None)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, exact.bfloat16())
