"""Measure serving with MiniLM: the handler compared with the ONNX session alone, and many clients over HTTP."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from benchmarks.printing import print_machine, print_table
from benchmarks.review_data import COLUMNS, REPOSITORY, generate_reviews, lay_out_job, require_minilm
from container.cores import available_cores
from container.data.records import pad_text
from container.preprocessing.transform import Preprocessor
from container.tables.records import records_to_table
from contracts import artifacts
from contracts.serving import CSV, JSON
from testing.serving import many_clients, serving

_WARM_UP = 10
_MOST_HANDLER = 1.5
_ROWS = {"train": 48, "val": 24, "test": 24}


def main() -> int:
    """Return 1 if the handler is too slow, or if the server lost or changed an answer."""
    arguments = _arguments()
    encoder = require_minilm()
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        root = arguments.root or Path(folder)
        if not (root / "model" / artifacts.MODEL_ONNX).is_file():
            train_to_serve(root, encoder)
        os.environ["SERVING_THREADS"] = str(arguments.threads)
        handler_is_fast = _measure_handler(root / "model", threads=arguments.threads, repeats=arguments.repeats)
        nothing_lost = arguments.clients == 0 or _measure_server(
            root, clients=arguments.clients, requests=arguments.requests, threads=arguments.threads
        )
    return 0 if handler_is_fast and nothing_lost else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--threads", type=int, default=available_cores(), help="threads of ONNX Runtime; default: number of cores"
    )
    parser.add_argument("--repeats", type=int, default=200, help="predictions of the single record")
    parser.add_argument("--clients", type=int, default=200, help="concurrent clients; 0 skips the server")
    parser.add_argument("--requests", type=int, default=10, help="requests per client")
    parser.add_argument("--root", type=Path, help="job folder; an existing job is used again")
    return parser.parse_args()


def train_to_serve(root: Path, encoder: Path) -> None:
    """Run a short job on generated reviews; the weights do not matter here."""
    tables = {split: next(generate_reviews(rows, seed=i)) for i, (split, rows) in enumerate(_ROWS.items())}
    text = {"model_class": "multimodal_bert", "text_name": "Review Text", "tokenizer": str(encoder)}
    lay_out_job(root, tables, {**COLUMNS, **text, "max_epochs": 1, "batch_size": 8})
    print("Training a model to serve", flush=True)
    command = [sys.executable, "-m", "container", "train", "--root", str(root)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the job ended with exit code {done.returncode}:\n{done.stdout[-2000:]}")


def _records(rows: int) -> list[dict[str, Any]]:
    return next(generate_reviews(rows, seed=9)).drop(["review_id", "Recommended IND"]).to_pylist()


def _measure_handler(model: Path, *, threads: int, repeats: int) -> bool:
    """Time all in alternation, so that machine load affects them equally; return whether the handler is fast enough."""
    from container.serving import handler

    record = max(_records(50), key=lambda review: len(review["Review Text"] or ""))
    served = handler.model_fn(str(model))
    feed, tokens = _feed(model, record)
    # Use the handler's session, because the waiting threads of a second session would slow the other computations.
    session: onnxruntime.InferenceSession = served._predictor._backend._session
    as_json = json.dumps(record).encode()
    as_csv = _csv(record, served.feature_inputs)

    def whole(body: bytes, content_type: str) -> bytes:
        request = handler.input_fn(body, content_type)
        return handler.output_fn(handler.predict_fn(request, served), content_type)[0]

    ways: dict[str, Callable[[], object]] = {
        "ONNX session alone": lambda: session.run(["probabilities"], feed),
        "handler, JSON in, JSON out": lambda: whole(as_json, JSON),
        "handler, CSV in, CSV out": lambda: whole(as_csv, CSV),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    processor: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(_WARM_UP + repeats):
        for name, compute in ways.items():
            began, used = time.perf_counter(), time.process_time()
            compute()
            if turn >= _WARM_UP:
                seconds[name].append(time.perf_counter() - began)
                processor[name].append(time.process_time() - used)
    session_alone = float(np.median(seconds["ONNX session alone"]))
    ratios = {name: float(np.median(spent)) / session_alone for name, spent in seconds.items()}
    rows = []
    for name, spent in seconds.items():
        half, most = (1000 * float(np.percentile(spent, share)) for share in (50, 99))
        cpu = 1000 * float(np.median(processor[name]))  # with one thread it does not depend on machine load
        times = (f"{milliseconds:.2f} ms" for milliseconds in (half, most, 1000 * min(spent), cpu))
        rows.append([name, *times, f"{ratios[name]:.2f}x"])
    title = f"One record of {tokens} tokens, MiniLM, {threads} threads, {repeats} times each"
    columns = [
        "way",
        "p50",
        "p99",
        "fastest",
        "CPU, p50",
        f"ratio of p50 to the session alone (at most {_MOST_HANDLER}x)",
    ]
    print_table(title, columns, rows)
    return max(ratios.values()) <= _MOST_HANDLER


def _feed(model: Path, record: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], int]:
    """Return the graph's inputs for a record, and its number of tokens."""
    from container.data.records import RecordArrays

    preprocessor = Preprocessor.load(model)
    field = preprocessor.fitted.text_fields[0]
    arrays = RecordArrays.from_batch(preprocessor.transform(records_to_table([record])).batch, [field.role])
    text = arrays.texts[0].take(np.array([0]))
    ids, mask = pad_text(text)
    feed = {"input_ids": ids, "attention_mask": mask, "tabular": arrays.tabular}  # the default names
    return feed, len(text.tokens)


def _csv(record: Mapping[str, Any], columns: Sequence[str]) -> bytes:
    cells = ('"{}"'.format(str(record[name]).replace('"', '""')) for name in columns)
    return ",".join(cells).encode() + b"\n"


def _measure_server(root: Path, *, clients: int, requests: int, threads: int) -> bool:
    """Send requests from many clients; return whether every answer equals that of the record alone."""
    from container.predictor import Predictor

    records = _records(60)
    predictor = Predictor.load(root / "model", threads=threads)
    alone = np.concatenate([predictor.predict([record]) for record in records])
    rows, fine = [], True
    with serving(root) as server:
        many_clients(server.port, records, alone, clients=4, requests=5)
        for count in (1, clients):
            load = many_clients(server.port, records, alone, clients=count, requests=requests if count > 1 else 100)
            errors = len(load.lost) + sum(number for status, number in load.statuses.items() if status != 200)
            fine = fine and errors == 0 and load.furthest < 1e-4
            times = (f"{load.percentile(share):.1f} ms" for share in (50, 99))
            rate = f"{len(load.seconds) / load.elapsed:.0f}/s"
            rows.append([str(count), str(len(load.seconds)), *times, rate, str(errors), f"{load.furthest:.0e}"])
            if errors:
                print(f"{count} clients: {load}", *load.lost[:5], sep="\n", flush=True)
        code = server.stop()
    columns = ["clients", "answers", "p50", "p99", "answered", "errors", "probability differs by"]
    print_table(f"Over HTTP, one record per request, exit code {code} after SIGTERM", columns, rows)
    return fine and code == 0


if __name__ == "__main__":
    sys.exit(main())
