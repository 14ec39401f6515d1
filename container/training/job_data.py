"""Open the prepared data of a job for its workers."""

from dataclasses import dataclass, replace

import numpy as np

from container.data.folds import even_folds
from container.data.split import PreparedSplit
from container.decision.deciding_rows import OUT_OF_FOLD
from container.job.job import Fold, Job
from container.preprocessing.class_weights import resolve_class_weights
from container.preprocessing.prepared import PreparedData, open_prepared


@dataclass(frozen=True)
class JobData:
    """The data that a worker trains and evaluates on.

    Attributes:
        splits: train, val and test; without test in a trial, and train without the fold that the job leaves out. With
            choose_on=out_of_fold, train has the rows of val as well, val those that the job leaves out, and
            OUT_OF_FOLD all rows of train and val.
        class_weights: weight of each class in the loss. [K]
    """

    prepared: PreparedData
    splits: dict[str, PreparedSplit]
    class_weights: list[float]

    @classmethod
    def open(cls, job: Job) -> "JobData":
        """Open the data that the supervisor prepared, without reading rows."""
        prepared = open_prepared(job.prepared).starting_from(job.initial and job.initial.digest)
        roles = [field.role for field in job.hp.text_fields]
        splits = {name: PreparedSplit(prepared.split(name), roles=roles) for name in job.splits}
        if job.hp.pools_val:
            splits["train"] = PreparedSplit(prepared.split("train"), prepared.split("val"), roles=roles)
            if job.kind != "trial":
                splits[OUT_OF_FOLD] = splits["train"]
        if job.fold is not None:
            folds, whole = folds_of(splits["train"], job.fold), splits["train"]
            splits["train"] = whole.part(np.flatnonzero(folds != job.fold.number))
            if job.hp.pools_val:
                splits["val"] = whole.part(np.flatnonzero(folds == job.fold.number))
        return cls(
            prepared,
            splits,
            resolve_class_weights(job.hp, prepared.fitted.class_labels, prepared.summary),
        )

    def with_targets(self, targets: np.ndarray) -> "JobData":
        """Return the data with targets for the loss of the rows of train; see PackedBatch.targets. [len(train), K]"""
        return replace(self, splits={**self.splits, "train": self.splits["train"].with_targets(targets)})

    @property
    def places(self) -> dict[str, np.ndarray]:
        """The split of each row of train, and the row's number there: train may have the rows of val. [len(train)]"""
        rows, of_val = self.splits["train"].column("row").to_numpy().copy(), 0
        if OUT_OF_FOLD in self.splits:
            of_val = len(self.splits["val"])
            rows[len(rows) - of_val :] = self.splits["val"].column("row").to_numpy()
        return {"row": rows, "split": np.repeat(["train", "val"], [len(rows) - of_val, of_val])}

    @property
    def tokens_per_record(self) -> dict[str, float]:
        """The mean number of tokens of each text in train, by role."""
        texts = self.prepared.summary["splits"]["train"]["texts"]
        return {role: text["tokens_per_record"]["mean"] for role, text in texts.items()}


def folds_of(train: PreparedSplit, fold: Fold) -> np.ndarray:
    """Return the number of the fold of each record of the whole split `train`. [len(train)]"""
    labels = train.column("label").to_numpy()
    return even_folds(train.units(), labels, num_folds=fold.of, seed=fold.seed)
