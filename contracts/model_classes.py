"""List the model classes and their inputs; container/models implements them."""

from dataclasses import dataclass
from typing import Literal

from contracts.errors import ContractError
from contracts.spelling import did_you_mean

FROM_SCRATCH = "from_scratch"  # the tokenizer setting of an encoder with random weights


@dataclass(frozen=True)
class ModelClass:
    """A value of model_class.

    Attributes:
        name: the canonical name.
        num_texts: number of text fields, 0 to 2.
        table: whether the class reads numeric and categorical columns.
        fusion: key of the fusion head in container/models/fusion.py.
        encoder: encoder of each text; "lstm" and "cnn" read the word embeddings of a transformer.
    """

    name: str
    num_texts: int
    table: Literal["none", "optional", "needed"]
    fusion: str
    encoder: Literal["transformer", "lstm", "cnn", "none"] = "transformer"

    @property
    def uses_table(self) -> bool:
        return self.table != "none"


_CLASSES = (
    ModelClass("tabular", 0, "needed", "concat_mlp", encoder="none"),
    ModelClass("bert", 1, "none", "text_only"),
    ModelClass("lstm", 1, "optional", "states", encoder="lstm"),
    ModelClass("multimodal_bert", 1, "optional", "concat"),
    ModelClass("multimodal_cnn", 1, "optional", "concat", encoder="cnn"),
    ModelClass("multimodal_gate_fusion", 1, "needed", "gate"),
    ModelClass("multimodal_moe", 1, "optional", "experts"),
    ModelClass("multimodal_cross_attn", 1, "needed", "cross_attention_table"),
    ModelClass("trimodal_bert", 2, "optional", "concat_mlp"),
    ModelClass("trimodal_gate_fusion", 2, "optional", "normalised_gates"),
    ModelClass("trimodal_cross_attn", 2, "optional", "cross_attention_texts"),
)
MODEL_CLASSES: dict[str, ModelClass] = {entry.name: entry for entry in _CLASSES}
ALIASES: dict[str, str] = {
    "bimodal": "multimodal_bert",
    "trimodal": "trimodal_bert",
    **{name.replace("multimodal_", "bimodal_"): name for name in MODEL_CLASSES if name.startswith("multimodal_")},
}

TWO_TEXT_CLASSES = tuple(entry.name for entry in _CLASSES if entry.num_texts == 2)
TRANSFORMER_CLASSES = tuple(entry.name for entry in _CLASSES if entry.encoder == "transformer")
CROSS_ATTENTION_CLASSES = tuple(entry.name for entry in _CLASSES if entry.fusion.startswith("cross_attention"))
POOLED_CLASSES = tuple(name for name in TRANSFORMER_CLASSES if name not in CROSS_ATTENTION_CLASSES)


def model_class(name: str) -> ModelClass:
    """Return the model class with a name or alias; an unknown name raises ContractError."""
    canonical = ALIASES.get(name, name)
    if canonical not in MODEL_CLASSES:
        known = sorted([*MODEL_CLASSES, *ALIASES])
        raise ContractError(
            f"model_class: {name!r} is not a model class{did_you_mean(name, known)}",
            f"Set model_class to one of: {', '.join(known)}.",
        )
    return MODEL_CLASSES[canonical]
