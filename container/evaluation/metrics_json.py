"""Build the content of metrics.json for training jobs and for the metrics step."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from container.decision.decision import Decision
from container.evaluation.analysis import SplitAnalysis


def metrics_json(
    analyses: Mapping[str, SplitAnalysis], *, decision: Decision, threshold: float | None
) -> dict[str, Any]:
    """Return the content of metrics.json about the splits.

    Args:
        threshold: the threshold with the best F1 on val, if any.
    """
    flat: dict[str, Any] = {}
    undefined: dict[str, str] = {}
    for name, analysis in analyses.items():
        flat.update({f"{name}/{metric}": value for metric, value in analysis.metrics.values.items()})
        undefined.update({f"{name}/{metric}": reason for metric, reason in analysis.metrics.undefined.items()})
    details = {
        "records": {name: {"rows": a.rows, "labelled": a.labelled} for name, a in analyses.items()},
        "baselines": {name: a.baselines for name, a in analyses.items()},
        "intervals_95": {name: {key: list(pair) for key, pair in a.intervals.items()} for name, a in analyses.items()},
        "best_f1_threshold": None if threshold is None else {"threshold": threshold, "chosen_on": "val"},
        "thresholds": {name: [entry.to_dict() for entry in a.at_thresholds] for name, a in analyses.items()},
        "classes": {name: [asdict(scores) for scores in a.classes] for name, a in analyses.items()},
        "confusion_matrix": {name: a.confusion.tolist() for name, a in analyses.items()},
        "decision": decision.to_json(),
        "uncalibrated": {name: a.uncalibrated and asdict(a.uncalibrated) for name, a in analyses.items()},
        "calibration": {name: a.calibration and asdict(a.calibration) for name, a in analyses.items()},
    }
    return {**flat, "undefined": undefined, **details}
