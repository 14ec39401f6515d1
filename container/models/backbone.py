"""Build a text encoder from files: its configuration, its weights, reinitialized layers and frozen parameters."""

import json
import logging
import pickle
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from container.job.log_once import log_detail, log_once
from container.models.attention import ATTENTION
from container.models.encoder import (
    MeanPooler,
    Pooler,
    TextEncoder,
    embedding_tables,
    encoder_layers,
    first_position,
    longest_chunk,
    word_embeddings,
)
from container.models.families import FAMILIES, EncoderFamily, encoder_family
from container.models.memory import build_if_it_fits
from container.preprocessing.prepared import EncoderFiles
from contracts.errors import ContractError, first_line
from contracts.text_fields import ModelTextField

logger = logging.getLogger(__name__)

_ATTENTION_DROPOUTS = ("attention_probs_dropout_prob", "attention_dropout")
_NUMBER = re.compile(r"\b\d+\b")
_USE_KNOWN_FAMILY = f"Use an encoder of one of these families: {', '.join(FAMILIES)}."


def build_encoder(
    field: ModelTextField, files: EncoderFiles, *, chosen: Iterable[str] = (), pooling: str | None = "first"
) -> TextEncoder:
    """Build the encoder of a text field; random numbers come from torch's current generator.

    Args:
        chosen: names of the hyperparameters that the user set.
        pooling: how to pool each chunk into a vector (first, mean); None if only the tokens' states are needed.

    Raises:
        ContractError: not a text encoder, weights that do not match the config, or chunks longer than its positions.
    """
    chosen = set(chosen)
    config = _read_config(files.config_folder)
    family = encoder_family(config.model_type)
    if files.weights_folder is None:
        backbone, has_pooler = _random_backbone(config, family, files.config_folder), False
    else:
        backbone, has_pooler = _pretrained_backbone(config, family, files.weights_folder)
    _check_length(field, backbone, files.config_folder, chosen=chosen)
    pretrained_pooler = _take_pooler(backbone)
    pooler = MeanPooler() if pooling == "mean" else None
    if pooling == "first":
        pooler = Pooler(config.hidden_size)
        reinitialize(pooler, std=_std(config))
        if has_pooler and pretrained_pooler is not None and not field.reinit_pooler:
            pooler.dense.load_state_dict(pretrained_pooler.state_dict())
        elif files.weights_folder is not None and not field.reinit_pooler:
            name, message = field.source("reinit_pooler", chosen), "%s is false and has no effect for %r: %s"
            log_once(logger, logging.WARNING, message % (name, field.name, "its encoder has no pooler weights."))
    if files.weights_folder is not None:
        _reinitialize_last_layers(field, backbone, family)
    autocasts = config.model_type in FAMILIES or _check_unknown_family(backbone, source=files.config_folder)
    if not field.is_embeddings_trainable:
        for table in embedding_tables(backbone):
            table.requires_grad_(False)
    if not family.packed:
        message = f"Encoders of the family {config.model_type} run padded to the longest chunk of each batch."
        log_once(logger, logging.INFO, message)
    if not autocasts:
        message = f"Encoders of the family {config.model_type} compute in float32: they fail under autocast."
        log_once(logger, logging.INFO, message)
    return TextEncoder(
        backbone,
        packed=family.packed,
        autocasts=autocasts,
        first_position=first_position(backbone),
        pad_token_id=config.pad_token_id or 0,
        pooler=pooler,
    )


def main(arguments: Sequence[str]) -> int:
    """Try out an encoder with random weights: python -m container.job.start container.models.backbone FOLDER NAME.

    FOLDER contains its config.json. An encoder of an unknown family also runs. Exit code 1 means that a classifier
    cannot use it; stdout then has the cause, in which NAME replaces FOLDER, and the fix, as a JSON list.
    """
    folder, name = Path(arguments[0]), arguments[1]
    try:
        config = _read_config(folder)
        backbone = _random_backbone(config, encoder_family(config.model_type), folder)
        if config.model_type not in FAMILIES:
            _check_unknown_family(backbone, source=folder)
    except ContractError as error:
        print(json.dumps([error.cause.replace(str(folder), name), error.fix]))
        return 1
    return 0


