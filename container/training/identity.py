"""What a checkpoint and the run that resumes it must share."""

import logging
from collections.abc import Mapping
from typing import Any

from container.data.sampler import BatchPlan
from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)


def identity(hp: Hyperparameters, preprocessing_fingerprint: str, digests: Mapping[str, str]) -> dict[str, Any]:
    """The settings, the fitted preprocessing and the rows of train and val that a checkpoint depends on."""
    settings = hp.model_dump(mode="json", include=set(hp.names_of("prepare", "train")))
    rows = {split: digests[split] for split in ("train", "val")}
    return {"preprocessing": preprocessing_fingerprint, "rows": rows, "hyperparameters": settings}


def check_identity(saved: dict[str, Any], current: dict[str, Any], *, folder: str) -> None:
    """Raise ContractError when the run that saved a checkpoint differs from the one that would resume it."""
    # What a checkpoint of an earlier version does not name was as its default says: that is off.
    defaults = {
        name: Hyperparameters.model_fields[name].default for name in Hyperparameters.names_of("prepare", "train")
    }
    old, new = {**defaults, **saved["hyperparameters"]}, current["hyperparameters"]
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    fix = "Undo the change, or start over with resume=false, which removes the checkpoints."
    if changed:
        name = sorted(changed)[0]
        raise ContractError(
            f"{name}: the checkpoint in {folder} was trained with {old.get(name)!r}, this run has {new.get(name)!r}"
            + (f" (also changed: {', '.join(sorted(changed)[1:])})" if len(changed) > 1 else ""),
            fix,
        )
    if any(saved[part] != current[part] for part in ("preprocessing", "rows")):
        raise ContractError(
            f"resume: the checkpoint in {folder} was trained on other data or preprocessing than input/data holds now",
            fix,
        )


def resume_batch_plan(global_batch: int, planned: BatchPlan, *, per_pass: int) -> BatchPlan:
    """Return the batch plan that keeps the steps of the run that saved a checkpoint, on this run's ranks.

    The number of passes follows from the global batch; the records of a step are spread over them as evenly as they
    go, so `planned.microbatch_size` is an upper bound here.

    Args:
        global_batch: records of a step, by the checkpoint.
        planned: what this run would use if it started afresh.
        per_pass: microbatches that one forward and backward take together: those of a pipeline, else 1.

    Raises:
        ContractError: a step has fewer records than microbatches.
    """
    if planned.global_batch == global_batch:
        return planned
    at_once = planned.data_parallel_size * per_pass
    if global_batch < at_once:
        raise ContractError(
            f"dp_shard_size, dp_replicate_size: the checkpoint was trained with a global batch of {global_batch}, too "
            f"few records for {planned.data_parallel_size} data-parallel ranks"
            + (f" x {per_pass} microbatches (num_microbatches)" if per_pass > 1 else ""),
            f"Use at most {global_batch // per_pass} data-parallel ranks, or start over with resume=false."
            if global_batch >= per_pass
            else f"Set num_microbatches to at most {global_batch}, or start over with resume=false.",
        )
    passes = -(-global_batch // (planned.microbatch_size * at_once))
    batch_plan = BatchPlan(
        -(-global_batch // (passes * at_once)),
        planned.data_parallel_size,
        passes * per_pass,
        records=global_batch,
    )
    logger.info(
        "the global batch stays %d, as in the checkpoint: accumulate_grad_batches is %d and a microbatch has up to %d "
        "records on each of %d data-parallel ranks; as set, they would make it %d",
        global_batch, passes, batch_plan.microbatch_size, batch_plan.data_parallel_size, planned.global_batch,
    )  # fmt: skip
    return batch_plan
