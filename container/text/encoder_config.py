"""Write config.json of an encoder: sizes for random weights, overrides for pretrained ones."""

import functools
import json
import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contracts.errors import ContractError, shown
from contracts.input_files import read_object
from contracts.settings.encoder import ENCODER_SIZES
from contracts.spelling import did_you_mean

# Their position ids begin after the padding id, so the position table is longer than the longest chunk.
_OFFSET_POSITIONS = {"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm", "data2vec-text"}
_OFFSET_POSITIONS |= {"mpnet", "ibert", "longformer"}

# Keys that determine the shape of a weight or its meaning.
SHAPE_KEYS = frozenset(
    """
    model_type vocab_size hidden_size dim embedding_size num_hidden_layers n_layers num_attention_heads n_heads head_dim
    intermediate_size hidden_dim num_hidden_groups inner_group_num type_vocab_size max_position_embeddings
    position_embedding_type sinusoidal_pos_embds relative_attention relative_attention_num_buckets
    max_relative_positions position_buckets pos_att_type position_biased_input share_att_key norm_rel_ebd
    conv_kernel_size attention_bias mlp_bias norm_bias decoder_bias classifier_bias layer_types rope_parameters
    local_attention is_decoder add_cross_attention tie_word_embeddings pad_token_id bos_token_id eos_token_id
    cls_token_id sep_token_id
    """.split()
)

# Keys of BERT's config, with values of their types, that need no check by transformers: its import takes seconds.
_PLAIN_BERT = {**ENCODER_SIZES, "intermediate_size": 512, "max_position_embeddings": 512}
_PLAIN_BERT |= {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}

# Names of BERT's sizes in other families.
_OTHER_NAMES = {
    "hidden_size": ("dim",),
    "num_hidden_layers": ("n_layers",),
    "num_attention_heads": ("n_heads",),
    "intermediate_size": ("hidden_dim",),
}

DEFAULT_POSITIONS = 512
_LAYERS = frozenset({"num_hidden_layers", "n_layers"})
_MOST_LAYERS = 1_000
_LARGEST_SIZE = 1_048_576


def scratch_config(
    encoder_config: Mapping[str, Any],
    *,
    vocab_size: int,
    special_ids: Mapping[str, int],
    max_sen_len: int,
    setting: str = "max_sen_len",
) -> dict[str, Any]:
    """Return config.json of an encoder with random weights.

    Args:
        encoder_config: the user's settings, which override ENCODER_SIZES.
        vocab_size: number of ids of the learned vocabulary.
        special_ids: id of pad, bos, eos, cls and sep.
        max_sen_len: tokens of the longest chunk; each needs a position.
        setting: the hyperparameter with `max_sen_len`, for errors.

    Raises:
        ContractError: an unknown key or model_type, a size that is not a positive integer, heads that do not divide.
    """
    given = dict(encoder_config)
    model_type = str(given.pop("model_type", "bert"))
    known, aliases = {**_PLAIN_BERT, "pad_token_id": 0}, {}
    if model_type == "bert" and given.keys() <= _PLAIN_BERT.keys():
        _check_values(given, _PLAIN_BERT)
    else:
        known, aliases = _ask(model_type, given)
    config: dict[str, Any] = {"model_type": model_type}
    config |= {aliases.get(key, key): value for values in (ENCODER_SIZES, given) for key, value in values.items()}
    hidden, heads = (aliases.get(key, key) for key in ("hidden_size", "num_attention_heads"))
    sizes = [aliases.get(key, key) for key in ENCODER_SIZES]
    feed_forward = next((key for key in ("intermediate_size", "hidden_dim") if key in known), None)
    given_sizes = [key for key in (*sizes, feed_forward, "max_position_embeddings") if key in config]
    _check_values({key: config[key] for key in given_sizes}, dict.fromkeys(given_sizes, 1))
    if feed_forward:
        config.setdefault(feed_forward, 4 * config[hidden])
    if config[hidden] % config[heads]:
        raise ContractError(
            f"encoder_config: {hidden} {config[hidden]} is not divisible by {heads} {config[heads]}",
            f"Make {hidden} a multiple of {heads}.",
        )
    config["vocab_size"] = vocab_size
    for name, index in special_ids.items():
        if known.get(f"{name}_token_id") is not None:
            config[f"{name}_token_id"] = index
    if "max_position_embeddings" in known:
        positions = max(DEFAULT_POSITIONS, max_sen_len) + _position_offset(config)
        config.setdefault("max_position_embeddings", positions)
    check_positions(config, max_sen_len, setting=setting)
    return config


