"""The model classes a job can name, and what each takes. How they compute is container/models."""

import difflib
from dataclasses import dataclass

from contracts.errors import ContractError


@dataclass(frozen=True)
class ModelClass:
    """One entry of model_class.

    Attributes:
        name: the canonical name.
        num_texts: text fields it reads, 1 or 2.
        uses_table: whether numeric and categorical columns enter it.
        fusion: key of the fusion head in container/models/fusion.py.
    """

    name: str
    num_texts: int
    uses_table: bool
    fusion: str


_CLASSES = (
    ModelClass("bert", 1, False, "text_only"),
    ModelClass("multimodal_bert", 1, True, "concat"),
    ModelClass("trimodal_bert", 2, True, "concat_mlp"),
)
MODEL_CLASSES: dict[str, ModelClass] = {entry.name: entry for entry in _CLASSES}
ALIASES: dict[str, str] = {
    "bimodal": "multimodal_bert",
    "trimodal": "trimodal_bert",
    **{name.replace("multimodal_", "bimodal_"): name for name in MODEL_CLASSES if name.startswith("multimodal_")},
}


def model_class(name: str) -> ModelClass:
    """The entry that a name or alias stands for; ContractError lists the known ones otherwise."""
    canonical = ALIASES.get(name, name)
    if canonical not in MODEL_CLASSES:
        known = sorted([*MODEL_CLASSES, *ALIASES])
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ContractError(
            f"model_class: {name!r} is not a model class{hint}",
            f"Set model_class to one of: {', '.join(known)}.",
        )
    return MODEL_CLASSES[canonical]
