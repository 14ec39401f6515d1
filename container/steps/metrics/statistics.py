"""Build model quality statistics in the Model Registry's format."""

from typing import Any

from container.evaluation.curves import thin
from container.steps.metrics.computation import ModelMetrics


def model_statistics(metrics: ModelMetrics, *, split: str) -> dict[str, Any]:
    """Return one split's binary_ or multiclass_classification_metrics, without undefined metrics."""
    analysis = metrics.splits[split].analysis
    named = {"accuracy": "accuracy", "precision": "precision", "recall": "recall", "f1_score": "f1", "auroc": "auc"}
    values = {
        called: {"value": analysis.metrics.values[name], "standard_deviation": "NaN"}
        for name, called in named.items()
        if analysis.metrics.values[name] is not None
    }
    labels = [str(label) for label in metrics.class_labels]
    confusion = {
        label: dict(zip(labels, map(int, row))) for label, row in zip(labels, analysis.confusion)
    }  # by label, then decided class
    if len(labels) > 2:
        averaged = {name if name == "accuracy" else f"macro_{name}": value for name, value in values.items()}
        return {"multiclass_classification_metrics": {"confusion_matrix": confusion, **averaged}}
    statistics: dict[str, Any] = {"confusion_matrix": confusion, **values}
    if analysis.curves:
        roc, precision_recall = thin(analysis.curves[0].roc), thin(analysis.curves[0].precision_recall)
        statistics["receiver_operating_characteristic_curve"] = {
            "false_positive_rates": roc.x.tolist(),
            "true_positive_rates": roc.y.tolist(),
        }
        statistics["precision_recall_curve"] = {
            "precisions": precision_recall.y.tolist(),
            "recalls": precision_recall.x.tolist(),
        }
    return {"binary_classification_metrics": statistics}
