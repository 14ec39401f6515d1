"""The loss: sum(w_y * nll) / sum(w_y) over the global batch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from container.data.batch import UNLABELLED, PackedBatch
from container.models.classifier import Classifier


class WeightedCrossEntropy:
    """Cross entropy with class weights, as sums: whoever calls divides by the global sum of weights.

    Args:
        class_weights: weight of each class. [K]
    """

    def __init__(self, class_weights: list[float], device: torch.device) -> None:
        self._weights = torch.tensor(class_weights)
        self._device_weights = self._weights.to(device)

    def __call__(self, logits: Tensor, batch: PackedBatch) -> Tensor:
        """sum(w_y * nll) over the records that count. Scalar."""
        nll = F.cross_entropy(logits, batch.labels, reduction="none", ignore_index=UNLABELLED)  # [B]
        return (nll * self.record_weights(batch)).sum()

    def record_weights(self, batch: PackedBatch) -> Tensor:
        """w_y of each record, 0 where it has no label or only fills a slot. [B]"""
        weights = self._weights if batch.labels.device == self._weights.device else self._device_weights
        return weights[batch.labels.clamp(min=0)] * (batch.labels != UNLABELLED) * batch.weights


class Penalised:
    """An objective, and what the model's fusion head adds to the loss of each record (FusionHead.penalty).

    Args:
        module: this rank's part of the model; where its head is elsewhere, nothing is added here.
    """

    def __init__(self, objective: WeightedCrossEntropy, module: Classifier) -> None:
        self._objective = objective
        self._head = module.fusion

    def __call__(self, logits: Tensor, batch: PackedBatch) -> Tensor:
        """Sum over the records that count, weighted as their losses are. Scalar."""
        loss = self._objective(logits, batch)
        penalty = getattr(self._head, "penalty", None)
        if penalty is None:
            return loss
        return loss + (penalty * self.record_weights(batch)).sum()

    def record_weights(self, batch: PackedBatch) -> Tensor:
        """See WeightedCrossEntropy.record_weights."""
        return self._objective.record_weights(batch)
