"""Enumerate the ways to run a job, estimate each, and choose one."""

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from typing import Any

import torch

from container.parallel.degrees import ParallelDegrees
from container.parallel.encoder_checks import check_against_model
from container.planning.catalogue import Catalogue, Instance
from container.planning.memory import GIB, Memory, Rank, step_memory
from container.planning.speed import JobTime, Layout, Speed, idle_share, job_time
from container.planning.workload import Workload
from container.processes import available_cores
from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)

SPARE = 0.08  # of the memory of a GPU: fragmentation, and batches that are larger than planned
_HOST_GIB = 1.5  # of a process on the CPU besides its tensors: libraries and prefetched batches
_MOST_PASSES = 64
_PARALLEL = ("strategy", "nproc_per_node", "sharding_strategy", "cpu_offload", "num_microbatches", "sequence_parallel")
_SIZES = tuple(f"{axis}_size" for axis in ("pp", "dp_replicate", "dp_shard", "branch", "tp"))


@dataclass(frozen=True)
class Option:
    """A way to run the job.

    Attributes:
        settings: the hyperparameters to set.
        reason: of bound_by, in a sentence; for what does not fit, what would make it fit.
        idle: share of the time in which a rank of a pipeline waits.
    """

    instance: Instance
    hosts: int
    strategy: str
    settings: Mapping[str, Any]
    memory: Memory
    fits: bool
    time: JobTime
    global_batch: int
    idle: float
    reason: str

    @property
    def hours(self) -> float:
        return self.time.total / 3600

    @property
    def dollars(self) -> float:
        """Return the cost on demand."""
        return self.hours * self.hosts * self.instance.dollars

    @property
    def bound_by(self) -> str:
        return self.time.bound_by if self.fits else "memory"

    def to_json(self, catalogue: Catalogue) -> dict[str, Any]:
        """Return the option as in plan.json."""
        prices = {"date": catalogue.prices["date"], "region": catalogue.prices["region"]}
        on_demand, spot = self.dollars, self.dollars * catalogue.spot_share
        return {
            "instance": self.instance.name,
            "hosts": self.hosts,
            "strategy": self.strategy,
            "settings": dict(self.settings),
            "memory_gib": self.memory.in_gib(),
            "fits": self.fits,
            "bound_by": self.bound_by,
            "tokens_per_second": round(self.time.tokens_per_second),
            "hours": round(self.hours, 4),
            "cost": {"on_demand": round(on_demand, 2), "spot": round(spot, 2), **prices},
            "global_batch": self.global_batch,
            "idle_share": round(self.idle, 4),
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Strategy:
    """Settings that divide the model over some instances with the same number of processes."""

    name: str
    settings: Mapping[str, Any]
    instances: tuple[Instance, ...]
    hosts: int
    half: str | None  # the setting of the precision: bf16, fp16, or None for float32

    @property
    def world_size(self) -> int:
        return self.hosts * self.instances[0].processes


def strategies(work: Workload, instances: Iterable[Instance], hosts: int) -> Iterator[Strategy]:
    """Yield the strategies that make sense on each number of processes; instances with equal processes together."""
    groups: dict[tuple[int, str | None, bool], list[Instance]] = {}
    for instance in instances:
        for half in _precisions(work.hp, instance):
            groups.setdefault((instance.processes, half, instance.gpu is None), []).append(instance)
    for (processes, half, _), members in groups.items():
        for name, settings in _divisions(processes, hosts):
            yield Strategy(name, settings, tuple(members), hosts, half)


def _precisions(hp: Hyperparameters, instance: Instance) -> list[str | None]:
    """Return the precisions to plan: what the user chose; else bfloat16, or float32 and float16 where it is missing."""
    if instance.gpu is None:
        return ["bf16"] if hp.bf16 is True else [None]
    if hp.fp16 or not instance.gpu.runs:
        return ["fp16"]
    if hp.bf16 is False:
        return [None]
    return ["bf16"] if instance.gpu.has_bfloat16 else [None, "fp16"]


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
    work: Workload, catalogue: Catalogue, instances: Sequence[Instance], *, hosts: int, speeds: Mapping[str, Speed]
) -> list[Option]:
    """Return every option, in the order of the instances.

    Args:
        speeds: of an instance that was measured, by name.
    """
    chosen = list(strategies(work, instances, hosts))
    arguments = [(work, catalogue, strategy, dict(speeds)) for strategy in chosen]
    workers = min(available_cores(), len(chosen))
    if workers > 1 and len(chosen) > 2:
        with ProcessPoolExecutor(
            workers, mp_context=get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            found = list(pool.map(_options_of, arguments))
    else:
        found = [_options_of(each) for each in arguments]
    order = {instance.name: index for index, instance in enumerate(instances)}
    return sorted((option for options in found for option in options), key=lambda option: order[option.instance.name])


def _options_of(arguments: tuple[Workload, Catalogue, Strategy, Mapping[str, Speed]]) -> list[Option]:
    """Return the option of a strategy on each of its instances; none if the model or the batch cannot be divided."""
    work, catalogue, strategy, speeds = arguments
    options = []
    memory_of = lru_cache(None)(lambda text, records: _memory(work, strategy, json.loads(text), records))
    for instance in strategy.instances:
        try:
            tried = _ways(
                work, catalogue, strategy, instance=instance, speed=speeds.get(instance.name), memory_of=memory_of
            )
            options.append(min(tried, key=lambda option: (not option.fits, option.hours)))
        except ContractError as error:
            logger.debug("%s on %s: %s", strategy.name, instance.name, error.cause)
    return options


def _ways(
    work: Workload,
    catalogue: Catalogue,
    strategy: Strategy,
    *,
    instance: Instance,
    speed: Speed | None,
    memory_of: Callable[[str, int], Memory],
) -> list[Option]:
    """Return the option as it is if it fits; else with more passes, and with activation checkpointing."""
    limit = instance.memory_gib * (1 - SPARE) - (0 if instance.gpu else _HOST_GIB)
    ways = []
    for checkpointing in dict.fromkeys((work.hp.activation_checkpointing, 1)):
        passes = 1
        while True:
            settings = settings_of(work, strategy, passes=passes, checkpointing=checkpointing)
            hp = work.with_settings(settings)
            memory = memory_of(json.dumps(settings), hp.batch_size)
            fits = memory.total / GIB <= limit and (instance.gpu is None or instance.gpu.runs)
            ways.append(
                _option(
                    work,
                    catalogue,
                    strategy,
                    instance=instance,
                    settings=settings,
                    memory=memory,
                    fits=fits,
                    speed=speed,
                )
            )
            held = memory.total - memory.activations
            room = limit * GIB - held
            if fits or room <= 0 or (instance.gpu and not instance.gpu.runs):
                break
            needed = 2 ** math.ceil(math.log2(max(2.0, passes * memory.activations / room)))
            if needed <= passes or needed > _MOST_PASSES or hp.batch_size * passes < needed:
                break
            passes = needed
        if ways[-1].fits and passes == 1:
            break
    return ways


def settings_of(work: Workload, strategy: Strategy, *, passes: int, checkpointing: int) -> dict[str, Any]:
    """Return the settings of a job whose global batch is that of one process with the user's settings.

    Raises:
        ContractError: the batch has too few records for the pipeline.
    """
    degrees = ParallelDegrees.resolve(
        _undivided(work).with_settings({**strategy.settings, "num_microbatches": 1, "pp_schedule": "GPipe"}),
        strategy.world_size,
        per_host=strategy.instances[0].processes,
    )
    wanted = work.hp.batch_size * work.hp.accumulate_grad_batches
    records = max(1, math.ceil(wanted / degrees.data_size / passes))
    settings = {**strategy.settings, "batch_size": records, "accumulate_grad_batches": passes}
    settings |= {"activation_checkpointing": checkpointing}
    if degrees.pp > 1:
        settings["num_microbatches"] = microbatches(records, degrees.pp)
    if strategy.half == "fp16":
        settings["fp16"] = True
    own = work.hp.model_dump(mode="json")
    division = {name: default for name, default in _undivided(work).hp.model_dump(mode="json").items()
                if name in (*_PARALLEL, *_SIZES) and own[name] != default}  # fmt: skip
    settings = {**division, **settings}
    return {name: value for name, value in settings.items() if name in strategy.settings or value != own[name]}


def microbatches(records: int, ranks: int) -> int:
    """Return the number of microbatches of a pass: the largest up to 4 per rank that divides its records.

    Raises:
        ContractError: there are fewer records than ranks.
    """
    for count in range(min(records, 4 * ranks), ranks - 1, -1):
        if records % count == 0:
            return count
    raise ContractError(
        f"batch_size: {records} records cannot fill a pipeline of {ranks} ranks", f"Use a multiple of {ranks}."
    )


def _undivided(work: Workload) -> Workload:
    """Return the workload without the user's division over processes."""
    given = work.hp.model_dump(mode="json", exclude_unset=True)
    values = {name: value for name, value in given.items() if name not in (*_PARALLEL, *_SIZES)}
    return replace(work, hp=type(work.hp)(**values))


def _memory(work: Workload, strategy: Strategy, settings: Mapping[str, Any], records: int) -> Memory:
    hp = _undivided(work).with_settings({**settings, "compile": False})
    degrees = ParallelDegrees.resolve(hp, strategy.world_size, per_host=strategy.instances[0].processes)
    check_against_model(degrees, hp, list(work.encoders))
    count = hp.num_microbatches if degrees.pp > 1 else 1
    batch = work.batch(max(1, records // count))
    half = {"bf16": torch.bfloat16, "fp16": torch.float16, None: torch.float32}[strategy.half]
    on_gpu = strategy.instances[0].gpu is not None
    return step_memory(Rank(lambda: work.build(hp), hp, degrees, [batch] * count, half, on_gpu))


def _option(
    work: Workload,
    catalogue: Catalogue,
    strategy: Strategy,
    *,
    instance: Instance,
    settings: dict[str, Any],
    memory: Memory,
    fits: bool,
    speed: Speed | None,
) -> Option:
    hp = _undivided(work).with_settings(settings)
    degrees = ParallelDegrees.resolve(hp, strategy.world_size, per_host=instance.processes)
    half = strategy.half is not None
    parameters = memory.gradients / 4 * degrees.pp * degrees.tp * degrees.dp_shard * degrees.branch
    layout = Layout(instance, strategy.hosts, degrees, hp, parameters, half)
    global_batch = hp.batch_size * hp.accumulate_grad_batches * degrees.data_size
    measured = catalogue.measurements
    time = job_time(
        layout, work, global_batch=global_batch, speed=speed or Speed.of(instance, measured, half=half),
        measurements=measured,
    )  # fmt: skip
    idle = idle_share(hp.pp_schedule, degrees.pp, hp.num_microbatches, measured["idle"])
    option = Option(
        instance, strategy.hosts, strategy.name, settings, memory, fits, time, global_batch, idle, ""
    )  # fmt: skip
    return replace(option, reason=_reason(option))


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
    return min(possible, key=lambda option: (option.dollars, option.hours), default=None)
