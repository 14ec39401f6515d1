"""Whether val holds what decisions are fitted on; asked before training, not after it."""

from collections.abc import Mapping

from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters
from contracts.threshold_targets import ThresholdTarget


def check_decidable(hp: Hyperparameters, val_classes: Mapping[str, int]) -> None:
    """Raise ContractError when a setting is fitted on records that val does not have.

    Args:
        val_classes: labelled val records of each class, by label.
    """
    for name, needs_every_class, default in (
        ("calibration", hp.calibration == "isotonic", "none"),
        ("decision_threshold", isinstance(hp.threshold, ThresholdTarget), "0.5"),
    ):
        if needs_every_class and not all(val_classes.values()):
            raise ContractError(
                f"{name}: {getattr(hp, name)!r} is fitted on val and needs records of every class, but val has "
                f"{dict(val_classes)} labelled records by class",
                f"Give val records of every class, or set {name} to {default}.",
            )
    if hp.calibration != "none" and not any(val_classes.values()):
        raise ContractError(
            f"calibration: {hp.calibration!r} is fitted on val, but no val record has a label",
            "Label val, or set calibration to none.",
        )
