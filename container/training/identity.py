"""Check that a run may resume a checkpoint: same settings, data and global batch."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from container.data.sampler import BatchPlan
from container.preprocessing.fingerprint import ENCODER
from container.preprocessing.prepared import INITIAL_MODEL, PreparedData
from container.training.checkpoint_files import newest_checkpoint
from contracts.errors import ContractError
from contracts.fingerprint import Fingerprint
from contracts.hyperparameter_files import without_former
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)

_FITTED = "the preprocessing that is fitted on train"


def identity(hp: Hyperparameters, fitted_fingerprint: str, digests: Mapping[str, Any]) -> Fingerprint:
    """Return what a checkpoint depends on: settings, rows of train and val, fitted preprocessing, pretrained encoders.

    Args:
        digests: as in PreparedData.
    """
    settings = hp.model_dump(mode="json", include=set(hp.names_of("prepare", "train")))
    inputs = {f"the prepared rows of {split}": digests[split] for split in ("train", "val")}
    inputs |= {name: digest for name, digest in digests.items() if name.startswith((ENCODER, INITIAL_MODEL))}
    return Fingerprint.of({**dict(sorted(settings.items())), **inputs, _FITTED: fitted_fingerprint})


def check_resumable(
    hp: Hyperparameters, folder: Path, *, given: Collection[str], prepared: PreparedData | None = None
) -> None:
    """Raise ContractError if the newest checkpoint in `folder` has other settings or data than this run.

    Args:
        given: what the user set. Before the data is prepared, a preset may still choose other settings.
        prepared: the data, once it is prepared.
    """
    newest = newest_checkpoint(folder)
    if newest is None:
        return
    saved = _of_this_version(newest.content["identity"])
    if prepared is not None:
        current = identity(hp, prepared.fitted.fingerprint, prepared.digests)
    else:
        known = set(hp.names_of("prepare", "train"))
        if hp.preset != "defaults":
            known &= set(given)
        current = Fingerprint.of({**saved, **hp.model_dump(mode="json", include=known)})
    check_identity(saved, current, folder=newest.folder)


def check_identity(saved: Mapping[str, Any], current: Fingerprint, *, folder: Path) -> None:
    """Raise ContractError if the run that saved a checkpoint differs from the run that would resume it.

    Args:
        saved: the parts of the fingerprint in the checkpoint.
    """
    # A checkpoint of an earlier version lacks the digests of encoders.
    encoders = {name: value for name, value in current.parts.items() if name.startswith(ENCODER)}
    current.check(
        {**encoders, **_of_this_version(saved)},
        began=f"the checkpoint in {folder} was trained with",
        fix="Undo the change; or start over with `train --fresh` (resume=false), which removes the checkpoints. "
        "The model and the report of the finished job stay until the new ones are complete. To train its model further "
        "on other data, use `train --initial-model JOB` with its folder.",
    )


def _of_this_version(saved: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parts of a checkpoint's fingerprint with newer settings, which had no effect: by their defaults."""
    names = Hyperparameters.names_of("prepare", "train")
    newer = {name: Hyperparameters.model_fields[name].default for name in names}
    if saved.get("cross_fit"):  # before cross_fit_repeats, the rows were divided into other folds
        newer["cross_fit_repeats"] = "the folds of an earlier version"
    return Fingerprint.of({**newer, **without_former(saved)}).parts


def resume_batch_plan(global_batch: int, planned: BatchPlan) -> BatchPlan:
    """Return the batch plan that keeps the steps of the run that saved a checkpoint, on this run's ranks.

    The number of passes follows from the global batch. Their records are distributed as evenly as possible, so
    `planned.microbatch_size` is an upper bound.

    Args:
        global_batch: records of a step of the checkpoint.
        planned: the plan of this run without a checkpoint.

    Raises:
        ContractError: a step has fewer records than microbatches.
    """
    if planned.global_batch == global_batch:
        return planned
    per_pass = planned.per_pass
    microbatches = planned.data_parallel_size * per_pass  # of one pass, on all ranks
    if global_batch < microbatches:
        raise ContractError(
            f"dp_shard_size, dp_replicate_size: the checkpoint was trained with a global batch of {global_batch}, too "
            f"few records for {planned.data_parallel_size} data-parallel ranks"
            + (f" x {per_pass} microbatches (num_microbatches)" if per_pass > 1 else ""),
            f"Use at most {global_batch // per_pass} data-parallel ranks, or start over with resume=false."
            if global_batch >= per_pass
            else f"Set num_microbatches to at most {global_batch}, or start over with resume=false.",
        )
    passes = -(-global_batch // (planned.microbatch_size * microbatches))
    microbatch_size = -(-global_batch // (passes * microbatches))
    sizes = (
        f"a microbatch has up to {planned.max_tokens} tokens"
        if planned.max_tokens
        else f"accumulate_grad_batches is {passes} and a microbatch has up to {microbatch_size} records"
    )
    logger.info(
        f"the global batch stays {global_batch}, as in the checkpoint: {sizes} on each of {planned.data_parallel_size} "
        f"data-parallel ranks; without the checkpoint it would be {planned.global_batch}"
    )
    return replace(planned, microbatch_size=microbatch_size, num_microbatches=passes * per_pass, records=global_batch)
