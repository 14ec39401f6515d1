"""Run a text field's steps on a batch of strings: clean, encode once, group into chunks of token ids."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from operator import ne

import numpy as np

from container.tables.column_types import replace_surrogates
from container.text.chunk_tokenizer import ChunkTokenizer
from container.text.cleaning import run_string_step
from contracts.errors import ContractError
from contracts.text_fields import TextField

CHUNKER = "dialogue_chunker"
TOKENIZER = "tokenizer"
_PART_CHARACTERS = 1 << 20  # characters that are encoded together; a token takes up to 200 bytes meanwhile
_SEGMENT = 1 << 16  # characters of a long text that are counted together
_MOST_ADDED = 256  # tokens that a cut inside a word adds; WordPiece's longest word has 100 characters


@dataclass(frozen=True)
class TextCounts:
    """Counts of the output of a text field and of its cuts; `+` merges them.

    Attributes:
        records: records processed.
        chunks: chunks kept.
        tokens: tokens kept, including special tokens.
        empty_records: records without a text token; each has one chunk, of ChunkTokenizer.blank.
        truncated_records: records that lost a token or a chunk.
        cut_chunks: chunks removed beyond max_total_chunks.
        cut_tokens: text tokens removed beyond max_total_chunks, or beyond max_sen_len without a chunker.
        unknown_tokens: tokens kept that stand for text which the tokenizer does not know.
        without_emoji, without_html: records from which emoji_remover, or html_normalizer, removed something.
    """

    records: int = 0
    chunks: int = 0
    tokens: int = 0
    empty_records: int = 0
    truncated_records: int = 0
    cut_chunks: int = 0
    cut_tokens: int = 0
    unknown_tokens: int = 0
    without_emoji: int = 0
    without_html: int = 0

    def __add__(self, other: "TextCounts") -> "TextCounts":
        names = (field.name for field in dataclasses.fields(self))
        return TextCounts(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def to_dict(self) -> dict[str, int]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class EncodedTexts:
    """R records as N tokens in S consecutive chunks.

    Attributes:
        tokens: token ids, special tokens included. [N] int32
        token_counts: tokens per record. [R] int64
        chunk_lengths: tokens per chunk. [S] int32
        chunk_counts: chunks per record, at least one. [R] int64
        counts: output and cuts.
    """

    tokens: np.ndarray
    token_counts: np.ndarray
    chunk_lengths: np.ndarray
    chunk_counts: np.ndarray
    counts: TextCounts

    @classmethod
    def joined(cls, parts: Sequence["EncodedTexts"]) -> "EncodedTexts":
        """Return the records of all parts."""
        arrays = zip(*((part.tokens, part.token_counts, part.chunk_lengths, part.chunk_counts) for part in parts))
        return cls(*map(np.concatenate, arrays), counts=sum((part.counts for part in parts), TextCounts()))


@dataclass(frozen=True, slots=True)
class _Chunks:
    """The chunks of a record, without special tokens, and what was cut off."""

    chunks: list[list[int]]
    cut_chunks: int = 0
    cut_tokens: int = 0


class TextProcessor:
    """The steps of one text field, in the configured order, from raw strings to chunks of token ids. Picklable.

    Columns that are joined go through the steps one by one. With dialogue_chunker, their messages fill chunks together;
    without it, they are one chunk. If there are more tokens than the chunks hold, each column keeps a fair share.

    A record is a list of messages. String steps change or split them. Then each is encoded; dialogue_chunker packs them
    into chunks, and without it, each is a chunk.
    """

    def __init__(self, field: TextField, tokenizer: ChunkTokenizer) -> None:
        self.field = field
        self.tokenizer = tokenizer
        self._divides = CHUNKER in field.steps
        self._budget = field.max_sen_len - len(tokenizer.prefix) - len(tokenizer.suffix)
        fewest = len(field.columns) + len(tokenizer.between) * len(field.joined)  # a token of each text
        if self._budget < fewest:
            raise ContractError(
                f"max_sen_len of {field.name!r}: {field.max_sen_len} leaves no room beside the special tokens",
                f"Set it to {field.max_sen_len - self._budget + fewest} or more.",
            )

    def process(self, *columns: Sequence[str | None], max_tokens: int | None = None) -> EncodedTexts:
        """Encode R records; None and blank text become one chunk without text, see ChunkTokenizer.blank.

        Args:
            columns: the R texts of each column of the field.
            max_tokens: the most tokens that the caller accepts of a record. Of a longer record, only the beginning is
                encoded: enough to have more tokens, or to have all chunks that max_total_chunks keeps.
        """
        assert len(columns) == len(self.field.columns)
        parts = [self._process(part, max_tokens) for part in _parts(columns)]
        return parts[0] if len(parts) == 1 else EncodedTexts.joined(parts)

    def _process(self, columns: Sequence[Sequence[str | None]], max_tokens: int | None) -> EncodedTexts:
        changed: Counter[str] = Counter()
        encoded = [self._encode(texts, max_tokens, changed) for texts in columns]
        if self.field.joined:
            assembled = self._assemble(self._join(encoded))
        else:
            if self._divides:
                encoded[0] = [self._pack(messages) for messages in encoded[0]]
            assembled = self._assemble(map(self._within_limits, encoded[0]))
        removed = {"without_emoji": changed["emoji_remover"], "without_html": changed["html_normalizer"]}
        return replace(assembled, counts=replace(assembled.counts, **removed))

    def _encode(
        self, texts: Sequence[str | None], max_tokens: int | None, changed: Counter[str]
    ) -> list[list[list[int]]]:
        """Return the ids of each message with a token, of each record of a column; count what steps changed."""
        records = clean_texts(self.field, texts, changed)
        if max_tokens is not None:
            records = [self._beginning(record, max_tokens) for record in records]
        separator = self.tokenizer.separator if self._divides or self.field.joined else ""
        waiting = [separator * (i > 0) + message for record in records for i, message in enumerate(record)]
        encoded = iter(self.tokenizer.encode_batch(waiting))
        # A chunk of special tokens only would enter the record's mean.
        return [[tokens for tokens in islice(encoded, len(record)) if tokens] for record in records]

    def _pack(self, messages: Sequence[Sequence[int]]) -> list[list[int]]:
        return pack_messages(messages, self._budget, starts_word=self.tokenizer.starts_word)

    def _beginning(self, record: list[str], max_tokens: int) -> list[str]:
        """Return the part of a long record that `process` encodes, or the whole record."""
        if sum(map(len, record)) <= _SEGMENT:
            return record
        most = min(max_tokens, (self.field.max_chunks or max_tokens) * self._budget)
        kept: list[str] = []
        total = 0  # at least so many tokens
        for message in record:
            tokens = stop = 0
            # More than the budget, so that pack_messages begins the same chunks as with the whole message.
            while stop < len(message) and (tokens <= self._budget or (self._divides and total + tokens <= most)):
                tokens += len(self.tokenizer.encode_batch([message[stop : stop + _SEGMENT]])[0])
                stop += _SEGMENT
                tokens -= _MOST_ADDED * (stop < len(message))
            kept.append(message[:stop])
            # Without a chunker, _within_limits keeps the beginning of a message.
            total += max(0, tokens if self._divides else min(tokens, self._budget))
            if total > most:
                break
        return kept

    def _within_limits(self, chunks: list[list[int]]) -> _Chunks:
        """Cut the chunks of a record to max_sen_len and max_chunks."""
        kept = [chunk[: self._budget] for chunk in chunks[: self.field.max_chunks]]
        return _Chunks(kept, len(chunks) - len(kept), sum(map(len, chunks)) - sum(map(len, kept)))

    def _join(self, columns: list[list[list[list[int]]]]) -> Iterator[_Chunks]:
        """Yield the chunks of each record of the joined columns."""
        limit = self.field.max_chunks if self._divides else 1
        num_separators = len(self.tokenizer.between) * (len(columns) - 1)
        for texts in zip(*columns, strict=True):
            if not any(texts):
                yield _Chunks([])
                continue
            messages, lost = list(texts), 0
            if limit is not None:
                lengths = [sum(map(len, text)) for text in texts]
                shares = fair_shares(lengths, limit * self._budget - num_separators)
                messages = [_first_tokens(text, share) for text, share in zip(texts, shares)]
                lost = sum(lengths) - sum(shares)
            joined = _with_separators(messages, self.tokenizer.between)
            chunks = self._pack(joined)
            if limit is not None and len(chunks) > limit:  # a chunk ends before a word that does not fit
                flat = list(chain.from_iterable(joined))
                chunks = [flat[i : i + self._budget] for i in range(0, len(flat), self._budget)]
            yield _Chunks(chunks, cut_tokens=lost)

    def _assemble(self, records: Iterable[_Chunks]) -> EncodedTexts:
        """Put the special tokens around every chunk; a record without a token gets one chunk."""
        records, blank = list(records), [self.tokenizer.blank]
        prefix, suffix = self.tokenizer.prefix, self.tokenizer.suffix
        runs = [
            np.array([*prefix, *chunk, *suffix], np.int32) for record in records for chunk in record.chunks or blank
        ]
        tokens = np.concatenate([np.empty(0, np.int32), *runs])  # [N]
        chunk_lengths = np.array(list(map(len, runs)), np.int32)  # [S]
        chunk_counts = np.array([len(record.chunks) or 1 for record in records], np.int64)  # [R]
        ends = np.concatenate([[0], np.cumsum(chunk_lengths, dtype=np.int64)])[np.cumsum(chunk_counts)]
        return EncodedTexts(
            tokens=tokens,
            token_counts=np.diff(ends, prepend=0),  # [R]
            chunk_lengths=chunk_lengths,
            chunk_counts=chunk_counts,
            counts=TextCounts(
                records=len(records),
                chunks=len(runs),
                tokens=int(chunk_lengths.sum(dtype=np.int64)),
                empty_records=sum(not record.chunks for record in records),
                truncated_records=sum(record.cut_tokens > 0 for record in records),
                cut_chunks=sum(record.cut_chunks for record in records),
                cut_tokens=sum(record.cut_tokens for record in records),
                unknown_tokens=int(np.count_nonzero(tokens == self.tokenizer.unknown)),
            ),
        )


def clean_texts(field: TextField, texts: Sequence[str | None], changed: Counter[str] | None = None) -> list[list[str]]:
    """Return the messages of each record after the string steps; add the records that each changed to `changed`."""
    records = [[replace_surrogates(text)] if text and not text.isspace() else [] for text in texts]
    for step in field.steps:
        if step not in (CHUNKER, TOKENIZER):
            cleaned = [[part for text in record for part in run_string_step(step, text)] for record in records]
            if changed is not None:
                changed[step] += sum(map(ne, records, cleaned))
            records = cleaned
    return records


def _parts(columns: Sequence[Sequence[str | None]]) -> Iterator[Sequence[Sequence[str | None]]]:
    """Yield consecutive records with at most _PART_CHARACTERS together, or one longer record."""
    begin = characters = 0
    for i, record in enumerate(zip(*columns, strict=True)):
        size = sum(len(text or "") for text in record)
        characters += size
        if characters > _PART_CHARACTERS and i > begin:
            yield [texts[begin:i] for texts in columns]
            begin, characters = i, size
    yield [texts[begin:] for texts in columns]


def _first_tokens(messages: list[list[int]], total: int) -> list[list[int]]:
    """Return the first `total` tokens of messages."""
    kept = []
    for tokens in messages:
        if total > 0:
            kept.append(tokens[:total])
        total -= len(tokens)
    return kept


def _with_separators(texts: Sequence[list[list[int]]], between: list[int]) -> list[list[int]]:
    """Return the messages of several texts as those of one; the last of a text and the first of the next are one."""
    joined: list[list[int]] = []
    for messages in texts:
        first, *others = messages or [[]]
        joined = [*joined[:-1], joined[-1] + between + first] if joined else [first]
        joined += others
    return joined


def pack_messages(
    messages: Sequence[Sequence[int]], budget: int, *, starts_word: Callable[[int], bool]
) -> list[list[int]]:
    """Return the chunks of a record, in order, each of at most `budget` tokens; no token is lost.

    A message that does not fit into the current chunk begins a new one. A message longer than the budget is split,
    between words where a word begins within the budget; the next message may share its last chunk.

    Args:
        messages: token ids of each message, without special tokens.
        budget: tokens per chunk, at least 1, without special tokens.
        starts_word: returns whether a token begins a word.
    """
    chunks: list[list[int]] = []
    room = 0
    for tokens in messages:
        start = 0
        if not chunks or len(tokens) > room:
            chunks.append([])
            room = budget
        while len(tokens) - start > room:
            longest = start + room
            stop = next((stop for stop in range(longest, start, -1) if starts_word(tokens[stop])), longest)
            chunks[-1] += tokens[start:stop]
            chunks.append([])
            start, room = stop, budget
        chunks[-1] += tokens[start:]
        room -= len(tokens) - start
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
