"""Send generated requests to one server; watch /ping from another process, and the server's memory."""

import json
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from testing import warm
from testing.fuzz import oracle, strict_csv
from testing.fuzz.campaign import Plan, Tally, save
from testing.fuzz.outcome import ACCEPTED, BROKEN, REFUSED, Outcome, product_frame, rng_of
from testing.fuzz.requests import REPORTS, REQUESTS, Request, generate
from testing.serving import Server, model_process, serving

MOST_MEMORY = 1536 << 20  # bytes that the server may have, with the defaults of its limits
PING_EVERY = 0.05
_HTTP_LAYER = "Invalid header"  # a refusal of waitress, which has no hint
_KEPT = 4 << 20


def run_requests(plan: Plan, *, ping_limit: float, kind: str = REQUESTS) -> Tally:
    """Send the requests one after another; a slow /ping counts if it is slow each time the request is sent."""
    tally, began = Tally(kind), time.monotonic()
    with _served(plan, kind, {"SERVING_INVALID_RECORDS": "report"} if kind == REPORTS else {}) as server:
        for index in plan.indices:
            if time.monotonic() > plan.deadline:
                break
            request = generate(rng_of(plan.seed, kind, index))
            outcome = judged(server, request, timeout=plan.timeout)
            for _ in range(2):
                if outcome.problems or _slowest_ping(server) <= ping_limit:
                    break
                server.pings.unlink()
                slow = judged(server, request, timeout=plan.timeout)
                outcome.problems = slow.problems
            else:
                outcome.problems.append(f"/ping took more than {ping_limit:g} s during the request, three times")
            server.pings.unlink(missing_ok=True)
            for finding in tally.add(index, outcome):
                _save(plan, kind, finding, request, server)
            if server.process.poll() is not None:
                server.restart()
    tally.seconds = time.monotonic() - began
    return tally


class _Watched:
    """A server, and a process that asks it /ping.

    Attributes:
        pings: a file to which the process appends the seconds of each slow answer.
        variables: the server's settings.
    """

    def __init__(self, root: Path, pings: Path, variables: Mapping[str, str]) -> None:
        self.root, self.pings, self.variables = root, pings, variables
        self._context: Any = None
        self.restart()

    def restart(self) -> None:
        """Start the server, in the place of one that ended."""
        self.close()
        self._context = serving(self.root, **self.variables)
        self._server: Server = self._context.__enter__()
        self.process, self.port, self.log = self._server.process, self._server.port, self._server.log
        self._watch = warm.fork_server().Process(target=watch_pings, args=(self.port, str(self.pings)), daemon=True)
        self._watch.start()

    def close(self) -> None:
        """End both."""
        if self._context is not None:
            self._watch.kill()
            self._watch.join()
            self._context.__exit__(None, None, None)


@contextmanager
def _served(plan: Plan, kind: str, variables: Mapping[str, str]) -> Iterator[_Watched]:
    root = plan.work / f"served-{kind}"
    shutil.copytree(plan.model, root / "model")
    server = _Watched(root, plan.work / "pings", variables)
    try:
        yield server
    finally:
        server.close()


def watch_pings(port: int, file: str) -> None:
    """Ask /ping until this process is killed; append the seconds of each answer to `file`, of a wrong one 1000."""
    while True:
        began = time.monotonic()
        try:
            answer = exchange(port, b"GET /ping HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", timeout=30)
            seconds = time.monotonic() - began if answer.startswith(b"HTTP/1.1 200") else 1000.0
        except OSError:
            seconds = 1000.0
        with open(file, "a") as out:
            out.write(f"{seconds:.3f}\n")
        time.sleep(PING_EVERY)


def _slowest_ping(server: _Watched) -> float:
    lines = server.pings.read_text().split() if server.pings.is_file() else []
    return max(map(float, lines), default=0.0)


def exchange(port: int, data: bytes, *, timeout: float, close: bool = False) -> bytes:
    """Send bytes over a new connection; return what comes back until the server closes or the answer is complete."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        received = b""
        try:
            connection.sendall(data)
            if close:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the server refused the rest; its answer may still be there
        try:
            while not _is_complete(received, bodiless=data.startswith(b"HEAD ")):
                piece = connection.recv(1 << 20)
                if not piece:
                    break
                received += piece
        except ConnectionResetError:
            pass
        return received


def without_interim(data: bytes) -> bytes:
    """Return an answer without a preceding 100 Continue."""
    return data.partition(b"\r\n\r\n")[2] if data.startswith(b"HTTP/1.1 100 ") else data


def _is_complete(data: bytes, *, bodiless: bool) -> bool:
    head, separator, body = without_interim(data).partition(b"\r\n\r\n")
    if not separator:
        return False
    if bodiless:
        return True
    length = _content_length(head)
    return length is not None and len(body) >= length


def _content_length(head: bytes) -> int | None:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return None


def judged(server: _Watched, request: Request, *, timeout: float) -> Outcome:
    """Send a request and judge the answer."""
    outcome = Outcome(BROKEN, recipe=request.recipe, size=len(request.data))
    try:
        answer = exchange(server.port, request.data, timeout=timeout, close=not request.complete)
    except OSError as error:
        outcome.problems.append(f"no answer: {type(error).__name__}: {error}")
        answer = b""
    if answer:
        status, problems = answer_problems(answer, request, reported=bool(server.variables))
        if status == 500:
            problems = [f"status 500{_last_exception(server.log)}"]
        outcome.problems += problems
        outcome.verdict = ACCEPTED if status == 200 else REFUSED
    elif not request.complete:
        outcome.verdict = REFUSED
    elif not outcome.problems:
        outcome.problems.append("the connection was closed without an answer")
    if server.process.poll() is not None:
        outcome.problems.append(f"the server ended with code {server.process.returncode}")
    elif (used := memory(model_process(server.process.pid))) > MOST_MEMORY:
        outcome.problems.append(f"the model's process has {used >> 20} MiB of memory")
    return outcome


def _last_exception(log: Path) -> str:
    """Return the place and the text of the newest exception in the server's log."""
    newest = log.read_bytes()[-20_000:].decode("utf-8", "replace").rpartition("Traceback (most recent call last):")[2]
    last = [line for line in newest.splitlines() if line and not line.startswith(" ")]
    return f"{product_frame(newest)}: {last[0][:200] if last else ''}"


