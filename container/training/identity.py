"""What a checkpoint and the run that resumes it must share."""

from collections.abc import Mapping
from typing import Any

from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters

# Changing these continues the same training; changing any other would silently make another one of it.
FREE = frozenset(
    {
        "max_epochs", "early_stop_patience", "val_check_interval", "metric_choices", "load_ckpt", "resume",
        "keep_checkpoints", "checkpoint_every_n_steps", "log_every_n_steps", "max_nonfinite_steps", "nproc_per_node",
        "preprocess_workers", "strategy", "dp_replicate_size", "dp_shard_size", "pp_size", "tp_size", "branch_size",
        "pp_schedule", "num_microbatches", "sharding_strategy", "batch_size", "accumulate_grad_batches",
        "fixed_tokenizer_length", "text_input_ids_key", "text_attention_mask_key", "test_filename",
    }
)  # fmt: skip


def identity(hp: Hyperparameters, preprocessing_fingerprint: str, digests: Mapping[str, str]) -> dict[str, Any]:
    """The settings, the fitted preprocessing and the rows of train and val that a checkpoint depends on."""
    settings = {name: value for name, value in hp.model_dump(mode="json").items() if name not in FREE}
    rows = {split: digests[split] for split in ("train", "val")}
    return {"preprocessing": preprocessing_fingerprint, "rows": rows, "hyperparameters": settings}


def check_identity(saved: dict[str, Any], current: dict[str, Any], *, folder: str) -> None:
    """Raise ContractError when the run that saved a checkpoint differs from the one that would resume it."""
    old, new = saved["hyperparameters"], current["hyperparameters"]
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


def check_global_batch(saved: int, current: int, *, ranks: int) -> None:
    """Raise ContractError when the run would take other steps than the one it resumes."""
    if saved != current:
        fitting = [size for size in range(1, saved + 1) if saved % (size * ranks) == 0]
        raise ContractError(
            f"batch_size: the checkpoint was trained with a global batch of {saved} "
            f"(batch_size x ranks x accumulate_grad_batches), this run has {current} on {ranks} ranks",
            f"On {ranks} ranks, batch_size may be one of {fitting} with accumulate_grad_batches = "
            f"{saved} / (batch_size x {ranks}); or start over with resume=false."
            if fitting
            else f"Use a number of ranks that divides {saved}, or start over with resume=false.",
        )
