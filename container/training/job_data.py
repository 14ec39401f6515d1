"""Open the prepared data of a job for its workers."""

from dataclasses import dataclass

from container.data.split import PreparedSplit
from container.job import Job
from container.preprocessing.class_weights import resolve_class_weights
from container.preprocessing.prepared import PreparedData, open_prepared


@dataclass(frozen=True)
class JobData:
    """The data that a worker trains and evaluates on.

    Attributes:
        splits: train, val and test; without test in a trial.
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
        return cls(
            prepared,
            {name: PreparedSplit(prepared.split(name), roles) for name in job.splits},
            resolve_class_weights(job.hp, prepared.fitted.class_labels, prepared.summary),
        )

    @property
    def tokens_per_record(self) -> dict[str, float]:
        """The mean number of tokens of each text in train, by role."""
        texts = self.prepared.summary["splits"]["train"]["texts"]
        return {role: text["tokens_per_record"]["mean"] for role, text in texts.items()}
