"""Write docs/hyperparameters.md from the contract; with `--check`, only check that it is current."""

import re
import sys
from pathlib import Path
from typing import Any

from generated_parts import item, short_limits, write_page
from pydantic_core import PydanticUndefined

from contracts.declaration import Declaration, declaration_of, plain_type, type_name
from contracts.hyperparameter_files import ALIASES
from contracts.hyperparameters import GROUPS
from contracts.model_classes import ALIASES as CLASS_ALIASES
from contracts.model_classes import MODEL_CLASSES, POOLED_CLASSES, TRANSFORMER_CLASSES, TWO_TEXT_CLASSES

TARGET = Path(__file__).with_name("hyperparameters.md")
TITLES = {
    "data": "Data",
    "model": "Model",
    "encoder": "Encoders",
    "text": "Text",
    "table": "Table",
    "training": "Training",
    "control": "Control",
    "outcome": "After training: decisions, explanation, ONNX variants",
    "processes": "Processes and parallelism",
    "tracking": "Tracking with MLflow",
}
WITHOUT = {TWO_TEXT_CLASSES: "two texts", TRANSFORMER_CLASSES: "transformers", POOLED_CLASSES: "pooled transformers"}
# The items of a setting for each of two texts.
TWINS = re.compile(r"- `primary_(\w+)` (.*) primary( text.*)\n- `secondary_\1` \2 secondary\3\n")
INTRODUCTION = """# Hyperparameters

Generated from the declarations in contracts/settings/ by `make docs`.

A job reads `code/hyperparams/hyperparameters.json`, `input/data/settings/settings.json`, then
`input/config/hyperparameters.json`. A later file takes precedence. Values may be strings (`"[1, 2]"`, `"0.1"`).
An unknown key is an error that names the nearest known one; `sagemaker_*`, `_tuning_objective_metric` and `_comments`
are dropped. In checks and warnings, a value that equals its default counts as not set. A [preset](presets.md) counts
it as set.

Each setting has a scope:

| scope | what a change invalidates | resume from a checkpoint |
| --- | --- | --- |
| `prepare` | the prepared data, and all that follows: the job prepares the data again | refused |
| `train` | the training, and all that follows | refused |
| `after` | only what follows training: predictions, decisions, reports, exports | allowed |
| `run` | nothing: how the job runs, and for how long | allowed |

Each item gives the type, the default, the scope, and the cases without effect. The log names settings that were set
without effect.
"""


def render() -> str:
    """Return the page as Markdown."""
    parts = [INTRODUCTION]
    for group, declared in GROUPS.items():
        parts.append(f"\n## {TITLES[group]}\n\n")
        for name, field in declared.model_fields.items():
            declaration = declaration_of(field)
            about = (field.description or "") + short_limits(field)
            kind = type_name(plain_type(field.annotation), quote="`")
            facts = [fact for fact in (kind, _default(field.default), declaration.scope) if fact]
            idle = _obstacles(declaration)
            parts.append(item(name, ", ".join(facts), f"{about}{f' No effect: {idle}.' if idle else ''}") + "\n")
    classes = "".join(
        f"| `{entry.name}` | {entry.num_texts} | {'pooled ' * (entry.name in POOLED_CLASSES)}{entry.encoder} | "
        f"{entry.table} | "
        f"{', '.join(f'`{alias}`' for alias, name in CLASS_ALIASES.items() if name == entry.name)} |\n"
        for entry in MODEL_CLASSES.values()
    )
    parts.append(
        f"\n## Model classes\n\n| name | texts | encoder | table | aliases |\n| -- | -- | -- | -- | -- |\n{classes}"
    )
    spelled = "".join(f"| `{alias}` | `{name}` |\n" for alias, name in ALIASES.items())
    parts.append(f"\n## Other spellings\n\n| accepted | means |\n| --- | --- |\n{spelled}")
    return TWINS.sub(r"- `primary_\1`, `secondary_\1` \2 primary or secondary\3\n", "".join(parts))


def _obstacles(declaration: Declaration) -> str:
    """Return the cases in which a hyperparameter has no effect."""
    cases = []
    if declaration.classes:
        others = f"model classes other than {', '.join(declaration.classes)}"
        kind = WITHOUT.get(declaration.classes)
        cases.append(f"without [{kind}](#model-classes)" if kind else others)
    if declaration.features:
        cases.append(f"without {' or '.join(declaration.features)}")
    return "; ".join([*cases, *(need.reason for need in declaration.needs)])


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    return "" if value is None else f"default `{value}`"


if __name__ == "__main__":
    sys.exit(write_page(TARGET, render()))
