"""Write a draft as CSV, TSV, JSON or Parquet, in unusual and in damaged forms."""

import gzip
import io
import json
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from testing.fuzz import arrow_types, values
from testing.fuzz.draft import Draft

DELIMITERS = {"csv": ",", "tsv": "\t"}


def csv_text(draft: Draft, rng: Random, *, delimiter: str, odd: bool) -> str:
    """Return the table, with correct quotes except for raw cells.

    Args:
        odd: allow unusual line ends, quotes and blank lines.
    """
    line_end, always, last = "\n", False, True
    if odd:
        line_end = rng.choice(("\r\n", "\r", "\n"))
        always, last = rng.random() < 0.3, rng.random() < 0.7
        draft.recipe.append(f"line end {line_end!r}, quotes {always}, last line end {last}")
    lines = []
    for number, row in enumerate([draft.names, *draft.rows], start=-1):
        cells = [
            str(cell) if (number, place) in draft.raw else _quoted(cell, delimiter, always)
            for place, cell in enumerate(row)
        ]
        lines.append(delimiter.join(cells))
    if odd and rng.random() < 0.3:
        place = rng.choice((0, len(lines), rng.randint(0, len(lines))))
        lines[place:place] = [rng.choice(("", "", " ", "\0"))] * rng.choice((1, 3))
        draft.recipe.append(f"blank lines before line {place + 1}")
    return line_end.join(lines) + (line_end if last else "")


def _quoted(cell: str | None, delimiter: str, always: bool) -> str:
    text = "" if cell is None else cell
    if always or any(mark in text for mark in (delimiter, '"', "\r", "\n")):
        return '"' + text.replace('"', '""') + '"'
    return text


def ragged(text: str, rng: Random, *, delimiter: str, recipe: list[str]) -> str:
    """Add or remove a field of one line."""
    lines = text.split("\n")
    place = rng.randrange(max(len(lines) - 1, 1))
    if rng.random() < 0.5:
        lines[place] += delimiter + rng.choice(("", "x"))
    else:
        lines[place] = lines[place].rpartition(delimiter)[0]
    recipe.append(f"ragged line {place + 1}")
    return "\n".join(lines)


def encode(text: str, rng: Random, *, odd: bool, recipe: list[str]) -> bytes:
    """Return the bytes; `odd` allows a byte order mark and other encodings."""
    encoding = rng.choice(("utf-8-sig", "utf-16", "utf-16-le", "latin-1", "utf-32", "cp1252")) if odd else "utf-8"
    if odd:
        recipe.append(encoding)
        if encoding in ("latin-1", "cp1252"):
            text = text.replace("item", "é", 3)
    return text.encode(encoding, "surrogatepass" if encoding.startswith("utf") else "replace")


def damage(data: bytes, rng: Random, recipe: list[str]) -> bytes:
    """Flip, remove, insert or repeat bytes, or cut the file."""
    action = rng.choice(
        ("cut", "flip", "insert", "remove", "junk after", "junk before", "empty", "zeros", "same again")
    )
    place = rng.randrange(max(len(data), 1))
    piece = rng.choice((b"\0", b'"', b"\n", b"\xff", b"\xc3", b"\xef\xbb\xbf", b",", b"\r", b"\x1a", rng.randbytes(4)))
    recipe.append(f"{action} at byte {place} of {len(data)}: {piece!r}")
    return {
        "cut": data[:place],
        "flip": data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))] if data else []) + data[place + 1 :],
        "insert": data[:place] + piece + data[place:],
        "remove": data[:place] + data[place + rng.choice((1, 1, 30)) :],
        "junk after": data + piece * 3,
        "junk before": piece + data,
        "empty": b"",
        "zeros": b"\0" * len(data),
        "same again": data + data,
    }[action]


def gzipped(data: bytes) -> bytes:
    """Return gzip data that does not tell the time."""
    return gzip.compress(data, mtime=0)


