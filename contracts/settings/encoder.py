"""Declare the text encoders: which, and what of them is trained."""

from typing import Any, Literal

from contracts import conditions
from contracts.declaration import Need, Settings, declare
from contracts.model_classes import POOLED_CLASSES, TRANSFORMER_CLASSES, TWO_TEXT_CLASSES
from contracts.value_types import Json

_POOLED_TWO_TEXT_CLASSES = tuple(name for name in POOLED_CLASSES if name in TWO_TEXT_CLASSES)
ENCODER_SIZES = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 8000}


def _override(*needs: Need, classes: tuple[str, ...] = TWO_TEXT_CLASSES, **limits: Any) -> Any:
    """Return the field of a setting for one of two texts; None is the setting for both."""
    return declare(None, scope="train", classes=classes, needs=needs, **limits)


class EncoderSettings(Settings):
    """The settings of the text encoders: which, and what of them is trained."""

    tokenizer: str = declare("bert-base-cased", scope="prepare", needs=(conditions.not_overridden("tokenizer"),))
    """The encoder: a local folder, a folder in input/data/pretrained/, a Hugging Face id, or from_scratch."""

    primary_tokenizer: str | None = declare(None, scope="prepare", classes=TWO_TEXT_CLASSES)
    """Encoder of the primary text. Default: tokenizer."""

    secondary_tokenizer: str | None = declare(None, scope="prepare", classes=TWO_TEXT_CLASSES)
    """Encoder of the secondary text. Default: tokenizer."""

    encoder_config: dict[str, Json] = declare(
        {},
        scope="prepare",
        needs=(conditions.TEXTS,),
        about=f"With from_scratch: the encoder's sizes (defaults {ENCODER_SIZES}). "
        "With a pretrained encoder: changes to its config that keep every tensor shape, e.g. hidden_dropout_prob.",
    )

    share_encoder: bool = declare(False, scope="train", classes=TWO_TEXT_CLASSES)
    """Use one encoder for both texts; each text keeps its own projection. Both texts need the same pretrained
    tokenizer, reinit_* and is_embeddings_trainable.
    """

    is_embeddings_trainable: bool = declare(
        True, scope="train", needs=(conditions.TRAINS_ENCODERS, conditions.not_overridden("is_embeddings_trainable"))
    )
    """Train the encoder's embedding tables."""

    primary_is_embeddings_trainable: bool | None = _override(conditions.TRAINS_ENCODERS)
    """Override for the primary text."""

    secondary_is_embeddings_trainable: bool | None = _override(conditions.TRAINS_ENCODERS)
    """Override for the secondary text."""

    pooling: Literal["first", "mean"] = declare("first", scope="train", classes=POOLED_CLASSES)
    """Vector of a chunk: first = a pooler over its first token; mean = the mean of its tokens, as in the training of
    sentence encoders (MiniLM, mpnet, e5).
    """

    reinit_pooler: bool = declare(
        True,
        scope="train",
        classes=POOLED_CLASSES,
        needs=(conditions.POOLER, conditions.not_overridden("reinit_pooler"), conditions.pretrained("reinit_pooler")),
    )
    """Reinitialize the pooler of a pretrained encoder."""

    primary_reinit_pooler: bool | None = _override(
        conditions.POOLER, conditions.pretrained("primary_reinit_pooler"), classes=_POOLED_TWO_TEXT_CLASSES
    )
    """Override for the primary text."""

    secondary_reinit_pooler: bool | None = _override(
        conditions.POOLER, conditions.pretrained("secondary_reinit_pooler"), classes=_POOLED_TWO_TEXT_CLASSES
    )
    """Override for the secondary text."""

    reinit_layers: int = declare(
        2,
        scope="train",
        ge=0,
        le=1_000,
        classes=TRANSFORMER_CLASSES,
        needs=(conditions.not_overridden("reinit_layers"), conditions.pretrained("reinit_layers")),
    )
    """Reinitialize the last n layers of a pretrained encoder."""

    primary_reinit_layers: int | None = _override(conditions.pretrained("primary_reinit_layers"), ge=0, le=1_000)
    """Override for the primary text."""

    secondary_reinit_layers: int | None = _override(conditions.pretrained("secondary_reinit_layers"), ge=0, le=1_000)
    """Override for the secondary text."""

    lora_rank: int = declare(0, scope="train", ge=0, le=4_096, classes=TRANSFORMER_CLASSES)
    """Rank of LoRA: train low-rank updates of the pretrained encoders' layers instead of the encoders; 0 = train the
    encoders. model.pth and model.onnx contain plain weights with the updates merged. Needs reinit_layers 0.
    """

    lora_alpha: float = declare(
        16.0, scope="train", gt=0, le=1_000_000, classes=TRANSFORMER_CLASSES, needs=(conditions.LORA,)
    )
    """Scale of the low-rank updates: they are multiplied by lora_alpha / lora_rank."""

    lora_target: Literal["attention", "linear"] = declare(
        "attention", scope="train", classes=TRANSFORMER_CLASSES, needs=(conditions.LORA,)
    )
    """Linear layers that get low-rank updates: those of the attention, or all of the encoder."""
