"""Estimate the time of a job on GPUs: arithmetic, memory traffic, launches, communication, idle pipeline stages."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from container.parallel.degrees import ParallelDegrees
from container.parallel.encoder_checks import EncoderShape
from container.planning.catalogue import Instance
from container.planning.workload import Workload
from container.text.encoder_config import config_value
from contracts.consistency import microbatches_of
from contracts.hyperparameters import Hyperparameters

Measurements = Mapping[str, Mapping[str, Any]]  # see Catalogue

_RECOMPUTED = 4 / 3  # of the work of a step, with activation checkpointing: the forward pass runs twice
_FORWARD = 1 / 3  # of the work of a step
_LINK_SHARE = 0.7  # of a link's bandwidth that collectives reach; an assumption (docs/plan.md)
_HIDDEN_BY_BACKWARD = 2 / 3  # of the compute of a step, beside which ddp sums gradients
_GRADIENT_BYTES = 4


@dataclass(frozen=True)
class Work:
    """The work of one forward and backward pass over some records.

    Attributes:
        flop: (6 P + 12 L h s) per token, P parameters of the layers, s tokens that a token attends to.
        values: hidden states that the layers of all encoders compute: tokens x layers x width.
        layers: of all encoders, each of which launches kernels.
        sent: bytes of a hidden state of every token, in 2 bytes per number: of one text on average.
    """

    flop: float
    values: float
    layers: int
    sent: float

    def times(self, factor: float) -> "Work":
        return replace(self, flop=self.flop * factor, values=self.values * factor, sent=self.sent * factor)


def work_of(work: Workload) -> Work:
    """Return the mean work of a record of the sample."""
    flop = values = sent = 0.0
    layers = 0
    for index, shape in enumerate(work.encoders):
        depth, width = shape.layers, config_value(shape.config, "hidden_size")
        lengths = [np.array(record[index], float) for record in work.sample]
        tokens, squares = (np.mean([(each**power).sum() for each in lengths]) for power in (1, 2))
        flop += 6 * layer_parameters(shape) * tokens + 12 * depth * width * squares
        values += tokens * depth * width
        sent += 2 * tokens * width / len(work.encoders)
        layers += depth
    if work.hp.architecture.encoder != "transformer":  # word encoders have one or two layers, of about this work
        return Work(flop / max(1, layers), values / max(1, layers), len(work.encoders), sent)
    return Work(flop, values, layers, sent)


def layer_parameters(shape: EncoderShape) -> float:
    """Return P: attention, feed-forward, biases and norms of all layers."""
    width = config_value(shape.config, "hidden_size")
    return shape.layers * (4 * width**2 + 2 * width * shape.intermediate + 9 * width + shape.intermediate)


@dataclass(frozen=True)
class Speed:
    """How fast one process computes.

    Attributes:
        flops: FLOP/s of matrix products.
        seconds_per_value: of memory traffic for a hidden state.
        seconds_per_layer: least time of a layer in a pass: its operations start one after another.
        measured: what one pass really takes, of the estimate; from --calibrate.
    """

    flops: float
    seconds_per_value: float
    seconds_per_layer: float
    measured: float

    @classmethod
    def of(cls, instance: Instance, measurements: Measurements, *, half: bool) -> "Speed":
        """Return the speed of a process on `instance`, by the measured shares of the peaks in its data sheet."""
        gpu, known = instance.gpu, measurements["half"]
        assert gpu is not None, "a plan gives times for GPUs"
        peak = gpu.half_tflops if half else gpu.float32_tflops
        traffic = known["bytes_per_value"] * (1 if half else 2) / (gpu.bandwidth_gb * 1e9 * known["bandwidth_share"])
        measured = known.get("measured", 1.0)
        return cls(peak * 1e12 * known["product_share"], traffic, known["seconds_per_layer"], measured)

    def of_pass(self, work: Work) -> dict[str, float]:
        """Return the seconds of a pass by cause; what the launches take beyond the rest counts as compute."""
        compute = work.flop / self.flops
        traffic = work.values * self.seconds_per_value
        waiting = max(0.0, work.layers * self.seconds_per_layer - compute - traffic)
        parts = {"compute": compute + waiting, "memory": traffic}
        return {cause: seconds * self.measured for cause, seconds in parts.items()}


@dataclass(frozen=True)
class Layout:
    """Where a job runs, and how its model is divided.

    Attributes:
        parameters: trained ones of the whole model.
        half: whether matrix products are in half precision.
    """

    instance: Instance
    hosts: int
    degrees: ParallelDegrees
    hp: Hyperparameters
    parameters: float
    half: bool

    @property
    def global_batch(self) -> int:
        return self.hp.batch_size * self.hp.accumulate_grad_batches * self.degrees.data_size

    @property
    def link(self) -> float:
        """Return the bytes/s between two ranks of one host."""
        instance = self.instance
        return _LINK_SHARE * 1e9 * (instance.link_gb or instance.network_gbit / 8)

    def between(self, ranks: int) -> float:
        """Return the bytes/s of a collective over `ranks` neighbouring ranks: that of its slowest link."""
        inside = max(1, self.instance.processes)
        network = _LINK_SHARE * self.instance.network_gbit / 8 * 1e9
        return min(self.link, network) if ranks > inside else self.link


def step_seconds(layout: Layout, work: Work, measurements: Measurements) -> dict[str, float]:
    """Return the seconds of an optimizer step by cause.

    Args:
        work: of the records of a rank in one forward pass.
    """
    hp, degrees = layout.hp, layout.degrees
    passes, divided = hp.accumulate_grad_batches, degrees.pp * degrees.tp * degrees.branch
    microbatches = microbatches_of(hp, degrees.pp)
    again = _RECOMPUTED if hp.activation_checkpointing == 1 else 1.0
    local = replace(work.times(again / divided / microbatches), layers=math.ceil(work.layers / degrees.pp))
    speed = Speed.of(layout.instance, measurements, half=layout.half)
    parts = {cause: passes * microbatches * value for cause, value in speed.of_pass(local).items()}
    computing = sum(parts.values())
    idle = idle_share(hp, degrees.pp, measurements["idle"])
    parts["idle pipeline stages"] = computing * idle / (1 - idle)
    exposed = 0.0
    if degrees.tp > 1:  # four sums of the hidden states in each layer, which nothing hides
        hidden = work.sent * work.layers / degrees.pp
        exposed += passes * 4 * 2 * (degrees.tp - 1) / degrees.tp * hidden / layout.between(degrees.tp)
    if degrees.pp > 1:
        exposed += 2 * passes * 2 * work.sent / layout.between(degrees.product)
    data, of_rank = degrees.data_size, layout.parameters / (degrees.pp * degrees.tp * degrees.branch)
    if data > 1:
        around = 2 * (data - 1) / data * of_rank
        seconds = around * _GRADIENT_BYTES / layout.between(degrees.product)
        hidden_by = _HIDDEN_BY_BACKWARD * computing / passes
        if degrees.dp_shard > 1:
            gathered = 2 if layout.half else 4
            seconds = passes * around * (gathered + _GRADIENT_BYTES / 2) / layout.between(degrees.dp_shard * degrees.tp)
            hidden_by = computing
        exposed += max(0.0, seconds - hidden_by)
    return {**parts, "communication": exposed}


def idle_share(hp: Hyperparameters, ranks: int, measured: Mapping[str, Any]) -> float:
    """Return the share of a pass in which a rank of the pipeline waits."""
    return measured[hp.pp_schedule] * (ranks - 1) / (microbatches_of(hp, ranks) + ranks - 1)


@dataclass(frozen=True)
class JobTime:
    """The time of a whole job.

    Attributes:
        seconds: by cause, over all steps; with preparation of data, validations, and start and end.
        tokens_per_second: in training, of all ranks.
    """

    seconds: Mapping[str, float]
    tokens_per_second: float

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def bound_by(self) -> str:
        """Return the largest of the causes that a plan names."""
        return max(CAUSES, key=lambda cause: self.seconds.get(cause, 0.0))


CAUSES = ("compute", "memory", "communication", "data preparation", "idle pipeline stages")


def _networks(hp: Hyperparameters) -> int:
    """Return how many networks the job trains; a search may end some of them early."""
    kept = hp.tuning.final_seeds if hp.tuning else hp.num_members
    searched = hp.tuning.trials - 1 if hp.tuning else 0
    return searched + kept + (kept > 1 and hp.ensemble_model == "distill")


def job_time(layout: Layout, work: Workload, measurements: Measurements) -> JobTime:
    """Return the time of the job on `layout`, whose instances have GPUs."""
    hp, rows = layout.hp, work.rows
    record = work_of(work)
    step = step_seconds(layout, record.times(hp.batch_size), measurements)
    global_batch = layout.global_batch
    steps = math.ceil(rows["train"] / global_batch)
    networks = _networks(hp)
    parts = {cause: value * steps * hp.max_epochs * networks for cause, value in step.items()}
    # Validations have the precision of training; the final predictions of val and test are in float32.
    ranks = layout.degrees.product
    interval = hp.val_check_interval  # of an epoch, or steps
    validations = max(1, round(hp.max_epochs * (steps if interval > 1 else 1) / interval))
    for count, half in ((validations * networks * rows["val"], layout.half), (rows["val"] + rows["test"], False)):
        waiting = replace(Speed.of(layout.instance, measurements, half=half), seconds_per_layer=0.0)
        for cause, value in waiting.of_pass(record.times(_FORWARD * count / ranks)).items():
            parts[cause] += value
    total_tokens = work.tokens.mean() * sum(rows.values())
    parts["data preparation"] = total_tokens / (measurements["prepare"]["tokens_per_core"] * layout.instance.vcpu)
    parts["start and end"] = measurements["job"]["start_seconds"] + measurements["job"]["finish_seconds"]
    if hp.tuning and hp.tuning.max_hours:
        share = min(1.0, hp.tuning.max_hours * 3600 / sum(parts.values()))
        parts = {cause: value * share for cause, value in parts.items()}
    tokens = work.tokens.mean() * global_batch / max(1e-9, sum(step.values()))
    return JobTime(parts, tokens)
