"""Load a model for MLflow's pyfunc flavour; the model's copy in a tracking server contains this module."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from container.predictor import Predictor
from contracts.artifacts import PREDICTED_LABEL, probability_column


class PyfuncModel:
    """A model as MLflow calls it."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def predict(self, model_input: pd.DataFrame | Sequence[Mapping[str, Any]]) -> pd.DataFrame:
        """Return the decided label and the class probabilities of each raw record.

        Raises:
            ContractError: as Predictor.predict.
        """
        probabilities = self._predictor.predict(model_input)
        decided = self._predictor.decision.decide(probabilities)
        labels = self._predictor.class_labels
        columns = {probability_column(k): probabilities[:, k] for k in range(len(labels))}
        return pd.DataFrame({PREDICTED_LABEL: [labels[k] for k in decided.tolist()], **columns})


def _load_pyfunc(data_path: str) -> PyfuncModel:
    """Load the model folder; MLflow calls this function by its name."""
    return PyfuncModel(Predictor.load(data_path))
