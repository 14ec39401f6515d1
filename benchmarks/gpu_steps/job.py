"""A whole job as users start it; then float32, eager and compiled, by the training loop alone."""

import json
import re
import subprocess
import sys
import time
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.encoders import SMALL
from benchmarks.encoders import TINY as TINY_SHAPE
from benchmarks.gpu_steps.processes import REPOSITORY
from benchmarks.gpu_steps.recorder import Recorder
from benchmarks.gpu_steps.runs import first_losses, forked_runs, loss_difference
from benchmarks.gpu_steps.trace import cost, fewest_waits, read_trace
from benchmarks.gpu_steps.training_step import OurStep, init_one_process
from container.data.filling import shapes_of
from container.demo import ROWS, SEED
from container.demo_data import CATEGORIES, write_demo_data
from container.job.processes import missing_for_compile
from container.predictor import Predictor
from contracts.paths import JobPaths
from testing.jobs import ONE_LAYER
from testing.parity import ADAMW, DROPOUT_OFF, ENCODER, ONE_PROCESS, Strategy

# Not compiled: the step speed measures that, and a job compiles for training, validation and prediction.
SETTINGS = {"batch_size": 32, "max_epochs": 2, "nproc_per_node": 1, "compile": False}
TINY = {"max_epochs": 1, "max_sen_len": 24, "explain": 0, "encoder_config": ONE_LAYER}
SERVED = 200  # records whose probabilities are compared
TRACED_STEPS = 3  # container/training/profiling.py
ROUNDS = 4  # over the batches of a comparison: a graph computes the third and the fourth


def run(check: Recorder) -> None:
    with check.part("whole job"):
        _whole_job(check)
    check.fork("graphs", partial(_graphs, check))
    with check.part("float32"):
        _float32(check)


def demo_job(check: Recorder, name: str, **settings: Any) -> list[str]:
    """Write the demo's data and return the command of its job with `settings`."""
    root = check.folder / name
    write_demo_data(root, rows=160 if check.tiny else ROWS, seed=SEED)
    values = {**SETTINGS, **(TINY if check.tiny else {}), **settings}
    given = [f"{key}={json.dumps(value)}" for key, value in values.items()]
    return [sys.executable, "-m", "testing.demo_job", str(root), *given]


def _whole_job(check: Recorder) -> None:
    started, lines = time.monotonic(), []
    command = demo_job(check, "job", bf16=check.on_gpu, profile=check.on_gpu)
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    check.holds("the job completes", process.wait() == 0, value=process.returncode)
    if process.returncode:
        return
    log, paths = "".join(lines), JobPaths(check.folder / "job")
    check.figure("seconds", round(time.monotonic() - started, 1))
    first = re.search(r"first optimizer step done ([\d.]+) s after train began: (.*)", log)
    check.figure("first_step", {"seconds": float(first[1]), "phases": first[2]} if first else None)
    phases = re.search(r"time of each phase: (.*)", log)
    check.figure("phases", phases[1] if phases else None)
    check.figure("tokens_per_s", [float(rate) for rate in re.findall(r"([\d.]+) tokens/s", log)][-1:])
    check.figure(
        "says",
        [
            line[9:].strip()
            for line in lines
            if re.search("matrix products in|encoder layers are|memory in GiB|cuda_graphs", line)
        ],
    )
    metrics = json.loads((paths.output_data / "metrics.json").read_text())
    check.figure("test_auroc", metrics["test/auroc"])
    if not check.tiny:
        check.holds("the demo's job learns: test AUROC of at least 0.75", metrics["test/auroc"] >= 0.75)
    _served(check, paths)
    if check.only_on_gpu("host waits of a job's step"):
        trace = read_trace(paths.output_data / "profile" / "trace.rank0.json.gz")
        costs = cost(trace, steps=TRACED_STEPS)
        check.figure("step", costs)
        check.at_most("host waits of a step without a capture", fewest_waits(trace), 1)


def _served(check: Recorder, paths: JobPaths) -> None:
    """Compare model.onnx on the CPU with the final predictions of the job's device."""
    files = sorted(paths.channel("test").glob("*.csv"))
    records = pd.concat([pd.read_csv(path, dtype=dict.fromkeys(CATEGORIES, "str")) for path in files])[:SERVED]
    predicted = pd.read_csv(paths.output_data / "test_predictions.csv").filter(like="prob_class_").to_numpy()
    served = Predictor.load(paths.model).predict(records)
    difference = float(np.abs(served - predicted[: len(served)]).max())
    check.at_most("probabilities of model.onnx and of the device", difference, 1e-4)


def _graphs(check: Recorder) -> None:
    """Compare the losses of steps, half of which are replayed, with those of eager steps on the same batches."""
    init_one_process()
    losses, shape = [], TINY_SHAPE if check.tiny else SMALL
    for options in ({}, {"graphs": True, "update_graph": True}):
        step = OurStep(check.folder / "graphs", shape, bf16=False, compile=False, **options)
        batches = [batch.inputs for batch in step.batches(32)]
        losses.append([step(batch)[0].item() for batch in batches * ROUNDS])
    shapes = len(set(map(shapes_of, batches)))
    check.holds("a graph for each shape of the batches", len(step.graphs or ()) == shapes, value=shapes)
    difference = max(abs(ours - theirs) / theirs for ours, theirs in zip(*losses[::-1]))
    check.at_most(f"{len(losses[0])} losses, graphs, also of the update, and eager", difference, 1e-4)


def _float32(check: Recorder) -> None:
    """Compare losses: eager, again with activation checkpointing, and compiled."""
    larger = {} if check.tiny else {"hidden_size": 256, "intermediate_size": 1024}
    encoder = {**ENCODER, **larger, "hidden_dropout_prob": 0.0}
    settings = {**DROPOUT_OFF, **ADAMW, "encoder_config": encoder, "cuda_graphs": False}
    with forked_runs(check.folder / "float32") as (_, jobs):
        (eager,) = jobs.train(ONE_PROCESS, settings)
        check.figure("losses", first_losses(eager))
        (again,) = jobs.train(Strategy("checkpointing", 1, {"activation_checkpointing": 1}), settings)
        check.at_most("first ten losses, activation checkpointing and without", loss_difference(again, eager), 1e-4)
        if check.only_on_gpu("losses of graphs"):
            (graphs,) = jobs.train(Strategy("graphs", 1, {"cuda_graphs": True}), settings)
            check.at_most("first ten losses, graphs and eager", loss_difference(graphs, eager), 1e-4)
        missing = missing_for_compile()
        if missing is not None or not check.only_on_gpu("losses of compiled layers"):
            check.note(f"not compiled: {missing or 'no GPU'}")
        elif check.has_time(30, "compiled layers"):
            (compiled,) = jobs.train(Strategy("compiled", 1, {"compile": True}), settings)
            check.at_most("first ten losses, compiled and eager", loss_difference(compiled, eager), 1e-4)
