"""Estimate the memory of a job whose data is prepared; runs as a program, because the supervisor imports no torch."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from container.data.split import PreparedSplit
from container.parallel.degrees import ParallelDegrees
from container.parallel.encoder_checks import EncoderShape
from container.planning.catalogue import Catalogue
from container.planning.memory import GIB, Memory, Rank, step_memory
from container.planning.workload import SAMPLE_ROWS, Workload
from container.preprocessing.prepared import open_prepared
from container.text.encoder_config import read_config
from container.training.precision import precision_of
from contracts.errors import ContractError
from contracts.hyperparameter_files import parse_hyperparameters

_SUGGESTED = 3


def main(arguments: Sequence[str]) -> int:
    """Print the estimate of a question of container/planning/estimate.py as JSON."""
    question = json.loads(arguments[0])
    work = of_prepared(question["settings"], Path(question["prepared"]))
    gpu = torch.cuda.get_device_properties(0).total_memory / GIB if torch.cuda.is_available() else None
    hosts, per_host = question["hosts"], question["per_host"]
    memory = rank_memory(work, {}, hosts=hosts, per_host=per_host)
    suggestions = []
    if gpu is None or memory.total / GIB > gpu or question["explain"]:
        suggestions = list(_suggestions(work, hosts=hosts, per_host=per_host))
    better = sorted((each for each in suggestions if each[1] < memory.total), key=lambda each: each[1])[:_SUGGESTED]
    larger = [name for name, each in Catalogue.load().instances.items() if each.memory_gib * GIB > memory.total]
    answer = {
        "memory_gib": memory.in_gib(),
        "largest": memory.largest(),
        "gpu_gib": gpu,
        "suggestions": [[json.dumps(settings), round(total / GIB, 2)] for settings, total in better],
        "instances": larger[:3],
    }
    print(json.dumps(answer))
    return 0


def of_prepared(settings: Mapping[str, Any], folder: Path) -> Workload:
    """Return the workload of prepared data, with the lengths of its first records."""
    prepared, hp = open_prepared(folder), parse_hyperparameters(dict(settings))
    roles = [field.role for field in hp.text_fields]
    arrays = PreparedSplit(prepared.split("train"), roles).arrays()
    sample = [
        tuple(tuple(text.chunks(i).tolist()) for text in part.texts)
        for part in arrays
        for i in range(min(len(part.row), SAMPLE_ROWS))
    ]
    folders = tuple(prepared.encoders[role].config_folder for role in roles)
    shapes = tuple(
        EncoderShape(field.role, field.tokenizer, read_config(each))
        for field, each in zip(hp.text_fields, folders, strict=True)
    )
    return Workload(hp, shapes, folders, dict(prepared.rows), tuple(sample[:SAMPLE_ROWS]))


def rank_memory(work: Workload, settings: Mapping[str, Any], *, hosts: int, per_host: int) -> Memory:
    """Return the memory of the largest rank of the job with other settings, on this machine's kind of device."""
    hp = work.with_settings({**settings, "compile": False})
    changed = replace(work, hp=hp)
    degrees = ParallelDegrees.resolve(hp, hosts * per_host, per_host=per_host)
    on_gpu = torch.cuda.is_available()
    precision = precision_of(hp, torch.device("cuda" if on_gpu else "cpu"))
    count = hp.num_microbatches if degrees.pp > 1 else 1
    batch = changed.batch(max(1, hp.batch_size // count))
    return step_memory(Rank(lambda: changed.build(hp), hp, degrees, [batch] * count, precision, on_gpu))


def _suggestions(work: Workload, *, hosts: int, per_host: int) -> Iterator[tuple[dict[str, Any], float]]:
    """Yield settings that need less memory, with the total of each."""
    hp = work.hp
    changes: list[dict[str, Any]] = [{"activation_checkpointing": 1}]
    if hp.batch_size > 1:
        passes = 2 * hp.accumulate_grad_batches
        changes.append({"batch_size": hp.batch_size // 2, "accumulate_grad_batches": passes})
    changes.append({"max_tokens_per_batch": max(1, work.batch(hp.batch_size).num_tokens // 4)})
    if hosts * per_host > 1 and hp.strategy in ("auto", "ddp"):
        changes.append({"strategy": "fsdp"})
    if torch.cuda.is_available() and not hp.fp16 and hp.bf16 is False:
        changes.append({"bf16": True})
    changes.append({"lora_rank": 8, "reinit_layers": 0})
    for settings in changes:
        try:
            yield settings, rank_memory(work, settings, hosts=hosts, per_host=per_host).total
        except ContractError:
            continue
