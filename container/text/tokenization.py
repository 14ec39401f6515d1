"""Run a text field's steps on a batch of strings: clean, encode once, group into chunks of token ids."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from container.tables.column_types import replace_surrogates
from container.text.chunk_tokenizer import ChunkTokenizer
from container.text.chunking import fair_shares, pack_messages
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
    """

    records: int = 0
    chunks: int = 0
    tokens: int = 0
    empty_records: int = 0
    truncated_records: int = 0
    cut_chunks: int = 0
    cut_tokens: int = 0

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
class Piece:
    """A message or a chunk: its text ("" if no later step reads it), and its token ids after a chunker."""

    text: str
    tokens: list[int] | None = None


Record = list[Piece]


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

    A record is a list of pieces. String steps change or split pieces; dialogue_chunker encodes them and packs them into
    chunks; tokenizer makes a chunk of every piece, and encodes those without ids. So nothing is encoded twice, except
    chunks whose text a string step after the chunker has changed.
    """

    def __init__(self, field: TextField, tokenizer: ChunkTokenizer) -> None:
        self.field = field
        self.tokenizer = tokenizer
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
        if len(columns) > 1:
            return self._assemble(self._join([self._pieces(texts, max_tokens) for texts in columns]))
        return self._assemble(map(self._within_limits, self._tokens(self._pieces(columns[0], max_tokens))))

    def _pieces(self, texts: Sequence[str | None], max_tokens: int | None) -> list[Record]:
        """Run the steps on a column; the chunks of columns that are joined are made later."""
        records = _raw_records(texts)
        first_encoding = next((step for step in self.field.steps if step in (CHUNKER, TOKENIZER)), None)
        for step in self.field.steps:
            if step == first_encoding and max_tokens is not None:
                records = [self._beginning(record, max_tokens) for record in records]
            if step == CHUNKER and not self.field.joined:
                records = self._chunk(records, with_text=self.field.steps[-2:] != (CHUNKER, TOKENIZER))
            elif step not in (CHUNKER, TOKENIZER):
                records = [_run_string_step(step, record) for record in records]
        return records

    def _beginning(self, record: Record, max_tokens: int) -> Record:
        """Return the part of a long record that `process` encodes, or the whole record."""
        if sum(len(piece.text) for piece in record) <= _SEGMENT:
            return record
        most = min(max_tokens, (self.field.max_chunks or max_tokens) * self._budget)
        divides = CHUNKER in self.field.steps  # else a piece is one chunk, of which _encode keeps the beginning
        kept: Record = []
        total = 0  # at least so many tokens
        for piece in record:
            tokens = stop = 0
            # More than the budget, so that pack_messages begins the same chunks as with the whole piece.
            while stop < len(piece.text) and (tokens <= self._budget or (divides and total + tokens <= most)):
                tokens += len(self.tokenizer.encode_batch([piece.text[stop : stop + _SEGMENT]])[0])
                stop += _SEGMENT
                tokens -= _MOST_ADDED * (stop < len(piece.text))
            kept.append(Piece(piece.text[:stop]))
            total += max(0, tokens if divides else min(tokens, self._budget))
            if total > most:
                break
        return kept

    def _chunk(self, records: list[Record], *, with_text: bool) -> list[Record]:
        """Pack each record's messages into chunks; with_text also finds the text of each chunk."""
        separator = self.tokenizer.separator
        texts = [separator * (i > 0) + piece.text for record in records for i, piece in enumerate(record)]
        encoded: list[tuple[list[int], list[int] | None]] = []
        if with_text:
            encoded.extend(map(self.tokenizer.encode_with_starts, texts))
        else:
            encoded.extend((tokens, None) for tokens in self.tokenizer.encode_batch(texts))
        chunked, end = [], 0
        for record in records:
            begin, end = end, end + len(record)
            chunked.append(self._pack(texts[begin:end], encoded[begin:end]))
        return chunked

    def _pack(self, texts: list[str], encoded: list[tuple[list[int], list[int] | None]]) -> Record:
        messages = [tokens for tokens, _ in encoded]
        if len(messages) == 1 and len(messages[0]) <= self._budget:
            return [Piece(texts[0], messages[0])]
        pieces = []
        for spans in pack_messages(messages, self._budget, starts_word=self.tokenizer.starts_word):
            tokens = list(chain.from_iterable(messages[index][start:stop] for index, start, stop in spans))
            parts = [
                _text_between(texts[index], starts, start, stop)
                for index, start, stop in spans
                if (starts := encoded[index][1]) is not None
            ]
            pieces.append(Piece(" ".join(parts), tokens))
        return pieces

    def _tokens(self, records: list[Record]) -> list[list[list[int]]]:
        """Return the ids of each piece with a token, of each record."""
        separated = self.field.joined
        waiting = [
            (self.tokenizer.separator if separated and i else "") + piece.text
            for record in records for i, piece in enumerate(record) if piece.tokens is None
        ]  # fmt: skip
        encoded = iter(self.tokenizer.encode_batch(waiting))
        pieces = [[next(encoded) if piece.tokens is None else piece.tokens for piece in record] for record in records]
        # A chunk of special tokens only would enter the record's mean.
        return [[tokens for tokens in record if tokens] for record in pieces]

    def _within_limits(self, chunks: list[list[int]]) -> _Chunks:
        """Cut the chunks of a record to max_sen_len and max_chunks."""
        kept = [chunk[: self._budget] for chunk in chunks[: self.field.max_chunks]]
        return _Chunks(kept, len(chunks) - len(kept), sum(map(len, chunks)) - sum(map(len, kept)))

    def _join(self, columns: list[list[Record]]) -> Iterator[_Chunks]:
        """Yield the chunks of each record of the joined columns."""
        divides = CHUNKER in self.field.steps
        limit = self.field.max_chunks if divides else 1
        num_separators = len(self.tokenizer.between) * (len(columns) - 1)
        for texts in zip(*map(self._tokens, columns), strict=True):
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
            packed = pack_messages(joined, self._budget, starts_word=self.tokenizer.starts_word)
            chunks = [[id for index, start, stop in spans for id in joined[index][start:stop]] for spans in packed]
            if limit is not None and len(chunks) > limit:  # a chunk ends before a word that does not fit
                flat = list(chain.from_iterable(joined))
                chunks = [flat[i : i + self._budget] for i in range(0, len(flat), self._budget)]
            yield _Chunks(chunks, cut_tokens=lost)

    def _assemble(self, records: Iterable[_Chunks]) -> EncodedTexts:
        """Put the special tokens around every chunk; a record without a token gets one chunk."""
        prefix, suffix = self.tokenizer.prefix, self.tokenizer.suffix
        runs: list[np.ndarray] = []  # consecutive ids
        lengths: list[int] = []
        chunk_counts: list[int] = []
        empty = truncated = cut_chunks = cut_tokens = 0
        for record in records:
            truncated += record.cut_tokens > 0
            cut_tokens += record.cut_tokens
            cut_chunks += record.cut_chunks
            empty += not record.chunks
            chunks = record.chunks or [self.tokenizer.blank]
            for chunk in chunks:
                runs.append(np.array([*prefix, *chunk, *suffix], dtype=np.int32))
                lengths.append(len(chunk))
            chunk_counts.append(len(chunks))
        chunk_lengths = np.array(lengths, dtype=np.int32) + np.int32(len(prefix) + len(suffix))  # [S]
        counts = np.array(chunk_counts, dtype=np.int64)  # [R]
        total = int(chunk_lengths.sum(dtype=np.int64))
        ends = np.concatenate([[0], np.cumsum(chunk_lengths, dtype=np.int64)])[np.cumsum(counts)]
        return EncodedTexts(
            tokens=np.concatenate([np.empty(0, np.int32), *runs]),  # [N]
            token_counts=np.diff(ends, prepend=0),  # [R]
            chunk_lengths=chunk_lengths,
            chunk_counts=counts,
            counts=TextCounts(
                records=len(counts),
                chunks=len(chunk_lengths),
                tokens=total,
                empty_records=empty,
                truncated_records=truncated,
                cut_chunks=cut_chunks,
                cut_tokens=cut_tokens,
            ),
        )


def clean_texts(field: TextField, texts: Sequence[str | None]) -> list[list[str]]:
    """Return the pieces of each record after the string steps, to learn a vocabulary."""
    records = _raw_records(texts)
    for step in field.steps:
        if step not in (CHUNKER, TOKENIZER):
            records = [_run_string_step(step, record) for record in records]
    return [[piece.text for piece in record] for record in records]


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


def _raw_records(texts: Sequence[str | None]) -> list[Record]:
    return [[Piece(replace_surrogates(text))] if text and not text.isspace() else [] for text in texts]


def _run_string_step(step: str, record: Record) -> Record:
    pieces: Record = []
    for piece in record:
        texts = run_string_step(step, piece.text)
        if texts == [piece.text]:
            pieces.append(piece)  # with its ids, if any
        else:
            pieces.extend(map(Piece, texts))
    return pieces


def _text_between(text: str, starts: list[int], start: int, stop: int) -> str:
    """Return the text of tokens [start:stop], including characters that no token covers."""
    begin = starts[start] if 0 < start < len(starts) else 0
    end = starts[stop] if stop < len(starts) else len(text)
    return text[begin:end].strip()
