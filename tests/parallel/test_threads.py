"""The first computations choose the number of threads; num_threads and OMP_NUM_THREADS fix it."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import count

import numpy as np
import pytest
import torch

from container import demo
from container.cores import available_cores, candidates
from container.data.batch import PackedBatch
from container.demo_data import write_demo_data
from container.job.preflight import check_before_preparing
from container.parallel.threads import ThreadChoice
from container.tables.channel_files import read_head
from contracts.errors import ContractError
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.paths import JobPaths
from testing.jobs import CONFIGURATION, REPOSITORY, write_hyperparameters

TOKENS = 1000


def alone(sums: torch.Tensor) -> torch.Tensor:
    return sums


def choose(
    seconds: Callable[[int, int], float], *, cores: int, sum_over_ranks=alone, steps: int = 200
) -> tuple[ThreadChoice, list[int]]:
    """Return the choice after `steps` computations that take seconds(threads, step), and the threads of each."""
    choice, used = ThreadChoice("steps", cores=cores, sum_over_ranks=sum_over_ranks), []
    for step in range(steps):
        used.append(choice.number)
        choice.add(seconds(choice.number, step), TOKENS)
    return choice, used


def small(threads: int, _: int = 0) -> float:
    """A step that barriers dominate: 10 ms of work, 5 ms for each further thread."""
    return 0.010 / threads + 0.005 * (threads - 1)


def large(threads: int, _: int = 0) -> float:
    return 8.0 / threads + 0.001 * (threads - 1)


@pytest.mark.parametrize(("cores", "expected"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_candidates_are_powers_of_two_and_all_cores(cores, expected):
    assert candidates(cores) == expected


@pytest.mark.parametrize("cores", [1, 2, 3, 16, 96])
@pytest.mark.parametrize("seconds", [small, large])
def test_the_fastest_number_is_chosen(cores, seconds):
    choice, _ = choose(seconds, cores=cores)
    assert choice.number == min(candidates(cores), key=seconds)


@pytest.mark.parametrize(("gain", "expected"), [(1.02, 1), (1.05, 2)])
def test_more_threads_must_be_faster_by_three_percent(gain, expected):
    assert choose(lambda threads, _: 1.0 if threads == 1 else 1 / gain, cores=2)[0].number == expected


def test_one_slow_computation_of_each_number_decides_nothing():
    seen = dict.fromkeys(candidates(8), 0)

    def disturbed(threads: int, _: int) -> float:
        seen[threads] += 1
        return small(threads) * (30 if seen[threads] == 2 else 1)

    assert choose(disturbed, cores=8)[0].number == 1


def test_a_large_model_never_computes_with_few_threads_of_many():
    _, used = choose(large, cores=96)
    assert min(used) >= 16
    assert sum(large(threads) for threads in used[:30]) < 3 * 30 * large(96)


def test_a_rate_of_less_than_half_starts_the_measurement_again():
    def busy_later(threads: int, step: int) -> float:
        return large(threads) if step < 400 else 10.0 * threads

    choice, used = choose(busy_later, cores=4, steps=900)
    assert used[100:400] == [4] * 300
    assert choice.number == 1
    assert used[-100:] == [1] * 100


def test_a_slower_rate_that_stays_above_half_changes_nothing():
    _, used = choose(lambda threads, step: large(threads) * (1 if step < 400 else 1.8), cores=4, steps=900)
    assert used[100:] == [4] * 800


def test_ranks_choose_by_their_sums():
    """The other rank takes 1 s longer for each thread, so that this rank's preference does not count."""
    seen = count()

    def with_other(sums: torch.Tensor) -> torch.Tensor:
        next(seen)
        return sums + torch.tensor([1.0 * choice.number, TOKENS])

    choice = ThreadChoice("steps", cores=2, sum_over_ranks=with_other)
    for _ in range(50):
        choice.add(0.1 / choice.number, TOKENS)
    assert choice.number == 1
    assert next(seen) < 20, "a rank sums every computation only while it measures"


def test_a_fixed_number_is_not_measured():
    def refuse(_: torch.Tensor) -> torch.Tensor:
        raise AssertionError("a collective")

    choice = ThreadChoice("steps", cores=8, fixed=1, sum_over_ranks=refuse)
    for _ in range(300):
        with choice.measured([]):
            pass
    assert choice.number == 1


def test_batches_without_a_text_are_measured_by_their_records(caplog):
    caplog.set_level(logging.INFO)
    choice = ThreadChoice("steps", cores=2, sum_over_ranks=lambda sums: sums)
    batch = PackedBatch(
        texts=(), tabular=torch.zeros(5, 2), labels=torch.zeros(5), rows=torch.arange(5), weights=torch.ones(5)
    )
    while "steps" not in caplog.text:
        with choice.measured([batch]):
            pass
    assert "records/s: 0 with" not in caplog.text


@pytest.mark.parametrize("value", ["0", "-1", "many", "2.5", "true", "2000"])
def test_num_threads_is_a_number_from_1_or_auto(value):
    with pytest.raises(ContractError, match=r"num_threads.*(1 to 1024|auto|1024)"):
        parse_hyperparameters({**CONFIGURATION, "num_threads": value})


@pytest.mark.parametrize(
    ("settings", "most"),
    [({}, 8), ({"nproc_per_node": 4}, 2), ({"tuning": {"space": {"lr": [1e-3]}, "parallel": 8}}, 1)],
)
def test_num_threads_above_the_cores_of_a_worker_is_an_error(monkeypatch, tmp_path, settings, most):
    monkeypatch.setattr("container.job.preflight.available_cores", lambda: 8)
    hp = parse_hyperparameters({**CONFIGURATION, **settings, "num_threads": most + 1})
    with pytest.raises(ContractError, match=f"num_threads: is {most + 1}.*8 cores") as error:
        check_before_preparing(JobPaths(tmp_path), hp, hosts=1, per_host=hp.nproc_per_node or 1)
    assert f"from 1 to {most}" in error.value.fix


@pytest.mark.slow
def test_the_demo_of_a_user_without_omp_num_threads_gives_the_model_of_one_thread(tmp_path):
    """The suite sets OMP_NUM_THREADS=1; here, processes of their own have what a user has."""
    probabilities = []
    user = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    for name, environment in (("one", {**user, "OMP_NUM_THREADS": "1"}), ("user", user)):
        paths = JobPaths(tmp_path / name)
        write_demo_data(paths.root, rows=600, seed=7)
        settings = {"text_name": None} | demo.CONFIGURATION | {"nproc_per_node": 1, "max_epochs": 1}
        write_hyperparameters(paths, settings)
        command = [sys.executable, "-m", "container", "train", "--root", str(paths.root)]
        done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:]
        assert ("threads of training: " in done.stdout) == (name == "user" and available_cores() > 1)
        (predictions,) = paths.output_data.glob("test_predictions.*")
        (table,) = read_head([predictions], ["prob_class_1"], 600).table.columns
        probabilities.append(np.array(table.to_pylist(), float))
    assert np.abs(probabilities[0] - probabilities[1]).max() < 1e-3
