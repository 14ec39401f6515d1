"""Tests of `python -m container plan` and of what it estimates."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.encoders import BASE, LARGE, SMALL, TINY, build_model, chats, hyperparameters
from benchmarks.plan import Case, measured, predicted
from container.commands import main
from container.parallel.degrees import ParallelDegrees
from container.planning.calibrate import from_check
from container.planning.catalogue import Catalogue
from container.planning.memory import Rank, step_memory
from container.planning.speed import Speed, Work, idle_share, layer_parameters
from contracts.errors import ContractError
from contracts.hyperparameter_files import parse_hyperparameters
from testing.rank_pool import RankPool

SETTINGS = {
    "id_name": "id", "label_name": "label", "text_name": "text", "model_class": "bert", "tokenizer": "from_scratch",
    "encoder_config": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}, "max_sen_len": 64,
    "max_epochs": 2,
}  # fmt: skip
# Bytes at the peak of a step on an NVIDIA H200, torch 2.11.0, 2026-11-27, from `make gpu-check`, step memory.
ON_H200 = (
    (BASE, 32, torch.bfloat16, 0, 3352996864),
    (SMALL, 128, torch.bfloat16, 0, 2108101120),
    (SMALL, 128, torch.float32, 1, 1213440000),
    (LARGE, 64, torch.bfloat16, 1, 6071146496),
)
# Records, tokens/s and ms of a step there, as large as fits; step speed.
SPEEDS = ((BASE, 634761, 551.22), (SMALL, 2824184, 123.89), (LARGE, 203577, 662.44))


def planned(folder: Path, *arguments: str, **settings: Any) -> dict[str, Any]:
    """Return plan.json of a job without data."""
    file = folder / "given.json"
    file.write_text(json.dumps({**SETTINGS, **settings}))
    options = ["--root", str(folder), "--hyperparameters", str(file), "--rows", "1000", "--tokens", "40", *arguments]
    assert main(["plan", *options]) == 0
    return json.loads((folder / "plan.json").read_text())


FSDP = {"strategy": "fsdp"}


@pytest.mark.slow
@pytest.mark.parametrize("case", ON_H200)
def test_memory_is_within_a_tenth_of_a_gpus(tmp_path, case):
    shape, records, precision, checkpointing, peak = case
    hp = hyperparameters(tmp_path, shape, activation_checkpointing=checkpointing, compile=False)
    batch = max((chats(shape, records=records, seed=seed) for seed in range(3)), key=lambda each: each.num_tokens)
    rank = Rank(
        lambda: build_model(tmp_path, shape, hp, dropout=0.0), hp, ParallelDegrees(), [batch], precision, on_gpu=True
    )
    assert step_memory(rank).total == pytest.approx(peak, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        Case("1 process", TINY, 1, 16),
        Case("checkpointing", TINY, 1, 16, {"activation_checkpointing": 1}),
        Case("1F1B", TINY, 2, 64, {"strategy": "pp"}),
        Case("replicas of 1F1B", TINY, 4, 8, {"pp_size": 2}),
        Case("whole gradients", TINY, 2, 1, {"accumulate_grad_batches": 2, "fsdp_accumulation": "whole", **FSDP}),
    ],
    ids=lambda case: case.name,
)
def test_memory_is_within_a_twentieth_of_real_processes(tmp_path, case):
    with RankPool() as pool:
        real = max(pool.run(measured, case, tmp_path, world_size=case.world_size))
    assert predicted(case, tmp_path).total == pytest.approx(real, rel=0.05)


@pytest.mark.parametrize(("shape", "rate", "milliseconds"), SPEEDS)
def test_time_of_a_large_batch_is_within_a_tenth_of_a_gpus(shape, rate, milliseconds):
    catalogue = Catalogue.load()
    speed = Speed.of(catalogue.instances["ml.p5en.48xlarge"], catalogue.measurements, half=True)
    tokens = rate * milliseconds / 1000
    flop = tokens * (6 * shape.layer_parameters + 12 * shape.layers * shape.width * 270)
    seconds = speed.of_pass(Work(flop, tokens * shape.layers * shape.width, shape.layers, sent=0))
    assert sum(seconds.values()) == pytest.approx(milliseconds / 1000, rel=0.1)


def test_plan_json_has_every_option_with_its_parts(tmp_path):
    content = planned(tmp_path, "--instance", "ml.g5.xlarge")
    (option,) = content["options"]
    parts = option["memory_gib"]
    assert set(parts) == {"weights", "gradients", "optimizer", "activations", "total"}
    assert parts["total"] == pytest.approx(sum(parts.values()) - parts["total"], abs=0.003)
    assert (option["instance"], option["hosts"], option["strategy"]) == ("ml.g5.xlarge", 1, "one process")
    assert option["fits"]
    assert option["bound_by"] in ("compute", "memory", "communication", "data preparation", "idle pipeline stages")
    assert option["tokens_per_second"] > 0
    assert 0 < option["hours"] < 1
    assert set(option["cost"]) == {"per_hour", "on_demand", "spot", "date", "region"}
    assert content["recommended"] == option
    assert "ml.g5.xlarge" in (tmp_path / "plan.md").read_text()


def test_progress_goes_to_stderr(tmp_path, capsys):
    planned(tmp_path, "--instance", "ml.c7i.4xlarge")
    assert "planned 1 of 1 ways" in capsys.readouterr().err


def test_the_time_of_a_search_is_that_of_all_networks_that_it_trains_or_its_limit(tmp_path):
    search: dict[str, Any] = {"trials": 8, "final_seeds": 3}
    one, whole, limited = (
        planned(tmp_path, "--instance", "ml.g5.xlarge", "--rows", "100000", max_epochs=1000, **given)["options"][0]
        for given in ({}, {"tuning": search}, {"tuning": {**search, "max_hours": 2}})
    )
    assert whole["hours"] / one["hours"] == pytest.approx(10, rel=0.01)
    assert limited["hours"] == pytest.approx(2, rel=0.01)


def test_both_half_precisions_share_one_estimate(tmp_path):
    content = planned(tmp_path, "--instance", "ml.g4dn.xlarge,ml.g5.xlarge")
    by_key = {(each["instance"], each["settings"].get("fp16", False)): each for each in content["options"]}
    assert set(by_key) == {("ml.g4dn.xlarge", False), ("ml.g4dn.xlarge", True), ("ml.g5.xlarge", False)}
    assert by_key["ml.g4dn.xlarge", True]["memory_gib"] == by_key["ml.g5.xlarge", False]["memory_gib"]


def test_cuda_graphs_keep_activations_twice_and_leave_several_processes_out(tmp_path):
    instances = "ml.g5.xlarge,ml.g5.12xlarge"
    plain, graphs = (
        {option["instance"]: option["memory_gib"] for option in content["options"]}
        for content in (planned(tmp_path, "--instance", instances, cuda_graphs=value) for value in ("auto", True))
    )
    assert graphs.keys() == {"ml.g5.xlarge"}
    assert len(plain) == 2
    twice = 2 * plain["ml.g5.xlarge"]["activations"]
    assert graphs["ml.g5.xlarge"]["activations"] == pytest.approx(twice, abs=0.002)


def test_data_gives_rows_and_tokens(tmp_path):
    for split, rows in (("train", 60), ("val", 10), ("test", 10)):
        folder = tmp_path / "input" / "data" / split
        folder.mkdir(parents=True)
        lines = [f"{split}{i},{i % 2},the {'quick brown fox ' * (i % 7)}jumps" for i in range(rows)]
        (folder / f"{split}.csv").write_text("\n".join(["id,label,text", *lines]) + "\n")
    config = tmp_path / "input" / "config"
    config.mkdir()
    (config / "hyperparameters.json").write_text(json.dumps(SETTINGS))
    assert main(["plan", "--root", str(tmp_path), "--instance", "ml.c7i.4xlarge"]) == 0
    job = json.loads((tmp_path / "plan.json").read_text())["job"]
    assert job["rows"] == {"train": 60, "val": 10, "test": 10}
    assert 8 < job["tokens_per_record"] < 20
    given = tmp_path / "given.json"
    given.write_text(json.dumps(SETTINGS))
    options = ["--hyperparameters", str(given), "--instance", "ml.c7i.4xlarge"]
    assert main(["plan", "--root", str(tmp_path), *options]) == 0
    assert json.loads((tmp_path / "plan.json").read_text())["job"] == job


@pytest.mark.slow
def test_the_global_batch_is_that_of_one_gpu_on_four(tmp_path):
    content = planned(tmp_path, "--instance", "ml.g5.12xlarge", batch_size=32)
    assert {option["global_batch"] for option in content["options"]} == {32}
    names = {option["strategy"] for option in content["options"]}
    assert {"ddp", "fsdp", "pp 2 x ddp", "pp 2 x fsdp"} <= names
    by_name = {option["strategy"]: option for option in content["options"]}
    assert by_name["ddp"]["settings"] == {"strategy": "ddp", "batch_size": 8}
    assert by_name["fsdp"]["memory_gib"]["weights"] < by_name["ddp"]["memory_gib"]["weights"]


def test_the_settings_undo_the_division_of_the_given_ones(tmp_path):
    content = planned(tmp_path, "--instance", "ml.g5.xlarge", pp_size=2, nproc_per_node=2, num_microbatches=2)
    undone = {"pp_size": 1, "nproc_per_node": None, "num_microbatches": None}
    assert content["options"][0]["settings"] == undone


def test_float16_is_not_set_beside_the_bfloat16_of_the_given_settings(tmp_path):
    content = planned(tmp_path, "--instance", "ml.g4dn.xlarge", bf16=True)
    half = [each["settings"] for each in content["options"] if each["settings"].get("fp16")]
    assert [each["bf16"] for each in half] == ["auto"]


def test_a_budget_that_nothing_meets_names_the_cheapest_option(tmp_path, capsys):
    content = planned(tmp_path, "--instance", "ml.g5.xlarge", "--budget", "0.001")
    assert content["recommended"] is None
    assert "Nothing meets a budget of $0.001. The cheapest option costs $" in capsys.readouterr().out


@pytest.mark.slow
def test_a_model_that_fits_nowhere_gets_advice_with_numbers(tmp_path, capsys):
    texts = {"primary_text_name": "a", "secondary_text_name": "b", "model_class": "trimodal_bert"}
    large = {"tokenizer": "xlm-roberta-large", "encoder_config": {}, "text_name": None}
    content = planned(tmp_path, "--instance", "ml.g4dn.xlarge", **texts, **large)
    assert content["recommended"] is None
    printed = capsys.readouterr().out
    assert "Nothing fits" in printed
    assert '{"lora_rank": 8, "reinit_layers": 0, "batch_size": 1}: ' in printed


def test_an_unknown_instance_names_the_nearest(tmp_path, capsys):
    file = tmp_path / "given.json"
    file.write_text(json.dumps(SETTINGS))
    arguments = ["--hyperparameters", str(file), "--rows", "10", "--tokens", "10", "--instance", "ml.g5.13xlarge"]
    assert main(["plan", "--root", str(tmp_path), *arguments]) == 1
    assert "ml.g5.12xlarge" in capsys.readouterr().err


def test_a_pass_with_more_tokens_than_a_plan_can_compute_is_refused_at_once(tmp_path, capsys):
    file = tmp_path / "hyperparameters.json"
    file.write_text(json.dumps({**SETTINGS, "batch_size": 64}))
    arguments = ["--hyperparameters", str(file), "--rows", "10", "--tokens", "1e6", "--root", str(tmp_path)]
    assert main(["plan", *arguments]) == 1
    assert "batch_size: 64 records have about 62,529,922 tokens" in capsys.readouterr().err


def test_no_data_and_no_tokens_names_both_options(tmp_path, capsys):
    file = tmp_path / "given.json"
    file.write_text(json.dumps(SETTINGS))
    assert main(["plan", "--root", str(tmp_path), "--hyperparameters", str(file)]) == 1
    assert "Give --rows N and --tokens MEAN" in capsys.readouterr().err


def catalogue_of(folder: Path, content: Any) -> Catalogue:
    file = folder / "mine.json"
    file.write_text(json.dumps(content))
    return Catalogue.load(file)


def test_a_users_catalogue_replaces_prices(tmp_path):
    content = {"instances": {"ml.g5.xlarge": {"ec2_dollars": 2, "markup": 1}}}
    assert catalogue_of(tmp_path, content).instances["ml.g5.xlarge"].dollars == 2


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"instances": {"ml.g5.xlarge": {"ec2_dollar": 2}}}, "unknown key 'instances.ml.g5.xlarge.ec2_dollar'"),
        ({"instances": {"ml.g5.xlarge": {"gpus": -1}}}, "the value -1 for 'instances.ml.g5.xlarge.gpus'"),
        ({"instances": {"ml.g5.xlarge": {"gpus": "1"}}}, "the value '1' for 'instances.ml.g5.xlarge.gpus'"),
        ({"instances": {"ml.new": {"gpu": "A10G"}}}, "has no 'instances.ml.new.gpus'"),
        ({"instances": {"ml.new": {"gpu": "A11"}}}, "instances.ml.new.gpu: 'A11' is not one of T4"),
        ({"instances": []}, "'instances' is not an object"),
        ({"measurements": {"half": {"share": 1}}}, "unknown key in measurements.half"),
        ({"hosts": {}}, "unknown key 'hosts'"),
    ],
)
def test_a_wrong_entry_of_a_users_catalogue_is_named_with_its_place(tmp_path, content, problem):
    with pytest.raises(ContractError) as caught:
        catalogue_of(tmp_path, content)
    assert problem in caught.value.cause
    assert str(tmp_path / "mine.json") in caught.value.cause


def test_an_unknown_encoder_names_the_users_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    file = tmp_path / "given.json"
    file.write_text(json.dumps({**SETTINGS, "tokenizer": "someone/an-encoder", "encoder_config": {}}))
    arguments = ["--hyperparameters", str(file), "--rows", "10", "--tokens", "10"]
    assert main(["plan", "--root", str(tmp_path), *arguments]) == 1
    assert f"Put the encoder's files into {tmp_path}/input/data/pretrained/" in capsys.readouterr().err


def test_the_check_of_a_gpu_gives_the_speed_of_instances_with_it(tmp_path):
    figures = {"gpu": {"memory_gib": 139.8}, "product_tflops": 494.5, "copy_gb_per_s": 2400}
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"steps": {"facts": {"findings": {"figures": figures}}}}))
    measured = from_check(Catalogue.load(), file)
    assert set(measured) == {"ml.p5en.48xlarge"}
    assert measured["ml.p5en.48xlarge"]["half"]["product_share"] == pytest.approx(0.5)


def test_results_without_a_gpu_are_refused(tmp_path):
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"steps": {}}))
    with pytest.raises(ContractError, match=r"results.json: has no 'facts'\nGive results.json of"):
        from_check(Catalogue.load(), file)


@pytest.mark.slow
def test_a_ctrl_c_during_a_plan_in_several_processes_prints_one_line(tmp_path):
    file = tmp_path / "given.json"
    file.write_text(json.dumps(SETTINGS))
    options = ["--root", str(tmp_path), "--hyperparameters", str(file), "--rows", "10", "--tokens", "10"]
    command = [sys.executable, "-m", "container", "plan", *options]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    assert line.startswith("planned 1 of ")
    os.killpg(process.pid, signal.SIGINT)
    _, printed = process.communicate(timeout=60)
    lines = [line for line in printed.splitlines() if not line.startswith("planned ")]
    assert lines == ["stopped on request; run the same command again"]
    assert process.returncode == 143


def test_a_gpu_without_code_in_the_image_fits_nothing(tmp_path):
    content = planned(tmp_path, "--instance", "ml.p3.2xlarge")
    assert not any(option["fits"] for option in content["options"])


def test_the_idle_share_of_1f1b_is_that_of_its_measurement():
    measured_shares = Catalogue.load().measurements["idle"]
    hp = parse_hyperparameters({**SETTINGS, "batch_size": 64})
    assert idle_share(hp, 4, measured_shares) == pytest.approx(0.171, abs=0.002)  # 16 microbatches
    assert idle_share(hp, 1, measured_shares) == 0


def test_layer_parameters_are_those_of_the_formula(tmp_path):
    from container.parallel.encoder_checks import EncoderShape

    sizes = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
    assert layer_parameters(EncoderShape("text", "x", {"model_type": "bert", **sizes})) == BASE.layer_parameters


def test_a_plan_gives_memory_and_a_price_but_no_time_on_cpus(tmp_path, capsys):
    content = planned(tmp_path, "--instance", "ml.c7i.4xlarge,ml.m5.2xlarge")
    taken = content["recommended"]
    assert taken["instance"] == "ml.m5.2xlarge"
    assert (taken["hours"], taken["tokens_per_second"], taken["bound_by"]) == (None, None, None)
    assert (taken["cost"]["per_hour"], taken["cost"]["on_demand"]) == (pytest.approx(0.4608), None)
    assert "$0.46 per hour on demand; the time is not estimated on CPUs" in capsys.readouterr().out


def test_a_limit_of_hours_on_cpus_says_that_no_time_is_known(tmp_path, capsys):
    assert planned(tmp_path, "--instance", "ml.c7i.4xlarge", "--hours", "2")["recommended"] is None
    assert "No option meets 2 hours: no instance has a GPU" in capsys.readouterr().out


def test_calibrate_without_a_gpu_is_refused(tmp_path, capsys):
    with pytest.raises(AssertionError):
        planned(tmp_path, "--instance", "ml.g5.xlarge", "--calibrate")
    assert "this machine has no GPU, and plan estimates no time on CPUs" in capsys.readouterr().err
