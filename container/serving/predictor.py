"""Predict the probabilities of raw records, with the same preprocessing as training."""

import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.attribution.coalitions import HeadInputs
from container.attribution.parts import Level, Question, check_pieces
from container.attribution.reasons import Model, Steps, reasons, run_steps
from container.data.records import RecordArrays
from container.decision.decision import Decision
from container.errors import RecordTooLongError
from container.preprocessing.risk_tables import MISSING
from container.preprocessing.transform import Preprocessor
from container.serving.backends import GRAPH_BACKENDS, Backend, OnnxBackend, TorchBackend
from container.serving.model_files import checked_files
from container.tables.records import records_to_table
from container.tables.table_file import Origin
from contracts import artifacts
from contracts.errors import ContractError, first_line, shown
from contracts.input_files import read_as
from contracts.settings.outcome import ONNX_VARIANTS
from contracts.text_fields import InputKeys, Role, TextField, TextInputs

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

# Padding increases the tokens of a batch by at most this factor. On 2 cores, 64 reviews through MiniLM took 602 ms at
# 1.1, 572 to 608 ms at 1.05 and 1, and 917 ms padded to the longest of 32.
_MOST_PADDING = 1.1
_SUM_TOLERANCE = 1e-3
_FEWEST_VALUES = 20  # of a column, half of which are unknown: a warning


