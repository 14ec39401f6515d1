"""Define a finding of the report, and what several kinds of findings share."""

from dataclasses import dataclass

FEW_RECORDS = 30
ENOUGH_RECORDS = 200
METRIC_NAMES = {
    "loss": "Log loss",
    "auroc": "AUROC",
    "average_precision": "Average precision",
    "f1_score": "F1",
    "precision": "Precision",
    "recall": "Recall",
    "accuracy": "Accuracy",
}


@dataclass(frozen=True)
class Finding:
    """A sentence in the report."""

    level: str  # check (something may be wrong), note (information) or good
    text: str