def compress(data: bytes, rng: Random, recipe: list[str]) -> bytes:
    """Return gzip data: one member, several members, or none although the name says so."""
    form = rng.choice(("one", "one", "several", "plain", "twice", "none after"))
    recipe.append(f"gzip: {form}")
    middle = len(data) // 2
    return {
        "one": lambda: gzipped(data),
        "several": lambda: gzipped(data[:middle]) + gzipped(b"") + gzipped(data[middle:]),
        "plain": lambda: data,
        "twice": lambda: gzipped(gzipped(data)),
        "none after": lambda: gzipped(data) + b"\0" * 8,
    }[form]()


def json_text(draft: Draft, rng: Random, *, lines: bool, odd: bool) -> str:
    """Return the rows as objects: one per line, or in an array."""
    objects = [_object(draft.names, row) for row in draft.rows]
    if odd and objects:
        place = rng.randrange(len(objects))
        key = json.dumps(rng.choice(("price", "chat", "order_id", "label", "other")))
        fragment = rng.choice(
            (
                lambda: f"{key}: {values.json_number(rng)}",
                lambda: f"{key}: {values.json_nesting(rng)}",
                lambda: f"{key}: {json.dumps(rng.choice(values.SURROGATES))}",
                lambda: f"{key}: true, {key}: false",
                lambda: f"{key}: null",
                lambda: f"{key}: {{}}",
                lambda: "'a': 1",
                lambda: f"{key}: 1,",
                lambda: "// comment\n",
                lambda: json.dumps(rng.choice(values.SURROGATES)) + ": 1",
            )
        )()
        where = rng.choice(("first", "last"))
        body = objects[place][1:-1]
        objects[place] = "{" + (f"{fragment}, {body}" if where == "first" else f"{body}, {fragment}") + "}"
        draft.recipe.append(f"{where} in row {place + 1}: {fragment[:60]!r}")
    if lines:
        return rng.choice(("\n", "\n", "\r\n", "\n\n", " ")).join(objects) + rng.choice(("\n", ""))
    return "[" + rng.choice((",", ", ", ",\n")).join(objects) + rng.choice(("]", "]", "]", "]\n", ""))


def _object(names: list[str], row: list[str | None]) -> str:
    """Return a row as an object; a name that occurs twice is a key twice."""
    entries = []
    for name, cell in zip(names, row):
        usual = cell is not None and cell.isascii() and cell.replace(".", "", 1).isdigit() and len(cell) < 20
        value = float(cell or 0) if usual and name in ("price", "quantity") else cell
        entries.append(f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=len(row) % 2 == 0)}")
    return "{" + ", ".join(entries) + "}"


def parquet(draft: Draft, rng: Random, *, odd: bool) -> tuple[bytes, list[Any]]:
    """Return the file and its ids; `odd` changes the Arrow type of columns."""
    arrays = [arrow_types.plain_array([row[place] for row in draft.rows]) for place in range(len(draft.names))]
    if odd and draft.rows:
        for _ in range(rng.choice((1, 1, 2))):
            place = rng.randrange(len(arrays))
            arrays[place] = arrow_types.changed(arrays[place], rng, f"column {draft.names[place]!r}", draft.recipe)
    options: dict[str, Any] = {}
    if odd:
        options = {
            "compression": rng.choice(("snappy", "zstd", "gzip", "none", "brotli", "lz4")),
            "row_group_size": rng.choice((1, 5, 100_000)),
            "version": rng.choice(("1.0", "2.4", "2.6")),
            "use_dictionary": rng.random() < 0.5,
            "store_schema": rng.random() < 0.8,
            "data_page_version": rng.choice(("1.0", "2.0")),
        }
    for attempt in (arrays, [arrow_types.plain_array([row[p] for row in draft.rows]) for p in range(len(draft.names))]):
        sink = io.BytesIO()
        table = pa.Table.from_arrays(attempt, names=draft.names)
        try:
            pq.write_table(table, sink, **options)
            return sink.getvalue(), table.column(draft.id_column).to_pylist()
        except (pa.ArrowException, NotImplementedError, UnicodeError):
            draft.recipe.append("but Parquet cannot hold it: plain columns")
            options = {}
    raise AssertionError("plain columns can be written")


Writer = Callable[[Draft, Random], bytes]
