"""Compute the loss: sum(w_i * w_y * loss) / sum(w_i * w_y) over the global batch, w_i the weight of a record."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from container.data.batch import UNLABELLED, PackedBatch

_OF_LABEL = 0.5  # of the loss of a record with targets; the remainder is that of its targets


class WeightedCrossEntropy:
    """Cross entropy with class weights, as sums: the caller divides by the global sum of weights.

    A record's loss is sum over classes c of q_c * w_c * (1 - p_c)^focal_gamma * -log(p_c), where q is the smoothed
    label: q_c = (1 - label_smoothing) * [c = y] + label_smoothing / K. Without smoothing that is the focal loss of Lin
    et al. 2017 (equation 4); with focal_gamma 0 it equals torch.nn.functional.cross_entropy.

    In a batch with targets t, that is the loss of a record's label. The record's loss is the mean of it and w_y times
    the cross entropy with t. The networks that gave t were trained with these options: t contains their effect.

    Args:
        class_weights: weight w of each class. [K]
        focal_gamma: above 0, well-classified records count less.
        label_smoothing: share of the target that all classes get evenly.
        head: the fusion head, whose penalty is added to the loss of each record (FusionHead.penalty).
    """

    def __init__(
        self,
        class_weights: list[float],
        device: torch.device,
        *,
        focal_gamma: float = 0,
        label_smoothing: float = 0,
        head: nn.Module | None = None,
    ) -> None:
        self._weights = torch.tensor(class_weights)
        self._device_weights = self._weights.to(device)
        self._gamma = focal_gamma
        self._smoothing = label_smoothing
        self._head = head

    def __call__(self, logits: Tensor, batch: PackedBatch) -> Tensor:
        """Return the sum of the losses of the counted records. Scalar."""
        loss = self._of_labels(logits, batch)
        if batch.targets is not None:
            of_targets = -(batch.targets * F.log_softmax(logits, dim=1)).sum(1)  # [B]
            loss = _OF_LABEL * loss + (1 - _OF_LABEL) * (of_targets * self.record_weights(batch)).sum()
        penalty = getattr(self._head, "penalty", None)  # None in a stage without the head
        return loss if penalty is None else loss + (penalty * self.record_weights(batch)).sum()

    def _of_labels(self, logits: Tensor, batch: PackedBatch) -> Tensor:
        if self._gamma or self._smoothing:
            return self._smoothed_focal(logits, batch)
        nll = F.cross_entropy(logits, batch.labels, reduction="none", ignore_index=UNLABELLED)  # [B]
        return (nll * self.record_weights(batch)).sum()

    def record_weights(self, batch: PackedBatch) -> Tensor:
        """Return w_y times the weight of each record, 0 if it has no label or only fills a slot. [B]"""
        return self._weights_on(batch.labels.device)[batch.labels.clamp(min=0)] * _counts(batch)

    def _smoothed_focal(self, logits: Tensor, batch: PackedBatch) -> Tensor:
        log_p = F.log_softmax(logits, dim=1)  # [B, K]
        losses = -log_p * self._weights_on(logits.device)
        if self._gamma:
            # Above 0, where a power below 1 has a derivative.
            rest = (-torch.expm1(log_p)).clamp(min=torch.finfo(log_p.dtype).tiny)
            losses = losses * rest.pow(self._gamma)
        of_label = losses.gather(1, batch.labels.clamp(min=0)[:, None])[:, 0]  # [B]
        smoothed = (1 - self._smoothing) * of_label + self._smoothing * losses.mean(1)
        return (smoothed * _counts(batch)).sum()

    def _weights_on(self, device: torch.device) -> Tensor:
        return self._weights if device == self._weights.device else self._device_weights


def _counts(batch: PackedBatch) -> Tensor:
    """Return the weight of a counted record, else 0. [B]"""
    return (batch.labels != UNLABELLED) * batch.weights
