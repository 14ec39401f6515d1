"""Read what one step cost from its trace: kernels, waits of the host, copies, idle time of the GPU."""

import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of the trace's events
WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy")
MOST_BYTES = 16 << 20


def trace_step(step: Callable[[], object], path: Path, *, cuda: bool) -> list[dict[str, Any]]:
    """Run a step under the profiler, write its trace to `path` (.json.gz) and return the trace's events."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    for _ in range(2):  # the first starts the profiler
        with profile(activities=activities, acc_events=True) as profiled:
            step()
            if cuda:
                torch.cuda.synchronize()
    profiled.export_chrome_trace(str(path))
    return read_trace(path)


def read_trace(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        return json.load(file)["traceEvents"]


def cost(events: Iterable[dict[str, Any]], *, steps: int = 1) -> dict[str, Any]:
    """Return the costs per step of the events of some steps; times in milliseconds.

    Returns:
        span, busy: from the first to the last work of the GPU, and the time in it with any work.
        kernels: number of kernels.
        costliest: [name, number, time, share of the busy time] of the ten kernels with the most time.
        operations: time of the kernels that each operation of PyTorch launched, the twenty with the most time.
        waits: number of calls in which the host waits for the GPU, by name.
        copies: [number, time] of the copies between host and GPU, by name.
    """
    events = [event for event in events if event.get("ph") == "X"]
    work = sorted((event for event in events if event.get("cat") in ON_GPU), key=lambda event: event["ts"])
    kernels, copies, operations = defaultdict(list), defaultdict(list), defaultdict(float)
    names = {_id(event): event["name"] for event in events if event.get("cat") == "cpu_op" and _id(event) is not None}
    for event in work:
        milliseconds = event["dur"] / 1000 / steps
        (kernels if event["cat"] == "kernel" else copies)[event["name"]].append(milliseconds)
        if event["cat"] == "kernel":
            operations[names.get(_id(event), "unknown")] += milliseconds
    busy = _union(work) / 1000 / steps
    calls = [event["name"] for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver")]
    rows = [[name, len(each) / steps, sum(each), sum(each) / busy] for name, each in kernels.items()]
    return {
        "span": (work[-1]["ts"] + work[-1]["dur"] - work[0]["ts"]) / 1000 / steps if work else 0.0,
        "busy": busy,
        "kernels": sum(map(len, kernels.values())) / steps,
        "costliest": sorted(rows, key=lambda row: -row[2])[:10],
        "operations": dict(sorted(operations.items(), key=lambda pair: -pair[1])[:20]),
        "waits": {name: calls.count(name) / steps for name in WAITS if name in calls},
        "copies": {name: [len(each) / steps, sum(each)] for name, each in copies.items()},
    }


def fewest_waits(events: Iterable[dict[str, Any]]) -> int:
    """Return the host's waits in that step of a job's trace which has the fewest: another one may make a graph."""
    events = [event for event in events if event.get("ph") == "X"]
    steps = [
        event for event in events if event["name"].startswith("ProfilerStep") and event["cat"] == "user_annotation"
    ]
    at = [event["ts"] for event in events if event["name"] in WAITS]
    return min(sum(step["ts"] <= ts < step["ts"] + step["dur"] for ts in at) for step in steps)


def _id(event: dict[str, Any]) -> Any:
    return event.get("args", {}).get("External id")


def _union(work: list[dict[str, Any]]) -> float:
    """Return the time that sorted events cover together."""
    covered = end = 0.0
    for event in work:
        begin, until = max(event["ts"], end), event["ts"] + event["dur"]
        covered += max(0.0, until - begin)
        end = max(end, until)
    return covered
