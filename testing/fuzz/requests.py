"""Kind requests: bodies in every format, headers and broken HTTP for a server."""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from testing.fuzz import arrow_types, render, strict_csv, values
from testing.fuzz.draft import Draft

REQUESTS, REPORTS = "requests", "reports"  # the second kind: for a server that reports invalid records
_BLANK = " \t\v\f\r"
COLUMNS = ("chat", "price", "quantity", "color")
JSON_TYPES = ("application/json", "application/json; charset=utf-8", "APPLICATION/JSON")
LINE_TYPES = ("application/jsonlines", "application/x-jsonlines", "application/jsonl", "application/x-ndjson")
CSV_TYPES = (
    "text/csv",
    "application/csv",
    "text/csv; header=present",
    "text/csv; header=absent",
    "text/csv;charset=UTF-8",
)
PARQUET_TYPES = ("application/x-parquet", "application/vnd.apache.parquet", "application/parquet")
ODD_TYPES = (
    "", "text/plain", "application/octet-stream", "text/csv; charset=utf-16", "text/csv; header",
    "multipart/form-data", ";",
    "application/json; charset=\"\"", "text/csv; header=\"pre", "a" * 5000, "text/csv; header*=utf-8''present",
    "*/*", "text/*",
    "application/json,text/csv", "é/ü", "text/csv; header*0=pre; header*1=sent", "application/json; charset*=x'y'z",
    "text/csv;;;;=;header=absent", "application/json;" + "a=b;" * 1000,
)  # fmt: skip
ACCEPTS = (
    None, None, None, "application/json", "text/csv", "text/csv; header=present", "application/jsonlines", "*/*",
    "text/*",
    "application/json;q=0", "text/csv;q=0.1, application/json;q=0.9", "application/xml", "text/csv;q=abc",
    "*/*;q=nan",
    "text/csv;q=1e400", "q=1", ";", ",,,", "text/csv;q=", "application/x-parquet", "é", "a,b" * 2000, "text/csv;q=-1",
    "*", "application/json; q*=utf-8''1", "text/csv;q=\"0.5\"",
)  # fmt: skip


@dataclass
class Request:
    """One request.

    Attributes:
        data: the bytes to send; None closes the connection's sending side early.
        records: number of predictions that status 200 must have; None if that is not known.
        lines: the same for a CSV of which each line is a record; None for other bodies.
        complete: whether the server must answer.
        must_refuse: whether status 200 is wrong.
    """

    data: bytes = b""
    records: int | None = None
    lines: int | None = None
    complete: bool = True
    must_refuse: bool = False
    recipe: list[str] = field(default_factory=list)


def generate(rng: Random) -> Request:
    """Return one request."""
    request = Request()
    if rng.random() < 0.12:
        _broken_http(request, rng)
        return request
    body, content_type = _body(request, rng)
    if rng.random() < 0.12:
        damaged = render.damage(body, rng, request.recipe)
        if damaged != body:
            request.records, request.lines = _count_damaged(damaged, content_type), None
        body = damaged
    headers = {"Host": "localhost", "Content-Type": content_type}
    if rng.random() < 0.1:
        headers["Content-Type"] = rng.choice(ODD_TYPES)
        request.records = request.lines = None
        request.recipe.append(f"Content-Type {headers['Content-Type'][:60]!r}")
    accept = rng.choice(ACCEPTS)
    if accept is not None:
        headers["Accept"] = accept
        request.recipe.append(f"Accept {accept[:60]!r}")
    if rng.random() < 0.05:
        name, value = rng.choice(
            (("Content-Encoding", "gzip"), ("Content-Encoding", "\x01"), ("Expect", "100-continue"), ("Expect", "x"),
             ("X-Amzn-SageMaker-Custom-Attributes", "é" * 500), ("Connection", "close"), ("Connection", "upgrade"),
             ("Upgrade", "h2c"), ("Range", "bytes=0-1"), ("Cookie", "a" * 8000), ("X", "y" * 300_000), ("If-Match",
             "*"))
        )  # fmt: skip
        headers[name] = value
        request.recipe.append(f"{name}: {value[:40]!r}")
    elif rng.random() < 0.1:
        headers["Content-Encoding"], body = "gzip", render.gzipped(body)
        request.recipe.append("gzip")
    request.data = http(headers, body)
    request.recipe.append(f"{len(body)} bytes")
    return request


