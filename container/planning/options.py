"""Enumerate the ways to run a job, estimate each, and choose one."""

import json
import logging
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from operator import methodcaller
from typing import Any

import torch

from container.cores import available_cores
from container.job.processes import end_with_parent, without_ctrl_c
from container.parallel.degrees import ParallelDegrees
from container.parallel.encoder_checks import check_against_model, check_graphs
from container.planning.catalogue import Catalogue, Instance
from container.planning.memory import GIB, Memory, job_memory
from container.planning.speed import JobTime, Layout, Measurements, idle_share, job_time
from container.planning.workload import Workload
from contracts.errors import ContractError
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)

SPARE = 0.08  # of the memory of a GPU: fragmentation, and batches that are larger than planned
_HOST_GIB = 1.5  # of a process on the CPU besides its tensors: libraries and prefetched batches
_MOST_PASSES = 64
_FEW = 4  # strategies for which another process is not worth its start
_PARALLEL = ("strategy", "nproc_per_node", "sharding_strategy", "cpu_offload", "num_microbatches", "sequence_parallel")
_SIZES = tuple(f"{axis}_size" for axis in ("pp", "dp_replicate", "dp_shard", "branch", "tp"))


@dataclass(frozen=True)
class Option:
    """A way to run the job.

    Attributes:
        settings: the hyperparameters to set.
        reason: of bound_by, in a sentence; for what does not fit, what would make it fit.
        time: None on instances without GPUs: their estimates were wrong by factors.
        idle: share of the time in which a rank of a pipeline waits.
    """

    instance: Instance
    hosts: int
    strategy: str
    settings: Mapping[str, Any]
    memory: Memory
    fits: bool
    time: JobTime | None
    global_batch: int
    idle: float
    reason: str

    @property
    def hours(self) -> float:
        """Return the hours of the job; infinity if they are not known."""
        return math.inf if self.time is None else self.time.total / 3600

    @property
    def hourly(self) -> float:
        """Return the dollars per hour of all instances, on demand."""
        return self.hosts * self.instance.dollars

    @property
    def dollars(self) -> float:
        """Return the cost on demand; infinity if the hours are not known."""
        return math.inf if self.time is None else self.hours * self.hourly

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Return the place among others: those that fit, then by cost, then by price."""
        return not self.fits, self.dollars, self.hourly

    @property
    def bound_by(self) -> str | None:
        if not self.fits:
            return "memory"
        return None if self.time is None else self.time.bound_by

    def to_json(self, catalogue: Catalogue) -> dict[str, Any]:
        """Return the option as in plan.json."""
        prices = {"date": catalogue.prices.date, "region": catalogue.prices.region}
        cost: dict[str, float | None] = {"on_demand": None, "spot": None}
        if self.time is not None:
            cost = {"on_demand": round(self.dollars, 2), "spot": round(self.dollars * catalogue.prices.spot_share, 2)}
        return {
            "instance": self.instance.name,
            "hosts": self.hosts,
            "strategy": self.strategy,
            "settings": dict(self.settings),
            "memory_gib": self.memory.in_gib(),
            "fits": self.fits,
            "bound_by": self.bound_by,
            "tokens_per_second": None if self.time is None else round(self.time.tokens_per_second),
            "hours": None if self.time is None else round(self.hours, 4),
            "cost": {"per_hour": round(self.hourly, 4), **cost, **prices},
            "global_batch": self.global_batch,
            "idle_share": round(self.idle, 4),
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Strategy:
    """A way to divide the model over instances on which a process needs the same memory.

    Attributes:
        work: the job without its own division over processes.
        given: the job's own settings.
        settings: those of the division.
        half: whether matrix products are in half precision.
    """

    work: Workload
    given: Hyperparameters
    name: str
    settings: Mapping[str, Any]
    instances: tuple[Instance, ...]
    hosts: int
    half: bool

    def options(self, catalogue: Catalogue, calibration: Mapping[str, Measurements]) -> list[Option]:
        """Return the option on each instance; none where the model or the batch cannot be divided.

        Args:
            calibration: measurements of an instance, by its name, that replace those of the catalogue.
        """
        memory_of = lru_cache(None)(lambda settings: self._memory(json.loads(settings)))
        choices = []
        for instance in self.instances:
            measured = {**catalogue.measurements, **calibration.get(instance.name, {})}
            ways = self._ways(instance, lambda settings: memory_of(json.dumps(settings)))
            options = [self._option(*way, instance=instance, measured=measured) for way in ways]
            choices += sorted(options, key=lambda option: (not option.fits, option.hours))[:1]
        return choices

    def _ways(
        self, instance: Instance, memory_of: Callable[[Mapping[str, Any]], Memory]
    ) -> Iterator[tuple[dict[str, Any], Memory, bool]]:
        """Yield settings, their memory, and whether it fits: as they are; else more passes, and with checkpointing."""
        limit = (instance.memory_gib * (1 - SPARE) - (0 if instance.gpu else _HOST_GIB)) * GIB
        runs = instance.gpu is None or instance.gpu.runs
        for checkpointing in dict.fromkeys((self.given.activation_checkpointing, 1)):
            passes = 1
            while True:
                try:
                    settings = self._pass_settings(passes, checkpointing)
                    memory = memory_of(settings)
                except ContractError as error:
                    logger.debug("%s on %s: %s", self.name, instance.name, error.cause)
                    return
                fits = runs and memory.total <= limit
                yield settings, memory, fits
                room = limit - (memory.total - memory.activations)
                if (fits and passes == 1) or not runs:
                    return
                if fits or room <= 0:
                    break
                needed = 2 ** math.ceil(math.log2(max(2.0, passes * memory.activations / room)))
                if needed <= passes or needed > min(_MOST_PASSES, settings["batch_size"] * passes):
                    break
                passes = needed

    def _pass_settings(self, passes: int, checkpointing: int) -> dict[str, Any]:
        """Return settings with the global batch that one process has with the user's settings."""
        alone = {**self.settings, "num_microbatches": 1, "pp_schedule": "GPipe"}
        degrees = self._degrees(self.work.changed(alone).hp)
        wanted = self.given.batch_size * self.given.accumulate_grad_batches
        records = max(1, math.ceil(wanted / degrees.data_size / passes))
        settings = {**self.settings, "batch_size": records, "accumulate_grad_batches": passes}
        return {**settings, "activation_checkpointing": checkpointing}

    def _memory(self, settings: Mapping[str, Any]) -> Memory:
        work = self.work.changed({**settings, "compile": False})
        degrees = self._degrees(work.hp)
        check_against_model(degrees, work.hp, list(work.encoders))
        on_gpu = self.instances[0].gpu is not None
        kinds = [encoder.model_type for encoder in work.encoders]
        check_graphs(work.hp, kinds, processes=degrees.product, has_gpu=on_gpu)
        precision = torch.bfloat16 if self.half else torch.float32
        return job_memory(work, degrees, precision=precision, on_gpu=on_gpu)

    def _degrees(self, hp: Hyperparameters) -> ParallelDegrees:
        per_host = self.instances[0].processes
        return ParallelDegrees.resolve(hp, self.hosts * per_host, per_host=per_host)

    def _option(
        self, settings: dict[str, Any], memory: Memory, fits: bool, /, *, instance: Instance, measured: Measurements
    ) -> Option:
        hp = self.work.changed(settings).hp
        degrees = self._degrees(hp)
        parameters = memory.gradients / 4 * degrees.pp * degrees.tp * degrees.dp_shard * degrees.branch
        layout = Layout(instance, self.hosts, degrees, hp, parameters, self.half)
        time = None if instance.gpu is None else job_time(layout, self.work, measured)
        idle = idle_share(hp, degrees.pp, measured["idle"])
        shown = self._to_set(settings, instance)
        option = Option(instance, self.hosts, self.name, shown, memory, fits, time, layout.global_batch, idle, "")
        return replace(option, reason=_reason(option))

    def _to_set(self, settings: Mapping[str, Any], instance: Instance) -> dict[str, Any]:
        """Return the settings that differ from the user's, and those that undo the user's division."""
        own, plain = (hp.model_dump(mode="json") for hp in (self.given, self.work.hp))
        division = {name: plain[name] for name in (*_PARALLEL, *_SIZES)}
        needs_fp16 = self.half and instance.gpu is not None and not instance.gpu.has_bfloat16
        values = {**division, **settings, **({"fp16": True, "bf16": "auto"} if needs_fp16 else {})}
        return {name: value for name, value in values.items() if name in self.settings or value != own[name]}


