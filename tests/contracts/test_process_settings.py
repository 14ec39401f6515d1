"""Settings of the processes' communication and log, and how a job reports its configuration."""

import signal

import pytest
import torch.distributed as dist

from container.parallel.mesh import init_distributed
from contracts.errors import ContractError
from contracts.hyperparameter_files import describe_hyperparameters, parse_hyperparameters
from testing.jobs import CONFIGURATION, run_python


def test_the_process_group_waits_for_process_group_timeout_minutes(monkeypatch):
    seen = {}
    monkeypatch.setattr(dist, "init_process_group", lambda backend, timeout: seen.update(timeout=timeout))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    hp = parse_hyperparameters({**CONFIGURATION, "process_group_timeout_minutes": 2.5})
    init_distributed(timeout_minutes=hp.process_group_timeout_minutes)
    assert seen["timeout"].total_seconds() == 150


QUIET, LOUD = ["[rank 3] careful"], ["[rank 3] hello", "[rank 3] careful"]


@pytest.mark.parametrize(("all_ranks", "lines"), [(False, QUIET), (True, LOUD)])
def test_log_all_ranks_has_every_rank_log_its_progress(all_ranks, lines):
    program = (
        "import logging; from container.job.processes import set_up_logging\n"
        f"set_up_logging(rank=3, all_ranks={all_ranks})\n"
        "logging.getLogger('x').info('hello'); logging.getLogger('x').warning('careful')"
    )
    done = run_python(program)
    assert [line.split(" ", 1)[1] for line in done.stdout.splitlines()] == lines


def test_a_crash_in_native_code_leaves_the_stack_of_the_python_code_that_called_it():
    program = (
        "import ctypes; from container.job.processes import set_up_logging\n"
        "def read_nothing():\n    ctypes.string_at(0)\n"
        "set_up_logging()\nread_nothing()"
    )
    done = run_python(program)
    assert done.returncode == -signal.SIGSEGV
    assert "in read_nothing" in done.stderr


def test_the_log_has_what_differs_from_the_defaults_and_counts_the_rest():
    hp = parse_hyperparameters({**CONFIGURATION, "lr": 0.5, "dropout": 0.1, "imputation_dict": {"price": 1.0}})
    text = "\n".join(describe_hyperparameters(hp))
    assert "hyperparameters (training): batch_size=8 max_epochs=2 lr=0.5\n" in text
    assert 'imputation_dict={"price": 1.0}' in text
    assert " dropout=" not in text
    assert f"{len(type(hp).model_fields) - len(hp.model_fields_set)} others have their default" in text


def test_a_long_value_is_cut_in_the_log():
    hp = parse_hyperparameters({**CONFIGURATION, "encoder_config": {f"name_{i}": i for i in range(99)}})
    assert max(map(len, describe_hyperparameters(hp))) < 400


def test_all_missing_settings_are_named_at_once():
    values = {name: value for name, value in CONFIGURATION.items() if name not in ("label_name", "model_class")}
    with pytest.raises(ContractError) as refused:
        parse_hyperparameters(values)
    assert refused.value.cause.startswith("label_name, model_class: missing; nothing else is missing")
    assert f"the other {len(values)} settings are valid" in refused.value.cause
    assert refused.value.fix.startswith("Add label_name and model_class.")


def test_a_wrong_value_beside_a_missing_one_is_not_called_valid():
    with pytest.raises(ContractError) as refused:
        parse_hyperparameters({**{name: v for name, v in CONFIGURATION.items() if name != "label_name"}, "lr": "fast"})
    assert "valid" not in refused.value.cause
