"""Each benchmark runs to its end and prints its table. How fast anything was decides nothing here."""

import importlib
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import encoders, gpu, review_data
from benchmarks.tune import differences
from testing.encoder_families import packed_text
from testing.jobs import REPOSITORY


def run(script, *arguments, expect=0):
    finished = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{script}", *map(str, arguments)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert finished.returncode == expect, finished.stdout + finished.stderr
    return finished.stdout


def test_the_flop_of_a_last_layer_of_first_tokens_are_those_of_its_products(tmp_path):
    shape, lengths = encoders.TINY, (5, 6, 4, 5)
    hp = encoders.hyperparameters(tmp_path, shape)
    encoder = encoders.build_model(tmp_path, shape, hp, dropout=0.0).branches["text"].encoder
    counted = []
    for _ in range(2):
        with FlopCounterMode(display=False) as counter:
            encoder.token_states(packed_text([[length] for length in lengths])).sum().backward()
        counted.append(counter.get_total_flops())
        encoder.compute_every_token()
    first_only, every = counted
    saved = shape.flops(lengths) - shape.flops(lengths, first_tokens_only=True)
    assert every - first_only == pytest.approx(saved, rel=0.04)  # biases, norms and some of attention are not counted


def table_lines(printed, first_cells):
    """The cells of each table line that begins with one of `first_cells`, by that cell."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines() if "|" in line]
    found = {cells[0]: cells[1:] for cells in lines if cells[0] in first_cells}
    assert set(found) == set(first_cells), printed
    return found


def test_every_benchmark_can_be_imported():
    for path in (REPOSITORY / "benchmarks").glob("*.py"):
        if not path.stem.endswith("autogluon"):  # they run where AutoGluon is installed
            importlib.import_module(f"benchmarks.{path.stem}")


def test_generated_reviews_have_the_lengths_of_the_real_ones():
    table = pa.concat_tables(review_data.generate_reviews(20_000, seed=3))
    for column, mean, deviation, most in (("Review Text", 308, 144, 508), ("Title", 19, 10, 52)):
        lengths = np.array([len(text) for text in table[column].drop_null().to_pylist()])
        assert lengths.mean() == pytest.approx(mean, rel=0.05)
        assert lengths.std() == pytest.approx(deviation, rel=0.05)
        assert lengths.max() <= most


def test_generated_reviews_keep_bringing_new_words():
    first, second = (
        {word for text in block["Review Text"].drop_null().to_pylist() for word in text.split()}
        for block in review_data.generate_reviews(40_000, seed=3)
    )
    assert len(second - first) > 500


def test_a_killed_search_with_another_validation_or_a_repeated_trial_differs():
    trial = {"state": "complete", "value": 0.5, "settings": {"lr": 0.1}, "validations": {1: 0.4, 2: 0.5}}
    log = "trial 0 complete: val/auroc=0.5\n"
    assert not differences([trial], [trial], log=log)
    other = {**trial, "validations": {1: 0.3, 2: 0.5}}
    assert differences([trial], [other], log=log) == [
        "trial 0: validations {1: 0.3, 2: 0.5} instead of {1: 0.4, 2: 0.5}"
    ]
    assert differences([trial], [trial], log=log * 2) == ["trial 0 ended 2 times"]
    assert differences([trial], [], log=log) == ["0 trials instead of 1"]


@pytest.mark.slow
@pytest.mark.long
def test_packing_computes_what_padding_computes_and_prints_three_modes():
    if review_data.minilm_folder() is None:
        pytest.skip("MiniLM is not installed")
    printed = run("packing", "--generated", "--texts", "one", "--steps", "1", "--batch-size", "2", "--pad-to", "64")
    found = table_lines(printed, {"packed", "padded to the longest", "padded to 64"})
    padding = [int(found[name][2].removesuffix(" %")) for name in ("packed", "padded to 64")]
    assert padding[0] == 0 < padding[1]
    assert "Losses of all modes are equal" in printed


@pytest.mark.slow
@pytest.mark.long
def test_latency_prints_every_way_to_serve():
    if review_data.minilm_folder() is None:
        pytest.skip("MiniLM is not installed")
    ways = {"PyTorch", "ONNX", "ONNX, fused", "ONNX, int8", "OpenVINO"}
    found = table_lines(run("latency", "--tokens", "16", "--repeats", "2", "--threads", "1"), ways)
    assert found.keys() == ways
    assert found["PyTorch"][3] == "1.00x"
    differences = {way: float(found[way][-1]) for way in ways}
    assert differences["ONNX, fused"] < 1e-5 < differences["ONNX, int8"] < 0.05
    assert differences["OpenVINO"] < 0.05


@pytest.mark.slow
@pytest.mark.long
def test_prepare_prints_rates_memory_and_opening_times(tmp_path):
    printed = run(
        "prepare", "--generated", "--repeats", "1", "--rows", "3000", "--short-files", "20", "--work", tmp_path
    )
    assert "20 files" in printed
    assert "rows/s" in printed
    memory = table_lines(printed, {"while fitting", "300", "750", "1,500", "3,000"})
    assert memory["while fitting"][0].endswith("MiB")
    assert "seconds to open" in printed
    assert not list(tmp_path.iterdir()), "temporary files are removed"


@pytest.mark.slow
@pytest.mark.long
def test_reviews_trains_jobs_and_prints_their_figures(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for seed, (split, rows) in enumerate({"train": 192, "val": 96, "test": 96}.items()):
        table = pa.concat_tables(review_data.generate_reviews(rows, seed=seed))
        table = table.append_column("Clothing ID", pa.array([i % 17 for i in range(rows)]))
        pq.write_table(table, data / f"{split}.parquet")
    arguments = ("--configuration", "leakage", "--epochs", "1", "--seeds", "3", "--data", data, "--work", tmp_path)
    names = {"without products", "products, out-of-fold", "products, in-sample"}
    found = table_lines(run("reviews", *arguments), names)
    assert found.keys() == names
    for cells in found.values():
        assert cells[:2] == ["3", "1"]
        assert all(0 < float(figure) <= 1 for figure in cells[2:7])


def test_reviews_says_where_to_get_the_data_when_it_is_not_there(tmp_path):
    printed = run("reviews", "--data", tmp_path, expect=1)
    assert f"{tmp_path} has no train.parquet" in printed
    assert "Multimodal-Toolkit" in printed


@pytest.mark.slow
@pytest.mark.long
def test_pipeline_prints_idle_shares_and_what_is_held():
    command = [sys.executable, "-m", "benchmarks.pipeline", "--ranks", "2", "--milliseconds", "2", "--passes", "1"]
    command += ["--schedules", "GPipe", "1F1B", "ZBVZeroBubble"]
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in finished.stdout.splitlines()]
    held = {(cells[0], int(cells[2])): float(cells[6]) for cells in lines if len(cells) == 8 and cells[1] == "2"}
    assert {name: held[name, 16] for name in ("GPipe", "1F1B", "ZBVZeroBubble")} == {
        "GPipe": 16, "1F1B": 2, "ZBVZeroBubble": 2,
    }  # fmt: skip
    assert len(held) == 9


@pytest.mark.slow
@pytest.mark.long
def test_overhead_compares_equal_losses_and_prints_a_ratio():
    printed = run("overhead", "--smoke", "--pairs", "2")
    assert float(table_lines(printed, {"clock", "processor"})["clock"][2]) > 0
    assert "Losses are equal" in printed


@pytest.mark.slow
@pytest.mark.long
def test_the_gpu_benchmark_prints_speed_and_memory_of_each_way_to_compute():
    modes = ("packed-eager", "packed-compiled", "padded-longest", "padded-512")
    printed = run("gpu", "--smoke", "--modes", *modes)
    assert all(f"tiny BERT, {mode}: loss" in printed for mode in modes)
    assert "tokens/s" in printed


def test_a_mode_that_runs_out_of_memory_gets_a_row_that_says_so(monkeypatch, tmp_path):
    def measure(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(gpu, "measure", measure)
    monkeypatch.setattr(gpu.dist, "get_world_size", lambda: 1)
    row = gpu._row(tmp_path, encoders.TINY, gpu.MODES["padded-512"], "auto", None)
    assert row == ["auto", "padded-512", "out of memory", "-", "-", "-"]
    assert len(row) == len(gpu.COLUMNS)


def test_text_steps_prints_processor_times_and_waits():
    steps = {"emoji_remover", "wordpiece, chunks"}
    printed = run("text_steps", "--megabytes", "0.002", "0.004", "--steps", *steps)
    found = table_lines(printed.split("The slowest text", 1)[1], steps)
    assert all(cells[1].endswith(" s") and cells[-1].endswith(" s") for cells in found.values())


def test_splitting_prints_every_format():
    formats = {"csv", "tsv", "csv.gz", "jsonl", "parquet"}
    printed = run("preprocess", "--rows", "3000", "--formats", *formats, expect=1)  # 3000 rows are over too soon
    found = table_lines(printed, formats)
    assert {cells[1] for cells in found.values()} == {"3,000"}
