"""Pack the encoded messages of a record into chunks with a limited number of tokens; no token is lost."""

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """Tokens [start:stop] of a record's message."""

    message: int
    start: int
    stop: int


def pack_messages(
    messages: Sequence[Sequence[int]], budget: int, *, starts_word: Callable[[int], bool]
) -> list[list[Span]]:
    """Return the chunks of a record, in order; each is a list of spans with at most `budget` tokens in total.

    A message that does not fit into the current chunk begins a new one. A message longer than the budget is split,
    between words where a word begins within the budget; the next message may share its last chunk.

    Args:
        messages: token ids of each message, without special tokens.
        budget: tokens per chunk, at least 1, without special tokens.
        starts_word: returns whether a token begins a word.
    """
    chunks: list[list[Span]] = []
    room = 0
    for index, tokens in enumerate(messages):
        start, length = 0, len(tokens)
        if not chunks or length > room:
            chunks.append([])
            room = budget
        while length - start > room:
            stop = _cut(tokens, start, start + room, starts_word)
            chunks[-1].append(Span(index, start, stop))
            chunks.append([])
            start, room = stop, budget
        chunks[-1].append(Span(index, start, length))
        room -= length - start
    return chunks


def fair_shares(lengths: Sequence[int], total: int) -> list[int]:
    """Return the tokens that each text keeps of `total`: a short text keeps all, the others share the rest equally.

    If a share is not a whole number, the first texts keep one token more.
    """
    shares = [0] * len(lengths)
    for left, i in enumerate(sorted(range(len(lengths)), key=lambda i: (lengths[i], -i))):
        shares[i] = min(lengths[i], total // (len(lengths) - left))
        total -= shares[i]
    return shares


def _cut(tokens: Sequence[int], start: int, limit: int, starts_word: Callable[[int], bool]) -> int:
    """Return the end of a chunk from `start`: before the last word that begins up to `limit`, else `limit`."""
    return next((stop for stop in range(limit, start, -1) if starts_word(tokens[stop])), limit)
