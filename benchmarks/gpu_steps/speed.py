"""Speed of training in bfloat16: ours, eager and compiled, beside Hugging Face's model; and what a step consists of."""

import shutil
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.encoders import BASE, LARGE, SMALL, TINY, Shape
from benchmarks.gpu_steps.clock import now, product_tflops
from benchmarks.gpu_steps.recorder import Recorder
from benchmarks.gpu_steps.trace import MOST_BYTES, cost, trace_step
from benchmarks.gpu_steps.training_step import BATCHES, Batch, HuggingFaceStep, OurStep, init_one_process
from container.data.filling import shapes_of
from container.job.processes import missing_for_compile

DATASHEET = 989.0  # dense bfloat16 TFLOP/s of an H100 or H200 (SXM)
COMPILED, AS_LARGE_AS_FITS = "packed, compiled", "as large as fits"
GRAPHS: dict[str, dict[str, bool]] = {"": {}, ", graphs": {"graphs": True}}
UPDATE = {", graphs, also of the update": {"graphs": True, "update_graph": True}}
COMBO = {", graphs, combo kernels": {"graphs": True, "combo_kernels": True}}
TRACE = "trace.json.gz"
MEASURED = 1.0  # seconds at least
LARGEST_DIFFERENCE = 0.02  # relative: bfloat16 has 8 bits
COMPARED = 4  # steps; a graph computes the third and the fourth
SHARE_OF_MEMORY = 0.9  # that the largest batch is chosen for
Build = Callable[[], Any]


def run(check: Recorder) -> None:
    check.fork("the ceiling", partial(_measure_ceiling, check))
    shapes = (TINY,) if check.tiny else (BASE, SMALL, LARGE)
    rows = [(number, shape, *mode) for shape in shapes for number, mode in enumerate(_modes(check, shape))]
    # Compiled modes take longest, so the last may be left out: each comes for all shapes before the next one.
    for _, shape, mode, build, seconds in sorted(rows, key=lambda row: row[0] * row[2].startswith(COMPILED)):
        if check.has_time(seconds, f"{shape.name}, {mode}"):
            # A process each: what torch.compile leaves in one makes the host slower.
            check.fork(f"{shape.name}, {mode}", partial(_measure_mode, check, shape, mode, build))
    tokens: dict[tuple[str, int], set[int]] = {}
    for row in check.findings.figures.get("speed", []):
        if "tokens" in row and AS_LARGE_AS_FITS not in row["mode"]:
            tokens.setdefault((row["shape"], row["records"]), set()).add(row["tokens"])
    check.holds("every mode has the same number of tokens", all(len(counts) == 1 for counts in tokens.values()))


def _measure_ceiling(check: Recorder) -> None:
    check.figure("product_tflops", round(product_tflops(check.device, size=256 if check.tiny else 8192), 4))
    check.figure("datasheet_tflops", DATASHEET)


def _modes(check: Recorder, shape: Shape) -> list[tuple[str, Build, float]]:
    """Return the name of each mode, how to build its step, and the seconds that it needs at least."""
    folder = check.folder / shape.name.replace(" ", "")
    modes: list[tuple[str, Build, float]] = []
    missing = missing_for_compile()
    compiles = check.on_gpu and missing is None
    for name, compiled, seconds in (("packed, eager", False, 8), (COMPILED, True, 40)):
        # Each compiled mode takes long: what is added is measured where it counts most.
        combinations = GRAPHS | (UPDATE if not compiled or shape in (SMALL, TINY) else {})
        combinations |= COMBO if compiled and shape in (BASE, TINY) else {}
        for suffix, options in combinations.items() if compiles or not compiled else ():
            modes.append(
                (name + suffix, partial(OurStep, folder, shape, bf16=True, compile=compiled, **options), seconds)
            )
    if not compiles:
        check.note(f"{shape.name}: not compiled: {missing or 'only on a GPU'}")
    for name, length in (("grouped by length", None), (f"padded to {shape.longest}", shape.longest)):
        modes.append((f"Hugging Face, {name}", partial(HuggingFaceStep, shape, check.device, padded_to=length), 8))
    return modes