def build_word_embeddings(field: ModelTextField, files: EncoderFiles) -> nn.Embedding:
    """Build only the word embeddings of a text field's encoder; random if it has no weights.

    Raises:
        ContractError: as in build_encoder.
    """
    config = _read_config(files.config_folder)
    family = encoder_family(config.model_type)
    if files.weights_folder is None:
        with torch.device("meta"):  # only the sizes are needed
            table = word_embeddings(_random_backbone(config, family, files.config_folder))
        words = nn.Embedding(table.num_embeddings, table.embedding_dim)
        nn.init.normal_(words.weight, std=_std(config))
    else:
        table = word_embeddings(_pretrained_backbone(config, family, files.weights_folder)[0])
        words = nn.Embedding.from_pretrained(table.weight.detach().clone(), freeze=False)
    words.weight.requires_grad_(field.is_embeddings_trainable)
    return words


def reinitialize(modules: nn.Module, *, std: float) -> None:
    """Initialize as before pretraining: Linear and Embedding normal(0, std), biases 0, norms 1."""
    for module in modules.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        elif isinstance(module, nn.LayerNorm) and module.weight is not None:
            nn.init.ones_(module.weight)
        bias = getattr(module, "bias", None)
        if isinstance(bias, nn.Parameter):
            nn.init.zeros_(bias)


def _read_config(folder: Path) -> PretrainedConfig:
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # families raise different types
        reason = first_line(error.__cause__ or error)
        raise ContractError(
            f"{folder}/config.json: not the configuration of a Hugging Face encoder: {reason}",
            "Give a folder with the model's config.json.",
        ) from error
    for name in _ATTENTION_DROPOUTS:
        if getattr(config, name, 0):
            setattr(config, name, 0.0)
            log_detail(logger, "Attention dropout is 0: the variable-length attention kernel has none.")
    if (
        config.is_encoder_decoder
        or getattr(config, "is_decoder", False)
        or config.model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    ):
        raise ContractError(
            f"{folder}: model_type {config.model_type!r} is not a text encoder with attention in both directions",
            _USE_KNOWN_FAMILY,
        )
    return config


def _random_backbone(config: PretrainedConfig, family: EncoderFamily, folder: Path) -> PreTrainedModel:
    try:
        return build_if_it_fits(
            lambda: AutoModel.from_config(config, dtype=torch.float32, **_attention(family)),
            part=f"the encoder of model_type {config.model_type}",
            settings="encoder_config",
        )
    except ContractError:
        raise
    except Exception as error:  # families raise different types
        raise ContractError(
            f"{folder}/config.json: no encoder can be built with these sizes: {first_line(error)}",
            "Correct the value of encoder_config that this names.",
        ) from error


def _pretrained_backbone(config: PretrainedConfig, family: EncoderFamily, folder: Path) -> tuple[PreTrainedModel, bool]:
    """Return the backbone in float32, and whether its pooler was among the weights."""
    try:
        with _quiet_transformers():
            backbone, loading_info = AutoModel.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # the error of transformers names no weight
                **_attention(family),
            )
    except Exception as error:  # of transformers, safetensors and pickle
        raise ContractError(
            f"{folder}: the encoder's weights cannot be read: {load_failure(error)}",
            "Copy or download its files again.",
        ) from (None if isinstance(error, pickle.UnpicklingError) else error)
    if loading_info["mismatched_keys"]:
        name, in_file, in_model = min(loading_info["mismatched_keys"])
        raise ContractError(
            f"{folder}: {name!r} has shape {list(in_file)} in the weights, but {list(in_model)} by config.json",
            "Give the config.json that was saved with these weights.",
        )
    missing_keys = loading_info["missing_keys"]
    missing = sorted(name for name in missing_keys if "pooler" not in name)
    if missing:
        raise ContractError(
            f"{folder}: {len(missing)} weights of the encoder are not in its files, e.g. {missing[0]!r}",
            "Give the weights that belong to this config.json.",
        )
    _check_finite(backbone, folder)
    _warn_of_unused_layers(backbone, loading_info["unexpected_keys"], folder)
    return backbone, not missing_keys


def load_failure(error: Exception) -> str:
    """Return why a file of weights cannot be loaded, without torch's advice to run what a pickle contains."""
    refused = isinstance(error, pickle.UnpicklingError)
    return "it contains objects that are no tensors" if refused else first_line(error)


def _check_finite(backbone: PreTrainedModel, folder: Path) -> None:
    for name, parameter in backbone.named_parameters():
        if not parameter.detach().isfinite().all():
            raise ContractError(
                f"{folder}: {name!r} of the encoder's weights contains NaN or infinite numbers",
                "Give weights of a training that did not diverge.",
            )


def _warn_of_unused_layers(backbone: PreTrainedModel, unexpected: Iterable[str], folder: Path) -> None:
    """Warn of weights in the files whose names differ from the encoder's only in the number of the layer."""
    known = {_NUMBER.sub("*", name) for name, _ in backbone.named_parameters()}
    names = (name.removeprefix(f"{backbone.base_model_prefix}.") for name in unexpected)
    unused = sorted(name for name in names if _NUMBER.sub("*", name) in known)
    if unused:
        message = "%s: config.json has fewer layers than the weights: %d weights are not used, e.g. %r."
        log_once(logger, logging.WARNING, message % (folder, len(unused), unused[0]))


