"""The baseline of a model: what its training and test data look like, and how it scores the test data."""

import base64
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
from pydantic_core import to_json

from container.data.records import RecordArrays, TextArrays
from container.evaluation.bootstrap import Estimate, estimate_metrics
from container.evaluation.reliability import ReliabilityBin, calibrate
from container.preprocessing.distributions import Count, Distribution, TableDistributions, labelled
from container.preprocessing.numeric_summary import NumericSummary
from container.preprocessing.prepared import DISTRIBUTIONS, PreparedData
from container.preprocessing.risk_tables import fold_of
from container.preprocessing.transform import Preprocessor
from contracts import artifacts
from contracts.errors import ContractError
from contracts.input_files import exists, read_as

SAMPLE_ROWS = 2000
_MOST_TOKENS = 512  # distinct ones of a record
_FIX = "Write it again: `python -m container baseline --root JOB`, with the folder of the training job."


@dataclass(frozen=True)
class SampledTexts:
    """One text field of sampled records.

    Attributes:
        empty: records without text.
        unknown: tokens of each record that stand for text which the tokenizer does not know. [N]
        distinct: different tokens of each record that `tokens` has. [N]
        tokens: their ids, without the order of the text: int32, compressed, as base64.
    """

    empty: Count
    unknown: tuple[Count, ...]
    distinct: tuple[Count, ...]
    tokens: str

    @classmethod
    def of(cls, texts: TextArrays, *, unknown: int | None, blank: Sequence[int]) -> Self:
        """Return the facts; `unknown` is the id of an unknown token, `blank` the ids of a record without text."""
        records = np.split(texts.tokens, texts.token_offsets[1:-1])
        distinct = [np.unique(record[:_MOST_TOKENS]) for record in records]
        ids = np.concatenate([*distinct, np.empty(0)]).astype("<i4")
        return cls(
            sum(np.array_equal(record, blank) for record in records),
            tuple(int(np.count_nonzero(record == unknown)) for record in records),
            tuple(map(len, distinct)),
            base64.b64encode(zlib.compress(ids.tobytes(), 9)).decode("ascii"),
        )

    def ids(self) -> np.ndarray:
        """Return the ids of all records, one after the other. [sum(distinct)]"""
        return np.frombuffer(zlib.decompress(base64.b64decode(self.tokens)), "<i4")


@dataclass(frozen=True)
class Scores:
    """What the model predicts for records, and how well.

    Attributes:
        scores: the probability of class 1 (two classes), or of the most probable class.
        decided: records of each most probable class.
        calibration: of the records with a label.
        metrics: of these, by name.
        rarer: of two classes, the class id whose average precision `metrics` has; None without labels.
    """

    rows: Count
    scores: Distribution
    decided: Mapping[str, Count]
    labelled: Count = 0
    calibration: tuple[ReliabilityBin, ...] = ()
    metrics: Mapping[str, Estimate] | None = None
    rarer: Count | None = None

    @classmethod
    def of(
        cls,
        probabilities: np.ndarray,
        labels: np.ndarray,
        class_labels: Sequence[int | str],
        *,
        then: Self | None = None,
    ) -> Self:
        """Return the facts.

        Args:
            probabilities: [N, K]
            labels: class ids; negative without a label. [N]
            then: whose bins and rarer class are used; None: bins of about equal counts, and the rarer of `labels`.
        """
        values = NumericSummary()
        values.add((probabilities[:, 1] if len(class_labels) == 2 else probabilities.max(axis=1)).astype(np.float64))
        known = labels >= 0
        counts = np.bincount(labels[known], minlength=len(class_labels))
        rarer = None if then is None else then.rarer
        rarer = int(counts.argmin()) if rarer is None and known.any() else rarer
        decided = np.bincount(probabilities.argmax(axis=1), minlength=len(class_labels)).tolist()
        logits = np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
        return cls(
            rows=len(labels),
            scores=Distribution.of(values) if then is None else then.scores.like(values),
            decided=labelled(class_labels, decided),
            labelled=int(known.sum()),
            calibration=calibrate(labels[known], probabilities[known]).bins if known.any() else (),
            metrics=estimate_metrics(labels, logits, seed=0, rarer=rarer) if known.any() else None,
            rarer=rarer,
        )


@dataclass(frozen=True)
class Baseline:
    """The content of baseline.json.

    Attributes:
        table: of train.
        lengths: tokens per record of val and test, by role of the text field. A tokenizer that was fitted on train
            needs fewer tokens for train than for any other text.
        texts: of at most SAMPLE_ROWS of these records, by role.
        scores: of test.
    """

    format_version: Literal[1]
    table: TableDistributions
    lengths: Mapping[str, Distribution]
    texts: Mapping[str, SampledTexts]
    scores: Scores

    @classmethod
    def of(cls, table: TableDistributions, held_out: RecordArrays, preprocessor: Preprocessor, scores: Scores) -> Self:
        """Return the baseline of a job.

        Args:
            table: of train.
            held_out: sampled records of val and test.
            scores: of test.
        """
        texts = sampled_texts(held_out, preprocessor)
        lengths = {role: Distribution.of(summary) for role, summary in token_lengths(held_out, texts).items()}
        return cls(1, table, lengths, texts, scores)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the baseline of a model folder; raise ContractError if it has none."""
        path = folder / artifacts.BASELINE
        if not exists(path):
            raise ContractError(
                f"{path}: the model has no baseline, because an earlier version trained it",
                "Train again, or run `python -m container baseline --root JOB` with the folder of the training job.",
            )
        return read_as(path, cls, _FIX)

    def save(self, folder: Path) -> None:
        (folder / artifacts.BASELINE).write_bytes(to_json(self) + b"\n")


def hashed_rows(rows: int, most: int = SAMPLE_ROWS) -> np.ndarray:
    """Return at most `most` of the numbers below `rows`, ascending, chosen by their hashes."""
    hashes = fold_of(np.arange(rows), seed=0, num_folds=1 << 62)
    return np.sort(np.argsort(hashes, kind="stable")[:most])


def sampled_texts(records: RecordArrays, preprocessor: Preprocessor) -> dict[str, SampledTexts]:
    """Return the text fields of records, by role."""
    roles = [field.role for field in preprocessor.fitted.text_fields]
    return {
        role: SampledTexts.of(texts, unknown=preprocessor.unknown(role), blank=preprocessor.blank(role))
        for role, texts in zip(roles, records.texts, strict=True)
    }


def token_lengths(records: RecordArrays, roles: Iterable[str]) -> dict[str, NumericSummary]:
    """Return the tokens per record of each text field."""
    lengths = {role: NumericSummary() for role in roles}
    for summary, texts in zip(lengths.values(), records.texts):
        summary.add(np.diff(texts.token_offsets).astype(np.float64))
    return lengths


def write_baseline(folder: Path, data: PreparedData, held_out: RecordArrays, scores: Scores) -> None:
    """Write the baseline of a job; see Baseline.of."""
    table = read_as(data.folder / DISTRIBUTIONS, TableDistributions, "Remove the folder of prepared data.")
    Baseline.of(table, held_out, Preprocessor.load(data.folder), scores).save(folder)