def _measure_mode(check: Recorder, shape: Shape, mode: str, build: Build) -> None:
    init_one_process()
    step = build()
    if isinstance(step, OurStep):
        _compare(check, shape, mode, step)
    peaks, row = {}, {}
    for records in (2, 4) if check.tiny else (32, 128):
        row = _measure(check, shape, step, records)
        check.add("speed", {"shape": shape.name, "mode": mode, **row})
        if "peak_bytes" in row:
            peaks[records] = row["peak_bytes"]
    if isinstance(step, OurStep):
        if shape in (BASE, TINY):
            _trace(check, shape, mode, step, records=4 if check.tiny else 128, milliseconds=row.get("ms"))
        if len(peaks) == 2 and step.graphs is None and check.has_time(10, f"{shape.name}, {mode}, the largest batch"):
            records = _largest(peaks)
            while records >= 32:
                row = _measure(check, shape, step, records, batches=3)
                check.add("speed", {"shape": shape.name, "mode": f"{mode}, {AS_LARGE_AS_FITS}", **row})
                if "peak_bytes" in row:
                    break
                records = int(0.8 * records) // 32 * 32


def _compare(check: Recorder, shape: Shape, mode: str, step: OurStep) -> None:
    """Compare losses and gradient norms with those of the first mode, which has the same weights and batch."""
    batch = step.batches(2 if check.tiny else 16)[0]
    found = [scalar.item() for _ in range(COMPARED) for scalar in step(batch.inputs)]
    figures = check.findings.figures
    first = f"first steps of {shape.name}"
    if first not in figures:
        check.figure(first, found)
        return
    difference = max(abs(ours - theirs) / abs(theirs) for ours, theirs in zip(found, figures[first]))
    check.at_most(f"{shape.name}, {mode}: losses and gradient norms", difference, LARGEST_DIFFERENCE)


def _measure(check: Recorder, shape: Shape, step: Any, records: int, *, batches: int = BATCHES) -> dict[str, Any]:
    """Return a row of the table; of real tokens only, over batches of different lengths."""
    drawn: list[Batch] = step.batches(records)[:batches]
    row = {"records": records, "tokens": sum(sum(batch.lengths) for batch in drawn)}
    try:
        graphs = getattr(step, "graphs", None)
        for batch in drawn if graphs is None else drawn * 3:  # allocates, compiles for these lengths, makes graphs
            step(batch.inputs)
        if graphs is not None:
            shapes = {shapes_of(batch.inputs) for batch in drawn}
            check.holds(f"{records} records: a graph for each shape", len(graphs) >= len(shapes), value=len(shapes))
        if check.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        started = now(check.device)
        rounds = 0
        while rounds == 0 or (time.perf_counter() - started < MEASURED and not check.tiny):
            for batch in drawn:
                step(batch.inputs)
            rounds += 1
        seconds = now(check.device) - started
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return {**row, "failed": "out of memory"}
    flops = sum(shape.flops(batch.lengths, first_tokens_only=step.first_tokens_only) for batch in drawn)
    tflops = rounds * flops / seconds / 1e12
    ceiling = check.findings.figures["product_tflops"]
    row |= {
        "tokens_per_s": round(rounds * row["tokens"] / seconds),
        "tflops": round(tflops, 3),
        "mfu": round(tflops / DATASHEET, 4),
        "share_of_product": round(tflops / ceiling, 4),
        "ms": round(1000 * seconds / rounds / len(drawn), 2),
    }
    return row | ({"peak_bytes": torch.cuda.max_memory_allocated()} if check.on_gpu else {})


def _largest(peaks: dict[int, int]) -> int:
    """Return the most records that fit, a multiple of 32, from the memory of two batches; at most 2,048."""
    (few, low), (many, high) = sorted(peaks.items())
    for_each = max(1, (high - low) // (many - few))
    free = SHARE_OF_MEMORY * torch.cuda.get_device_properties(0).total_memory - (low - few * for_each)
    return int(min(2048, free / for_each)) // 32 * 32


def _trace(
    check: Recorder, shape: Shape, mode: str, step: OurStep, *, records: int, milliseconds: float | None
) -> None:
    """Record the costs of one step; the trace of the first is a file of the check.

    Args:
        milliseconds: of a step among others, without the profiler; one alone would begin with an idle GPU.
    """
    batch = step.batches(records)[0]
    path = check.folder / "trace.json.gz"
    costs = cost(trace_step(lambda: step(batch.inputs), path, cuda=check.on_gpu))
    if milliseconds is not None:
        costs |= {"step": milliseconds, "idle_share": max(0.0, 1 - costs["busy"] / milliseconds)}
    check.figure(f"step of {shape.name}, {mode}, {records} records", costs)
    target = check.out / TRACE
    if not any(name.startswith("trace of") for name in check.findings.figures) and path.stat().st_size < MOST_BYTES:
        shutil.copy(path, target)
        check.figure(f"trace of {shape.name}, {mode}", target.name)
    check.only_on_gpu("kernels, waits, copies and idle time of a step")