def http(headers: dict[str, str], body: bytes, *, line: str = "POST /invocations HTTP/1.1") -> bytes:
    """Return the bytes of a request with its Content-Length."""
    lines = [line, *(f"{name}: {value}" for name, value in headers.items()), f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode("utf-8", "replace") + body


def _records(rng: Random, recipe: list[str]) -> list[dict[str, Any]]:
    count = rng.choice((1, 1, 2, 3, 7, 40, 300))
    records = [
        {"chat": rng.choice(values.PLAIN_TEXTS), "price": round(rng.uniform(0, 50), 2), "quantity": rng.randint(0, 9),
         "color": rng.choice(("red", "green"))}
        for _ in range(count)
    ]  # fmt: skip
    recipe.append(f"{count} records")
    for _ in range(rng.choice((0, 1, 1, 2))):
        record, name = rng.choice(records), rng.choice((*COLUMNS, "order_id", "label", "other", ""))
        others = (None, [], {}, [1], {"a": 1}, True, 10**30, -1e300, 2**63)
        value: Any = rng.choice(
            (values.text(rng), rng.choice(values.NUMBERS), rng.choice(others), rng.choice(values.SURROGATES))
        )
        if rng.random() < 0.1:
            record.pop(name, None)
            recipe.append(f"without {name}")
        else:
            record[name] = value
            recipe.append(f"{name}: {str(value)[:40]!r} ({len(str(value))} characters)")
    return records


def _body(request: Request, rng: Random) -> tuple[bytes, str]:
    records = _records(rng, request.recipe)
    request.records = len(records)
    way = rng.choice(("json", "json", "lines", "csv", "csv", "parquet", "json text"))
    request.recipe.insert(0, way)
    if way == "json":
        wrappers = ("instances", "records", "inputs", "dataframe_records")
        content: Any = rng.choice((records, records, {rng.choice(wrappers): records}, _split(records), records[0]))
        request.records = 1 if content is records[0] else len(records)
        text = json.dumps(content, ensure_ascii=rng.random() < 0.5)
        encoding = rng.choice(("utf-8", "utf-8", "utf-8", "utf-16", "utf-8-sig"))
        return text.encode(encoding, "surrogatepass"), rng.choice(JSON_TYPES)
    if way == "lines":
        end = rng.choice(("\n", "\n", "\r\n", "\n\n"))
        lines = end.join(json.dumps(record, ensure_ascii=True) for record in records)
        return (lines + rng.choice(("", "\n"))).encode(), rng.choice(LINE_TYPES)
    if way == "json text":
        return _json_text(request, rng), rng.choice((*JSON_TYPES, *LINE_TYPES))
    draft = _draft(records)
    if way == "parquet":
        return _parquet(draft, rng, request.recipe), rng.choice(PARQUET_TYPES)
    return _csv(request, draft, rng)


def _split(records: list[dict[str, Any]]) -> dict[str, Any]:
    names = list(dict.fromkeys(name for record in records for name in (*COLUMNS, *record)))
    return {"dataframe_split": {"columns": names, "data": [[record.get(name) for name in names] for record in records]}}


def _draft(records: list[dict[str, Any]]) -> Draft:
    names = list(dict.fromkeys(name for record in records for name in (*COLUMNS, *record)))
    rows = [[None if record.get(name) is None else str(record[name]) for name in names] for record in records]
    return Draft(names, rows)


def _parquet(draft: Draft, rng: Random, recipe: list[str]) -> bytes:
    arrays = [arrow_types.plain_array([row[place] for row in draft.rows]) for place in range(len(draft.names))]
    if rng.random() < 0.7:
        place = rng.randrange(len(arrays))
        arrays[place] = arrow_types.changed(arrays[place], rng, draft.names[place], recipe)
    sink = io.BytesIO()
    try:
        pq.write_table(pa.Table.from_arrays(arrays, names=draft.names), sink, row_group_size=rng.choice((1, 100)))
    except (pa.ArrowException, NotImplementedError):
        return b"PAR1" + rng.randbytes(100) + b"PAR1"
    return sink.getvalue()


def _csv(request: Request, draft: Draft, rng: Random) -> tuple[bytes, str]:
    content_type = rng.choice(CSV_TYPES)
    odd = rng.random() < 0.4
    if rng.random() < 0.25:
        row, column = rng.randrange(len(draft.rows)), rng.randrange(len(draft.names))
        draft.rows[row][column] = rng.choice(('"open', 'close"', 'mid"dle', '"a"b', '"'))
        draft.raw.add((row, column))
        draft.recipe.append(f"raw {draft.rows[row][column]!r} in row {row + 1}, column {column + 1}")
    text = render.csv_text(draft, rng, delimiter=",", odd=odd)
    header = "absent" not in content_type
    parsed = strict_csv.parse(text, ",")
    if not parsed.malformed:
        request.records = len(parsed.rows) - header
    elif not header:
        request.records = len(draft.rows) + 1
    lines = [line for line in text.split("\n") if line.strip(_BLANK)]
    request.lines = len(lines) - (header and not lines[0].startswith("\0"))  # the header is a record after another line
    if rng.random() < 0.05:
        text, request.records = render.ragged(text, rng, delimiter=",", recipe=draft.recipe), None
        request.lines = None
    request.recipe += [content_type, *draft.recipe]
    return text.encode("utf-8", "replace"), content_type


def _json_text(request: Request, rng: Random) -> bytes:
    """Return JSON that json.dumps would not write."""
    good = '{"chat": "x", "price": 1, "quantity": 1, "color": "red"}'
    key = json.dumps(rng.choice((*COLUMNS, "other")))
    choices: tuple[tuple[str, Callable[[], str], bool], ...] = (
        (
            "number",
            lambda: f'{{"chat": "x", "price": {values.json_number(rng)}, "quantity": 1, "color": "red"}}',
            False,
        ),
        ("number elsewhere", lambda: f"{good[:-1]}, {key}: {values.json_number(rng)}}}", False),
        ("nested", lambda: f"{good[:-1]}, {key}: {values.json_nesting(rng)}}}", False),
        ("nested alone", lambda: values.json_nesting(rng), True),
        ("key twice", lambda: f"{good[:-1]}, {key}: 1}}", False),
        ("surrogate key", lambda: f'{good[:-1]}, "\\ud800": 1}}', False),
        (
            "scalar",
            lambda: rng.choice(("1", "null", "true", '"x"', "[]", "{}", "[[]]", "[1]", "[null]", "[{}]", "[{}, {}]")),
            True,
        ),
        ("wrapped", lambda: f'{{"{rng.choice(("instances", "inputs"))}": {good}}}', False),
        ("wrapped twice", lambda: f'{{"instances": [{{"instances": [{good}]}}]}}', True),
        ("many keys", lambda: good[:-1] + "".join(f', "k{i}": {i}' for i in range(20_000)) + "}", False),
        ("many records", lambda: "[" + ",".join(["{}"] * 10_001) + "]", True),
        ("many columns", lambda: "[" + ",".join(f'{{"k{i}": 1}}' for i in range(3000)) + "]", True),
        ("long", lambda: f'{good[:-1]}, {key}: "{rng.choice(("x", "<", "é", " ")) * 1_000_000}"}}', False),
        ("too large", lambda: " " * (26 << 20), True),
    )
    name, text, wrong = rng.choice(choices[:-1]) if rng.random() < 0.97 else choices[-1]
    request.recipe[:] = [f"json text: {name} {key}"]
    request.records, request.must_refuse = (None if wrong or "twice" in name else 1), wrong
    return text().encode()


def _count_damaged(body: bytes, content_type: str) -> int | None:
    """Return the records of a damaged body that is still well-formed."""
    if (
        "json" in content_type.lower()
        and "lines" not in content_type
        and "nd" not in content_type
        and "jsonl" not in content_type
    ):
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            return None
        if isinstance(content, dict) and len(content) == 1:
            content = next(iter(content.values()))
        return len(content) if isinstance(content, list) else None
    return None


def _broken_http(request: Request, rng: Random) -> None:
    """Fill in a request that breaks HTTP, or asks for something else."""
    name, make, request.complete = rng.choice(_BROKEN)
    request.data = make(rng)
    request.recipe = [f"http: {name}", repr(request.data[:80])]


_ONE = b'{"chat": "x", "price": 1, "quantity": 1, "color": "red"}'
_HEAD = {"Host": "localhost", "Content-Type": "application/json"}
_GOOD = http(_HEAD, _ONE)
_LENGTH = b"Content-Length: 56"
_METHODS = ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "post", "PATCH", "A" * 3000, "TRACE")
_PATHS = (
    "/", "/ping", "/Invocations", "/invocations/", "//invocations", "/invocations?x=1", "/%69nvocations",
    "/../invocations",
    "*", "http://x/invocations", "/" + "a" * 5000, "/%ff%00", "/é", "/%zz",
)  # fmt: skip
_LENGTHS = (b"0x38", b"5_6", b"+56", b"1e9", b"9" * 5000, b"", b"-1", b"99999999999", b"56\r\nContent-Length: 5")
_JUNK = (
    b"\r\n\r\n", b"\0" * 100 + b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)  # fmt: skip
