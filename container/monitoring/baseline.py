"""The baseline of a model: what its training and test data look like, and how it scores the test data."""

import base64
import zlib
from collections.abc import Mapping, Sequence
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
        unknown: tokens of each record that stand for text which the tokenizer does not know. [N]
        distinct: different tokens of each record that `tokens` has. [N]
        tokens: their ids, without the order of the text: int32, compressed, as base64.
    """

    unknown: tuple[Count, ...]
    distinct: tuple[Count, ...]
    tokens: str

    @classmethod
    def of(cls, texts: TextArrays, unknown: int | None) -> Self:
        records = np.split(texts.tokens, texts.token_offsets[1:-1])
        distinct = [np.unique(record[:_MOST_TOKENS]) for record in records]
        ids = np.concatenate([*distinct, np.empty(0)]).astype("<i4")
        return cls(
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
    """

    rows: Count
    scores: Distribution
    decided: Mapping[str, Count]
    labelled: Count = 0
    calibration: tuple[ReliabilityBin, ...] = ()
    metrics: Mapping[str, Estimate] | None = None

    @classmethod
    def of(
        cls,
        probabilities: np.ndarray,
        labels: np.ndarray,
        class_labels: Sequence[int | str],
        *,
        then: Distribution | None = None,
    ) -> Self:
        """Return the facts.

        Args:
            probabilities: [N, K]
            labels: class ids; negative without a label. [N]
            then: the scores whose bins are used; None: bins of about equal counts.
        """
        values = NumericSummary()
        values.add((probabilities[:, 1] if len(class_labels) == 2 else probabilities.max(axis=1)).astype(np.float64))
        known = labels >= 0
        decided = np.bincount(probabilities.argmax(axis=1), minlength=len(class_labels)).tolist()
        logits = np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
        return cls(
            rows=len(labels),
            scores=Distribution.of(values) if then is None else then.like(values),
            decided=labelled(class_labels, decided),
            labelled=int(known.sum()),
            calibration=calibrate(labels[known], probabilities[known]).bins if known.any() else (),
            metrics=estimate_metrics(labels, logits, seed=0) if known.any() else None,
        )


@dataclass(frozen=True)
class Baseline:
    """The content of baseline.json.

    Attributes:
        table: of train.
        texts: of at most SAMPLE_ROWS records of train, by role of the text field.
        scores: of test.
    """

    format_version: Literal[1]
    table: TableDistributions
    texts: Mapping[str, SampledTexts]
    scores: Scores

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
        role: SampledTexts.of(texts, preprocessor.unknown(role))
        for role, texts in zip(roles, records.texts, strict=True)
    }


def write_baseline(folder: Path, data: PreparedData, sampled: RecordArrays, scores: Scores) -> None:
    """Write the baseline of a job.

    Args:
        data: of the job, whose preparation has counted train.
        sampled: the `hashed_rows` of train.
        scores: of test.
    """
    table = read_as(data.folder / DISTRIBUTIONS, TableDistributions, "Remove the folder of prepared data.")
    Baseline(1, table, sampled_texts(sampled, Preprocessor.load(data.folder)), scores).save(folder)
