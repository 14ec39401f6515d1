"""A search with a preset: trials and the winner have what the preset chooses by the data, except for the space."""

from typing import ClassVar

import pytest

import container.tuning.search as module
from container.tuning.search import search
from container.workers import StopHandler
from contracts.hyperparameter_files import choose_settings, read_settings
from contracts.hyperparameters import Hyperparameters
from testing.jobs import write_job

RATES = {"lr": {"low": 1e-3, "high": 3e-3}}


class Run:
    """Stands for the workers of a run: it ends at once with a value."""

    completed, failure, ended = True, None, True
    trained: ClassVar[list[Hyperparameters]] = []

    def __init__(self, shares, slot):
        self.slot = slot

    def train(self, folder, hp, *, prepared, initial_seed, timeline):
        self.trained.append(hp)
        (folder / "checkpoints" / "epoch=0-step=1.ckpt").mkdir(parents=True)

    def new_state(self):
        return {"best_value": 0.5, "history": [{"step": 1, "epoch": 1.0, "val/auroc": 0.5}]}

    def close(self):
        pass


@pytest.fixture
def trained(monkeypatch):
    """The settings of each run."""
    monkeypatch.setattr(module, "TrialRun", Run)
    monkeypatch.setattr(Run, "trained", [])
    return Run.trained


def searched(root, space):
    changed = {"preset": "recommended", "tuning": {"trials": 2, "final_seeds": 2, "space": space}, "max_epochs": None}
    paths = write_job(root, overrides=changed)
    given = read_settings(paths)
    hp = choose_settings(given).hp
    with_facts = lambda facts: choose_settings(given, facts).hp  # noqa: E731 - as short as an argument
    return search(paths, hp, num_gpus=0, stop=StopHandler(), with_facts=with_facts)


def test_every_run_and_the_winner_have_what_the_preset_chooses_by_the_data(tmp_path, trained):
    winner = searched(tmp_path, RATES)
    assert [(hp.max_epochs, hp.calibration) for hp in (*trained, winner)] == [(6, "temperature")] * 4
    assert winner.companion


def test_values_of_the_space_win_over_the_preset(tmp_path, trained):
    winner = searched(tmp_path, {"max_epochs": [1, 2]})
    assert {hp.max_epochs for hp in (*trained, winner)} <= {1, 2}


def test_a_search_that_was_interrupted_after_its_trials_keeps_what_the_preset_chose(tmp_path, trained, monkeypatch):
    first = searched(tmp_path, RATES)
    (tmp_path / "checkpoints" / "tuning" / "winner.json").unlink()
    for folder in (tmp_path / "checkpoints").glob("*.ckpt"):
        folder.rmdir()
    monkeypatch.setattr(module, "prepare_data", None)
    assert searched(tmp_path, RATES) == first
