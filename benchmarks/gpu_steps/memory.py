"""Peak memory of a training step in 8 configurations, with what a prediction of it needs: memory.json."""

import gc
import json
from typing import Any

import torch

from benchmarks.encoders import BASE, LARGE, SMALL, TINY, Shape
from benchmarks.gpu_steps.recorder import Recorder
from benchmarks.gpu_steps.training_step import OurStep, init_one_process

FILE = "memory.json"
CONFIGURATIONS: tuple[tuple[Shape, int, bool, int], ...] = (  # shape, records, bfloat16, activation_checkpointing
    (BASE, 32, True, 0),
    (BASE, 128, True, 0),
    (BASE, 128, True, 1),
    (BASE, 32, False, 0),
    (SMALL, 128, True, 0),
    (SMALL, 128, False, 1),
    (LARGE, 32, True, 0),
    (LARGE, 64, True, 1),
)
STEPS = 3  # the optimizer has its state after the first


def run(check: Recorder) -> None:
    init_one_process()
    check.only_on_gpu("peak memory")
    rows = []
    tiny = ((TINY, 2, False, 0), (TINY, 2, False, 1))
    for shape, records, bf16, checkpointing in tiny if check.tiny else CONFIGURATIONS:
        what = f"{shape.name}, {records} records, {'bfloat16' if bf16 else 'float32'}, checkpointing {checkpointing}"
        if not check.has_time(8, what):
            continue
        with check.part(what):
            row = {"model": shape.name, "records": records, "bf16": bf16, "activation_checkpointing": checkpointing}
            rows.append({**row, **_measure(check, shape, records, bf16=bf16, activation_checkpointing=checkpointing)})
            check.add("memory", rows[-1])
            content = {"gpu": torch.cuda.get_device_name() if check.on_gpu else None, "rows": rows}
            (check.out / FILE).write_text(json.dumps(content, indent=1))
    if check.on_gpu:
        _compare(check, rows)


def _measure(check: Recorder, shape: Shape, records: int, **settings: Any) -> dict[str, Any]:
    gc.collect()
    if check.on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    step = OurStep(check.folder / "model", shape, compile=False, **settings)
    batches = step.batches(records)[:STEPS]
    for batch in batches:
        step(batch.inputs)
    peaks = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()) if check.on_gpu else (None, None)
    tokens = max(sum(batch.lengths) for batch in batches)
    return {"tokens": tokens, "max_allocated": peaks[0], "max_reserved": peaks[1], **step.held_bytes()}


def _compare(check: Recorder, rows: list[dict[str, Any]]) -> None:
    """Check that checkpointing and bfloat16 need less."""
    peak = {
        (row["model"], row["records"], row["bf16"], row["activation_checkpointing"]): row["max_allocated"]
        for row in rows
    }
    for fact, less, more in (
        ("activation checkpointing needs less memory", (BASE.name, 128, True, 1), (BASE.name, 128, True, 0)),
        ("bfloat16 needs less memory than float32", (BASE.name, 32, True, 0), (BASE.name, 32, False, 0)),
    ):
        if less in peak and more in peak:
            check.holds(fact, peak[less] < peak[more], value=[peak[less], peak[more]])
