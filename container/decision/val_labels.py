"""Check before training that val has the labelled records that the decision is fitted on."""

from collections.abc import Mapping

from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters
from contracts.threshold_targets import ThresholdTarget


def check_val_labels(hp: Hyperparameters, val_classes: Mapping[str, float]) -> None:
    """Raise ContractError if val lacks the records that a setting is fitted on.

    Args:
        val_classes: labelled val records of each class, or their total weight, by label.
    """
    counted, above = ("as total weights", " a weight above 0") if hp.weight_name else ("labelled records", "")
    present = sum(count > 0 for count in val_classes.values())
    if hp.calibration != "none" and not present:
        raise ContractError(
            f"calibration: {hp.calibration!r} is fitted on val, but no val record has a label",
            "Add labels to val, or set calibration to none.",
        )
    for name, needed, default in (
        ("calibration", needed_classes(hp), "none"),
        ("decision_threshold", len(val_classes) if isinstance(hp.threshold, ThresholdTarget) else 0, "0.5"),
    ):
        if present < needed:
            classes = "every class" if needed == len(val_classes) else f"at least {needed} classes"
            raise ContractError(
                f"{name}: {getattr(hp, name)!r} is fitted on val and needs records of {classes}, but val has "
                f"{dict(val_classes)} {counted} by class",
                f"Give val records of {classes}{above}, or set {name} to {default}.",
            )


def needed_classes(hp: Hyperparameters) -> int:
    """Return the number of classes that calibration needs val records of.

    Isotonic calibration fits a line to each class; a temperature fitted on one class predicts only that class.
    """
    return {"none": 0, "temperature": 2, "isotonic": hp.num_classes}[hp.calibration]
