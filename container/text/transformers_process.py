"""Run transformers in a separate process, for code that must not import torch.

config MODEL_TYPE VALUES       prints the keys of a model type's config class, and its error for the values
tokenizer SOURCE TARGET        writes the tokenizer of folder SOURCE to TARGET; prints what other files change
"""

import inspect
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ACTIVATIONS = ("hidden_act", "activation", "hidden_activation", "classifier_activation", "activation_function")
# Texts of many kinds: case, accents, compositions, spaces, punctuation, digits, other scripts and an emoji.
_PROBES = (
    "Good café, 12 DAYS!",
    " two  spaces\tand\na line ",
    "don't re-use ``quotes'' 3.50€",
    "ﬁ ½ ① ｗｉｄｅ e\u0301 ß İ",
    "東京タワー 한국어 भाषा ไม่ดี",
    "мой Год naïve\u00a0soft\u00adhyphen\u200b",
    "😀 tail …",
    "a",
)
_MOST_ADDED = 300  # added tokens that are tried


def describe_config(model_type: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a config class with defaults, its aliases, and the error that `values` raise, if any."""
    from transformers import CONFIG_MAPPING, PreTrainedConfig

    if model_type not in CONFIG_MAPPING:
        return {"model_types": sorted(CONFIG_MAPPING.keys())}
    config_class = CONFIG_MAPPING[model_type]
    common = set(inspect.signature(PreTrainedConfig.__init__).parameters)
    parameters = inspect.signature(config_class.__init__).parameters
    defaults = {name: entry.default for name, entry in parameters.items() if name not in common}
    error = None
    try:
        config_class(**values)
        _check_activations(values)
    except Exception as raised:  # each class raises different errors
        error = " ".join(str(raised).split())
    return {"defaults": defaults, "aliases": config_class.attribute_map, "error": error}


def _check_activations(values: dict[str, Any]) -> None:
    """Raise ValueError for an unknown activation function; no config class checks them."""
    activations = {key: value for key, value in values.items() if key in ACTIVATIONS}
    if activations:
        from transformers.activations import ACT2FN  # imports torch

        for key, value in activations.items():
            if value not in ACT2FN:
                raise ValueError(f"{key} {value!r} is not one of {', '.join(sorted(ACT2FN))}")


def convert_tokenizer(source: str, target: str) -> dict[str, Any]:
    """Write tokenizer.json and tokenizer_config.json to `target`: the tokenizer that AutoTokenizer loads from `source`.

    AutoTokenizer merges several files, and its class of a model type builds its own normalizer. The tokenizer.json here
    states the result, and tokenizer_config.json names the class that reads it without changes.

    Returns:
        A text that tokenizer.json of `source` alone encodes to other tokens, with both; empty if there is none.

    Raises:
        ValueError: a file is damaged, the files contradict each other, the encoder lacks a token that a file names, or
            tokenizer.json cannot state what AutoTokenizer does.
    """
    from transformers import AutoConfig, AutoTokenizer

    files, alone = _read_files(Path(source))
    config = AutoConfig.from_pretrained(source, local_files_only=True, trust_remote_code=False)
    theirs = AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False)
    _check_kind(theirs, alone)
    written = _without_class_defaults(theirs.backend_tokenizer, files, getattr(config, "vocab_size", math.inf))
    written.save(f"{target}/tokenizer.json", pretty=False)
    known = written.get_vocab(with_added_tokens=True)
    stated = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: token for name, token in theirs.special_tokens_map.items() if token in known},
        "model_max_length": theirs.model_max_length,
        "model_input_names": theirs.model_input_names,
    }
    Path(target, "tokenizer_config.json").write_text(json.dumps(stated, indent=2) + "\n", "utf-8")
    again = AutoTokenizer.from_pretrained(target, local_files_only=True)
    added = [token for token in theirs.get_added_vocab() if token in known][:_MOST_ADDED]
    texts = [*_PROBES, *(f"a {token} B{token}c" for token in added)]
    for text in texts:
        ids = [theirs(text)["input_ids"], written.encode(text).ids, again(text)["input_ids"]]
        if not ids[0] == ids[1] == ids[2]:
            raise ValueError(f"AutoTokenizer encodes {text!r} as {ids[0]}, its tokenizer.json as {ids[1]} or {ids[2]}")
    for text in texts:
        tokens, others = (tokenizer.encode(text).tokens for tokenizer in (written, alone or written))
        if tokens != others:
            return {"text": text, "tokens": tokens, "alone": others}
    return {}


def _read_files(source: Path) -> "tuple[str, Tokenizer | None]":
    """Return the content of all JSON files of a folder, and its tokenizer.json; raise ValueError for damage."""
    from tokenizers import Tokenizer

    contents, tokenizer = [], None
    for path in sorted(source.glob("*.json")):
        try:
            contents.append(path.read_text("utf-8"))
            json.loads(contents[-1])
            if path.name == "tokenizer.json":
                tokenizer = Tokenizer.from_file(str(path))
                tokenizer.no_truncation()
                tokenizer.no_padding()
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"{path} is damaged: {error}") from None
    return "".join(contents), tokenizer


def _check_kind(theirs: Any, alone: "Tokenizer | None") -> None:
    """Raise ValueError unless a tokenizer.json can state AutoTokenizer's tokenizer, of the kind of the folder's own."""
    name = type(theirs).__name__
    if not theirs.is_fast:
        raise ValueError(f"AutoTokenizer loads it as {name}, which has no tokenizer.json")
    if theirs.split_special_tokens:
        raise ValueError(
            "split_special_tokens is true in tokenizer_config.json, and a tokenizer.json has no such setting"
        )
    if alone is not None:
        kind, own = (type(tokenizer.model).__name__ for tokenizer in (theirs.backend_tokenizer, alone))
        if kind != own:
            raise ValueError(
                f"tokenizer.json is of the kind {own}, but AutoTokenizer loads it as {name}, of the kind {kind}; name "
                "its class in tokenizer_config.json, or PreTrainedTokenizerFast to use tokenizer.json as it is"
            )


def _without_class_defaults(tokenizer: "Tokenizer", files: str, vocab_size: float) -> "Tokenizer":
    """Return the tokenizer without the tokens that the encoder lacks and no file names: defaults of its class."""
    from tokenizers import Tokenizer

    tokenizer.no_truncation()
    tokenizer.no_padding()
    lacking = {token: i for token, i in tokenizer.get_vocab(with_added_tokens=True).items() if i >= vocab_size}
    for token, index in lacking.items():
        if json.dumps(token) in files or json.dumps(token, ensure_ascii=False) in files:
            raise ValueError(f"the token {token!r} has id {index}, but vocab_size in config.json is {vocab_size}")
    settings = json.loads(tokenizer.to_str())
    settings["added_tokens"] = [token for token in settings["added_tokens"] if token["content"] not in lacking]
    return Tokenizer.from_str(json.dumps(settings))


def main(arguments: list[str]) -> None:
    """Run the command line's command."""
    command, first, second = arguments
    try:
        answer = describe_config(first, json.loads(second)) if command == "config" else convert_tokenizer(first, second)
    except Exception as error:  # each class raises different errors
        raise RuntimeError(" ".join(str(error).split())) from error  # run_transformers reads the last line
    print(json.dumps(answer, default=str))


if __name__ == "__main__":
    main(sys.argv[1:])
