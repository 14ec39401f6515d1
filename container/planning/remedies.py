"""Say what would make a model fit that fits nowhere."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from container.parallel.degrees import ParallelDegrees
from container.planning.catalogue import Catalogue
from container.planning.memory import GIB, Memory, Rank, step_memory
from container.planning.options import SPARE, Option
from container.planning.workload import Workload
from contracts.errors import ContractError

_LORA = {"lora_rank": 8, "reinit_layers": 0}


def remedies(work: Workload, catalogue: Catalogue, found: Sequence[Option]) -> list[str]:
    """Return changes of the job, each with the memory of a process that has a record per pass, smallest first."""
    if not found:
        return []
    largest = max(found, key=lambda option: option.instance.memory_gib).instance
    room = largest.memory_gib * (1 - SPARE)
    half = max(8, min(field.max_sen_len for field in work.hp.text_fields) // 2)
    changes: dict[str, Mapping[str, Any]] = {
        "LoRA (lora_rank=8)": _LORA,
        f"half of the tokens (max_sen_len={half})": {"max_sen_len": half},
        "activation_checkpointing=1": {"activation_checkpointing": 1},
    }
    lines = []
    for name, settings in changes.items():
        try:
            memory = one_record(work, {"batch_size": 1, **settings}, on_gpu=largest.gpu is not None)
        except ContractError:
            continue
        lines.append((memory.total, name))
    return [
        f"{name}, batch_size=1: {size / GIB:.1f} GiB, which {'fits' if size / GIB <= room else 'does not fit'} on "
        f"{largest.name} ({largest.memory_gib:g} GiB)"
        for size, name in sorted(lines)
    ] + ["another encoder: " + _other(work, catalogue)]


def one_record(work: Workload, settings: Mapping[str, Any], *, on_gpu: bool) -> Memory:
    """Return the memory of one process with these settings."""
    hp = work.with_settings({**settings, "compile": False})
    limit = min(field.max_sen_len for field in hp.text_fields)
    sample = tuple(tuple(tuple(min(limit, n) for n in text) for text in record) for record in work.sample)
    changed = replace(work, hp=hp, sample=sample)
    half = torch.bfloat16 if on_gpu else torch.float32
    return step_memory(
        Rank(lambda: changed.build(hp), hp, ParallelDegrees(), [changed.batch(hp.batch_size)], half, on_gpu)
    )


def _other(work: Workload, catalogue: Catalogue) -> str:
    layers = [shape.layers for shape in work.encoders]
    known = [
        f"{name} ({entry.get('num_hidden_layers', entry.get('n_layers', 12))} layers)"
        for name, entry in catalogue.encoders.items()
        if entry.get("num_hidden_layers", entry.get("n_layers", 12)) < max(layers)
    ]
    return f"yours have {' and '.join(map(str, layers))} layers; {', '.join(known[:4]) or 'take one with fewer'}"
