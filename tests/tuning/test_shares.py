"""The queue of runs: each has its own GPUs or its part of the cores, and the curves of the model's networks stay."""

import pytest

from container.cores import CORES
from container.job.launch.run_queue import Shares, show_curves
from contracts.errors import ContractError
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.paths import JobPaths
from testing.jobs import CONFIGURATION


def shares(num_gpus, parallel=None, **settings):
    tuning = {"space": {"lr": [1e-3]}, "parallel": parallel}
    return Shares.of(parse_hyperparameters({**CONFIGURATION, "tuning": tuning, **settings}), num_gpus=num_gpus)


@pytest.mark.parametrize(
    ("num_gpus", "parallel", "nproc", "expected"),
    [
        (0, None, None, (1, 1)),
        (0, 3, None, (3, 1)),
        (0, None, 2, (1, 2)),
        (8, None, None, (8, 1)),
        (8, None, 2, (4, 2)),
        (8, 2, None, (2, 4)),
        (8, 3, 2, (3, 2)),
    ],
)
def test_a_machine_is_divided_into_trials_of_equal_size(num_gpus, parallel, nproc, expected):
    found = shares(num_gpus, parallel, **({"nproc_per_node": nproc} if nproc else {}))
    assert (found.parallel, found.num_workers) == expected


def test_parallel_trials_share_no_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    found = shares(4, 2)
    assert [found.environment(slot)["CUDA_VISIBLE_DEVICES"] for slot in range(2)] == ["4,5", "6,7"]


def test_parallel_trials_share_the_cores(monkeypatch):
    monkeypatch.setattr("container.cores.available_cores", lambda: 8)
    assert shares(0, 2).environment(0)[CORES] == "4"
    assert shares(0, 2, nproc_per_node=2).environment(1)[CORES] == "2"
    assert shares(0).environment(0)[CORES] == "8"


def test_more_trials_than_gpus_are_refused():
    with pytest.raises(ContractError, match="3 trials of 4 processes need 12 GPUs, but this machine has 8"):
        shares(8, 3, nproc_per_node=4)


def test_curves_of_earlier_runs_are_removed_and_folders_of_the_user_stay(tmp_path):
    paths, run = JobPaths(tmp_path), tmp_path / "checkpoints" / "tuning" / "trial-0003"
    for folder in (JobPaths(run).tensorboard, paths.tensorboard / "seed-43", paths.tensorboard / "my-runs"):
        folder.mkdir(parents=True)
        (folder / "events").touch()
    (JobPaths(run).tensorboard / "events.sagemaker-uploaded").touch()
    show_curves(paths, [run])
    found = {str(path.relative_to(paths.tensorboard)) for path in paths.tensorboard.rglob("*") if path.is_file()}
    assert found == {"trial-0003/events", "my-runs/events"}
