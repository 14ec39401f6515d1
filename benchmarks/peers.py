"""Compare whole jobs on the clothing reviews with Hugging Face Trainer and AutoGluon Multimodal.

The jobs have the same rows, epochs, validations and cores, and take turns. Where there is a GPU, each uses one, in
bfloat16. Each runs from the start of its interpreter
to a checked model.onnx. A peer joins two texts into one sequence. Ours joins them too, or has an encoder for each text,
or one for both (share_encoder).
"""

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import harmonic_mean, median
from typing import Any

import psutil
import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer

from benchmarks.encoders import SMALL, Shape
from benchmarks.printing import print_machine, print_table
from benchmarks.review_data import ONE_TEXT, REPOSITORY, TWO_TEXTS, read_reviews, require_minilm
from benchmarks.review_jobs import LOG, train_on_reviews

THREADS = int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0))))
GPU = torch.cuda.is_available()  # every system uses one
BATCH_SIZE, LR, LR_END, WARMUP, VAL_CHECK_INTERVAL = 32, 1e-4, 5e-6, 0.1, 0.25  # the last three: our defaults
TRAINER = {
    "use_cpu": not GPU, "bf16": GPU, "dataloader_pin_memory": GPU, "disable_tqdm": True, "num_train_epochs": 1,
    "per_device_train_batch_size": BATCH_SIZE, "per_device_eval_batch_size": BATCH_SIZE,
    "learning_rate": LR, "warmup_steps": WARMUP,
    "lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"lr_end": LR_END, "power": 1.0},
    "eval_strategy": "steps", "eval_steps": VAL_CHECK_INTERVAL, "metric_for_best_model": "auroc",
    "save_strategy": "steps", "save_steps": VAL_CHECK_INTERVAL, "save_total_limit": 2, "load_best_model_at_end": True,
}  # fmt: skip
AUTOGLUON = {
    "model.names": ["hf_text"], "model.hf_text.max_text_len": 512, "model.hf_text.text_trivial_aug_maxscale": 0.0,
    "optim.lr": LR, "optim.lr_choice": "single_stage", "optim.warmup_steps": WARMUP, "optim.max_epochs": 1,
    "optim.lr_schedule": "polynomial_decay", "optim.end_lr": LR_END, "optim.weight_decay": 0.0,
    "optim.val_check_interval": VAL_CHECK_INTERVAL, "optim.top_k_average_method": "best",
    "env.num_gpus": int(GPU), "env.precision": "bf16-mixed" if GPU else 32, "env.inference_batch_size_ratio": 1,
    "env.batch_size": BATCH_SIZE, "env.per_gpu_batch_size": BATCH_SIZE,
}  # fmt: skip
JOINED = "ours, joined"
ALONE = {"primary_text_name": None, "secondary_text_name": None, "model_class": "bert"}
OURS = {  # only the first with one text
    "ours": {},
    "ours, share_encoder": {"share_encoder": True},
    JOINED: {**ALONE, "text_name": [TWO_TEXTS["primary_text_name"], TWO_TEXTS["secondary_text_name"]]},
}
STRATEGIES = {"Trainer, group_by_length": "group_by_length", "Trainer, random order": "random"}
FROM_SCRATCH = Shape("from_scratch", layers=2, width=128, heads=2, batch_size=BATCH_SIZE)
COLUMNS = ("training rows/s", "share of GEMM", "whole job", "ratio to ours", "test AUROC", "AP", "F1", "peak memory")
NO_AUTOGLUON = (
    "AutoGluon is left out. To include it: uv venv -p 3.11 AG && uv pip install -p AG/bin/python autogluon.multimodal "
    "onnx onnxruntime onnxscript; then pass --autogluon AG/bin/python."
)


@dataclass(frozen=True)
class Result:
    """A finished job; `rate` is training rows per second, without validations and checkpoints."""

    rate: float
    seconds: float
    metrics: dict[str, Any]
    validations: int
    peak_bytes: int