def strategies(work: Workload, instances: Iterable[Instance], hosts: int) -> Iterator[Strategy]:
    """Yield the strategies that make sense on each number of processes."""
    groups: dict[tuple[int, bool, bool], list[Instance]] = {}
    for instance in instances:
        for half in _precisions(work.hp, instance):
            groups.setdefault((instance.processes, half, instance.gpu is None), []).append(instance)
    values = work.hp.model_dump(mode="json", exclude_unset=True, exclude={*_PARALLEL, *_SIZES})
    plain = replace(work, hp=parse_hyperparameters(values))
    for (processes, half, _), members in groups.items():
        for name, settings in _divisions(processes, hosts):
            yield Strategy(plain, work.hp, name, settings, tuple(members), hosts, half)


def _precisions(hp: Hyperparameters, instance: Instance) -> tuple[bool, ...]:
    """Return whether to plan half precision: as the user chose; else if the GPU has bfloat16; otherwise both."""
    if instance.gpu is None:
        return (hp.bf16 is True,)
    if hp.fp16 or not instance.gpu.runs:
        return (True,)
    return (False,) if hp.bf16 is False else (True,) if instance.gpu.has_bfloat16 else (False, True)


def _divisions(processes: int, hosts: int) -> Iterator[tuple[str, dict[str, Any]]]:
    world = processes * hosts
    if world == 1:
        yield "one process", {}
        return
    yield "ddp", {"strategy": "ddp"}
    yield "fsdp", {"strategy": "fsdp"}
    if hosts > 1 and processes > 1:
        yield "hsdp", {"strategy": "hsdp", "dp_shard_size": processes}
    if processes > 1:
        rest = {"dp_shard_size": hosts} if hosts > 1 else {}
        yield f"tp {processes}{' x fsdp' * bool(rest)}", {"tp_size": processes, **rest}
    pipelines = [size for size in (2, 4) if world % size == 0 and processes > 1]
    for size in pipelines:
        rest = world // size
        yield f"pp {size}{' x ddp' * (rest > 1)}", {"pp_size": size}
        if rest > 1:
            yield f"pp {size} x fsdp", {"pp_size": size, "dp_shard_size": rest}


