"""Run transformers in a separate process, for code that must not import torch.

config MODEL_TYPE VALUES       prints the keys of a model type's config class, and its error for the values
tokenizer SOURCE TARGET        converts the tokenizer files of folder SOURCE to TARGET/tokenizer.json
"""

import inspect
import json
import sys
from typing import Any

ACTIVATIONS = ("hidden_act", "activation", "hidden_activation", "classifier_activation", "activation_function")


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
    given = {key: value for key, value in values.items() if key in ACTIVATIONS}
    if given:
        from transformers.activations import ACT2FN  # imports torch

        for key, value in given.items():
            if value not in ACT2FN:
                raise ValueError(f"{key} {value!r} is not one of {', '.join(sorted(ACT2FN))}")


def convert_tokenizer(source: str, target: str) -> None:
    """Convert the tokenizer files of a folder to tokenizer.json."""
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(source, local_files_only=True).backend_tokenizer.save(f"{target}/tokenizer.json")


def main(arguments: list[str]) -> None:
    """Run the command line's command."""
    command, first, second = arguments
    if command == "config":
        print(json.dumps(describe_config(first, json.loads(second)), default=str))
    else:
        convert_tokenizer(first, second)


if __name__ == "__main__":
    main(sys.argv[1:])
