"""Serve the model of a package: the Predictor, the package's calibration, the decision."""

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Self

import numpy as np

from container.data.records import RecordArrays
from container.predictor import Predictor, RecordTooLongError
from container.serving.calibration import CalibrationMap
from container.serving.errors import RequestError
from container.serving.requests import Request
from contracts.errors import ContractError
from contracts.serving import CALIBRATION, ServingSettings


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
                max_tokens=settings.serving_max_tokens,
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

    def predict(self, request: Request) -> Prediction:
        """Predict the records of a request.

        Raises:
            RequestError: as `prepare`.
        """
        prepared = self.prepare(request)
        count = len(prepared.row)
        return self.decide(self.compute([prepared] * count, range(count)))

    def prepare(self, request: Request) -> RecordArrays:
        """Preprocess the records of a request.

        Raises:
            RequestError: 400, a column or every record is missing, or a value of a numeric column is not a number; 413,
                a record has too many tokens.
        """
        table = request.records(self.feature_inputs, others=self._predictor.other_columns)
        try:
            return self._predictor.prepare(table)
        except RecordTooLongError as error:
            raise RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, error.cause, error.fix) from error
        except ContractError as error:
            raise RequestError(HTTPStatus.BAD_REQUEST, error.cause, error.fix) from error

    def compute(self, records: Sequence[RecordArrays], indices: Sequence[int]) -> np.ndarray:
        """Return the probabilities of record indices[i] of records[i], before the package's calibration. [N, K]"""
        return self._predictor.compute(records, indices)

    def decide(self, probabilities: np.ndarray) -> Prediction:
        """Return the response's content for the probabilities that `compute` returned."""
        decision = self._predictor.decision
        decided = decision.decide(probabilities)
        if self._calibration is not None:
            probabilities = self._calibration.apply(probabilities)
            # A threshold that was chosen on val applies to the model's probabilities; a given one, such as 0.5, applies
            # to the served probabilities.
            if decision.threshold is not None and decision.threshold.target == "given":
                decided = decision.decide(probabilities)
        return Prediction(probabilities, [self.class_labels[k] for k in decided.tolist()], self.class_labels)
