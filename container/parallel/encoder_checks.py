"""Check that a job's encoders have the parts that its settings need, before data is prepared or weights load."""

import functools
import json
import logging
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from container.job.start import start_command
from container.models.families import FAMILIES, encoder_family, layered_families, tensor_parallel_families
from container.parallel.degrees import ParallelDegrees
from container.text.encoder_config import check_positions, config_value, read_config, scratch_config, with_overrides
from container.text.encoder_source import find_encoder
from container.text.vocabulary import SPECIAL_IDS, vocabulary_limit
from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters
from contracts.model_classes import FROM_SCRATCH
from contracts.paths import JobPaths
from contracts.settings.processes import TWO_STAGE_SCHEDULES
from contracts.text_fields import ModelTextField

logger = logging.getLogger(__name__)

_DECODER = ("is_decoder", "is_encoder_decoder")  # true in config.json of a model that is no encoder


@dataclass(frozen=True)
class EncoderShape:
    """The facts about an encoder that decide how it can be split.

    Attributes:
        name: the value of the tokenizer hyperparameter.
        config: the content of config.json.
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
        return config_value(self.config, "num_attention_heads")

    @property
    def intermediate(self) -> int:
        """Return the width of the feed-forward's inner layer."""
        return config_value(self.config, "intermediate_size")

    @property
    def blocks(self) -> int:
        """Return the number of blocks (container/models/blocks.py): embeddings, each layer and pooler; or 1."""
        return self.layers + 2 if encoder_family(self.model_type).has_stages else 1

    def __str__(self) -> str:
        parts = f"embeddings, {self.layers} layers, pooler" if self.blocks > 1 else f"{self.model_type}, indivisible"
        return f"{self.role}: {parts}"


def check_encoders(paths: JobPaths, hp: Hyperparameters, degrees: ParallelDegrees, *, has_gpu: bool = False) -> None:
    """Check the configurations of the encoders in `hp` against its settings and `degrees`.

    Raises:
        ContractError: see `check_against_model`; or an encoder was not found, one of its files is damaged, its
            configuration is invalid, it has no positions for a chunk, or a classifier cannot use it.
    """
    encoders = _encoders(paths, hp)
    for field, encoder in zip(hp.text_fields, encoders, strict=True):
        check_positions(encoder.config, field.max_sen_len, setting=field.source("max_sen_len", hp.model_fields_set))
        if encoder.model_type not in FAMILIES or any(encoder.config.get(name) for name in _DECODER):
            _try_out(encoder.name, json.dumps(encoder.config))
    if hp.architecture.encoder == "transformer":
        check_against_model(degrees, hp, encoders)
    else:
        _check_no_split(hp, degrees)
    check_graphs(hp, [encoder.model_type for encoder in encoders], processes=degrees.product, has_gpu=has_gpu)


