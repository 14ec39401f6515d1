"""Run servers as processes, and clients with many connections, for the tests and benchmarks of serving."""

import http.client
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from container.serving.errors import RequestError, bad_request
from container.serving.requests import read_request
from contracts.errors import ContractError
from contracts.serving import CSV, JSON, JSON_LINES, PARQUET, ServingSettings
from testing.jobs import REPOSITORY

STARTED = re.compile(r"on port (\d+)")


def read_records(
    body: bytes | str, content_type: str, columns: Sequence[str], limits: ServingSettings | None = None
) -> pa.Table:
    """Return the records that a model with `columns` takes from a request; raise RequestError as the server does."""
    body = body.encode() if isinstance(body, str) else body
    request = read_request(body, content_type, limits or ServingSettings())
    try:
        return pa.concat_tables([part.table() for part in request.parts(columns)], promote_options="permissive")
    except RequestError:
        raise
    except ContractError as error:
        raise bad_request(error.cause, error.fix) from error


def parquet_bytes(table: pa.Table | pd.DataFrame) -> bytes:
    """Return the table as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table if isinstance(table, pa.Table) else pa.Table.from_pandas(table, preserve_index=False), sink)
    return sink.getvalue()


def bodies(frame: pd.DataFrame) -> dict[str, bytes]:
    """Return the body of a request with these records by its content type."""
    records = json.loads(frame.to_json(orient="records", date_format="iso"))
    return {
        CSV: frame.to_csv(index=False).encode(),
        JSON: json.dumps(records).encode(),
        JSON_LINES: "\n".join(map(json.dumps, records)).encode(),
        PARQUET: parquet_bytes(frame),
    }


@dataclass(frozen=True)
class Answer:
    """A response."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def probabilities(self) -> np.ndarray:
        """[N, K]"""
        return np.array([entry["probabilities"] for entry in self.json["predictions"]])


@dataclass
class Server:
    """A process that runs `python -m container serve`."""

    process: subprocess.Popen
    port: int
    log: Path

    def ask(
        self, body: bytes | str = b"", content_type: str | None = "application/json", *, method: str = "POST",
        path: str = "/invocations", **headers: str,
    ) -> Answer:  # fmt: skip
        """Send one request over a new connection; `accept_language` becomes the header Accept-Language."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            return ask(connection, body, content_type, method=method, path=path, **headers)
        finally:
            connection.close()

    def stop(self) -> int:
        """Stop the server and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=40)


def refused_start(root: Path, *, wrapper: Sequence[str] = (), **environment: str) -> str:
    """Start a server that ends with 1 before it serves; return its log."""
    command = [*wrapper, sys.executable, "-m", "container", "serve", "--root", str(root), "--port", "0"]
    given = {"cwd": REPOSITORY, "env": {**os.environ, **environment}, "timeout": 60}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **given)
    assert done.returncode == 1, done.stdout
    return done.stdout


def package(root: Path, script: str | bytes) -> Path:
    """Write a package with its own inference.py to root/model; return root."""
    file = root / "model" / "code" / "inference.py"
    file.parent.mkdir(parents=True)
    file.write_bytes(script.encode() if isinstance(script, str) else script)
    return root


def model_process(server: int) -> int:
    """Return the id of the process that runs the model of the server with this process id."""
    return int(Path(f"/proc/{server}/task/{server}/children").read_text())


def ask(
    connection: http.client.HTTPConnection, body: bytes | str, content_type: str | None, *, method: str = "POST",
    path: str = "/invocations", **headers: str,
) -> Answer:  # fmt: skip
    """Send one request over a connection that stays open."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if content_type is not None:
        sent["Content-Type"] = content_type
    connection.request(method, path, body.encode() if isinstance(body, str) else body, sent)
    response = connection.getresponse()
    return Answer(response.status, response.read(), {name.lower(): value for name, value in response.getheaders()})


def start(root: Path, *, wrapper: Sequence[str] = (), arguments: Sequence[str] = (), **environment: str) -> Server:
    """Start a server of root/model and wait until it listens; `wrapper` is a command that runs its arguments."""
    log = root / f"serve-{time.monotonic_ns()}.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [*wrapper, sys.executable, "-m", "container", "serve", "--root", str(root), "--port", "0", *arguments],
            cwd=REPOSITORY,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
    deadline = time.monotonic() + 120
    while not (started := STARTED.search(log.read_text())):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"the server did not start, exit code {process.poll()}:\n{log.read_text()}")
        time.sleep(0.05)
    return Server(process, int(started[1]), log)


@contextmanager
def serving(
    root: Path, *, wrapper: Sequence[str] = (), arguments: Sequence[str] = (), **environment: str
) -> Iterator[Server]:
    """Run a server during a `with` block, as `start` does."""
    server = start(root, wrapper=wrapper, arguments=arguments, **environment)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


@dataclass
class Load:
    """The measurements of many clients.

    Attributes:
        seconds: latency of each request.
        statuses: responses by status.
        lost: descriptions of the requests without a response.
        furthest: largest difference of a probability from the expected one.
        elapsed: total seconds.
    """

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    furthest: float = 0.0
    elapsed: float = 0.0

    def percentile(self, share: float) -> float:
        """Return a percentile of the latency in milliseconds."""
        return 1000 * float(np.percentile(self.seconds, share))

    def __str__(self) -> str:
        return (
            f"{len(self.seconds)} answers in {self.elapsed:.1f} s ({len(self.seconds) / self.elapsed:.0f}/s), "
            f"{dict(self.statuses)}, {len(self.lost)} lost, p50 {self.percentile(50):.1f} ms, "
            f"p99 {self.percentile(99):.1f} ms, probabilities differ by at most {self.furthest:.1e}"
        )


def many_clients(
    port: int, records: Sequence[Mapping[str, Any]], expected: np.ndarray, *, clients: int, requests: int
) -> Load:
    """Open `clients` connections at once; each sends `requests` requests of one record.

    Args:
        records: the records to send; each client starts at a different one. [N]
        expected: their probabilities. [N, K]
    """
    bodies = [json.dumps(record) for record in records]
    load, lock, together = Load(), threading.Lock(), threading.Barrier(clients + 1)

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.connect()
        together.wait()
        for turn in range(requests):
            index = (number * 7 + turn) % len(bodies)
            began = time.perf_counter()
            try:
                answer = ask(connection, bodies[index], "application/json")
            except (OSError, http.client.HTTPException) as error:
                with lock:
                    load.lost.append(f"client {number}, request {turn}: {error!r}")
                connection.close()
                continue
            seconds = time.perf_counter() - began
            difference = np.inf
            if answer.status == 200:
                difference = float(np.abs(answer.probabilities - expected[index]).max())
            with lock:
                load.seconds.append(seconds)
                load.statuses[answer.status] += 1
                load.furthest = max(load.furthest, difference)
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    together.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    load.elapsed = time.perf_counter() - began
    return load
