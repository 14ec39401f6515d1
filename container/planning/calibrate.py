"""Measure training steps of the job on this machine, to scale the estimates for machines like it."""

import os
import statistics
import time

import torch

from container.parallel.degrees import ParallelDegrees
from container.parallel.parallelize import parallelize
from container.planning.catalogue import Catalogue, Instance
from container.planning.memory import GIB, fake_ranks
from container.planning.speed import Speed, work_of
from container.planning.workload import Workload
from container.processes import available_cores
from container.training.objective import WeightedCrossEntropy
from container.training.optimizer import build_optimizer
from container.training.precision import precision_of

THIS_MACHINE = "this machine"
_STEPS, _WARMUP = 20, 5
_MOST_SECONDS = 60.0
_VCPU_GFLOPS = 85  # as of c7a in the catalogue; the measurement corrects it


def calibrated(work: Workload, catalogue: Catalogue) -> tuple[Instance | None, dict[str, Speed]]:
    """Take up to 20 steps of one process.

    Returns:
        On a machine without GPUs, an instance that describes it; and the measured speed of each instance like it.
    """
    on_gpu = torch.cuda.is_available()
    hp = work.hp
    half = precision_of(hp, torch.device("cuda" if on_gpu else "cpu")) != torch.float32
    if on_gpu:
        gpu = catalogue.of_gpu(torch.cuda.get_device_properties(0).total_memory / GIB)
        alike, local = [each for each in catalogue.instances.values() if each.gpu == gpu], None
    else:
        ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
        local = Instance(THIS_MACHINE, None, 0, 0, 0, available_cores(), round(ram, 1), 0.0, _VCPU_GFLOPS)
        alike = [local]
    expected = Speed.of(alike[0], catalogue.measurements, half=half)
    seconds = _step_seconds(work)
    ratio = seconds / sum(expected.of_pass(work_of(work).times(hp.batch_size)).values())
    measurements = catalogue.measurements
    found = {each.name: Speed.of(each, measurements, half=half).scaled(ratio) for each in alike}
    return local, found


def _step_seconds(work: Workload) -> float:
    """Return the median time of an optimizer step of batch_size records in this process."""
    torch.set_num_threads(available_cores())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    hp = work.with_settings({"strategy": "auto", "accumulate_grad_batches": 1})
    times: list[float] = []
    with fake_ranks(ParallelDegrees(), device) as ranks:
        execution = parallelize(work.build(hp).train(), ranks, hp, precision=precision_of(hp, device))
        optimizer = build_optimizer(hp, execution.module)
        objective = WeightedCrossEntropy([1.0] * hp.num_classes, device)
        batch = work.batch(hp.batch_size, margin=0).to(device)
        while len(times) < _STEPS and sum(times) < _MOST_SECONDS:
            start = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            normaliser = torch.ones((), device=device)
            execution.forward_backward([batch], objective=objective, normaliser=normaliser, scale_loss=_unscaled)
            execution.clip_grad_norm(1.0)  # waits for a GPU
            optimizer.step()
            times.append(time.perf_counter() - start)
    return statistics.median(times[_WARMUP:] or times)


def _unscaled(loss: torch.Tensor) -> torch.Tensor:
    return loss
