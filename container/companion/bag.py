"""Count the tokens of a text, and the pairs of neighbouring tokens, in a way that an ONNX graph can repeat."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from container.data.records import RecordArrays, TextArrays

# A pair (a, b) has the bucket (a * MULTIPLIER + b) mod BUCKETS; BUCKETS is prime.
BUCKETS = 65_521
MULTIPLIER = 1_000_003
_FEWEST_RECORDS = 2  # a term in fewer training records is left out
_IDF_UNITS = 1024  # of an inverse document frequency of 1


@dataclass(frozen=True)
class TokenBag:
    """The terms of one text: frequent tokens, and frequent pairs of neighbouring tokens of a chunk.

    The value of a term in a record is count * idf / norm. The norm is the square root of the sum of idf^2 over all
    occurrences, which needs no list of the record's distinct terms. Inverse document frequencies (idf) are integers,
    so that a graph with integers computes the same norm, also of a record whose terms are in nearly all records. The
    unit has no influence, because the norm has the same.

    Attributes:
        terms_of_tokens: term of each token id, 0 for none; the last entry is that of all larger ids. [V + 1]
        terms_of_pairs: term of each bucket, 0 for none. [BUCKETS]
        idf: logarithm of records / records with the term, in units of 1/1024, at least 1; 0 for term 0. [R] int64
    """

    terms_of_tokens: np.ndarray
    terms_of_pairs: np.ndarray
    idf: np.ndarray

    @classmethod
    def fit(cls, texts: Iterable[TextArrays], *, limit: int) -> "TokenBag":
        """Choose at most `limit` terms, those in most records; a term in every record is none."""
        texts = list(texts)
        vocabulary = 1 + max(int(text.tokens.max(initial=0)) for text in texts)
        size = vocabulary + BUCKETS
        counts = np.zeros(size, np.int64)
        for text in texts:
            records, ids = _occurrences(text, vocabulary)
            counts += np.bincount(np.unique(records * size + ids) % size, minlength=size)
        num_records = sum(len(text.token_offsets) - 1 for text in texts)
        usable = np.flatnonzero((counts >= _FEWEST_RECORDS) & (counts < num_records))
        chosen = np.sort(usable[np.argsort(-counts[usable], kind="stable")][:limit])
        terms = np.zeros(size, np.int64)
        terms[chosen] = np.arange(1, len(chosen) + 1)
        return cls(
            np.append(terms[:vocabulary], 0),
            terms[vocabulary:],
            np.append(0, np.maximum(np.rint(_IDF_UNITS * np.log(num_records / counts[chosen])), 1).astype(np.int64)),
        )

    def transform(self, text: TextArrays) -> sparse.csr_matrix:
        """Return the value of each term in each record. [N, R] float64"""
        vocabulary = len(self.terms_of_tokens) - 1
        records, ids = _occurrences(text, vocabulary)
        terms = np.concatenate([self.terms_of_tokens[:-1], self.terms_of_pairs])[ids]
        idf = self.idf[terms]
        num_records = len(text.token_offsets) - 1
        norms = np.sqrt(np.bincount(records, idf**2, minlength=num_records))
        values = idf / np.maximum(norms, 1)[records]  # a norm below 1 is that of a record without terms
        return sparse.csr_matrix((values, (records, terms)), shape=(num_records, len(self.idf)))


def token_counts(parts: Sequence[RecordArrays]) -> np.ndarray:
    """Return the number of tokens of each text. [N, n] float32"""
    return np.concatenate([part.token_counts for part in parts]).astype(np.float32)


def _occurrences(text: TextArrays, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the record and the id of each token (below `vocabulary`) and of each pair (`vocabulary` + bucket)."""
    first, last = text.token_offsets[0], text.token_offsets[-1]
    tokens = text.tokens[first:last].astype(np.int64)
    records = np.repeat(np.arange(len(text.token_offsets) - 1), np.diff(text.token_offsets))
    lengths = text.chunk_lengths[text.chunk_offsets[0] : text.chunk_offsets[-1]]
    chunks = np.repeat(np.arange(len(lengths)), lengths)
    known = tokens < vocabulary
    inside = chunks[1:] == chunks[:-1]
    pairs = (tokens[:-1] * MULTIPLIER + tokens[1:])[inside] % BUCKETS
    return (
        np.concatenate([records[known], records[1:][inside]]),
        np.concatenate([tokens[known], vocabulary + pairs]),
    )
