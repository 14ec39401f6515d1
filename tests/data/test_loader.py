"""Prefetching of steps in a thread."""

import threading
from itertools import count

import pytest

from container.data.loader import prefetched


def prefetch_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_items_arrive_in_order_and_the_iteration_ends_with_the_last():
    with prefetched(iter([[i] for i in range(11)])) as items:
        assert list(items) == [[i] for i in range(11)]


def test_an_exception_is_raised_after_the_items_before_it():
    def items():
        yield [0]
        raise OSError("disk")

    with prefetched(items()) as ahead:
        assert next(ahead) == [0]
        with pytest.raises(OSError, match="disk"):
            next(ahead)


def test_leaving_early_ends_the_thread_with_few_items_assembled():
    assembled = count()
    with prefetched([next(assembled)] for _ in range(1000)) as items:
        next(items)
        assert prefetch_threads()
    assert not prefetch_threads()
    assert next(assembled) < 10
