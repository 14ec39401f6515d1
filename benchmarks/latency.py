"""Measure the latency of a single record with MiniLM: PyTorch, ONNX, the ONNX variants, and OpenVINO."""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from benchmarks.printing import print_machine, print_table
from benchmarks.review_data import COLUMNS, require_minilm
from container.data.batch import PackedBatch, PackedText
from container.export.onnx import export_onnx, feed_of
from container.export.variants import WRITERS
from container.models.build import build_classifier
from container.models.classifier import Classifier
from container.openvino_session import OpenvinoSession
from container.preprocessing.numeric_transform import NumericTransformParameters
from container.preprocessing.prepared import EncoderFiles
from contracts.artifacts import MODEL_ONNX, ONNX_OUTPUT, onnx_file
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.hyperparameters import Hyperparameters

_INPUTS = 6
_WARM_UP = 10


def main() -> int:
    arguments = _arguments()
    encoder = require_minilm()
    print_machine()
    hp, model = _classifier(encoder)
    record = _record(arguments.tokens)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / MODEL_ONNX
        export_onnx(model, hp, source, samples=[record])
        files = {"ONNX": source}
        for name, write in WRITERS.items():
            files[f"ONNX, {name}"] = Path(folder) / onnx_file(name)
            write(source, files[f"ONNX, {name}"], model)
        for threads in arguments.threads:
            _measure(model, hp, record, files, threads=threads, arguments=arguments)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=128, help="tokens of the record's text, in one chunk")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--provider", default="CPUExecutionProvider", help="of ONNX Runtime; PyTorch runs on the CPU")
    return parser.parse_args()


def _classifier(encoder: Path) -> tuple[Hyperparameters, Classifier]:
    settings = {
        "model_class": "multimodal_bert",
        "text_name": "Review Text",
        "reinit_layers": 0,
        "reinit_pooler": False,
    }
    hp = parse_hyperparameters({**COLUMNS, **settings, "tokenizer": str(encoder)})
    transform = NumericTransformParameters("none")
    files = [EncoderFiles(encoder, encoder)]
    return hp, build_classifier(hp, files, tabular_dim=_INPUTS, numeric_transform=transform).eval()


def _record(tokens: int) -> PackedBatch:
    """Return one record with one chunk of words in the vocabulary."""
    rng = np.random.default_rng(0)
    ids = np.concatenate([[101], rng.integers(1996, 20_000, tokens - 2), [102]])
    text = PackedText.of_chunks(torch.from_numpy(ids), lengths=[tokens], chunk_record=torch.zeros(1, dtype=torch.int64))
    return PackedBatch(
        texts=(text,),
        tabular=torch.from_numpy(rng.normal(size=(1, _INPUTS)).astype(np.float32)),
        labels=torch.zeros(1, dtype=torch.int64),
        rows=torch.zeros(1, dtype=torch.int64),
        weights=torch.ones(1),
    )


def _measure(
    model: Classifier,
    hp: Hyperparameters,
    record: PackedBatch,
    files: dict[str, Path],
    *,
    threads: int,
    arguments: argparse.Namespace,
) -> None:
    """Time all in alternation, so that machine load affects them equally, and print a table."""
    repeats = arguments.repeats
    torch.set_num_threads(threads)
    feed = feed_of(model, hp, record)
    ways: dict[str, Callable[[], np.ndarray]] = {"PyTorch": lambda: model(record).softmax(-1).numpy()}
    for name, path in files.items():
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(str(path), options, providers=[arguments.provider])
        ways[name] = lambda session=session: session.run([ONNX_OUTPUT], feed)[0]
    files = {**files, "OpenVINO": files["ONNX"]}
    openvino = OpenvinoSession(files["ONNX"], threads=threads)
    ways["OpenVINO"] = lambda: openvino.run([ONNX_OUTPUT], feed)[0]
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with torch.inference_mode():
        expected = ways["PyTorch"]()
        for turn in range(_WARM_UP + repeats):
            for name, compute in ways.items():
                began = time.perf_counter()
                compute()
                if turn >= _WARM_UP:
                    seconds[name].append(time.perf_counter() - began)
        differences = {name: float(np.abs(compute() - expected).max()) for name, compute in ways.items()}
    rows, median = [], {name: statistics.median(spent) for name, spent in seconds.items()}
    for name, spent in seconds.items():
        half, most = (1000 * float(np.percentile(spent, percentile)) for percentile in (50, 99))
        size = files[name].stat().st_size if name in files else sum(4 * p.numel() for p in model.parameters())
        ratios = (f"{median[other] / median[name]:.2f}x" for other in ("PyTorch", "ONNX"))
        times = (f"{milliseconds:.1f} ms" for milliseconds in (half, most, 1000 * min(spent)))
        rows.append([name, *times, *ratios, f"{size / 1e6:.0f} MB", f"{differences[name]:.0e}"])
    columns = [
        "one record",
        "p50",
        "p99",
        "fastest",
        "faster than PyTorch (p50)",
        "than ONNX",
        "size",
        "probability differs by",
    ]
    tokens = sum(record.texts[0].lengths)
    print_table(f"{tokens} tokens, {threads} thread{'s' if threads > 1 else ''}, {repeats} times each", columns, rows)


if __name__ == "__main__":
    sys.exit(main())