def _attention(family: EncoderFamily) -> dict[str, str]:
    return {"attn_implementation": ATTENTION} if family.packed else {}


def _take_pooler(backbone: PreTrainedModel) -> nn.Linear | None:
    """Remove the backbone's own pooler, whose output is not used; return its Linear d -> d if it has one."""
    pooler = getattr(backbone, "pooler", None)
    if pooler is None:
        return None
    backbone.register_module("pooler", None)
    dense = pooler if isinstance(pooler, nn.Linear) else getattr(pooler, "dense", None)
    width = backbone.config.hidden_size
    fits = isinstance(dense, nn.Linear) and dense.weight.shape == (width, width) and dense.bias is not None
    return dense if fits else None


def _reinitialize_last_layers(field: ModelTextField, backbone: PreTrainedModel, family: EncoderFamily) -> None:
    """Reinitialize as many layers as set; none if the encoder has fewer, which only a default can ask for."""
    count, layers = field.reinit_layers, encoder_layers(backbone, family) if family.has_own_layers else None
    own = [] if layers is None else list(layers)
    if count > len(own):
        logger.warning(
            f"reinit_layers: the default of {count} is not applied: {field.role}'s encoder, of model_type "
            f"{backbone.config.model_type!r}, has {len(own)} known layers with weights of their own."
        )
        return
    for layer in own[len(own) - count :]:
        reinitialize(layer, std=_std(backbone.config))


def _check_length(field: ModelTextField, backbone: PreTrainedModel, folder: Path, *, chosen: set[str]) -> None:
    """Compare with the table itself: `check_positions` knows only what config.json states."""
    longest = longest_chunk(backbone)
    if longest is not None and field.max_sen_len > longest:
        key = field.source("max_sen_len", chosen)
        raise ContractError(
            f"{key}: is {field.max_sen_len}, but the encoder in {folder} has positions for {longest} tokens",
            f"Set {key} to at most {longest}.",
        )


def _check_unknown_family(backbone: PreTrainedModel, *, source: Path) -> bool:
    """Check that padding does not change a chunk's states, and freeze the parameters that do not affect the states.

    Data-parallel replicas would wait forever for the gradient of such a parameter.

    Returns:
        whether it also runs under autocast to half precision.
    """
    kind = backbone.config.model_type
    was_training = backbone.training
    backbone.eval()
    tokens = torch.arange(3, 7)[None] % backbone.config.vocab_size  # [1, 4]
    padding = torch.full((1, 8), getattr(backbone.config, "pad_token_id", None) or 0)
    mask = torch.ones_like(tokens)
    try:
        with torch.enable_grad():
            alone = backbone(input_ids=tokens, attention_mask=mask).last_hidden_state  # [1, 4, d]
            padded = backbone(
                input_ids=torch.cat([tokens, padding], 1),
                attention_mask=torch.cat([mask, torch.zeros_like(padding)], 1),
            ).last_hidden_state  # [1, 12, d]
            alone.sum().backward()
    except Exception as error:  # an unknown model can raise anything
        cause = f"an encoder of the family {kind} cannot be run on token ids and a mask: {first_line(error)}"
        raise ContractError(f"{source}: {cause}", _USE_KNOWN_FAMILY) from error
    if not torch.allclose(alone, padded[:, : tokens.shape[1]], atol=1e-3):
        cause = f"encoders of the family {kind} do not mask padding, so records would change each other's scores"
        raise ContractError(f"{source}: {cause}", _USE_KNOWN_FAMILY)
    for name, parameter in backbone.named_parameters():
        if parameter.grad is None and parameter.requires_grad:
            parameter.requires_grad_(False)
            logger.info("The encoder's %s does not affect its output and is not trained.", name)
    backbone.zero_grad(set_to_none=True)
    try:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            backbone(input_ids=tokens, attention_mask=mask)
        autocasts = True
    except RuntimeError:  # the float32 constant in DeBERTa's mask overflows
        autocasts = False
    backbone.train(was_training)
    return autocasts


def _std(config: PretrainedConfig) -> float:
    return getattr(config, "initializer_range", 0.02)


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Silence transformers' progress bar and its table of unused weights (a checkpoint's language-model head)."""
    verbosity = transformers_logging.get_verbosity()
    had_bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if had_bar:
            transformers_logging.enable_progress_bar()
