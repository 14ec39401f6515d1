"""Predict with final weights: in float32 as serving does, or in bfloat16 where that hardly changes a probability."""

import copy
import logging
from functools import partial

import numpy as np
import torch

from container.data.split import PreparedSplit
from container.decision.softmax import softmax
from container.models.classifier import Classifier
from container.parallel.execution import Execution
from container.parallel.mesh import RankMesh
from container.parallel.parallelize import parallelize
from container.training.checkpoint import CheckpointStore
from container.training.checkpoint_files import Checkpoint
from container.training.job_data import JobData
from container.training.loop import raise_if_stopped
from container.training.predict import predict_split
from container.training.stop import StopFlag
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)

_SAMPLE = 256  # records of val that are predicted in both data types
_LARGEST_DIFFERENCE = 1e-3  # of a probability


class FinalPredictions:
    """The predictions of a plain model over the mesh; every method is collective.

    With prediction_dtype=bfloat16, a copy of the model computes in bfloat16. It is used if no probability of a sample
    of val differs by 1e-3 from float32; this is checked again for each checkpoint.
    """

    def __init__(
        self, model: Classifier, hp: Hyperparameters, ranks: RankMesh, *, data: JobData, stop: StopFlag
    ) -> None:
        self._hp, self._data, self._stop = hp, data, stop
        dtypes = dict.fromkeys([torch.float32, getattr(torch, hp.prediction_dtype)])
        models = [model, *(copy.deepcopy(model) for _ in range(len(dtypes) - 1))]
        self._exact, *self._faster = (
            parallelize(each, ranks, hp, precision=dtype, tokens_per_record=data.tokens_per_record)
            for each, dtype in zip(models, dtypes, strict=True)
        )
        self._chosen: Execution | None = None

    def load(self, store: CheckpointStore, checkpoint: Checkpoint) -> None:
        """Replace the weights by those of `checkpoint`."""
        for execution in (self._exact, *self._faster):
            store.load_weights(checkpoint, execution.module)
        self._chosen = None

    def of(self, split: PreparedSplit) -> np.ndarray:
        """Return the logits of `split` on every rank, [len(split), K]; raise StopAgreed if a rank was asked to stop."""
        self._chosen = self._chosen or self._choose()
        return self._predict(self._chosen, split)

    def _choose(self) -> Execution:
        for faster in self._faster:
            val = self._data.splits["val"]
            sample = val.part(np.unique(np.linspace(0, len(val) - 1, _SAMPLE).astype(int)))
            ours, exact = (softmax(self._predict(execution, sample)) for execution in (faster, self._exact))
            difference = float(np.abs(ours - exact).max())
            close = difference < _LARGEST_DIFFERENCE
            logger.info(
                "prediction_dtype: final predictions are computed in %s: in %s, a probability of %d records of val "
                "differs by %.1e (%g is too much)",
                self._hp.prediction_dtype if close else "float32", self._hp.prediction_dtype, len(sample), difference,
                _LARGEST_DIFFERENCE,
            )  # fmt: skip
            if close:
                return faster
        return self._exact

    def _predict(self, execution: Execution, split: PreparedSplit) -> np.ndarray:
        stop = partial(raise_if_stopped, execution.ranks, self._stop)
        return predict_split(execution, split, hp=self._hp, between_batches=stop)
