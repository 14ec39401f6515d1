"""Check the settings against the parallel layout; a contradiction is an error."""

from collections.abc import Collection

from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters
from contracts.settings.processes import ZERO_BUBBLE_SCHEDULES


def check_parallelism(hp: Hyperparameters, features: Collection[str], *, pipeline_ranks: int) -> None:
    """Raise ContractError for the first setting that contradicts the parallel layout.

    Args:
        features: what the job uses: mesh axes (pp, dp_replicate, dp_shard, branch, tp), and ddp or fsdp.
        pipeline_ranks: size of the pp axis.
    """
    layout = f"this job uses {', '.join(sorted(features)) or 'one process'}"
    if hp.gradient_compression != "none" and features and "ddp" not in features:
        raise ContractError(
            f"gradient_compression: is {hp.gradient_compression!r}, which works only with ddp (replicas); {layout}",
            "Set gradient_compression to none, or strategy to ddp. Under fsdp, fsdp_reduce_dtype=bfloat16 halves the "
            "communication.",
        )
    if hp.cpu_offload and "fsdp" not in features:
        raise ContractError(
            f"cpu_offload: is true, but nothing is sharded; {layout}",
            "Set strategy to fsdp and run several processes, or cpu_offload to false.",
        )
    if hp.sequence_parallel and "tp" not in features:
        raise ContractError(
            f"sequence_parallel: is true, but there is no tp axis; {layout}",
            "Set tp_size to 2 or more, or sequence_parallel to false.",
        )
    dividing = sorted({"pp", "branch"}.intersection(features))
    if hp.share_encoder and len(hp.text_fields) > 1 and dividing:
        raise ContractError(
            f"share_encoder: is true, but {dividing[0]} puts the two texts on different ranks; {layout}",
            "Set share_encoder to false, or divide the model with dp_shard_size (fsdp) or tp_size.",
        )
    if hp.lora_rank and "tp" in features:
        raise ContractError(
            f"lora_rank: is {hp.lora_rank}, but tp slices the layers that LoRA adapts; {layout}",
            "Remove tp_size, set strategy to auto and divide the model with dp_shard_size (fsdp) or pp_size; or set "
            "lora_rank to 0.",
        )
    if "pp" in features:
        _check_microbatches(hp, pipeline_ranks)
        _check_zero_bubble(hp)


def _check_microbatches(hp: Hyperparameters, ranks: int) -> None:
    count = hp.num_microbatches
    divisors = [number for number in range(1, hp.batch_size + 1) if hp.batch_size % number == 0]
    possible = [number for number in divisors if microbatches_fit(hp.pp_schedule, number, ranks)]
    if count in possible:
        return
    reasons = []
    if count not in divisors:
        reasons.append(f"cannot divide batch_size {hp.batch_size} evenly")
    if not microbatches_fit(hp.pp_schedule, count, ranks):
        reasons.append(
            f"are too few for {ranks} ranks under 1F1B (pp_size)"
            if hp.pp_schedule == "1F1B"
            else f"cannot form {count // ranks} equal rounds over {ranks} ranks under {hp.pp_schedule} (pp_size)"
        )
    raise ContractError(
        f"num_microbatches: {count} microbatches {' and '.join(reasons)}",
        f"Set num_microbatches to one of {possible}, or change batch_size."
        if possible
        else f"Set batch_size to {ranks} or more, or pp_schedule to GPipe.",
    )


def microbatches_fit(schedule: str, count: int, ranks: int) -> bool:
    """Return whether a schedule of torch.distributed.pipelining can run `count` microbatches over `ranks` ranks."""
    if schedule == "1F1B":
        return count >= ranks
    return not schedule.startswith("Interleaved") or count % max(1, count // ranks) == 0


def _check_zero_bubble(hp: Hyperparameters) -> None:
    if hp.pp_schedule not in ZERO_BUBBLE_SCHEDULES:
        return
    for name, reason in (
        ("compile", "compiled layers cannot be divided into them"),
        ("activation_checkpointing", "each would recompute the layers, nine times per microbatch instead of once"),
    ):
        if getattr(hp, name) not in (0, "auto"):
            raise ContractError(
                f"{name}: is {getattr(hp, name)}, but {hp.pp_schedule} runs the backward pass in two parts: {reason}",
                f"Remove {name}, or set pp_schedule to 1F1B or Interleaved1F1B.",
            )
