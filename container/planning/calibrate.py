"""Take measurements of the GPU at hand, or of a GPU's check, to scale the estimates for instances with it."""

import math
import statistics
import time
from pathlib import Path

import torch

from container.parallel.degrees import ParallelDegrees
from container.parallel.parallelize import parallelize
from container.planning.catalogue import Catalogue
from container.planning.memory import GIB, fake_ranks
from container.planning.speed import Measurements, Speed, work_of
from container.planning.workload import Workload
from container.training.objective import WeightedCrossEntropy
from container.training.optimizer import build_optimizer, step_optimizer
from container.training.precision import precision_of
from contracts.errors import ContractError
from contracts.input_files import expected_content, read_object

_STEPS, _WARMUP = 20, 5
_MOST_SECONDS = 60.0
_FIX = "Give results.json of `make gpu-check`, which ran on a GPU."

Calibration = dict[str, Measurements]  # of each instance with the GPU, by name


def calibrated(work: Workload, catalogue: Catalogue) -> Calibration:
    """Take up to 20 steps of one process on the GPU.

    Raises:
        ContractError: there is no GPU.
    """
    if not torch.cuda.is_available():
        raise ContractError(
            "--calibrate: this machine has no GPU, and plan estimates no time on CPUs",
            "Run it on a machine with a GPU, or train a part of the rows to measure the time.",
        )
    alike = catalogue.with_gpu(torch.cuda.get_device_properties(0).total_memory / GIB)
    half = precision_of(work.hp, torch.device("cuda")) != torch.float32
    expected = Speed.of(alike[0], catalogue.measurements, half=half).of_pass(work_of(work).times(work.hp.batch_size))
    found = {**catalogue.measurements["half"], "measured": _step_seconds(work) / sum(expected.values())}
    return {instance.name: {"half": found} for instance in alike}


def from_check(catalogue: Catalogue, file: Path) -> Calibration:
    """Return the measurements of instances with the GPU on which `make gpu-check` wrote `file`.

    Raises:
        ContractError: the file has no results of a GPU.
    """
    content = read_object(file, _FIX)
    with expected_content(file, _FIX):
        figures = content["steps"]["facts"]["findings"]["figures"]
        alike = catalogue.with_gpu(figures["gpu"]["memory_gib"])
        gpu = alike[0].gpu
        assert gpu is not None, "it has one"
        shares = {
            "product_share": figures["product_tflops"] / gpu.half_tflops,
            "bandwidth_share": figures["copy_gb_per_s"] / gpu.bandwidth_gb,
        }
        if not all(0 < share < math.inf for share in shares.values()):
            raise ValueError("a rate is not above 0")
    return {instance.name: {"half": {**catalogue.measurements["half"], **shares}} for instance in alike}


def _step_seconds(work: Workload) -> float:
    """Return the median time of an optimizer step of batch_size records in this process."""
    device = torch.device("cuda")
    work = work.changed({"strategy": "auto", "accumulate_grad_batches": 1})
    hp = work.hp
    times: list[float] = []
    spent = 0.0
    with fake_ranks(ParallelDegrees(), device) as ranks:
        execution = parallelize(work.build().train(), ranks, hp, precision=precision_of(hp, device))
        optimizer = build_optimizer(hp, execution.module)
        objective = WeightedCrossEntropy([1.0] * hp.num_classes, device)
        batch = work.batch(hp.batch_size, margin=0).to(device)
        while len(times) < _STEPS and spent < _MOST_SECONDS:
            start = time.monotonic()
            optimizer.zero_grad(set_to_none=True)
            normaliser = torch.ones((), device=device)
            execution.forward_backward([batch], objective=objective, normaliser=normaliser, scale_loss=_unscaled)
            norm = execution.gradient_norm(1.0)
            step_optimizer(optimizer, norm)
            norm.value.item()  # waits for the GPU
            times.append(time.monotonic() - start)
            spent += times[-1]
    return statistics.median(times[_WARMUP:] or times)


def _unscaled(loss: torch.Tensor) -> torch.Tensor:
    return loss
