"""Measure a batch transform over HTTP: records/s compared with the ONNX session alone, and the server's peak memory."""

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.printing import print_machine, print_table
from benchmarks.review_data import generate_reviews, require_minilm
from benchmarks.serving import train_to_serve
from benchmarks.serving_memory import resident
from container.cores import available_cores
from container.predictor import Predictor
from container.serving.application import execution_parameters
from contracts import artifacts
from contracts.serving import JSON_LINES, ServingSettings
from testing.batch_transform import Transform
from testing.serving import Server, model_process, serving

_LEAST_RATIO = 0.8
_INVALID_EVERY = 100
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Speed:
    """Records per second, and processor seconds per record, which depend less on the machine's other load."""

    rate: float
    processor: float

    def cells(self) -> list[str]:
        return [f"{self.rate:.0f}/s", f"{1000 * self.processor:.2f} ms"]


def main() -> int:
    """Return 1 if the transform is too slow, or if a record has no line in the output."""
    arguments = _arguments()
    encoder = require_minilm()
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        root = arguments.root or Path(folder)
        if not (root / "model" / artifacts.MODEL_ONNX).is_file():
            train_to_serve(root, encoder)
        alone = _session_alone(root / "model", arguments.threads)
        rows = [["ONNX session alone", "", *alone.cells(), "", "", ""]]
        fine = True
        for count in arguments.rows:
            speed, peak = _measure(root, Path(folder), count=count, threads=arguments.threads)
            shares = alone.processor / speed.processor, speed.rate / alone.rate
            rows.append(
                ["transform", str(count), *speed.cells(), *(f"{share:.2f}x" for share in shares), f"{peak:.2f} GiB"]
            )
            fine = fine and shares[0] >= _LEAST_RATIO
    columns = [
        "way",
        "records",
        "rate",
        "CPU per record",
        f"CPU ratio (at least {_LEAST_RATIO})",
        "rate ratio",
        "peak memory",
    ]
    title = f"Reviews as JSON Lines, MiniLM, {arguments.threads} threads, 1 % of the records invalid"
    print_table(title, columns, rows)
    return 0 if fine else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 4000], help="records of each file, e.g. 100000")
    parser.add_argument("--threads", type=int, default=available_cores(), help="threads of ONNX Runtime")
    parser.add_argument("--root", type=Path, help="job folder; an existing job is used again")
    return parser.parse_args()


def _session_alone(model: Path, threads: int) -> Speed:
    """Return the speed of session.run alone, in batches of records of similar lengths."""
    predictor = Predictor.load(model, threads=threads)
    prepared = predictor.prepare(next(generate_reviews(1000, seed=9)).drop(["review_id", "Recommended IND"]))
    seconds = processor = 0.0
    backend: Any = predictor._backend  # an OnnxBackend
    session = backend._session

    class Timed:
        def run(self, *arguments: Any) -> Any:
            nonlocal seconds, processor
            began, used = time.perf_counter(), time.process_time()
            found = session.run(*arguments)
            seconds, processor = seconds + time.perf_counter() - began, processor + time.process_time() - used
            return found

    backend._session = Timed()
    count = len(prepared.row)
    predictor.compute([prepared] * count, range(count))
    return Speed(count / seconds, processor / count)


def _measure(root: Path, folder: Path, *, count: int, threads: int) -> tuple[Speed, float]:
    """Return the speed of a transform and the server's peak memory in GiB."""
    source, target = folder / "in.jsonl", folder / "out.jsonl"
    _write(source, count)
    environment = {
        "SERVING_THREADS": str(threads),
        "SERVING_INVALID_RECORDS": "report",
        "SERVING_TIMEOUT_SECONDS": "3600",
    }
    with serving(root, **environment) as server:
        # The parameters of a server that is fast enough, so that the files are cut in the same way on each machine.
        found = execution_parameters(None, ServingSettings())
        transform = Transform(JSON_LINES, found["MaxPayloadInMB"] << 20, found["MaxConcurrentTransforms"])
        used, began = _processor_seconds(server), time.perf_counter()
        written = transform.run(server.port, source, target)
        elapsed, used = time.perf_counter() - began, _processor_seconds(server) - used
        peak = resident(server, "VmHWM")
    with target.open("rb") as lines:
        errors = sum(b'"error"' in line for line in lines)
    if (written, errors) != (count, count // _INVALID_EVERY):
        sys.exit(f"{count} records gave {written} lines with {errors} errors")
    return Speed(count / elapsed, used / count), peak


def _write(path: Path, count: int) -> None:
    number = 0
    with path.open("w") as stream:
        for table in generate_reviews(count, seed=9):
            for record in table.to_pylist():
                number += 1
                if number % _INVALID_EVERY == 0:
                    record["Age"] = "unknown"
                stream.write(json.dumps(record) + "\n")


def _processor_seconds(server: Server) -> float:
    ticks = 0
    for process in (server.process.pid, model_process(server.process.pid)):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


if __name__ == "__main__":
    sys.exit(main())