def main() -> int:
    arguments = _arguments()
    encoder = require_minilm()
    print_machine()
    columns = dict(TWO_TEXTS if arguments.texts == 2 else ONE_TEXT, tab_field_list=[], cat_field_list=[])
    texts = [columns[name] for name in ("text_name", "primary_text_name", "secondary_text_name") if name in columns]
    print(f"{' + '.join(texts)} of {_write_inputs(arguments, encoder)}; command: {' '.join(sys.argv)}")
    ours = list(OURS) if arguments.texts == 2 and not arguments.from_scratch else ["ours"]
    systems = ours + ([] if arguments.from_scratch else list(STRATEGIES))
    systems += ["AutoGluon"] * bool(arguments.autogluon)
    if not (arguments.autogluon or arguments.from_scratch):
        print(NO_AUTOGLUON)
    shape = FROM_SCRATCH if arguments.from_scratch else SMALL
    results: dict[str, list[Result]] = {name: [] for name in systems}
    gemm, flops = [], {}
    for turn in range(arguments.rounds):
        for name in systems[turn % len(systems) :] + systems[: turn % len(systems)]:
            if name in ours:
                job = _ours(arguments, {**columns, **OURS[name], "seed": turn})
            else:
                job = _peer(name, texts, arguments, seed=turn)
            results[name].append(job)
        lengths = _lengths(arguments.work, texts)
        flops = dict.fromkeys(systems, shape.flops(tuple(map(sum, lengths))) / len(lengths))
        flops |= dict.fromkeys(ours, shape.flops(sum(lengths, ()), first_tokens_only=True) / len(lengths))
        flops[JOINED] = shape.flops(tuple(map(sum, lengths)), first_tokens_only=True) / len(lengths)
        gemm.append(shape.gemm_rate(BATCH_SIZE * sum(map(sum, lengths)) // len(lengths), threads=THREADS))
    _print(results, gemm, flops)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=int, choices=(1, 2), default=1, help="2: Review Text and Title")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--from-scratch", action="store_true", help="only ours, with small random encoders")
    kind.add_argument("--autogluon", type=Path, help="interpreter of an environment with autogluon.multimodal")
    for split, rows in (("train", 3000), ("val", 500), ("test", 1000)):
        parser.add_argument(f"--{split}-rows", type=int, default=rows)
    parser.add_argument("--work", type=Path, default=REPOSITORY / "build" / "peers", help="parent of the jobs' folders")
    return parser.parse_args()


def _write_inputs(arguments: argparse.Namespace, encoder: Path) -> str:
    """Write the rows and the peers' encoder, without attention dropout as in ours; return the rows' source."""
    data, copy = arguments.work / "data", arguments.work / "encoder"
    data.mkdir(parents=True, exist_ok=True)
    tables, source = read_reviews(generated=False, generated_rows=8 * arguments.train_rows)
    for split, table in tables.items():
        pq.write_table(table.slice(0, getattr(arguments, f"{split}_rows")), data / f"{split}.parquet")
    shutil.copytree(encoder, copy, dirs_exist_ok=True)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "attention_probs_dropout_prob": 0.0}))
    return source


def _ours(arguments: argparse.Namespace, settings: dict[str, Any]) -> Result:
    values = {
        **{name: value for name, value in settings.items() if value is not None},
        "nproc_per_node": 1,
        "batch_size": BATCH_SIZE,
        "lr": LR,
        "max_epochs": 1,
        "log_every_n_steps": 5,
    }
    values |= {"early_stop_metric": "val/auroc", "tokenizer": "from_scratch"}
    if not arguments.from_scratch:
        values |= {"tokenizer": str(require_minilm()), "reinit_layers": 0, "reinit_pooler": False}
    with _memory() as samples:
        job = train_on_reviews(arguments.work / "ours", values, data=arguments.work / "data")
    log = (arguments.work / "ours" / LOG).read_text()
    rates = [float(rate) for rate in re.findall(r"step \d+/\d+, .*?([\d.]+) rows/s", log)]
    rate = harmonic_mean(rates) if rates else math.nan  # a smoke test has no line of 5 steps
    return Result(rate, job.seconds, job.metrics, len(re.findall(r"metrics: step=", log)), max(samples))