def with_overrides(config: Mapping[str, Any], encoder_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a pretrained encoder's config.json with a user's settings.

    Raises:
        ContractError: an unknown key, a value that the config class rejects, a key that would change a shape.
    """
    changed = dict(config)
    if not encoder_config:
        return changed
    defaults, aliases = _ask(
        str(config.get("model_type")), {key: v for key, v in encoder_config.items() if key != "model_type"}
    )
    for key, value in encoder_config.items():
        name = aliases.get(key, key)
        current = changed.get(name, defaults.get(name))
        if name in SHAPE_KEYS and value != current:
            raise ContractError(
                f"encoder_config: {key} is {value!r}, but the pretrained encoder's weights are for {current!r}",
                f"Remove {key} from encoder_config, or set tokenizer to from_scratch.",
            )
        changed[name] = value
    return changed


def check_positions(config: Mapping[str, Any], max_sen_len: int, *, setting: str = "max_sen_len") -> None:
    """Raise ContractError if the encoder has no position for the last token of a chunk of `max_sen_len`.

    Args:
        setting: the hyperparameter with this length, for errors.
    """
    limit = config.get("max_position_embeddings")
    if limit is None:
        return
    longest = limit - _position_offset(config)
    if max_sen_len > longest:
        raise ContractError(
            f"{setting}: is {max_sen_len}, but the encoder has positions for {longest} tokens",
            f"Set {setting} to {longest} or less"
            f" (with from_scratch: or encoder_config max_position_embeddings to {limit + max_sen_len - longest}).",
        )


def read_config(folder: Path) -> dict[str, Any]:
    """Return config.json of an encoder's folder; raise ContractError if it is not a JSON object."""
    return read_object(folder / "config.json", "Copy the encoder's files again.")


def config_value(config: Mapping[str, Any], name: str) -> Any:
    """Return the value with BERT's name `name`, which the model type may name differently.

    Raises:
        ContractError: neither `config` nor transformers' defaults for its model type have it.
    """
    names = (name, *_OTHER_NAMES.get(name, ()))
    model_type = str(config.get("model_type"))
    if not any(known in config for known in names):
        config, _ = _ask(model_type, {})
    for known in names:
        if known in config:
            return config[known]
    raise ContractError(
        f"tokenizer: the configuration of its encoder (model_type {model_type}) has no {name}",
        "Use an encoder of a family with this value, such as bert or roberta.",
    )


def _position_offset(config: Mapping[str, Any]) -> int:
    if config.get("model_type") not in _OFFSET_POSITIONS:
        return 0
    # MPNet's positions begin at 2 whatever the padding token is.
    padding = 1 if config["model_type"] == "mpnet" else config.get("pad_token_id")
    return (1 if padding is None else padding) + 1


def _check_values(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise ContractError for the first value whose type differs from the default's, or that is out of range."""
    for key, value in values.items():
        default = defaults.get(key)
        number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
        if value is None and key.endswith("_token_id"):
            continue
        if isinstance(default, bool):
            valid, needed = isinstance(value, bool), "true or false"
        elif isinstance(default, int):
            least = 1 if key in SHAPE_KEYS and not key.endswith("_token_id") else 0
            most = _MOST_LAYERS if key in _LAYERS else _LARGEST_SIZE
            valid, needed = (
                isinstance(number, int) and least <= number <= most,
                f"a whole number from {least} to {most}",
            )
        elif "dropout" in key or key.endswith("_prob"):
            valid, needed = 0 <= number < 1, "a number from 0 to below 1"
        elif key.endswith("_eps") or key == "initializer_range":
            valid, needed = 0 < number <= 1, "a number above 0, at most 1"
        elif isinstance(default, float):
            valid, needed = math.isfinite(number), "a number"
        else:
            continue
        if not valid:
            raise ContractError(f"encoder_config: {key} is {shown(value)}, not {needed}", f"Set {key} to {needed}.")


def _ask(model_type: str, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a model type's keys with defaults, and its aliases, after transformers has accepted `values`."""
    answer = _answer(model_type, json.dumps(dict(values)))
    if "model_types" in answer:
        raise ContractError(
            f"encoder_config: model_type {model_type!r} is unknown to transformers"
            + did_you_mean(model_type, answer["model_types"]),
            "Use a model type such as bert, roberta, distilbert, electra, albert or modernbert.",
        )
    defaults, aliases = answer["defaults"], answer["aliases"]
    known = [*defaults, *aliases]
    for key in values:
        if key not in known:
            raise ContractError(
                f"encoder_config: {key!r} is not a setting of a {model_type} encoder{did_you_mean(key, known)}",
                f"Use one of: {', '.join(sorted(defaults))}.",
            )
    _check_values({aliases.get(key, key): value for key, value in values.items()}, defaults)
    if answer["error"]:
        raise ContractError(
            f"encoder_config: {shown(dict(values))} is rejected: {answer['error']}",
            "Correct this value of encoder_config.",
        )
    return defaults, aliases


@functools.cache
def _answer(model_type: str, values: str) -> dict[str, Any]:
    return json.loads(run_transformers("config", model_type, values))


def run_transformers(*arguments: str) -> str:
    """Run transformers in a separate process and return its output; raise RuntimeError with its last line of error."""
    script = Path(__file__).with_name("transformers_process.py")
    # -P: modules in the script's folder must not shadow installed ones
    finished = subprocess.run(
        [sys.executable, "-P", str(script), *arguments], capture_output=True, text=True, check=False
    )
    if finished.returncode:
        lines = finished.stderr.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit code {finished.returncode}")
    return finished.stdout
