"""Open the prepared data of a job for its workers."""

from dataclasses import dataclass, replace

import numpy as np

from container.data.split import PreparedSplit
from container.job.job import Fold, Job
from container.preprocessing.class_weights import resolve_class_weights
from container.preprocessing.prepared import PreparedData, open_prepared
from container.preprocessing.risk_tables import fold_of


@dataclass(frozen=True)
class JobData:
    """The data that a worker trains and evaluates on.

    Attributes:
        splits: train, val and test; without test in a trial, and train without the fold that the job leaves out.
        class_weights: weight of each class in the loss. [K]
    """

    prepared: PreparedData
    splits: dict[str, PreparedSplit]
    class_weights: list[float]

    @classmethod
    def open(cls, job: Job) -> "JobData":
        """Open the data that the supervisor prepared, without reading rows."""
        prepared = open_prepared(job.prepared)
        roles = [field.role for field in job.hp.text_fields]
        splits = {name: PreparedSplit(prepared.split(name), roles) for name in job.splits}
        if job.fold is not None:
            splits["train"] = _without_fold(splits["train"], job.fold)
        return cls(
            prepared,
            splits,
            resolve_class_weights(job.hp, prepared.fitted.class_labels, prepared.summary),
        )

    def with_targets(self, targets: np.ndarray) -> "JobData":
        """Return the data with targets for the loss of the rows of train; see PackedBatch.targets. [len(train), K]"""
        return replace(self, splits={**self.splits, "train": self.splits["train"].with_targets(targets)})

    @property
    def tokens_per_record(self) -> dict[str, float]:
        """The mean number of tokens of each text in train, by role."""
        texts = self.prepared.summary["splits"]["train"]["texts"]
        return {role: text["tokens_per_record"]["mean"] for role, text in texts.items()}


def positions_in_fold(train: PreparedSplit, fold: Fold) -> np.ndarray:
    """Return the positions of the records of `fold` in the whole split `train`."""
    return np.flatnonzero(_folds(train, fold) == fold.number)


def _without_fold(train: PreparedSplit, fold: Fold) -> PreparedSplit:
    return train.part(np.flatnonzero(_folds(train, fold) != fold.number))


def _folds(train: PreparedSplit, fold: Fold) -> np.ndarray:
    return fold_of(train.units(), seed=fold.seed, num_folds=fold.of)
