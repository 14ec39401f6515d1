"""Fill batches so that few different numbers of tokens and chunks occur, as graphs of fixed shapes need."""

from collections.abc import Hashable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from container.data.batch import UNLABELLED, PackedBatch, PackedText

_TOKENS, _CHUNKS = 16, 2  # different numbers in each doubling; of tokens in all texts together


def rounded_up(count: int, *, per_doubling: int) -> int:
    """Return the next of the numbers that divide each power of two to the next one into `per_doubling` steps."""
    step = max(1, 2 ** (count.bit_length() - 1) // per_doubling)
    return -(-count // step) * step


def filled(batch: PackedBatch, bounds: Sequence[tuple[int, int]]) -> PackedBatch:
    """Return `batch`, on the host, with one more record of weight 0, which has chunks in every text.

    Args:
        bounds: of each text, the most tokens of a chunk, and the least bound of a record (PackedText.bounds).
    """

    def with_row(tensor: Tensor, value: int) -> Tensor:
        return F.pad(tensor, (0, 0) * (tensor.ndim - 1) + (0, 1), value=value)

    return replace(
        batch,
        texts=tuple(
            _filled(text, *bound, per_doubling=_TOKENS // len(bounds))
            for text, bound in zip(batch.texts, bounds, strict=True)
        ),
        tabular=with_row(batch.tabular, 0),
        labels=with_row(batch.labels, UNLABELLED),
        rows=with_row(batch.rows, -1),
        weights=with_row(batch.weights, 0),
        targets=None if batch.targets is None else with_row(batch.targets, 0),
    )


def _filled(text: PackedText, most: int, longest_record: int, *, per_doubling: int) -> PackedText:
    tokens, chunks = len(text.tokens), len(text.lengths)
    size, count = tokens, 1
    while size - tokens < count:  # each chunk has a token
        size = rounded_up(size + 1, per_doubling=per_doubling)
        count = rounded_up(chunks - (tokens - size) // most, per_doubling=_CHUNKS) - chunks
    added = torch.full((count,), (size - tokens) // count)
    added[: (size - tokens) % count] += 1
    record = len(text.record_lengths)
    filler = PackedText.of_chunks(
        text.tokens.new_zeros(size - tokens), lengths=added, chunk_record=torch.zeros(count, dtype=torch.int64)
    )
    joined = PackedText.joined([text, filler])
    assert len(joined.record_lengths) == record + 1
    longest_record = max(longest_record, rounded_up(max(joined.record_lengths), per_doubling=1))
    return replace(joined, bounds=(most, longest_record))


def shapes_of(batch: PackedBatch) -> Hashable:
    """Return what the operations of a step on a filled batch depend on: its bucket."""
    texts = tuple((len(text.tokens), len(text.lengths), text.bounds) for text in batch.texts)
    return len(batch.rows), texts, batch.targets is None
