"""Prefetching of steps in a thread."""

import threading
from itertools import count

import pytest
import torch

from container.data.loader import prefetched
from testing.encoder_families import packed_batch

CPU = torch.device("cpu")


def prefetch_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_items_arrive_in_order_and_the_iteration_ends_with_the_last():
    with prefetched(iter([[i] for i in range(11)]), CPU) as items:
        assert list(items) == [[i] for i in range(11)]


def test_an_exception_is_raised_after_the_items_before_it():
    def items():
        yield [0]
        raise OSError("disk")

    with prefetched(items(), CPU) as ahead:
        assert next(ahead) == [0]
        with pytest.raises(OSError, match="disk"):
            next(ahead)


def test_leaving_early_ends_the_thread_with_few_items_assembled():
    assembled = count()
    with prefetched(([next(assembled)] for _ in range(1000)), CPU) as items:
        next(items)
        assert prefetch_threads()
    assert not prefetch_threads()
    assert next(assembled) < 10


def test_batches_for_a_gpu_are_pinned_in_the_thread_that_has_that_gpu(monkeypatch):
    gpu, made = torch.device("cuda", 1), []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: made.append((threading.current_thread().name, device)))
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: None)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda _: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: made.append("pinned") or tensor)
    with prefetched(iter([[packed_batch([[3], [2, 4]])]]), gpu) as items:
        (batch,) = next(items)
    tensors = [value for part in (batch, *batch.texts) for value in vars(part).values() if torch.is_tensor(value)]
    assert made == [("prefetch_0", gpu), *["pinned"] * len(tensors)]
