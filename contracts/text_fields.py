"""Resolve the settings of each text column that a model reads."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

TextStep = Literal[
    "dialogue_splitter", "html_normalizer", "emoji_remover", "text_normalizer", "dialogue_chunker", "tokenizer"
]
Role = Literal["text", "primary", "secondary"]
FULL_TEXT_STEPS: tuple[TextStep, ...] = get_args(TextStep)
EVENT_TEXT_STEPS: tuple[TextStep, ...] = ("dialogue_splitter", "text_normalizer", "dialogue_chunker", "tokenizer")


@dataclass(frozen=True)
class TextField:
    """A text column with its settings; overrides are applied.

    Attributes:
        role: text (the only text), primary or secondary; a prefix of artifacts and ONNX inputs.
        column: name of the column in the table.
    """

    role: Role
    column: str
    tokenizer: str
    steps: tuple[TextStep, ...]
    max_sen_len: int
    max_chunks: Annotated[int, Field(ge=1)] | None
    reinit_pooler: bool
    reinit_layers: int
    is_embeddings_trainable: bool
    input_ids_key: str
    attention_mask_key: str

    def source(self, name: str, chosen: Collection[str]) -> str:
        """Return the hyperparameter that the setting `name` comes from: this field's override, or the general one.

        Args:
            chosen: names of the hyperparameters that the user set.
        """
        override = f"{self.role}_{name}"
        return override if override in chosen else name


def resolve_text_field(hp: Any, role: Role) -> TextField:
    """Return the text field of `role`, with its overrides in `hp` applied."""

    def pick(name: str) -> Any:
        override = getattr(hp, f"{role}_{name}", None)
        return getattr(hp, name) if override is None else override

    prefix = "" if role == "text" else f"{role}_"
    default_steps = EVENT_TEXT_STEPS if role == "secondary" else FULL_TEXT_STEPS
    column = hp.text_name if role == "text" else getattr(hp, f"{role}_text_name")
    assert column is not None, "check_consistency requires the column"
    return TextField(
        role=role,
        column=column,
        tokenizer=pick("tokenizer"),
        steps=tuple(getattr(hp, f"{prefix}text_processing_steps") or default_steps),
        max_sen_len=pick("max_sen_len"),
        max_chunks=hp.max_total_chunks if hp.chunk_trancate else None,
        reinit_pooler=pick("reinit_pooler"),
        reinit_layers=pick("reinit_layers"),
        is_embeddings_trainable=pick("is_embeddings_trainable"),
        input_ids_key=prefix + hp.text_input_ids_key,
        attention_mask_key=prefix + hp.text_attention_mask_key,
    )