def reason_against_graphs(
    hp: Hyperparameters, model_types: Iterable[str], *, processes: int, has_gpu: bool
) -> str | None:
    """Return why a microbatch of a job cannot be a CUDA graph; None if nothing is known against it.

    Args:
        model_types: of the encoders that are transformers.
        processes: of all hosts.
    """
    kind = hp.architecture.encoder
    padded = [name for name in model_types if kind == "transformer" and not encoder_family(name).packed]
    reasons = {
        "there is no GPU": not has_gpu,
        f"there are {processes} processes, and graphs are not proven with more than one": processes > 1,
        "fp16 changes the factor of the loss between steps": hp.fp16,
        "activation_checkpointing reads the state of random numbers": hp.activation_checkpointing > 0,
        "the kernels of an LSTM depend on the lengths of the texts": kind == "lstm",
        f"encoders of the family {', '.join(padded)} pad each batch to its longest chunk": bool(padded),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def check_graphs(hp: Hyperparameters, model_types: Iterable[str], *, processes: int, has_gpu: bool) -> None:
    """Raise ContractError if cuda_graphs is true where a microbatch cannot be a graph; see reason_against_graphs."""
    reason = reason_against_graphs(hp, model_types, processes=processes, has_gpu=has_gpu)
    if hp.cuda_graphs is True and reason is not None:
        raise graphs_are_impossible(reason)


def graphs_are_impossible(reason: str) -> ContractError:
    """Return the error of a job with cuda_graphs=true."""
    return ContractError(f"cuda_graphs: is true, but {reason}", "Set cuda_graphs to auto or false.")


@functools.cache
def _try_out(name: str, config: str) -> None:
    """Build an encoder of an unknown family, and run it, in a process of its own, because this one imports no torch.

    Args:
        name: the value of the tokenizer hyperparameter.
        config: the content of config.json.

    Raises:
        ContractError: a classifier cannot use the encoder.
    """
    with tempfile.TemporaryDirectory(prefix="encoder-") as folder:
        Path(folder, "config.json").write_text(config)
        command = [sys.executable, *start_command("container.models.backbone", folder, f"tokenizer: {name}")]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode == 1 and ended.stdout:
        raise ContractError(*json.loads(ended.stdout.splitlines()[-1]))
    if ended.returncode:
        reason = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
        raise RuntimeError(f"tokenizer: the encoder {name!r} could not be tried out: {reason}")


def warn_of_layer_settings(paths: JobPaths, hp: Hyperparameters, degrees: ParallelDegrees) -> None:
    """Warn of settings for single layers that have no effect on an encoder of `hp`."""
    settings = [name for name in ("activation_checkpointing", "compile") if getattr(hp, name) not in (0, "auto")]
    if "fsdp" in degrees.features(hp):
        settings.append("sharding by layer")
    if not settings or hp.architecture.encoder != "transformer":
        return
    for encoder in _encoders(paths, hp):
        if not encoder_family(encoder.model_type).has_own_layers:
            for name in settings:
                logger.warning(
                    f"{name} has no effect on the encoder of {encoder.role}: encoders of type {encoder.model_type} "
                    "have no separate layers."
                )


def _encoders(paths: JobPaths, hp: Hyperparameters) -> list[EncoderShape]:
    return [EncoderShape(field.role, field.tokenizer, encoder_config(paths, hp, field)) for field in hp.text_fields]


def _check_no_split(hp: Hyperparameters, degrees: ParallelDegrees) -> None:
    """Raise ContractError for tensor or pipeline parallelism of a model without encoder layers."""
    for setting, size in (("tp_size", degrees.tp), ("pp_size", degrees.pp)):
        if size > 1:
            raise ContractError(
                f"{setting}: is {size}, but model_class {hp.model_class!r} has no encoder layers to split; "
                f"{degrees}; WORLD_SIZE={degrees.product}",
                f"Set {setting} to 1, and strategy to ddp (replicas) or fsdp (shards).",
            )


def encoder_config(paths: JobPaths, hp: Hyperparameters, field: ModelTextField) -> dict[str, Any]:
    """Return config.json of the encoder of a text field, as the job builds it."""
    if field.tokenizer == FROM_SCRATCH:
        return scratch_config(
            hp.encoder_config,
            vocab_size=vocabulary_limit(hp.encoder_config),  # an upper bound: the vocabulary is not learned yet
            special_ids=SPECIAL_IDS,
            max_sen_len=field.max_sen_len,
            setting=field.source("max_sen_len", hp.model_fields_set),
        )
    folder = find_encoder(field.tokenizer, paths)
    assert folder is not None, "only from_scratch has no folder"
    return with_overrides(read_config(folder), hp.encoder_config)


def check_against_model(degrees: ParallelDegrees, hp: Hyperparameters, encoders: list[EncoderShape]) -> None:
    """Raise ContractError if an encoder lacks what a setting needs.

    Ranks of tp must be able to split its layers, there must be a block for each stage, and layer_lr_decay and
    reinit_layers need layers with weights of their own.

    Args:
        encoders: the encoder of each text field, in order.
    """
    if degrees.tp > 1:
        _check_slices(degrees, hp, encoders)
    if degrees.pp > 1:
        _check_stages(degrees, hp, encoders)
    if hp.layer_lr_decay < 1:
        for encoder in encoders:
            _check_own_layers(encoder, f"layer_lr_decay: is {hp.layer_lr_decay:g}", "Set layer_lr_decay to 1")
    _check_reinitialized(hp, encoders)


def _check_own_layers(encoder: EncoderShape, setting: str, fix: str) -> None:
    family = encoder_family(encoder.model_type)
    if not family.has_own_layers:
        raise ContractError(
            f"{setting}, but {encoder.role}'s encoder {encoder.name!r} is of model_type {encoder.model_type!r}, "
            f"{family.without_own_layers}",
            f"{fix}, or use an encoder of one of these families: {', '.join(layered_families())}.",
        )


def _check_reinitialized(hp: Hyperparameters, encoders: list[EncoderShape]) -> None:
    for field, encoder in zip(hp.text_fields, encoders, strict=True):
        name, count = field.source("reinit_layers", hp.model_fields_set), field.reinit_layers
        # A default counts for nothing: it is not applied to an encoder without so many layers of its own.
        if not count or field.tokenizer == FROM_SCRATCH or name not in hp.model_fields_set:
            continue
        _check_own_layers(encoder, f"{name}: is {count}", f"Set {name} to 0")
        if count > encoder.layers:
            raise ContractError(
                f"{name}: is {count}, but {encoder.role}'s encoder {encoder.name!r} has {encoder.layers} layers",
                f"Set {name} to at most {encoder.layers}.",
            )


def _check_slices(degrees: ParallelDegrees, hp: Hyperparameters, encoders: list[EncoderShape]) -> None:
    for encoder in encoders:
        family = encoder_family(encoder.model_type)
        described = f"{encoder.role}'s encoder {encoder.name!r}, of model_type {encoder.model_type!r}"
        if not family.tensor_plan:
            raise ContractError(
                f"tp_size: is above 1, but tensor parallelism cannot split {described}",
                "Leave tp_size out and use dp_shard_size (fsdp) or pp_size (pipeline) instead, or use an encoder of "
                f"one of these families: {', '.join(tensor_parallel_families())}.",
            )
        if hp.sequence_parallel and not family.sequence_parallel:
            raise ContractError(
                f"sequence_parallel: is true, but the layers of {described}, cannot be split by tokens",
                "Leave sequence_parallel out, or use an encoder of one of these families: "
                f"{', '.join(tensor_parallel_families(sequence_parallel=True))}.",
            )
    common_divisor = math.gcd(*(size for encoder in encoders for size in (encoder.heads, encoder.intermediate)))
    for encoder in encoders:
        for size, units in (
            (encoder.heads, "attention heads (num_attention_heads)"),
            (encoder.intermediate, "columns of the feed-forward layers (intermediate_size)"),
        ):
            if size % degrees.tp:
                raise ContractError(
                    f"tp_size: {degrees.tp} ranks cannot split the {size} {units} of {encoder.role}'s encoder "
                    f"{encoder.name!r} evenly ({degrees}; WORLD_SIZE={degrees.product})",
                    f"Set tp_size to {_divisors(common_divisor, degrees.product, nearest=degrees.tp)}"
                    + (" (1 needs strategy auto)." if hp.strategy == "tp" else "."),
                )


def _check_stages(degrees: ParallelDegrees, hp: Hyperparameters, encoders: list[EncoderShape]) -> None:
    stages_per_rank = 2 if hp.pp_schedule in TWO_STAGE_SCHEDULES else 1
    stages = degrees.pp * stages_per_rank
    # Under branch parallelism each pipeline has the blocks of one text.
    pipelines = [[encoder] for encoder in encoders] if degrees.branch > 1 else [encoders]
    shortest = min(pipelines, key=lambda pipeline: sum(encoder.blocks for encoder in pipeline))
    blocks = sum(encoder.blocks for encoder in shortest) + 1
    if stages <= blocks:
        return
    block_names = "; ".join([*map(str, shortest), "head"])
    most = blocks // stages_per_rank
    changes = [f"pp_size to at most {most}" if most > 1 else "pp_size to 1 and strategy to auto"]
    if stages_per_rank > 1 and degrees.pp <= blocks:
        changes.append("pp_schedule to 1F1B or GPipe, which have one stage per rank")
    raise ContractError(
        f"pp_size: {degrees.pp} ranks x {stages_per_rank} stage{'s' if stages_per_rank > 1 else ''} ({hp.pp_schedule}) "
        f"make {stages} stages, but the model has only {blocks} blocks ({block_names}); {degrees}; "
        f"WORLD_SIZE={degrees.product}",
        f"Set {'; or '.join(changes)}.",
    )


def _divisors(number: int, world_size: int, *, nearest: int) -> str:
    """Return the common divisors of both numbers as text, the nearest to `nearest` first."""
    common = math.gcd(number, world_size)
    divisors = [size for size in range(1, common + 1) if common % size == 0]
    return " or ".join(map(str, sorted(divisors, key=lambda size: abs(math.log2(size / nearest)))))
