"""Measure the server's peak memory and GET /ping while clients send hostile texts at the same time."""

import argparse
import json
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.printing import print_machine, print_table
from testing.serving import Server, model_process, serving

_TEXTS = {
    "'<&' repeated": "<&",
    "one letter per word": "a ",
    "markers": "[bom]<[eom]",
    "one word": "a",
    "emoji": "\U0001f600",
}


def main() -> int:
    """Return 1 if a request got another status than 200, 413 or 503, or if a ping failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True, help="folder of a completed job")
    parser.add_argument("--column", default="chat", help="text column; the other columns are null")
    parser.add_argument("--megabytes", type=int, default=4)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--stop-above", type=float, default=12.0, help="GiB of memory at which the server is killed")
    arguments = parser.parse_args()
    print_machine()
    rows = []
    failed = False
    for name, unit in _TEXTS.items():
        text = unit * (arguments.megabytes * 1_000_000 // len(unit.encode()))
        record = {column: None for column in ("price", "quantity", "color")} | {arguments.column: text}
        row, ok = _measure(arguments, json.dumps(record, ensure_ascii=False).encode())
        rows.append([name, *row])
        print(" ".join(rows[-1]), flush=True)
        failed |= not ok
    title = f"{arguments.clients} requests at once, one text of {arguments.megabytes} MB each"
    print_table(title, ["text", "before", "peak", "statuses", "elapsed", "pings", "slowest ping"], rows)
    return int(failed)


def _measure(arguments: argparse.Namespace, body: bytes) -> tuple[list[str], bool]:
    with serving(arguments.root) as server, ThreadPoolExecutor(arguments.clients) as clients:
        before = resident(server, "VmRSS")
        done = threading.Event()
        pings: list[float] = []
        watcher = threading.Thread(target=_watch, args=(server, done, pings, arguments.stop_above))
        watcher.start()
        began = time.perf_counter()
        statuses = Counter(clients.map(lambda _: _send(server, body), range(arguments.clients)))
        elapsed = time.perf_counter() - began
        done.set()
        watcher.join()
        peak = resident(server, "VmHWM")
    slowest = max(pings, default=float("inf"))
    ok = set(statuses) <= {200, 413, 503} and slowest < 5
    counts = ", ".join(f"{count} x {status}" for status, count in statuses.items())
    return [f"{before:.2f} GiB", f"{peak:.2f} GiB", counts, f"{elapsed:.1f} s", str(len(pings)), f"{slowest:.2f} s"], ok


def _send(server: Server, body: bytes) -> int | str:
    try:
        return server.ask(body).status
    except OSError as error:
        return type(error).__name__


def _watch(server: Server, done: threading.Event, pings: list[float], most: float) -> None:
    while not done.wait(0.2):
        began = time.perf_counter()
        try:
            alive = server.ask(content_type=None, method="GET", path="/ping").status == 200
        except OSError:
            alive = False
        pings.append(time.perf_counter() - began if alive else float("inf"))
        if resident(server, "VmRSS") > most:
            server.process.kill()
            return


def resident(server: Server, name: str) -> float:
    """Return GiB of VmRSS or VmHWM of the model's process, 0 after it has ended."""
    try:
        lines = Path(f"/proc/{model_process(server.process.pid)}/status").read_text().splitlines()
    except (OSError, ValueError):
        return 0.0
    return next((int(line.split()[1]) / (1 << 20) for line in lines if line.startswith(name)), 0.0)


if __name__ == "__main__":
    sys.exit(main())
