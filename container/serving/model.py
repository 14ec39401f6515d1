"""Serve the model of a package: the Predictor, the package's calibration, the decision."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from container.data.records import RecordArrays
from container.predictor import Predictor
from container.serving.calibration import CalibrationMap
from container.serving.errors import bad_request
from container.serving.requests import Request
from contracts.errors import ContractError
from contracts.serving import CALIBRATION, ServingSettings

Compute = Callable[[RecordArrays], np.ndarray]


@dataclass(frozen=True)
class Prediction:
    """Predictions for N records, in their order.

    Attributes:
        probabilities: [N, K]
        decided: label of the decided class of each record.
        class_labels: label of each probability column.
    """

    probabilities: np.ndarray
    decided: Sequence[int | str]
    class_labels: Sequence[int | str]


class ServedModel:
    """A loaded model folder; thread-safe.

    Attributes:
        feature_inputs: the columns that a record needs, in the order of a CSV without a header line.
        class_labels: label of each probability column.
    """

    def __init__(self, predictor: Predictor) -> None:
        self.feature_inputs = predictor.feature_inputs
        self.class_labels = predictor.class_labels
        self._predictor = predictor
        self._calibration: CalibrationMap | None = None
        self._preparing = threading.Lock()  # the tokenizer caches words

    @classmethod
    def load(cls, folder: str | Path, settings: ServingSettings) -> Self:
        """Load an unpacked package, or the model folder of a job.

        Raises:
            ContractError: a missing or damaged artifact.
        """
        model = cls(
            Predictor.load(
                folder,
                variant=settings.serving_onnx_variant,
                batch_size=settings.serving_batch_size,
                threads=settings.serving_threads,
            )
        )
        path = Path(folder) / CALIBRATION
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

    def predict(self, request: Request, compute: Compute | None = None) -> Prediction:
        """Predict the records of a request.

        Args:
            compute: computes prepared records [N, K], e.g. together with those of other requests; by default, alone.

        Raises:
            RequestError: 400, a column or every record is missing, or a value of a numeric column is not a number.
        """
        table = request.records(self.feature_inputs, others=self._predictor.other_columns)
        try:
            with self._preparing:
                prepared = self._predictor.prepare(table)
        except ContractError as error:
            raise bad_request(error.cause, error.fix) from error
        if compute is not None:
            return self._decide(compute(prepared))
        count = len(prepared.row)
        return self._decide(self.compute([prepared] * count, range(count)))

    def compute(self, records: Sequence[RecordArrays], indices: Sequence[int]) -> np.ndarray:
        """Return the probabilities of record indices[i] of records[i], before the package's calibration. [N, K]"""
        return self._predictor.compute(records, indices)

    def _decide(self, probabilities: np.ndarray) -> Prediction:
        decision = self._predictor.decision
        decided = decision.decide(probabilities)
        if self._calibration is not None:
            probabilities = self._calibration.apply(probabilities)
            # A threshold that was chosen on val applies to the model's probabilities; a given one, such as 0.5, applies
            # to the served probabilities.
            if decision.threshold is not None and decision.threshold.target == "given":
                decided = decision.decide(probabilities)
        return Prediction(probabilities, [self.class_labels[k] for k in decided.tolist()], self.class_labels)
