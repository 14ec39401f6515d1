"""Compiled encoder layers on GPUs. Tensors on the meta device take the paths of a GPU, and compute nothing."""

import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from container.job import preflight
from container.job.log_once import log_once
from container.models import attention
from container.models.backbone import build_encoder
from container.models.encoder import TextEncoder
from container.parallel import parallelize
from container.parallel.degrees import ParallelDegrees
from container.parallel.parallelize import compile_layers, compiles
from contracts.errors import ContractError
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
def test_layers_are_compiled_on_gpus_or_as_asked_for(machine, setting, device, degrees, compiled):
    machine()
    assert compiles(hyperparameters(compile=setting), device, ParallelDegrees(**degrees)) == compiled


@pytest.fixture
def machine(monkeypatch, tmp_path) -> Callable[..., Path]:
    """Return a function that imitates a machine with Triton, a compiler and Python's header file, or without some."""

    def imitate(*, triton: bool = True, compiler: bool = True, header: bool = True) -> Path:
        monkeypatch.setattr(parallelize, "has_triton", lambda: triton)
        monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/cc" if compiler else None)
        monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
        if header:
            (tmp_path / "Python.h").touch()
        return tmp_path / "Python.h"

    log_once.cache_clear()
    yield imitate
    log_once.cache_clear()


@pytest.mark.parametrize(
    ("has", "degrees", "reason"),
    [
        ({"triton": False}, {}, "PyTorch finds no Triton for this GPU"),
        ({"compiler": False}, {}, "this machine has no C++ compiler"),
        ({"header": False}, {}, "this machine has no {header}"),
        ({}, {"pp": 2, "tp": 2}, "the layers of pp and tp are compiled with compile=true only"),
    ],
)
def test_the_log_says_once_why_layers_are_not_compiled_on_a_gpu(machine, caplog, has, degrees, reason):
    header = machine(**has)
    with caplog.at_level("INFO"):
        for _ in range(2):  # for training, and for the final predictions
            assert not compiles(hyperparameters(), GPU, ParallelDegrees(**degrees))
    said = f"compile: auto: encoder layers are not compiled: {reason.format(header=header)}"
    assert caplog.messages == [said]


def test_the_log_says_once_that_layers_are_compiled(machine, caplog, tmp_path):
    machine()
    encoder = build_encoder(hyperparameters().text_fields[0], write_config(tmp_path / "bert", "bert"))
    with caplog.at_level("INFO"):
        for _ in range(2):
            assert compiles(hyperparameters(), GPU, ParallelDegrees())
            compile_layers(encoder)
    assert caplog.messages == ["encoder layers are compiled: the first steps take longer"]


@pytest.mark.parametrize("missing", ["compiler", "header"])
def test_compile_true_is_an_error_where_it_cannot_work(machine, missing):
    header = machine(**{missing: False})
    cause = "no C\\+\\+ compiler" if missing == "compiler" else f"no {header}"
    with pytest.raises(ContractError, match=f"compile: is true, but this machine has {cause}"):
        preflight._check_compiler(hyperparameters(compile=True))


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
def test_layers_have_a_graph_for_training_and_one_for_evaluation_whatever_the_lengths(graphs, tmp_path: Path, dtype):
    files = write_config(tmp_path, "bert", max_position_embeddings=512)
    encoder = build_encoder(hyperparameters(max_sen_len=512).text_fields[0], files).to("meta", dtype)
    compile_layers(encoder, backend="eager")
    batches = ([[5], [9, 3]], [[200], [7]], [[64, 64, 64], [300], [2], [2]], [[450], [1]])
    of_layers = 2 + 2  # the last layer computes first tokens only
    assert [graphs(encoder, chunk_lengths) for chunk_lengths in batches] == [of_layers] * 4
    of_one_chunk = 2  # of the last layer: torch treats a size of 1 as a constant
    assert [graphs(encoder, [[length]]) for length in (450, 7)] == [of_layers + of_one_chunk] * 2


def test_two_encoders_that_differ_have_graphs_of_their_own(graphs, tmp_path: Path):
    fields = hyperparameters().text_fields
    made = 0
    for width in (32, 64, 96, 128, 160):
        files = write_config(tmp_path / str(width), "bert", hidden_size=width, num_hidden_layers=1)
        encoder = build_encoder(fields[0], files).bfloat16().to("meta")
        compile_layers(encoder, backend="eager")
        made += 2
        assert graphs(encoder, [[5], [9, 3]]) == made