def _peer(name: str, texts: list[str], arguments: argparse.Namespace, *, seed: int) -> Result:
    folder, encoder = arguments.work / "peer", str(arguments.work / "encoder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    job = {"folder": str(folder), "data": str(arguments.work / "data"), "encoder": encoder, "max_length": 512}
    job |= {"texts": texts, "label": ONE_TEXT["label_name"], "seed": seed}
    if name in STRATEGIES:
        job["training_arguments"] = {**TRAINER, "train_sampling_strategy": STRATEGIES[name], "seed": seed}
        command = [sys.executable, str(REPOSITORY / "benchmarks" / "peer_trainer.py")]
    else:
        job["hyperparameters"] = {**AUTOGLUON, "model.hf_text.checkpoint_name": encoder}
        command = [str(arguments.autogluon), str(REPOSITORY / "benchmarks" / "peer_autogluon.py")]
    settings, log = folder / "job.json", folder / LOG
    settings.write_text(json.dumps(job))
    print(f"Training {name}; its log: {log}", flush=True)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]  # Trainer would use all GPUs
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": visible,
        "OMP_NUM_THREADS": str(THREADS),
        "HF_HUB_OFFLINE": "1",
    }
    start = time.perf_counter()
    with _memory() as samples, log.open("w") as sink:
        status = subprocess.call([*command, str(settings)], env=environment, stdout=sink, stderr=subprocess.STDOUT)
    seconds = time.perf_counter() - start
    if status:
        sys.exit(f"{name} ended with exit code {status}:\n{log.read_text()[-2000:]}")
    results = json.loads((folder / "results.json").read_text())
    rate = arguments.train_rows / results["train_seconds"]
    return Result(rate, seconds, results, results["validations"], max(samples))


@contextmanager
def _memory() -> Iterator[list[int]]:
    """Sample the bytes of all child processes every second; a page that several processes share counts once (PSS)."""
    samples, ended = [0], threading.Event()

    def sample() -> None:
        while not ended.wait(1):
            with suppress(psutil.Error):  # a process has ended meanwhile
                children = psutil.Process().children(recursive=True)
                samples.append(sum(child.memory_full_info().pss for child in children))

    threading.Thread(target=sample, daemon=True).start()
    yield samples
    ended.set()


def _lengths(work: Path, texts: list[str]) -> list[tuple[int, ...]]:
    """Return the tokens of each training row's texts, counted with the finished job's tokenizer."""
    tokenizer = Tokenizer.from_file(str(next((work / "ours").glob("model/tokenizer/**/tokenizer.json"))))
    tokenizer.no_padding()
    columns = pq.read_table(work / "data" / "train.parquet", columns=texts).to_pydict().values()
    return list(zip(*([len(text) for text in tokenizer.encode_batch([v or "" for v in column])] for column in columns)))


def _print(results: dict[str, list[Result]], gemm: list[float], flops_per_row: dict[str, float]) -> None:
    def cells(name: str, turns: Sequence[int]) -> list[str]:
        jobs = [results[name][turn] for turn in turns]
        shares = [job.rate * flops_per_row[name] / gemm[turn] for turn, job in zip(turns, jobs)]
        ratios = [job.seconds / results["ours"][turn].seconds for turn, job in zip(turns, jobs)]
        scores = [[job.metrics[f"test/{name}"] for job in jobs] for name in ("auroc", "average_precision", "f1_score")]
        figures = {"{:.1f}": [job.rate for job in jobs], "{:.0%}": shares}
        figures |= {"{:.0f} s": [job.seconds for job in jobs], "{:.2f}x": ratios}
        cells = [form.format(median(values)) for form, values in figures.items()]
        peak = median(job.peak_bytes for job in jobs) / 2**30
        return [*cells, *(f"{median(values):.4f}" for values in scores), f"{peak:.2f} GiB"]

    turns = range(len(gemm))
    each = [[name, str(turn + 1), *cells(name, [turn])] for turn in turns for name in results]
    print_table("Each round", ("system", "round", *COLUMNS), each)
    validations = ", ".join(f"{name} {jobs[0].validations}" for name, jobs in results.items())
    print(f"Validations: {validations}. GEMM: {', '.join(f'{rate / 1e9:.0f}' for rate in gemm)} GFLOP/s.")
    print_table("Median of the rounds", ("system", *COLUMNS), [[name, *cells(name, turns)] for name in results])


if __name__ == "__main__":
    sys.exit(main())