_HEADERS = (b"Host", b": x", b"a b: c", b"a\0: c", b"a: \0", b"X-A: \xff", b" folded", b"Host: a\r\nHost: b")
_VERSIONS = ("HTTP/1.0", "HTTP/2.0", "HTTP/9", "", "HTTP/1.1 x")


def _chunked(body: bytes, encoding: str = "chunked") -> bytes:
    return http(_HEAD | {"Transfer-Encoding": encoding}, b"").replace(b"Content-Length: 0\r\n", b"") + body


# A name, the request, and whether the server must answer it.
_BROKEN: tuple[tuple[str, Callable[[Random], bytes], bool], ...] = (
    ("cut", lambda rng: _GOOD[: rng.randrange(1, len(_GOOD))], False),
    ("long Content-Length", lambda rng: _GOOD.replace(_LENGTH, _LENGTH + b"00"), False),
    ("odd Content-Length", lambda rng: _GOOD.replace(_LENGTH, b"Content-Length: " + rng.choice(_LENGTHS)), True),
    ("no Content-Length", lambda rng: _GOOD.replace(_LENGTH + b"\r\n", b""), True),
    ("chunked", lambda rng: _chunked(b"38\r\n" + _ONE + b"\r\n0\r\n\r\n"), True),
    ("bad chunk", lambda rng: _chunked(b"zz\r\n" + _ONE), True),
    ("odd encoding", lambda rng: _chunked(b"0\r\n\r\n", "gzip, chunked"), True),
    ("method", lambda rng: http(_HEAD, _ONE, line=f"{rng.choice(_METHODS)} /invocations HTTP/1.1"), True),
    ("path", lambda rng: http(_HEAD, _ONE, line=f"POST {rng.choice(_PATHS)} HTTP/1.1"), True),
    ("version", lambda rng: http(_HEAD, _ONE, line=f"POST /invocations {rng.choice(_VERSIONS)}"), True),
    ("junk", lambda rng: rng.choice(_JUNK), False),
    ("bad header", lambda rng: _GOOD.replace(b"Host: localhost", rng.choice(_HEADERS)), True),
    ("many headers", lambda rng: http(_HEAD | {f"X-{i}": "y" for i in range(5000)}, _ONE), True),
    ("large header", lambda rng: http(_HEAD | {"X": "y" * 300_000}, _ONE), True),
    ("twice", lambda rng: _GOOD + _GOOD, True),
    ("ping with a body", lambda rng: http(_HEAD, _ONE, line="GET /ping HTTP/1.1"), True),
    ("parameters", lambda rng: http(_HEAD, b"", line="GET /execution-parameters HTTP/1.1"), True),
    ("lf only", lambda rng: _GOOD.replace(b"\r\n", b"\n"), False),
)
