"""Predict a split on all ranks, each record exactly once."""

from dataclasses import replace

import numpy as np
import torch

from container.data.batch import to_device
from container.data.loader import prefetched, step_batches
from container.data.sampler import BatchPlan
from container.data.split import PreparedSplit
from container.decision.softmax import log_softmax
from container.errors import StopAgreed
from container.parallel.execution import Execution
from container.training.stop import StopFlag
from contracts.hyperparameters import Hyperparameters

# How many times a batch of a prediction, which stores no activations, is larger than in training at most, and up to how
# many records. A GPU needs more of them to be busy.
_ON_CPU, _ON_GPU = (4, 32), (8, 256)


def prediction_batch(hp: Hyperparameters, device: torch.device) -> int:
    """Return the most records of a batch on each rank.

    With activation checkpointing, training stores few activations either, so a larger batch could need more memory.
    """
    times, records = _ON_CPU if device.type == "cpu" else _ON_GPU
    return hp.batch_size * (1 if hp.activation_checkpointing else max(1, min(times, records // hp.batch_size)))


def predict_split(
    execution: Execution,
    split: PreparedSplit,
    *,
    hp: Hyperparameters,
    stop: StopFlag,
) -> np.ndarray:
    """Return the logits of every record of `split`, on every rank, in the split's order. [len(split), K] float32

    Args:
        hp: `prediction_batch` and max_tokens_per_batch limit a batch of each rank.
        stop: read before each batch.

    Raises:
        StopAgreed: a rank was requested to stop.
    """
    ranks = execution.ranks
    row_of = split.column("row").to_numpy()
    logits = torch.zeros(len(split), hp.num_classes, device=ranks.device)
    times = torch.zeros(len(split), device=ranks.device)
    batch_plan = BatchPlan.of(hp, data_parallel_size=ranks.data_size, per_pass=execution.num_microbatches, passes=1)
    batch_plan = replace(batch_plan, microbatch_size=prediction_batch(hp, ranks.device) // execution.num_microbatches)
    execution.module.eval()
    steps = step_batches(split, np.arange(len(split)), batch_plan=batch_plan, data_rank=ranks.data_rank)
    with prefetched(steps, ranks.device) as batches:
        for microbatches in batches:
            if ranks.sum(torch.tensor([float(stop.requested)])).item() > 0:
                raise StopAgreed
            with ranks.threads.prediction.measured(microbatches):
                predicted = execution.predict([packed.to(ranks.device) for packed in microbatches])
            for packed, values in zip(microbatches, predicted or (), strict=predicted is not None):
                (counted,) = (packed.rows >= 0).nonzero(
                    as_tuple=True
                )  # on the host: its number is known without waiting
                at = to_device(torch.from_numpy(np.searchsorted(row_of, packed.rows[counted].numpy())), ranks.device)
                logits[at] = values[to_device(counted, ranks.device)]  # [B, K]
                times[at] += 1
    execution.module.train()
    ranks.sum(logits)
    ranks.sum(times)
    assert bool((times == 1).all()), "every record is predicted exactly once"
    return logits.cpu().numpy()


def weighted_log_loss(
    logits: np.ndarray, labels: np.ndarray, class_weights: list[float], weights: np.ndarray
) -> float | None:
    """Return sum(w_i * w_y * nll) / sum(w_i * w_y) over the labelled records; None without a weight above 0.

    Args:
        logits: [N, K]
        labels: negative if unlabelled. [N]
        weights: of the records. [N]
    """
    known = (labels >= 0) & (weights > 0)
    if not known.any():
        return None
    log_probabilities = log_softmax(logits[known])
    weights = np.asarray(class_weights)[labels[known]] * weights[known]
    nll = -log_probabilities[np.arange(len(log_probabilities)), labels[known]]
    return float((weights * nll).sum() / weights.sum())