def answer_problems(answer: bytes, request: Request, *, reported: bool = False) -> tuple[int, list[str]]:
    """Return the status of an answer, and what is wrong with it.

    Args:
        reported: whether the answer has an error in the place of each invalid record.
    """
    head, _, body = without_interim(answer).partition(b"\r\n\r\n")
    try:
        status = int(head.split(b" ")[1])
    except (IndexError, ValueError):
        return 0, [f"the answer is not HTTP: {answer[:80]!r}"]
    body = body[: _content_length(head)]  # another answer may follow
    if status == 200:
        try:
            scores, errors = _entries(head, body)
            if request.must_refuse and (scores or not errors):
                return status, [f"status 200 for a body that holds no record: {body[:100]!r}"]
            return status, _entry_problems(scores, errors, request, reported=reported)
        except (ValueError, KeyError, TypeError) as error:
            return status, [f"status 200 with a body that is no prediction: {error!r}, {body[:100]!r}"]
    if status not in (501, 503) and not 400 <= status < 500:  # 501: a transfer coding (RFC 9112, 6.1)
        return status, [f"status {status}: {body[:200]!r}"]
    if request.data.startswith(b"HEAD"):
        return status, []
    try:
        error = json.loads(body)["error"]
        if error["status"] != status or not error["message"].strip():
            return status, [f"status {status} with the error {error}"]
        if error["message"].split(":")[0].rpartition(".")[2] in oracle.exception_names():
            return status, [f"status {status}, an exception that was not foreseen: {error['message'][:200]}"]
        of_http = request.recipe[0].startswith("http:") or status == 431 or error["message"] == _HTTP_LAYER
        if not error.get("hint") and not of_http:
            return status, [f"status {status} without a hint: {error['message'][:200]}"]
    except (ValueError, KeyError, TypeError):
        return status, [f"status {status} with a body that is no error in JSON: {body[:100]!r}"]
    return status, []


def _entries(head: bytes, body: bytes) -> tuple[list[list[float]], list[str]]:
    """Return the probabilities of the scored records, and the errors of the others."""
    kind = next(
        (line.split(b":")[1].strip() for line in head.split(b"\r\n") if line.lower().startswith(b"content-type:")), b""
    )
    if b"csv" in kind:
        rows = strict_csv.parse(body.decode(), ",").rows
        rows = rows[1:] if rows and rows[0][0] == "predicted_label" else rows
        errors = [row[-1] for row in rows if not any(row[:-1])]
        # Where errors are reported, a scored record has an empty last cell.
        return [[float(cell) for cell in row[1:] if cell] for row in rows if any(row[:-1])], errors
    content = (
        json.loads(body) if b"lines" not in kind else {"predictions": [json.loads(line) for line in body.splitlines()]}
    )
    entries = content.get("predictions", [])  # none in the answer of /ping or /execution-parameters
    scores = [entry["probabilities"] for entry in entries if "error" not in entry]
    return scores, [entry["error"] for entry in entries if "error" in entry]


def _entry_problems(
    scores: Sequence[Sequence[float]], errors: Sequence[str], request: Request, *, reported: bool
) -> list[str]:
    if errors and not reported:
        return [f"status 200 with the error of a record: {errors[0][:200]}"]
    expected = request.lines if reported and request.lines is not None else request.records
    if expected is not None and len(scores) + len(errors) != expected:
        return [f"{len(scores) + len(errors)} predictions for {expected} records, and status 200"]
    for error in errors:
        if not error.strip() or error.split(":")[0].rpartition(".")[2] in oracle.exception_names():
            return [f"the error of a record that was not foreseen: {error[:200]!r}"]
    return oracle.probability_problems("the answer", scores)


def memory(pid: int) -> int:
    """Return the resident bytes of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    return 0


def _save(plan: Plan, kind: str, finding: Any, request: Request, server: _Watched) -> None:
    folder = plan.work / "request"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "job" / "requests").mkdir(parents=True)
    (folder / "job" / "requests" / "request.bin").write_bytes(request.data[:_KEPT])
    (folder / "log").write_bytes(server.log.read_bytes()[-100_000:])
    save(plan, kind, finding, folder)
