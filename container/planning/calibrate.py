"""Take measurements of the machine at hand, or of a GPU's check, to scale the estimates for machines like it."""

import math
import os
import statistics
import time
from pathlib import Path

import torch

from container.cores import available_cores, given_threads
from container.parallel.degrees import ParallelDegrees
from container.parallel.parallelize import parallelize
from container.parallel.threads import ThreadChoice
from container.planning.arguments import HERE
from container.planning.catalogue import Catalogue, Instance
from container.planning.memory import GIB, fake_ranks
from container.planning.speed import Measurements, Speed, work_of
from container.planning.workload import Workload
from container.training.objective import WeightedCrossEntropy
from container.training.optimizer import build_optimizer
from container.training.precision import precision_of
from contracts.input_files import expected_content, read_object

_STEPS, _WARMUP = 20, 5
_MOST_SECONDS = 60.0
_VCPU_GFLOPS = 85  # as of c7a in the catalogue; the measurement corrects it
_FIX = "Give results.json of `make gpu-check`, which ran on a GPU."

Calibration = tuple[list[Instance], dict[str, Measurements]]


def calibrated(work: Workload, catalogue: Catalogue) -> Calibration:
    """Take up to 20 steps of one process.

    Returns:
        On a machine without GPUs, an instance that describes it; and the measurements of each instance like it.
    """
    on_gpu = torch.cuda.is_available()
    added: list[Instance] = []
    if on_gpu:
        alike = catalogue.with_gpu(torch.cuda.get_device_properties(0).total_memory / GIB)
    else:
        ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
        alike = added = [
            Instance(
                name=str(HERE), gpu=None, gpus=0, link_gb=0, network_gbit=0, vcpu=available_cores(),
                ram_gib=round(ram, 1), ec2_dollars=0, markup=1, vcpu_gflops=_VCPU_GFLOPS,
            )
        ]  # fmt: skip
    key, measurements = "half" if on_gpu else "cpu", catalogue.measurements
    half = precision_of(work.hp, torch.device("cuda" if on_gpu else "cpu")) != torch.float32
    expected = Speed.of(alike[0], measurements, half=half).of_pass(work_of(work).times(work.hp.batch_size))
    found = {**measurements[key], "measured": _step_seconds(work) / sum(expected.values())}
    return added, {each.name: {key: found} for each in alike}


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
    return [], {each.name: {"half": {**catalogue.measurements["half"], **shares}} for each in alike}


def _step_seconds(work: Workload) -> float:
    """Return the median time of an optimizer step of batch_size records in this process."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    work = work.changed({"strategy": "auto", "accumulate_grad_batches": 1})
    hp = work.hp
    fixed = given_threads(os.environ) if hp.num_threads == "auto" else hp.num_threads
    threads = ThreadChoice("a step", cores=available_cores(), fixed=fixed, sum_over_ranks=lambda sums: sums)
    times: list[float] = []
    spent = 0.0
    with fake_ranks(ParallelDegrees(), device) as ranks:
        execution = parallelize(work.build().train(), ranks, hp, precision=precision_of(hp, device))
        optimizer = build_optimizer(hp, execution.module)
        objective = WeightedCrossEntropy([1.0] * hp.num_classes, device)
        batch = work.batch(hp.batch_size, margin=0).to(device)
        while len(times) < _STEPS and spent < _MOST_SECONDS:
            start, is_chosen = time.monotonic(), threads.is_chosen
            with threads.measured(batch.num_tokens):
                optimizer.zero_grad(set_to_none=True)
                normaliser = torch.ones((), device=device)
                execution.forward_backward([batch], objective=objective, normaliser=normaliser, scale_loss=_unscaled)
                execution.clip_grad_norm(1.0)  # waits for a GPU
                optimizer.step()
            spent += time.monotonic() - start
            times = [*(times if is_chosen else ()), time.monotonic() - start]
    return statistics.median(times[_WARMUP:] or times)


def _unscaled(loss: torch.Tensor) -> torch.Tensor:
    return loss
