"""Serve the model of a package: the Predictor, the package's calibration, the decision."""

import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from container.attribution.parts import Question
from container.attribution.reasons import Work, direct, run_steps
from container.data.records import RecordArrays
from container.errors import RecordTooLongError
from container.predictor import Predictor  # public, also for the scripts of a package
from container.serving.absent_columns import AbsentColumns
from container.serving.calibration import calibrated
from container.serving.errors import RequestError
from container.serving.parts import Part
from container.serving.requests import ABSENT, Request
from container.tables.table_file import Origin, check_names, missing_column
from contracts.errors import ContractError, one_line
from contracts.package_inputs import CalibrationMap
from contracts.serving import CALIBRATION, ServingSettings

_WORDS = "the parcel arrived late and one item was missing so we would like a refund please "

Compute = Callable[[Work], np.ndarray]


@dataclass(frozen=True)
class Prediction:
    """Predictions for N records, in their order.

    Attributes:
        probabilities: NaN for an invalid record. [N, K]
        decided: label of the decided class of each record; None for an invalid record.
        class_labels: label of each probability column.
        errors: the error of each invalid record, by position; None if an invalid record refuses the request.
        reasons: those of each record, as Predictor.explain returns them, None for an invalid one; None if the client
            does not ask for them.
    """

    probabilities: np.ndarray
    decided: Sequence[int | str | None]
    class_labels: Sequence[int | str]
    errors: Mapping[int, str] | None = None
    reasons: Sequence[dict[str, Any] | None] | None = None


@dataclass(frozen=True)
class Prepared:
    """Consecutive records of a request, preprocessed.

    Attributes:
        records: the prepared records that contain each valid record. [V]
        indices: the position of each valid record among them. [V]
        valid: whether each record is valid. [N]
        errors: the errors of the invalid records, in order. [N - V]
        table: the raw records, if the client asks for reasons. [N]
        question: what the client asks for.
        absent: the columns that no record has.
    """

    records: Sequence[RecordArrays]
    indices: Sequence[int]
    valid: np.ndarray
    errors: Sequence[str]
    table: pa.Table | None = None
    question: Question | None = None
    absent: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Scored:
    """The probabilities [V, K] and reasons [V] of the valid records among N; the others as in Prepared."""

    probabilities: np.ndarray
    valid: np.ndarray
    errors: Sequence[str]
    reasons: Sequence[dict[str, Any]] | None = None
    absent: frozenset[str] = frozenset()


