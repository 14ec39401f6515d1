"""Write records as request bodies, in every format that serving reads."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from contracts.serving import CSV, JSON, JSON_LINES, PARQUET

Record = Mapping[str, Any]
SUFFIXES = {CSV: "csv", JSON: "json", JSON_LINES: "jsonl", PARQUET: "parquet"}


def request_body(
    records: Sequence[Record], media_type: str, *, header: bool = True, csv_columns: Sequence[str] | None = None
) -> bytes:
    """Return the body of a request for `records`, which have the same columns.

    JSON: an object for one record, an array for several; CSV: missing values empty.

    Args:
        header: whether CSV has a header line.
        csv_columns: the columns of CSV, in order; empty if no record has them. None: those of the records.
    """
    if media_type == JSON:
        return json.dumps(records[0] if len(records) == 1 else list(records), ensure_ascii=False, indent=1).encode()
    if media_type == JSON_LINES:
        return "".join(f"{json.dumps(dict(record), ensure_ascii=False)}\n" for record in records).encode()
    if media_type == CSV:
        text = io.StringIO(newline="")
        # With the terminator \r\n, it quotes cells that contain \r or \n.
        writer = csv.DictWriter(text, csv_columns or list(records[0]), extrasaction="ignore")
        if header:
            writer.writeheader()
        writer.writerows(records)
        return text.getvalue().encode()
    assert media_type == PARQUET, media_type
    sink = io.BytesIO()
    pq.write_table(pa.table({name: pa.array([record[name] for record in records]) for name in records[0]}), sink)
    return sink.getvalue()
