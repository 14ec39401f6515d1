"""Whether a job's encoders can be shared out as its degrees say: known before anything is prepared or loaded."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from container.models.families import encoder_family, tensor_parallel_families
from container.parallel.degrees import ParallelDegrees
from container.text.encoder_config import config_value, scratch_config
from container.text.encoder_source import find_encoder, read_config
from contracts.errors import ContractError
from contracts.hyperparameters import FROM_SCRATCH, TWO_STAGE_SCHEDULES, Hyperparameters
from contracts.paths import JobPaths

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EncoderShape:
    """What of an encoder decides how it can be shared out.

    Attributes:
        name: what the user wrote.
        config: as in config.json.
    """

    role: str
    name: str
    config: Mapping[str, Any]

    @property
    def model_type(self) -> str:
        return str(self.config.get("model_type"))

    @property
    def layers(self) -> int:
        return config_value(self.config, "num_hidden_layers")

    @property
    def heads(self) -> int:
        """Attention heads of each layer."""
        return config_value(self.config, "num_attention_heads")

    @property
    def intermediate(self) -> int:
        """Width of the feed-forward's inner layer."""
        return config_value(self.config, "intermediate_size")

    @property
    def blocks(self) -> int:
        """Pieces that a pipeline can place (container/models/blocks.py): embeddings, layers, pooler; or one."""
        return self.layers + 2 if encoder_family(self.model_type).has_stages else 1

    def __str__(self) -> str:
        parts = f"embeddings, {self.layers} layers, pooler" if self.blocks > 1 else f"{self.model_type} as a whole"
        return f"{self.role}: {parts}"


def check_encoders(paths: JobPaths, hp: Hyperparameters, degrees: ParallelDegrees) -> None:
    """Hold the encoders that `hp` names to `degrees`, by their configurations alone; warn of settings without effect.

    Raises:
        ContractError: see `check_against_model`; or an encoder that cannot be found or described.
    """
    if hp.architecture.encoder != "transformer":
        _check_whole(hp, degrees)
        return
    of_layers = [name for name in ("activation_checkpointing", "compile") if getattr(hp, name)]
    if hp.fsdp_wrap == "layer" and "fsdp" in degrees.features(hp):
        of_layers.append("fsdp_wrap")
    if not of_layers and degrees.pp == degrees.tp == 1:
        return
    encoders = [
        EncoderShape(field.role, field.tokenizer, encoder_config(paths, hp, name=field.tokenizer))
        for field in hp.text_fields
    ]
    check_against_model(degrees, hp, encoders)
    for encoder in encoders:
        if not encoder_family(encoder.model_type).has_own_layers:
            for name in of_layers:
                logger.warning(
                    "%s has no effect on the encoder of %s: the layers of %s are not known one by one.",
                    name, encoder.role, encoder.model_type,
                )  # fmt: skip


def _check_whole(hp: Hyperparameters, degrees: ParallelDegrees) -> None:
    """Raise ContractError for a way of sharing out that a model without encoder layers does not have."""
    for setting, size, what in (
        ("tp_size", degrees.tp, "whose matrices could be cut"),
        ("pp_size", degrees.pp, "to place in stages"),
    ):
        if size > 1:
            raise ContractError(
                f"{setting}: is {size}, but model_class {hp.model_class!r} has no encoder layers {what}; "
                f"{degrees}; WORLD_SIZE={degrees.product}",
                f"Set {setting} to 1: replicas (strategy ddp) or shards (fsdp) share its work out.",
            )


def encoder_config(paths: JobPaths, hp: Hyperparameters, *, name: str) -> dict[str, Any]:
    """The configuration, as in config.json, of the encoder that hyperparameter tokenizer calls `name`."""
    if name == FROM_SCRATCH:
        longest = max(field.max_sen_len for field in hp.text_fields if field.tokenizer == FROM_SCRATCH)
        vocab_size = hp.encoder_config.get("vocab_size", 1)  # the vocabulary itself is not learned yet
        return scratch_config(hp.encoder_config, vocab_size=vocab_size, special_ids={}, max_sen_len=longest)
    folder = find_encoder(name, paths).folder
    assert folder is not None, "only from_scratch has none"
    return read_config(folder)