class Predictor:
    """A trained model with its preprocessing and decision.

    Attributes:
        class_labels: the label of each probability column.
        decision: maps logits to probabilities, and probabilities to decisions.

    Example:
        >>> predictor = Predictor.load(model_folder)
        >>> predictor.feature_inputs
        ('chat', 'price', 'quantity', 'color')
        >>> records = [{"chat": "very happy", "price": 30.0, "quantity": 2, "color": "green"}]
        >>> probabilities = predictor.predict(records)  # [N, K]
        >>> probabilities.shape
        (1, 2)
        >>> predictor.decide(records)[0] in predictor.class_labels
        True
    """

    def __init__(
        self,
        preprocessor: Preprocessor,
        backend: Backend,
        *,
        decision: Decision,
        batch_size: int,
        max_tokens: int | None = None,
    ) -> None:
        self.preprocessor = preprocessor
        self._backend = backend
        self.decision = decision
        self._batch_size = batch_size
        self._max_tokens = max_tokens
        self._warned: set[str] = set()
        self.class_labels: list[int | str] = list(preprocessor.fitted.class_labels)

    @classmethod
    def load(
        cls,
        model_dir: str | Path,
        backend: Literal["onnx", "openvino", "torch"] = "onnx",
        *,
        variant: Literal["fused", "int8"] | None = None,
        batch_size: int = 32,
        max_tokens: int | None = None,
        threads: int | None = None,
    ) -> "Predictor":
        """Load the model folder of a completed job. The calibration.json of a package is applied by servers only.

        Args:
            model_dir: the folder model/ of the job.
            backend: openvino computes model.onnx in bfloat16 where the processor does (the extra openvino). Only torch
                needs torch.
            variant: serve model.fused.onnx or model.int8.onnx instead of model.onnx.
            batch_size: the most records in a batch. With int8 every batch has one record: its scales depend on all
                values of a batch, and a record's score must not depend on other records.
            max_tokens: the most tokens of a record, and of a batch, including padding; they determine the memory of a
                run. None = no limit.
            threads: number of threads, except with torch, at most one per core; None = one per core.

        Raises:
            ContractError: an artifact is missing, damaged or not the one that files.json lists, or an argument is
                unknown or out of range.
        """
        folder = Path(os.path.realpath(model_dir))  # a link may be moved while the files are read
        if backend not in (*GRAPH_BACKENDS, "torch"):
            raise ContractError(f"backend: {backend!r} is not known", "Use one of: onnx, openvino, torch.")
        if variant is not None and variant not in ONNX_VARIANTS:
            raise ContractError(f"variant: {variant!r} is not known", f"Use one of: {', '.join(ONNX_VARIANTS)}.")
        for name, value in (("variant", variant), ("threads", threads)):
            if value is not None and backend == "torch":
                raise ContractError(f"{name}: {value!r} needs ONNX Runtime", 'Use backend="onnx".')
        for name, value in (("batch_size", batch_size), ("max_tokens", max_tokens), ("threads", threads)):
            if value is not None and not (isinstance(value, Integral) and value >= 1):
                raise ContractError(f"{name}: is {value!r}", "Use a whole number of at least 1.")
        with checked_files(folder, backend, variant=variant):
            preprocessor, decision = Preprocessor.load(folder), Decision.load(folder)
            keys = read_as(folder / artifacts.HYPERPARAMETERS, InputKeys, artifacts.MODEL_FIX)
            fields = preprocessor.fitted.text_fields
            texts: dict[Role, TextInputs] = {text.role: keys.of(text.role) for text in fields}
            if backend in GRAPH_BACKENDS:
                loaded: Backend = OnnxBackend(
                    folder,
                    texts,
                    variant=variant,
                    threads=threads,
                    open_graph=GRAPH_BACKENDS[backend],
                    longest=[text.max_sen_len for text in fields] if backend == "openvino" else [],
                )
            else:
                loaded = TorchBackend(folder, list(texts.values()), decision)
            size = 1 if variant == "int8" else batch_size
            predictor = cls(preprocessor, loaded, decision=decision, batch_size=size, max_tokens=max_tokens)
            predictor._check_model(folder)
        return predictor

    def __reduce__(self) -> NoReturn:
        raise ContractError(
            "a Predictor cannot be pickled, so it cannot be sent to another process or deep-copied",
            "Send the path of the model folder, and call Predictor.load in each process.",
        )

    @property
    def feature_inputs(self) -> tuple[str, ...]:
        """Return the raw columns that a record needs, in the order of CSV without a header."""
        return self.preprocessor.fitted.feature_inputs

    @property
    def text_fields(self) -> Sequence[TextField]:
        """Return the text columns with their settings."""
        return self.preprocessor.fitted.text_fields

    @property
    def other_columns(self) -> tuple[str | None, ...]:
        """Return the columns of the training data that a record does not need: the id, the label, weight and group."""
        return self.preprocessor.fitted.other_columns

    def predict(self, records: "Sequence[Mapping[str, Any]] | pd.DataFrame | pa.Table | pa.RecordBatch") -> np.ndarray:
        """Return the class probabilities of raw records.

        Args:
            records: raw columns; the label and the id may be absent, other columns are ignored. A key that a dict lacks
                is a missing value; a table must have every column.

        Returns:
            Probabilities, calibrated if the job was, in the order of `records`. [N, K] float64

        Raises:
            ContractError: a column is missing, a dict has no column of the model, or a numeric column has a value that
                is not a number.
            RecordTooLongError: a record has more than max_tokens.
        """
        table = records_to_table(records, self.feature_inputs)
        if table.num_rows == 0:
            return self.compute([], [])
        return self.compute([self.prepare(table)] * table.num_rows, range(table.num_rows))

    def prepare(self, table: "pa.Table", *, origin: Origin | None = None) -> RecordArrays:
        """Preprocess raw records; thread-safe.

        Args:
            table: as for `predict`; at least one row.
            origin: source of the records, for messages.

        Raises:
            ContractError: as `predict`.
        """
        # Without the label, which must not have an effect, not even one that training never saw.
        inputs = table.select([name for name in table.column_names if name not in self.other_columns])
        fields = self.preprocessor.fitted.text_fields
        origin = origin or Origin()
        transformed = self.preprocessor.transform(inputs, origin=origin, max_tokens=self._max_tokens)
        self._warn_of_unknown(inputs, transformed.counts.unseen)
        records = RecordArrays.from_batch(transformed.batch, [field.role for field in fields])
        if (limit := self._max_tokens) is not None:
            long = [i for i in range(len(records.row)) if records.padded_tokens(i) > limit]
            if long:
                raise _too_long(records, long, [field.name for field in fields], limit, origin=origin)
        return records

    def _warn_of_unknown(self, table: "pa.Table", unseen: Mapping[str, int]) -> None:
        """Warn once of each column in which most values are categories that train lacks: they are written otherwise."""
        fitted = self.preprocessor.fitted
        for name, count in unseen.items():
            if name in self._warned or count < _FEWEST_VALUES / 2:
                continue
            known = pa.array(fitted.risk_tables[name].risk, pa.string())
            values = fitted.categories(table[name], name)
            values = values.filter(pc.not_equal(values, MISSING))
            unknown = values.filter(pc.invert(pc.is_in(values, value_set=known)))
            if len(values) >= _FEWEST_VALUES and 2 * len(unknown) >= len(values):
                self._warned.add(name)
                logger.warning(
                    f"column {name!r}: {len(unknown)} of {len(values)} values are categories that the training data "
                    f"lacks, such as {_examples(unknown.unique())}; it has {_examples(known)}. They count as unknown. "
                    "Write values as in the training data: read CSV with dtype=str, so that 0012 does not become 12."
                )

    def compute(self, records: Sequence[RecordArrays], indices: Sequence[int]) -> np.ndarray:
        """Return the class probabilities of record indices[i] of records[i], i = 0..N-1; thread-safe. [N, K]"""
        probabilities = np.empty((len(indices), len(self.class_labels)))
        for rows in self._batches(records, indices):
            batch = [records[i] for i in rows]
            probabilities[rows] = self._backend.probabilities(batch, [indices[i] for i in rows])
        return probabilities

    def decide(
        self, records: "Sequence[Mapping[str, Any]] | pd.DataFrame | pa.Table | pa.RecordBatch"
    ) -> list[int | str]:
        """Return the decided label of each raw record: by the job's threshold for two classes, else the most probable.

        Args, raises: as `predict`.
        """
        return [self.class_labels[k] for k in self.decision.decide(self.predict(records)).tolist()]

    def explain(
        self,
        records: "Sequence[Mapping[str, Any]] | pd.DataFrame | pa.Table | pa.RecordBatch",
        *,
        top: int | None = None,
        level: Level = "column",
        classes: Sequence[int | str] | None = None,
        permutations: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return the reasons for the prediction of each raw record: the Shapley values of its parts.

        Args:
            records: as for `predict`.
            top: keep the parts with the largest contributions; "rest" has the sum of the others.
            level: the parts. column: the columns. text: each text is divided into its messages, or into sentences.
                word: each text is divided into words.
            classes: label of the class to explain of each record. By default class 1 of two classes, otherwise the
                decided class.
            permutations: for more than 10 parts, an even number of 4 or more. By default up to 200.

        Returns:
            For each record "class", "logit" (of its calibrated probability p: log(p / (1 - p))), "base" (the logit
            without any part), and "contributions", the largest first: each has "part", "value", "contribution", and
            "standard_error" if it is an estimate. base + contributions (+ rest) = logit.

        Raises:
            ContractError: as `predict`; an unknown level or label; a text has more than 256 pieces; the model was
                exported by an earlier version, or its backend is not ONNX Runtime.
        """
        if classes is not None:
            if isinstance(classes, str) or not isinstance(classes, Iterable):
                raise ContractError(f"classes: is {classes!r}, not a list", "Pass one label per record.")
            classes = list(classes)
        question = Question(level=level, top=top, permutations=permutations)
        self.check_explainable()
        table = records_to_table(records, self.feature_inputs)
        if classes is not None and len(classes) != table.num_rows:
            raise ContractError(f"classes: {len(classes)} for {table.num_rows} records", "Pass one label per record.")
        if unknown := [label for label in classes or () if label not in self.class_labels]:
            raise ContractError(f"classes: {unknown[0]!r} is not known", f"Use one of: {self.class_labels}.")
        if table.num_rows == 0:
            return []
        self.check_question(table, question)
        prepared = self.prepare(table)
        answers = []
        for row in range(table.num_rows):
            class_id = None if classes is None else self.class_labels.index(classes[row])
            answers.append(run_steps(self.reasons(table, row, prepared, question=question, class_id=class_id)))
        return answers

    def check_question(self, table: "pa.Table", question: Question, *, origin: Origin | None = None) -> None:
        """Raise RecordTooLongError if a record has too many parts, before it is prepared."""
        check_pieces(table, self.preprocessor.fitted, question.level, origin=origin or Origin())

    def check_explainable(self) -> None:
        """Raise ContractError if the model or its backend cannot give reasons."""
        self._onnx.check_head()

    def reasons(
        self, table: "pa.Table", row: int, prepared: RecordArrays, *, question: Question, class_id: int | None = None
    ) -> Steps:
        """Return the steps of the computation of a record's reasons, for `run_steps`; `prepared`: the table's."""
        model = Model(self.preprocessor, self.encode, self.score, alone=self._batch_size == 1)
        return reasons(model, table, row, prepared.tabular[row], question=question, class_id=class_id)

    @property
    def _onnx(self) -> OnnxBackend:
        if not isinstance(self._backend, OnnxBackend):
            raise ContractError("explain: needs ONNX Runtime", 'Use Predictor.load(..., backend="onnx").')
        return self._backend

    def encode(self, records: Sequence[RecordArrays], indices: Sequence[int]) -> np.ndarray:
        """Return the features of the texts of record indices[i] of records[i], one object each; thread-safe. [N]"""
        found = np.empty(len(indices), object)
        for rows in self._batches(records, indices):
            features = self._onnx.features([records[i] for i in rows], [indices[i] for i in rows])
            for row, of_record in zip(rows, features, strict=True):
                found[row] = of_record
        return found

    def score(self, inputs: Sequence[HeadInputs], runs: Sequence[int]) -> np.ndarray:
        """Return the scores of run runs[i] of inputs[i], one array [M, K] each; thread-safe. [N]"""
        scores = np.empty(len(runs), object)
        for i, (of_record, run) in enumerate(zip(inputs, runs, strict=True)):
            scores[i] = self._onnx.scores(of_record.feed(run))
        return scores

    def _check_model(self, folder: Path) -> None:
        """Raise ContractError where the files of `folder` do not fit together: compute one record."""
        if self.decision.threshold is not None and len(self.class_labels) != 2:
            raise ContractError(
                f"{folder / artifacts.DECISION}: has a threshold, but {artifacts.PREPROCESSING} has "
                f"{len(self.class_labels)} class_labels",
                artifacts.MODEL_FIX,
            )
        fitted = self.preprocessor.fitted
        record = dict.fromkeys(self.feature_inputs) | dict.fromkeys(fitted.text_columns, "a")
        prepared = self.prepare(records_to_table([record], self.feature_inputs))
        try:
            (probabilities,) = self.compute([prepared], [0])
            if not abs(probabilities.sum() - 1) < _SUM_TOLERANCE:
                raise ValueError(f"it predicts the probabilities {probabilities.tolist()}")
        except Exception as error:  # onnxruntime's exceptions derive from Exception only
            raise ContractError(
                f"{folder}: the model cannot compute a record that {artifacts.PREPROCESSING} describes: "
                f"{first_line(error)}",
                artifacts.MODEL_FIX,
            ) from error

    def _batches(self, records: Sequence[RecordArrays], indices: Sequence[int]) -> Iterator[list[int]]:
        """Yield batches of records of similar shape, so that a backend computes little padding."""
        if len(indices) < 2:
            yield from ([i] for i in range(len(indices)))
            return
        shapes = np.array([part.padded_shapes(i) for part, i in zip(records, indices)])
        shapes = shapes.reshape(len(indices), -1, 2)  # [N, texts, 2]
        sizes = shapes.prod(axis=2).sum(axis=1)  # [N]
        batch: list[int] = []
        largest, tokens = shapes[0], 0
        for i in np.lexsort((sizes, *shapes[:, :, 0].T)).tolist():  # by numbers of chunks, then by size
            grown = np.maximum(largest, shapes[i]) if batch else shapes[i]
            padded = int(grown.prod(axis=1).sum()) * (len(batch) + 1)
            most = min(_MOST_PADDING * (tokens + int(sizes[i])), self._max_tokens or math.inf)
            if batch and (len(batch) == self._batch_size or padded > most):
                yield batch
                batch, tokens, grown = [], 0, shapes[i]
            batch.append(i)
            largest, tokens = grown, tokens + int(sizes[i])
        yield batch


def _examples(values: pa.Array) -> str:
    return ", ".join(shown(value) for value in values[:4].to_pylist() if value != MISSING)


def _too_long(
    records: RecordArrays, indices: Sequence[int], columns: Sequence[str], limit: int, *, origin: Origin
) -> RecordTooLongError:
    causes = {}
    for index in indices:
        shapes = zip(columns, records.padded_shapes(index))
        parts = [f"column {name!r} has {chunks} chunks of up to {longest} tokens" for name, (chunks, longest) in shapes]
        causes[index] = (
            f"{origin.row(index)}: has at least {records.padded_tokens(index)} tokens, with chunks padded to "
            f"one length; at most {limit} are accepted ({', '.join(parts)})"
        )
    fix = "Send a shorter text, serve with a larger SERVING_MAX_TOKENS, or train with chunk_trancate=true."
    return RecordTooLongError.of_rows(causes, fix)
