"""Compiled encoder layers on GPUs. Tensors on the meta device take the paths of a GPU, and compute nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from container.models import attention
from container.models.backbone import build_encoder
from container.models.encoder import TextEncoder
from container.parallel import layer_wrapping
from container.parallel.degrees import ParallelDegrees
from container.parallel.layer_wrapping import compile_layers, compiles
from testing.encoder_families import hyperparameters, packed_text, write_config

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("setting", "device", "degrees", "compiled"),
    [
        ("auto", GPU, {}, True),
        ("auto", GPU, {"dp_shard": 2}, True),
        ("auto", GPU, {"pp": 2}, False),
        ("auto", GPU, {"tp": 2}, False),
        ("auto", CPU, {}, False),
        (True, CPU, {"tp": 2}, True),
        (False, GPU, {}, False),
    ],
)
def test_layers_are_compiled_on_gpus_or_as_asked_for(monkeypatch, setting, device, degrees, compiled):
    monkeypatch.setattr(layer_wrapping, "has_triton", lambda: True)
    monkeypatch.setattr(layer_wrapping, "has_compiler", lambda: True)
    assert compiles(hyperparameters(compile=setting), device, ParallelDegrees(**degrees)) == compiled


@pytest.mark.parametrize("missing", ["has_triton", "has_compiler"])
def test_layers_are_not_compiled_where_a_compiler_is_missing_unless_asked_for(monkeypatch, missing):
    monkeypatch.setattr(layer_wrapping, "has_triton", lambda: True)
    monkeypatch.setattr(layer_wrapping, "has_compiler", lambda: True)
    monkeypatch.setattr(layer_wrapping, missing, lambda: False)
    assert not compiles(hyperparameters(), GPU, ParallelDegrees())


@pytest.fixture
def graphs(monkeypatch) -> Callable[[TextEncoder, list[list[int]]], int]:
    """Train and evaluate on chunks of these lengths; return how many graphs have been compiled."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    monkeypatch.setattr(attention, "has_flash", lambda _: True)

    def run(encoder: TextEncoder, chunk_lengths: list[list[int]]) -> int:
        text = packed_text(chunk_lengths).to("meta")
        encoder.train().token_states(text).sum().backward()
        with torch.no_grad():
            encoder.eval().token_states(text)
        assert not torch._dynamo.utils.counters["graph_break"]
        return torch._dynamo.utils.counters["stats"]["unique_graphs"]

    yield run
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_layer_has_one_graph_for_training_and_one_for_evaluation_whatever_the_lengths(graphs, tmp_path: Path, dtype):
    files = write_config(tmp_path, "bert", max_position_embeddings=512)
    encoder = build_encoder(hyperparameters(max_sen_len=512).text_fields[0], files).to("meta", dtype)
    compile_layers(encoder, backend="eager")
    batches = ([[5], [9, 3]], [[200], [7]], [[64, 64, 64], [300], [2], [2]], [[450]])
    assert [graphs(encoder, chunk_lengths) for chunk_lengths in batches] == [2, 2, 2, 2]


def test_two_encoders_that_differ_have_graphs_of_their_own(graphs, tmp_path: Path):
    fields = hyperparameters().text_fields
    made = 0
    for width in (32, 64, 96, 128, 160):
        files = write_config(tmp_path / str(width), "bert", hidden_size=width, num_hidden_layers=1)
        encoder = build_encoder(fields[0], files).bfloat16().to("meta")
        compile_layers(encoder, backend="eager")
        made += 2
        assert graphs(encoder, [[5], [9, 3]]) == made
