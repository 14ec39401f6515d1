"""Declare what follows training: predictions, decisions, explanation, ONNX variants."""

from typing import Any, Literal, get_args

from pydantic import field_validator

from contracts import conditions, value_types
from contracts.declaration import Settings, declare
from contracts.threshold_targets import canonical_threshold

OnnxVariant = Literal["fused", "int8"]
ONNX_VARIANTS: tuple[str, ...] = get_args(OnnxVariant)


class OutcomeSettings(Settings):
    """The settings of what follows training: predictions, decisions, explanation, ONNX variants."""

    draft: bool = declare(False, scope="after")
    """Finish sooner, to try settings: the job skips companion, label_issues, learning_curve, explain, onnx_variants and
    the examples of the report. A run in the same folder without draft repeats only what follows training, unless a
    preset then trains a small table in folds (docs/presets.md).
    """

    calibration: Literal["none", "temperature", "isotonic"] = declare("none", scope="after")
    """Calibration of the probabilities, fitted on val after training (docs/outputs.md). temperature divides the logits
    by one number; with several classes, it also undoes class_weights. isotonic maps each class's probability through a
    monotone function.
    """

    target_prior: float | None = declare(None, scope="after", gt=0, lt=1)
    """Two classes: the share of class 1 in the data that the model will score, if it differs from train. The
    probabilities are corrected for this share.
    """

    decision_threshold: value_types.Threshold | str = declare(0.5, scope="after")
    """Two classes: the probability from which a record is assigned to class 1. A number between 0 and 1, or a target on
    val: best_f1, precision>=x (with the highest recall), recall>=x (with the highest precision), or cost. auto_f1 and
    auto_accuracy: the best F1 or accuracy if it is clearly better than with 0.5, else 0.5.
    """

    companion: bool = declare(False, scope="after", needs=(conditions.NOT_DRAFT,))
    """Fit boosted trees on the table and on features of the texts. They are blended with the network unless val
    shows that this does not help (docs/companion.md).
    """

    learning_curve: bool = declare(False, scope="after", needs=(conditions.NOT_DRAFT,))
    """Measure the AUROC of the companion's trees, out of fold, at 25, 50, 75 and 100 % of the rows of train: would more
    rows help? (docs/companion.md)
    """

    label_issues: bool = declare(False, scope="after", needs=(conditions.NOT_DRAFT,))
    """Write output/data/label_issues.csv: the training rows whose label is probably wrong, by out-of-fold probabilities
    of the trees that companion fits (docs/companion.md).
    """

    explain: int = declare(500, scope="after", ge=0, le=1_000_000_000, needs=(conditions.NOT_DRAFT,))
    """Number of val records (of test with choose_on out_of_fold) on which the importance of each column and modality is
    measured (permutation importance, ablation); true = 500. Takes at most about a minute, on a slow machine five. The
    report also gets ten records with reasons for their predictions (docs/reasons.md). false or 0 = neither.
    """

    onnx_variants: list[OnnxVariant] = declare([], scope="after", needs=(conditions.NOT_DRAFT,))
    """Also write model.fused.onnx (fused operators, the same arithmetic) or model.int8.onnx (fused, 8-bit weights). A
    variant is kept only if its AUROC on val falls by at most 0.002.
    """

    false_positive_cost: float = declare(1.0, scope="after", gt=0, le=1_000_000_000, needs=(conditions.COSTS,))
    """Cost of assigning a record to class 1 wrongly, for decision_threshold=cost."""

    false_negative_cost: float = declare(1.0, scope="after", gt=0, le=1_000_000_000, needs=(conditions.COSTS,))
    """Cost of missing a record of class 1, for decision_threshold=cost."""

    _canonical_threshold = field_validator("decision_threshold")(canonical_threshold)

    @field_validator("explain", mode="before")
    @classmethod
    def _number_of_records(cls, value: Any) -> Any:
        """Return the default number of records for true, and 0 for false."""
        words = {"true": True, "false": False}
        switched = words.get(str(value).strip().lower()) if isinstance(value, (bool, str)) else None
        return value if switched is None else cls.model_fields["explain"].default * switched
