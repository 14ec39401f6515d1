"""Requests with Content-Encoding: gzip: the same answers, and no more memory or time than other requests."""

import gzip
import io
import json
import os
import tracemalloc

import pytest

from container.serving.errors import RequestError
from container.serving.gunzip import Gunzipped
from contracts.serving import CSV
from testing.serving import package, serving
from tests.serving.test_inference_script import FOUR

LIMIT = 1 << 20
RANDOM = os.urandom(LIMIT)


def content(body: bytes, limit: int = LIMIT) -> bytes:
    """Read a body twice, as a request is sent."""
    file = Gunzipped(io.BytesIO(body), limit)
    reads = []
    for _ in range(2):
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        reads.append(b"".join(iter(lambda: file.read(1 << 18), b"")))
        assert len(reads[-1]) == size == file.size
    assert reads[0] == reads[1]
    return reads[0]


def refusal(body: bytes, limit: int = LIMIT) -> tuple[int, str]:
    with pytest.raises(RequestError) as caught:
        content(body, limit)
    return int(caught.value.status), caught.value.cause


@pytest.mark.parametrize("whole", [b"", b"a", b"abc" * 100_000, RANDOM])
def test_the_content_is_that_before_compression(whole):
    assert content(gzip.compress(whole)) == whole


def test_a_body_of_several_members_is_their_contents():
    parts = [RANDOM[:1000], b"", RANDOM[1000:300_000], b"end"]
    assert content(b"".join(map(gzip.compress, parts))) == b"".join(parts)


def test_an_empty_body_has_no_content():
    assert content(b"") == b""


def damaged(position: int) -> bytes:
    body = bytearray(gzip.compress(b"abc" * 1000, mtime=0))
    body[position] ^= 1
    return bytes(body)


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (b"{}", "incorrect header check"),
        (damaged(-6), "incorrect data check"),
        (damaged(-1), "incorrect length check"),
        (gzip.compress(RANDOM, mtime=0)[:-1], "it is not complete"),
        (gzip.compress(RANDOM, mtime=0)[:5], "it is not complete"),
        (gzip.compress(b"a", mtime=0) + b"{}", "incorrect header check"),
    ],
)
def test_a_damaged_body_is_the_clients_error(body, cause):
    status, found = refusal(body)
    assert status == 400
    assert found.startswith("the request is not gzip: ")
    assert cause in found


def test_a_content_above_the_limit_is_refused_before_it_is_decompressed_as_a_whole():
    bomb = gzip.compress(bytes(64 << 20))
    assert len(bomb) < 100_000
    tracemalloc.start()
    try:
        status, cause = refusal(bomb)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert status == 413
    assert "bytes after it is decompressed; at most 1048576 are accepted" in cause
    assert most < 4 * LIMIT
    assert content(gzip.compress(bytes(LIMIT))) == bytes(LIMIT)


def test_a_body_of_many_members_without_content_is_refused_at_once():
    read = []

    class Counted(io.BytesIO):
        def read(self, size=-1, /):
            read.append(size)
            return super().read(size)

    with pytest.raises(RequestError, match="bytes have 273 members"):
        Gunzipped(Counted(gzip.compress(b"") * 1_000_000), LIMIT)
    assert len(read) == 1


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "x-gzip", " gzip "])
def test_a_server_answers_a_compressed_request_as_the_same_without_compression(trained_job, encoding):
    records = json.dumps([{"chat": "hello there", "price": 1.5}] * 3000).encode()
    with serving(trained_job.root, SERVING_MAX_BYTES=str(len(records))) as server:
        plain = server.ask(records)
        assert server.ask(gzip.compress(records), content_encoding=encoding).body == plain.body
        assert server.ask(gzip.compress(records + b" "), content_encoding=encoding).status == 413
        assert server.ask(b"{}", content_encoding=encoding).status == 400
        assert server.ask(records, content_encoding="br").status == 415
        assert server.ask(records).body == plain.body


@pytest.mark.slow
def test_a_script_gets_the_content_and_its_length(tmp_path):
    script = f"""{FOUR}
def output_fn(prediction, accept, context):
    headers = context.get_all_request_header(0)
    return prediction + headers['Content-Length'] + str(headers.get('Content-Encoding'))
"""
    with serving(package(tmp_path, script)) as server:
        assert server.ask(gzip.compress(b"a,b"), CSV, content_encoding="gzip").body == b"a,b3None"
