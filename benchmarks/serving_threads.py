"""Measure the server's latency by threads of ONNX Runtime, with and without spinning."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.printing import print_table
from container.cores import available_cores, candidates
from container.predictor import Predictor
from testing.serving import many_clients, serving

_CLIENTS = {1: 300, 16: 40}  # requests of each client
_RECORDS = 60
# Python imports this module when an interpreter starts. It is for this measurement only: spinning is no setting.
_SPINNING = """import functools
import container.onnx_session as module
module.open_session = functools.partial(module.open_session, spinning=True)
"""


def measure_server(jobs: Mapping[str, Path]) -> None:
    """Print p50 and p99 of requests of one record, for each number of threads, over HTTP.

    Args:
        jobs: folders of finished jobs, by the name of their encoder.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(_SPINNING)
        for name, root in jobs.items():
            predictor = Predictor.load(root / "model", threads=1)
            records = _records(root)
            alone = np.concatenate([predictor.predict([record]) for record in records])
            for threads in candidates(min(4, available_cores())):
                for spinning in (False, True)[: 1 if threads == 1 else 2]:
                    path = ":".join([folder] * spinning + [os.environ.get("PYTHONPATH", "")])
                    cells = []
                    with serving(root, SERVING_THREADS=str(threads), PYTHONPATH=path) as server:
                        many_clients(server.port, records, alone, clients=2, requests=10)
                        for clients, requests in _CLIENTS.items():
                            load = many_clients(server.port, records, alone, clients=clients, requests=requests)
                            assert not load.lost, str(load)
                            assert load.furthest < 1e-4, str(load)
                            cells += [f"{load.percentile(share):.1f} ms" for share in (50, 99)]
                            cells.append(f"{len(load.seconds) / load.elapsed:.0f}/s")
                    rows.append([name, str(threads), "on" if spinning else "off", *cells])
                    print(*rows[-1], flush=True)
    columns = ["encoder", "threads", "spinning"]
    columns += [f"{clients}: {figure}" for clients in _CLIENTS for figure in ("p50", "p99", "rate")]
    print_table("Requests of one record by number of clients", columns, rows)


def _records(root: Path) -> list[dict[str, object]]:
    """Return raw records of the job's test split."""
    folder = root / "input" / "data" / "test"
    file = next(path for path in sorted(folder.iterdir()))
    if file.suffix == ".parquet":
        return pq.read_table(file).slice(0, _RECORDS).to_pylist()
    from container.tables.channel_files import column_names, read_head

    return read_head([file], column_names(file), _RECORDS).table.to_pylist()
