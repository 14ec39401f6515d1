"""The settings of ModelMetricsComputation."""

from pydantic import Field, ValidationInfo, field_validator

from contracts.artifacts import PROBABILITY_COLUMN
from contracts.metrics import LOSSES, METRICS
from contracts.spelling import did_you_mean
from contracts.step_contract import Fractions, Names, ProcessingSettings
from contracts.value_types import MetricOfSplit


class ModelMetricsSettings(ProcessingSettings):
    """Environment of ModelMetricsComputation."""

    id_field: str = Field(min_length=1, description="Column of record ids.")
    label_field: str = Field(min_length=1, description="Column of the class label.")
    score_fields: Names = Field(
        (),
        description="Columns of class probabilities, in the order of the classes, or the column of class 1 alone. "
        "Default: prob_class_0, prob_class_1, ...",
    )
    class_labels: Names = Field(
        (),
        description="The class labels in that order. Default: those of the training job's metrics.json, else the "
        "labels in the data: numbers by value, then texts alphabetically.",
    )
    decision_threshold: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Two classes: the probability from which a record is assigned to class 1. "
        "Default: that of the training job's metrics.json, else 0.5.",
    )
    amount_field: str | None = Field(
        None, description="Column of amounts for dollar recall, in the predictions or in processed_data."
    )
    group_fields: Names = Field(
        (), description="Columns that define the slices of metrics, in the predictions or in processed_data."
    )
    min_group_rows: int = Field(
        30, ge=1, le=10**9, description="Groups with fewer labelled rows are combined as 'others'."
    )
    flagged_shares: Fractions = Field(
        (0.01, 0.05, 0.1, 0.2),
        max_length=100,
        description="Shares of highest scores at which count and dollar recall are reported.",
    )
    false_positive_rate: float = Field(
        0.1, gt=0, lt=1, description="False positive rate at which count and dollar recall are also reported."
    )
    decision_metric: MetricOfSplit = Field(
        "test/auroc", description="Metric that evaluation.json repeats for the pipeline's condition."
    )
    champion_margin: float = Field(
        0.0,
        ge=-5,
        le=5,
        description="With the input champion: how many standard errors of the paired difference the new model must be "
        "better by.",
    )
    generate_plots: bool = Field(True, description="Write plots.")

    @field_validator("score_fields")
    @classmethod
    def _in_order(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse the probability of a class in the place of another class."""
        for place, name in enumerate(value, start=int(len(value) == 1)):
            match = PROBABILITY_COLUMN.fullmatch(name)
            if match and int(match[1]) != place:
                raise ValueError(f"{name!r} is in the place of class {place}'s scores; use the order of the classes")
        return value

    @field_validator("decision_metric")
    @classmethod
    def _known_metric(cls, value: str, info: ValidationInfo) -> str:
        """Check the metric's name against the other settings; the predictions decide which splits there are."""
        budgets = [f"{share:g}" for share in info.data.get("flagged_shares", ())]
        budgets.append(f"fpr_{info.data.get('false_positive_rate', 0.1):g}")
        kinds = ["count"] if info.data.get("amount_field") is None else ["count", "dollar"]
        known = [
            *LOSSES,
            *METRICS,
            *(f"{kind}_recall_at_{budget}" for budget in budgets for kind in kinds),
            *(f"{name}_difference" for name in METRICS),
        ]
        name = value.partition("/")[2]
        if name not in known:
            raise ValueError(f"{name!r} is not a metric{did_you_mean(name, known)}; there are {', '.join(known)}")
        return value