def check_against_model(degrees: ParallelDegrees, hp: Hyperparameters, encoders: list[EncoderShape]) -> None:
    """Raise ContractError for layers that cannot be cut tp ways, or a model that has fewer blocks than stages.

    Args:
        encoders: of each text field, in order.
    """
    if degrees.tp > 1:
        _check_slices(degrees, hp, encoders)
    if degrees.pp > 1:
        _check_stages(degrees, hp, encoders)


def check_family(encoder: str, *, model_type: str, sequence_parallel: bool) -> None:
    """Raise ContractError if tensor parallelism, or sequence parallelism where asked, cannot split a family's layers.

    Args:
        encoder: the encoder, for the message.
    """
    family = encoder_family(model_type)
    if not family.tensor_plan:
        raise ContractError(
            f"tp_size: is above 1, but tensor parallelism cannot split {encoder}, of model_type {model_type!r}",
            "Leave tp_size out and use dp_shard_size (fsdp) or pp_size (pipeline) instead, or use an encoder of one of "
            f"these families: {', '.join(tensor_parallel_families())}.",
        )
    if sequence_parallel and not family.sequence_parallel:
        raise ContractError(
            f"sequence_parallel: is true, but the layers of {encoder}, of model_type {model_type!r}, cannot be split "
            "by tokens",
            "Leave sequence_parallel out, or use an encoder of one of these families: "
            f"{', '.join(tensor_parallel_families(sequence_parallel=True))}.",
        )


def _check_slices(degrees: ParallelDegrees, hp: Hyperparameters, encoders: list[EncoderShape]) -> None:
    shown = f"({degrees}; WORLD_SIZE={degrees.product})"
    for encoder in encoders:
        check_family(
            f"{encoder.role}'s encoder {encoder.name!r}",
            model_type=encoder.model_type,
            sequence_parallel=hp.sequence_parallel,
        )
    possible = math.gcd(*(size for encoder in encoders for size in (encoder.heads, encoder.intermediate)))
    for encoder in encoders:
        for size, of in (
            (encoder.heads, "attention heads (num_attention_heads)"),
            (encoder.intermediate, "columns of the feed-forward layers (intermediate_size)"),
        ):
            if size % degrees.tp:
                raise ContractError(
                    f"tp_size: {degrees.tp} ranks cannot share the {size} {of} of {encoder.role}'s encoder "
                    f"{encoder.name!r} evenly {shown}",
                    f"Set tp_size to {_one_of(possible, degrees.product, nearest=degrees.tp)}.",
                )


def _check_stages(degrees: ParallelDegrees, hp: Hyperparameters, encoders: list[EncoderShape]) -> None:
    each = 2 if hp.pp_schedule in TWO_STAGE_SCHEDULES else 1
    stages = degrees.pp * each
    # With a text for each rank of the branch axis, each pipeline has the blocks of one.
    pipelines = [[encoder] for encoder in encoders] if degrees.branch > 1 else [encoders]
    blocks, shortest = min(
        ((sum(encoder.blocks for encoder in own) + 1, own) for own in pipelines), key=lambda pair: pair[0]
    )
    if stages <= blocks:
        return
    made_of = "; ".join([*map(str, shortest), "head"])
    changes = [f"pp_size to at most {blocks // each}"] if blocks // each > 1 else ["pp_size to 1"]
    if each > 1 and degrees.pp <= blocks:
        changes.append("pp_schedule to 1F1B or GPipe, which have one stage for each rank")
    raise ContractError(
        f"pp_size: {degrees.pp} ranks x {each} stage{'s' if each > 1 else ''} ({hp.pp_schedule}) make {stages} stages, "
        f"but the model has {blocks} blocks to place ({made_of}); {degrees}; WORLD_SIZE={degrees.product}",
        f"Set {'; or '.join(changes)}.",
    )


def _one_of(multiple: int, world_size: int, *, nearest: int) -> str:
    """The divisors of both numbers, in words, the nearest first."""
    divisors = [size for size in range(1, multiple + 1) if multiple % size == 0 and world_size % size == 0]
    return " or ".join(map(str, sorted(divisors, key=lambda size: abs(math.log2(size / nearest)))))
