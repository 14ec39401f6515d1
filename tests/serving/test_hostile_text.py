"""While the server prepares a large hostile text, it answers other requests."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from testing.hostile_texts import hostile_text
from testing.serving import serving

RECORD = {"chat": "works well", "price": 20, "quantity": 1, "color": "red"}
SMALL = json.dumps(RECORD)
MOST_SECONDS = 2  # on a busy machine; 0.2 s on a quiet one


# Each text becomes few tokens, because the model's own time per token is not the subject here.
@pytest.mark.slow
def test_a_large_hostile_text_delays_neither_ping_nor_a_small_request(trained_job):
    families = ["joiners", "alternating marks", "zero-width", "one word"]
    hostile = "".join(hostile_text(family, 1_000_000) for family in families)
    body = json.dumps({**RECORD, "chat": hostile}, ensure_ascii=False).encode()
    assert len(body) > 4_000_000
    pings, small = [], []
    with serving(trained_job.root) as server, ThreadPoolExecutor(1) as pool:
        assert server.ask(SMALL).status == 200
        large = pool.submit(server.ask, body)
        while not large.done():
            for seconds, request in ((pings, {"method": "GET", "path": "/ping"}), (small, {"body": SMALL})):
                began = time.perf_counter()
                assert server.ask(**request).status == 200
                seconds.append(time.perf_counter() - began)
        assert large.result().status == 200
    assert len(pings) > 5, "the large request was still in progress"
    print(f"{len(pings)} pings, at most {max(pings):.3f} s; small requests at most {max(small):.3f} s")
    assert max(pings) < MOST_SECONDS
    assert max(small) < MOST_SECONDS