def all_options(
    work: Workload,
    catalogue: Catalogue,
    instances: Sequence[Instance],
    *,
    hosts: int,
    calibration: Mapping[str, Measurements],
) -> list[Option]:
    """Return every option, in the order of the instances; progress goes to stderr.

    Args:
        calibration: see Strategy.options.
    """
    chosen = list(strategies(work, instances, hosts))
    workers = min(available_cores(), len(chosen) // _FEW)
    choices: list[Option] = []
    options_of = methodcaller("options", catalogue, calibration)
    with ExitStack() as stack:
        run: Iterable[list[Option]] = map(options_of, chosen)
        if workers > 1:
            pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_start_worker)
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)  # after Ctrl-C, they end with this process
            with without_ctrl_c():
                run = pool.map(options_of, chosen)
        for done, options in enumerate(run, start=1):
            choices += options
            print(f"planned {done} of {len(chosen)} ways to divide the model", file=sys.stderr, flush=True)
    order = {instance.name: index for index, instance in enumerate(instances)}
    return sorted(choices, key=lambda option: order[option.instance.name])


def _start_worker() -> None:
    end_with_parent()
    torch.set_num_threads(1)


def _reason(option: Option) -> str:
    if option.instance.gpu is not None and not option.instance.gpu.runs:
        return f"the image has no code for {option.instance.gpu.name} (docs/image.md)"
    if not option.fits:
        has, memory = option.instance.memory_gib, option.memory
        largest = memory.largest()
        ways = {
            "activations": "fewer tokens per pass (batch_size, max_tokens_per_batch, max_sen_len)",
            "weights": "fsdp or pp over more GPUs",
            "gradients": "fsdp or pp over more GPUs, or LoRA",
            "optimizer": "fsdp or pp over more GPUs, or LoRA",
        }
        needed = memory.total / GIB / (1 - SPARE)
        return f"needs {needed:.1f} GiB of {has:g}; most are {largest}: {ways[largest]}, or a GPU with more memory"
    if option.time is None or option.bound_by is None:
        return "the time is not estimated on CPUs: train a part of the rows to measure it"
    shares = {cause: seconds / option.time.total for cause, seconds in option.time.seconds.items()}
    share = f"{shares[option.bound_by]:.0%} of the time"
    return {
        "compute": f"matrix products and launches of kernels take {share}",
        "memory": f"reading and writing of GPU memory takes {share}",
        "communication": f"sums and copies between GPUs take {share} that the computation does not hide",
        "data preparation": f"tokenization on {option.instance.vcpu} vCPU takes {share}",
        "idle pipeline stages": f"stages wait for each other in {share}; use more microbatches",
    }[option.bound_by]


def recommend(options: Sequence[Option], *, budget: float | None, hours: float | None) -> Option | None:
    """Return the option to take: the fastest within a budget; otherwise the cheapest, within the hours."""
    possible = [
        option
        for option in options
        if option.fits and (budget is None or option.dollars <= budget) and (hours is None or option.hours <= hours)
    ]
    if budget is not None and hours is None:
        return min(possible, key=lambda option: (option.hours, option.dollars), default=None)
    return min(possible, key=lambda option: option.rank, default=None)
