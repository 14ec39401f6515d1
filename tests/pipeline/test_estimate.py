"""Tests of the estimate that run and upsert print."""

import json

import pytest

from pipeline.aws.resolve import aws_plan
from pipeline.config_file import load_config
from pipeline.estimate import described, print_estimate, training_instance
from tests.planning.test_plan import SETTINGS

OPTION = {
    "memory_gib": {"total": 30.0}, "hours": 1.5, "hosts": 2, "settings": {"strategy": "ddp"},
    "cost": {"on_demand": 12.5, "date": "2026-08-26", "region": "us-east-1"},
}  # fmt: skip


def config_on(folder, instance: str):
    aws = {
        "region": "us-east-1", "role": "arn:aws:iam::111122223333:role/x", "bucket": "a-bucket", "accelerator": "cuda",
        "image": f"111122223333.dkr.ecr.us-east-1.amazonaws.com/trainer@sha256:{'0' * 64}",
        "steps": {"PyTorchTraining": {"instance_type": instance}},
    }  # fmt: skip
    content = {
        "name": "p", "hyperparameters": SETTINGS, "condition": {"metric": "test/auroc", "minimum": 0.5}, "aws": aws,
        "settings": {"DataLoading": {"generate_rows": 100}},
    }  # fmt: skip

    file = folder / "pipeline.json"
    file.write_text(json.dumps(content))
    return load_config(file)


def test_a_plan_that_fits_has_hours_cost_and_the_command_for_ones_own_rows():
    text = described({"recommended": OPTION, "options": [OPTION]}, instance="ml.g5.12xlarge", tokens=128)
    assert "takes about 1.50 hours on 2 x ml.g5.12xlarge and costs $12.50" in text
    assert "--rows N --tokens 128 --instance ml.g5.12xlarge --hosts 2`" in text


def test_a_plan_that_does_not_fit_is_a_warning():
    text = described({"recommended": None, "options": [OPTION]}, instance="ml.g5.xlarge", tokens=128)
    assert text.startswith(
        "warning: the training will probably not fit on ml.g5.xlarge: a process needs about 30.0 GiB"
    )


def test_an_instance_that_plan_does_not_know_has_no_estimate(tmp_path, capsys):
    resolved = aws_plan(config_on(tmp_path, "ml.m5.xlarge"))
    assert training_instance(resolved.aws) == "ml.m5.xlarge"
    print_estimate(resolved.aws, resolved.plan)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_the_estimate_of_a_configuration_names_its_cost(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(SETTINGS, "max_sen_len", 64.0)
    resolved = aws_plan(config_on(tmp_path, "ml.g5.xlarge"))
    print_estimate(resolved.aws, resolved.plan)
    assert "hours on 1 x ml.g5.xlarge and costs $" in capsys.readouterr().err
