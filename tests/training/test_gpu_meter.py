"""What NVML says of the GPUs of all ranks: torch reads it by a module `pynvml`, which a stand-in replaces here."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from container.parallel.degrees import ParallelDegrees
from container.parallel.execution import Execution
from container.parallel.mesh import build_mesh
from container.training.profiling import GpuMeter
from testing.jobs import write_job
from testing.rank_pool import RankPool
from tests.contracts.test_every_hyperparameter import train

pytestmark = pytest.mark.slow


class Driver:
    """NVML of a GPU that is busier at each reading: from 40 % on rank 0, from 80 % on rank 1."""

    NVMLError_DriverNotLoaded = type("NVMLError_DriverNotLoaded", (Exception,), {})
    nvmlInit = nvmlDeviceGetHandleByIndex = staticmethod(lambda *_: None)
    nvmlDeviceGetMemoryInfo = staticmethod(lambda _: SimpleNamespace(used=3 * 2**30))
    nvmlDeviceGetPowerUsage = staticmethod(lambda _: 300_000)

    def __init__(self, rank: int) -> None:
        self._percent = 30 + 40 * rank

    def nvmlDeviceGetUtilizationRates(self, _: None) -> SimpleNamespace:
        self._percent += 10
        return SimpleNamespace(gpu=self._percent)


def figures(with_driver: tuple[int, ...]) -> list[dict[str, float]]:
    """Return a rank's figures of two validations, two samples each, where these ranks have NVML."""
    ranks = build_mesh(ParallelDegrees(dp_replicate=2))
    driver = Driver(ranks.rank) if ranks.rank in with_driver else None
    found = []
    with (
        mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="0"),
        mock.patch.dict(sys.modules, pynvml=driver),
        mock.patch.object(torch.cuda, "pynvml", driver, create=True),
        mock.patch.object(torch.cuda, "_HAS_PYNVML", driver is not None),
        mock.patch.object(torch.cuda, "_PYNVML_ERR", None),
        mock.patch.object(torch.cuda, "_get_device_index", return_value=0),
    ):
        meter = GpuMeter(ranks, torch.device("cuda", 0))
        for _ in range(2):
            meter.sample()
            meter.sample()
            found.append(meter.figures())
    return found


def test_each_validation_has_the_mean_and_the_lowest_of_all_ranks(rank_pool: RankPool) -> None:
    for first, second in rank_pool.run(figures, (0, 1), world_size=2):
        assert (first["gpu/utilization_percent"], first["gpu/utilization_percent_lowest"]) == (65, 45)
        assert (second["gpu/utilization_percent"], second["gpu/utilization_percent_lowest"]) == (85, 65)
        assert (first["gpu/memory_gib"], first["gpu/power_watts_lowest"]) == (3, 300)


def test_a_rank_without_nvml_does_not_count(rank_pool: RankPool) -> None:
    for first, _ in rank_pool.run(figures, (1,), world_size=2):
        assert (first["gpu/utilization_percent"], first["gpu/utilization_percent_lowest"]) == (85, 85)


def test_without_nvml_there_are_no_figures(rank_pool: RankPool) -> None:
    assert rank_pool.run(figures, (), world_size=2) == [[{}, {}]] * 2


def test_the_history_and_tensorboard_have_what_was_measured_at_each_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_rank: None
) -> None:
    monkeypatch.setattr(GpuMeter, "figures", lambda _: {"gpu/power_watts": 300.0})
    monkeypatch.setattr(Execution, "figures", lambda _, *, detail: {"stage_0/milliseconds": 1.5})
    paths = write_job(tmp_path, overrides={"max_epochs": 2})
    _, trained = train(paths)
    validations = [entry for entry in trained.state.history if "val/loss" in entry]
    found = [(entry["gpu/power_watts"], entry["stage_0/milliseconds"]) for entry in validations]
    assert found == [(300.0, 1.5)] * 2
    events = EventAccumulator(str(paths.tensorboard)).Reload()
    assert [event.value for event in events.Scalars("stage_0/milliseconds")] == [1.5, 1.5]