class ServedModel:
    """A loaded model folder; thread-safe.

    Attributes:
        feature_inputs: the columns that a record needs, in the order of a CSV without a header line.
        class_labels: label of each probability column.
        id_name: the column of ids in the training data.
    """

    def __init__(self, predictor: Predictor, *, report_invalid: bool = False, strict_columns: bool = False) -> None:
        self.feature_inputs = predictor.feature_inputs
        self.class_labels = predictor.class_labels
        self.id_name, *_ = predictor.other_columns
        self._predictor = predictor
        self._report_invalid = report_invalid
        self._calibration: CalibrationMap | None = None
        self._absent = AbsentColumns(refuse=strict_columns)

    @classmethod
    def load(cls, folder: str | Path, settings: ServingSettings) -> Self:
        """Load an unpacked package, or the model folder of a job.

        Raises:
            ContractError: a missing or damaged artifact, or a column that SERVING_CSV_COLUMNS lacks.
        """
        folder = Path(os.path.realpath(folder))  # as Predictor.load does
        predictor = Predictor.load(
            folder,
            settings.serving_backend,
            variant=settings.serving_onnx_variant,
            batch_size=settings.serving_batch_size,
            max_tokens=settings.serving_max_tokens,
            threads=settings.serving_threads,
        )
        declared = settings.serving_csv_columns
        if declared is not None:
            check_names(declared, "SERVING_CSV_COLUMNS")
            for name in predictor.feature_inputs:
                if name not in declared:
                    raise missing_column(name, declared, "SERVING_CSV_COLUMNS")
        model = cls(
            predictor,
            report_invalid=settings.serving_invalid_records == "report",
            strict_columns=settings.serving_strict_columns,
        )
        path = folder / CALIBRATION
        if path.is_file():
            model.calibrate(CalibrationMap.read(path))
        return model

    def calibrate(self, calibration: CalibrationMap) -> None:
        """Apply the calibration to all further predictions.

        Raises:
            ContractError: the model has more than two classes.
        """
        if len(self.class_labels) != 2:
            raise ContractError(
                f"{CALIBRATION}: maps the probability of class 1, but the model has {len(self.class_labels)} classes",
                f"Remove {CALIBRATION}.",
            )
        self._calibration = calibration

    def sample_lines(self, max_tokens: int) -> list[bytes]:
        """Return JSON Lines of typical records, to measure how fast they are answered."""
        fields = self._predictor.text_fields
        # About one chunk of English text; no tokenizer makes more than `max_tokens` tokens of it.
        characters = min([max_tokens // 4, *(4 * field.max_sen_len // len(field.columns) for field in fields)])
        texts = [column for field in fields for column in field.columns]
        lines = []
        for length in (1, characters):
            text = (_WORDS * (length // len(_WORDS) + 1))[:length]
            lines.append(json.dumps(dict.fromkeys(self.feature_inputs) | dict.fromkeys(texts, text)).encode() + b"\n")
        return lines

    def predict(self, request: Request) -> Prediction:
        """Predict the records of a request.

        Raises:
            RequestError: as `prepare`.
        """
        return self.decide([self.score(part) for part in self.prepare(request)])

    def score(
        self, part: Prepared, compute: Compute = direct, run: Callable[[Callable[[], Any]], Any] = lambda call: call()
    ) -> Scored:
        """Return the result of a part.

        Args:
            compute: computes a step on the encoders or the head.
            run: calls a function that prepares records.
        """
        probabilities = compute(Work(self.compute, part.records, part.indices))
        question, table = part.question, part.table
        reasons = None if question is None else []
        if question is not None and table is not None:  # the reasons are those before the package's calibration
            steps = [
                self._predictor.reasons(table, row, records, question=question)
                for records, row in zip(part.records, part.indices)
            ]
            reasons = [run_steps(each, compute, run) for each in steps]
        return Scored(probabilities, part.valid, part.errors, reasons, part.absent)

    def prepare(self, request: Request) -> Iterator[Prepared]:
        """Return the records of a request, preprocessed in parts.

        Raises:
            RequestError: 400, a column or every record is missing, or a record is invalid, for example because a value
                of a numeric column is not a number; 413, a record has too many tokens.
        """
        return map(self.prepare_part, request.parts(self.feature_inputs))

    def prepare_part(self, part: Part) -> Prepared:
        """Return consecutive records, preprocessed; raises as `prepare`."""
        errors: dict[int, str] = {}  # by position
        records: list[RecordArrays] = []
        table = None
        if part.question is not None:
            self._predictor.check_explainable()
        while not records and len(errors) < len(part):
            try:
                table, origin = part.table(), part.origin or Origin(first_row=part.first)
                if part.question is not None:
                    self._predictor.check_question(table, part.question, origin=origin)
                records = [self._predictor.prepare(table, origin=origin)]
            except ContractError as error:
                found = {row: cause for row, cause in error.row_causes.items() if row not in errors}
                if not (found and self._report_invalid):
                    status = HTTPStatus.BAD_REQUEST
                    if isinstance(error, RecordTooLongError):
                        status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
                    raise RequestError(status, error.cause, error.fix) from error
                errors |= found
                part = part.blanked(found)
        valid = np.array([row not in errors for row in range(len(part))])
        indices = np.flatnonzero(valid).tolist()
        causes = [one_line(errors[row]) for row in sorted(errors)]
        asked = None if part.question is None else table
        absent = json.loads(((None if table is None else table.schema.metadata) or {}).get(ABSENT, b"[]"))
        return Prepared(records * len(indices), indices, valid, causes, asked, part.question, frozenset(absent))

    def compute(self, records: Sequence[RecordArrays], indices: Sequence[int]) -> np.ndarray:
        """Return the probabilities of record indices[i] of records[i], before the package's calibration. [N, K]"""
        return self._predictor.compute(records, indices)

    def decide(self, parts: Sequence[Scored]) -> Prediction:
        """Return the response's content for the parts of a request, with the probabilities that `compute` returned.

        Raises:
            RequestError: 400, SERVING_STRICT_COLUMNS is true, and no record has a column.
        """
        self._absent.count(frozenset.intersection(*(part.absent for part in parts)))
        probabilities = np.concatenate([part.probabilities for part in parts])
        decision = self._predictor.decision
        decided = decision.decide(probabilities)
        if self._calibration is not None:
            probabilities = calibrated(probabilities, self._calibration)
            # A threshold that was chosen on val applies to the model's probabilities; a given one, such as 0.5, applies
            # to the served probabilities.
            if decision.threshold is not None and decision.threshold.target == "given":
                decided = decision.decide(probabilities)
        labels: Sequence[int | str | None] = [self.class_labels[k] for k in decided.tolist()]
        asked = all(part.reasons is not None for part in parts)
        reasons: list[dict[str, Any] | None] = [each for part in parts for each in part.reasons or ()]
        if not self._report_invalid:
            return Prediction(probabilities, labels, self.class_labels, reasons=reasons if asked else None)
        valid = np.concatenate([part.valid for part in parts])  # [N]
        every = np.full((len(valid), probabilities.shape[1]), np.nan)  # [N, K]
        every[valid] = probabilities
        remaining = iter(labels)
        labels = [next(remaining) if is_valid else None for is_valid in valid.tolist()]
        of_valid = iter(reasons)
        reasons = [next(of_valid) if is_valid else None for is_valid in valid.tolist()] if asked else []
        errors = itertools.chain.from_iterable(part.errors for part in parts)
        causes = dict(zip(np.flatnonzero(~valid).tolist(), errors))
        return Prediction(every, labels, self.class_labels, causes, reasons if asked else None)
