"""Define the rows of the parity table: strategies, their options, and combinations, on up to 16 processes."""

import json
import math
from typing import Any

from container.parallel.degrees import AXES
from contracts.hyperparameters import Hyperparameters
from testing.jobs import REPOSITORY
from testing.parity import GLOBAL_BATCH, Strategy, about_processes

_READY = REPOSITORY / "hyperparams"
_WIDTHS = ("hidden_common_dim", "fusion_hidden_dim")
_GPUS = 4  # of the host, for configurations that use all of them


def _pipeline(schedule: str, *, ranks: int, microbatches: int) -> dict[str, Any]:
    return {"pp_size": ranks, "pp_schedule": schedule, "num_microbatches": microbatches}


STRATEGIES = (
    Strategy("accumulation", 1, {"accumulate_grad_batches": 4}),
    Strategy("token limit", 1, {"max_tokens_per_batch": 200}),
    Strategy("token limit, joined passes", 1, {"max_tokens_per_batch": 4000, "accumulate_grad_batches": 4}),
    Strategy("activation checkpointing", 1, {"activation_checkpointing": 1}),
    Strategy("ddp 2", 2, {"strategy": "ddp"}),
    Strategy("ddp 4", 4, {"strategy": "ddp"}),
    Strategy("ddp 8", 8, {"strategy": "ddp"}),
    Strategy("ddp 2, accumulation", 2, {"strategy": "ddp", "accumulate_grad_batches": 2}),
    Strategy("ddp 2, token limit", 2, {"strategy": "ddp", "max_tokens_per_batch": 150}),
    Strategy("fsdp 2, FULL_SHARD", 2, {"strategy": "fsdp"}),
    Strategy("fsdp 4, FULL_SHARD", 4, {"strategy": "fsdp"}),
    Strategy("fsdp 8, FULL_SHARD", 8, {"strategy": "fsdp"}),
    Strategy("fsdp 2, SHARD_GRAD_OP", 2, {"strategy": "fsdp", "sharding_strategy": "SHARD_GRAD_OP"}),
    Strategy("fsdp 4, SHARD_GRAD_OP", 4, {"strategy": "fsdp", "sharding_strategy": "SHARD_GRAD_OP"}),
    Strategy("fsdp 2, NO_SHARD", 2, {"strategy": "fsdp", "sharding_strategy": "NO_SHARD"}),
    Strategy("fsdp 4, NO_SHARD", 4, {"strategy": "fsdp", "sharding_strategy": "NO_SHARD"}),
    Strategy("fsdp 2, accumulation", 2, {"strategy": "fsdp", "accumulate_grad_batches": 4}),
    Strategy("fsdp 2, accumulation of whole gradients", 2, {
        "strategy": "fsdp", "accumulate_grad_batches": 4, "fsdp_accumulation": "whole"}),
    Strategy("fsdp 2, token limit", 2, {"strategy": "fsdp", "max_tokens_per_batch": 150}),
    Strategy("fsdp 2, CPU offload", 2, {"strategy": "fsdp", "cpu_offload": True}),
    Strategy("fsdp 2, activation checkpointing", 2, {"strategy": "fsdp", "activation_checkpointing": 2}),
    Strategy("hsdp 2x2", 4, {"strategy": "hsdp", "dp_shard_size": 2}),
    Strategy("hsdp 2x2, accumulation", 4, {"strategy": "hsdp", "dp_shard_size": 2, "accumulate_grad_batches": 2}),
    Strategy("hsdp 2x4", 8, {"strategy": "hsdp", "dp_shard_size": 4}),
    Strategy("tp 2", 2, {"strategy": "tp"}),
    Strategy("tp 4", 4, {"strategy": "tp"}),
    Strategy("tp 2, sequence parallel", 2, {"strategy": "tp", "sequence_parallel": True}),
    Strategy("tp 2, activation checkpointing", 2, {"strategy": "tp", "activation_checkpointing": 1}),
    Strategy("pp 2, GPipe", 2, _pipeline("GPipe", ranks=2, microbatches=4)),
    Strategy("pp 4, GPipe", 4, _pipeline("GPipe", ranks=4, microbatches=8)),
    Strategy("pp 2, 1F1B", 2, _pipeline("1F1B", ranks=2, microbatches=4)),
    Strategy("pp 4, 1F1B", 4, _pipeline("1F1B", ranks=4, microbatches=8)),
    Strategy("pp 8, 1F1B", 8, _pipeline("1F1B", ranks=8, microbatches=8)),
    Strategy("pp 2, Interleaved1F1B", 2, _pipeline("Interleaved1F1B", ranks=2, microbatches=4)),
    Strategy("pp 2, InterleavedZeroBubble", 2, _pipeline("InterleavedZeroBubble", ranks=2, microbatches=4)),
    Strategy("pp 2, ZBVZeroBubble", 2, _pipeline("ZBVZeroBubble", ranks=2, microbatches=4)),
    Strategy("pp 2, 1F1B, accumulation", 2, {
        **_pipeline("1F1B", ranks=2, microbatches=2), "accumulate_grad_batches": 2}),
    Strategy("pp 2, 1F1B, token limit", 2, {
        **_pipeline("1F1B", ranks=2, microbatches=2), "max_tokens_per_batch": 200}),
    Strategy("pp 2, 1F1B, activation checkpointing", 2, {
        **_pipeline("1F1B", ranks=2, microbatches=4), "activation_checkpointing": 1}),
    Strategy("branch 2", 2, {"strategy": "branch"}),
    Strategy("pp 2 x dp 2", 4, _pipeline("1F1B", ranks=2, microbatches=4)),
    Strategy("pp 2 x dp 4", 8, _pipeline("1F1B", ranks=2, microbatches=2)),
    Strategy("pp 2 x fsdp 2", 4, {**_pipeline("1F1B", ranks=2, microbatches=4), "dp_shard_size": 2}),
    Strategy("pp 2 x fsdp 2, ZBVZeroBubble", 4, {
        **_pipeline("ZBVZeroBubble", ranks=2, microbatches=4), "dp_shard_size": 2}),
    Strategy("pp 2 x dp 2, InterleavedZeroBubble", 4, _pipeline("InterleavedZeroBubble", ranks=2, microbatches=4)),
    Strategy("pp 2 x hsdp 2x2", 8, {**_pipeline("GPipe", ranks=2, microbatches=2), "dp_shard_size": 2}),
    Strategy("tp 2 x dp 2", 4, {"tp_size": 2}),
    Strategy("tp 2 x fsdp 2", 4, {"tp_size": 2, "dp_shard_size": 2}),
    Strategy("tp 2 x hsdp 2x2", 8, {"tp_size": 2, "dp_shard_size": 2, "dp_replicate_size": 2}),
    Strategy("pp 2 x tp 2", 4, {**_pipeline("1F1B", ranks=2, microbatches=4), "tp_size": 2}),
    Strategy("pp 2 x tp 2 x dp 2", 8, {**_pipeline("1F1B", ranks=2, microbatches=4), "tp_size": 2}),
    Strategy("pp 2 x tp 2 x fsdp 2", 8, {
        **_pipeline("1F1B", ranks=2, microbatches=4), "tp_size": 2, "dp_shard_size": 2}),
    Strategy("branch 2 x dp 2", 4, {"branch_size": 2}),
    Strategy("branch 2 x fsdp 2", 4, {"branch_size": 2, "dp_shard_size": 2}),
    Strategy("branch 2 x tp 2", 4, {"branch_size": 2, "tp_size": 2}),
    Strategy("branch 2 x pp 2", 4, {**_pipeline("1F1B", ranks=2, microbatches=4), "branch_size": 2}),
)  # fmt: skip
BY_NAME = {strategy.name: strategy for strategy in STRATEGIES}


def ready_configurations() -> list[Strategy]:
    """Return rows for the parallel configurations in hyperparams/.

    They keep their widths, degrees and schedules. Data, encoders, precision and global batch are those of the other
    rows, and the number of microbatches is limited by the number of records.
    """
    rows = [_ready(json.loads(path.read_text()), path.stem) for path in sorted(_READY.glob("*.json"))]
    return [row for row in rows if any(about_processes(key) for key in row.settings)]


def _ready(values: dict[str, Any], name: str) -> Strategy:
    settings = {
        key: value
        for key, value in values.items()
        if key in _WIDTHS or (key in Hyperparameters.model_fields and about_processes(key) and key != "nproc_per_node")
    }
    sizes = (max(1, settings.get(f"{axis}_size", 1)) for axis in AXES)
    world_size = max(math.prod(sizes), values.get("nproc_per_node", _GPUS))
    if "num_microbatches" in settings:
        data_size = world_size // settings["pp_size"] // settings.get("tp_size", 1)
        settings["num_microbatches"] = math.gcd(settings["num_microbatches"], GLOBAL_BATCH // data_size)
    return Strategy(f"hyperparams/{name}.json", world_size, settings)
