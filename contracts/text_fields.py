"""Resolve the settings of each text column that a model reads."""

from collections.abc import Collection
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

TextStep = Literal[
    "dialogue_splitter", "html_normalizer", "emoji_remover", "text_normalizer", "dialogue_chunker", "tokenizer"
]
Role = Literal["text", "primary", "secondary"]
ROLES: tuple[tuple[Role, ...], ...] = ((), ("text",), ("primary", "secondary"))  # by the number of texts
FULL_TEXT_STEPS: tuple[TextStep, ...] = get_args(TextStep)
EVENT_TEXT_STEPS: tuple[TextStep, ...] = ("dialogue_splitter", "text_normalizer", "dialogue_chunker", "tokenizer")


@dataclass(frozen=True, kw_only=True)
class TextField:
    """A text and how it becomes tokens: all that prepared data depend on. Overrides are applied.

    Attributes:
        role: text (the only text), primary or secondary; a prefix of artifacts and ONNX inputs.
        column: name of the (first) column in the table.
        joined: the columns that are joined to it, each after a separator.
    """

    role: Role
    column: str
    tokenizer: str
    steps: tuple[TextStep, ...]
    max_sen_len: int
    max_chunks: Annotated[int, Field(ge=1)] | None
    joined: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column, *self.joined)

    @property
    def name(self) -> str:
        """Return the columns as text, for messages."""
        return " + ".join(self.columns)

    def source(self, name: str, chosen: Collection[str]) -> str:
        """Return the hyperparameter that the setting `name` comes from: this field's override, or the general one.

        Args:
            chosen: names of the hyperparameters that the user set.
        """
        override = f"{self.role}_{name}"
        return override if override in chosen else name


@dataclass(frozen=True, kw_only=True)
class TextInputs:
    """The names of a text's inputs of model.onnx."""

    input_ids_key: str
    attention_mask_key: str


@dataclass(frozen=True, kw_only=True)
class ModelTextField(TextField, TextInputs):
    """A text field with the settings of its encoder and its inputs, on which prepared data do not depend."""

    reinit_pooler: bool
    reinit_layers: int
    is_embeddings_trainable: bool

    @property
    def of_data(self) -> TextField:
        """Return the field without these settings, which would become outdated where prepared data are reused."""
        return TextField(**{each.name: getattr(self, each.name) for each in fields(TextField)})


@dataclass(frozen=True)
class InputKeys:
    """The hyperparameters that name the inputs of model.onnx, as hyperparameters.json of a model contains them."""

    text_input_ids_key: str
    text_attention_mask_key: str

    def of(self, role: Role) -> TextInputs:
        """Return the names of the inputs of a text."""
        prefix = _prefix(role)
        return TextInputs(
            input_ids_key=prefix + self.text_input_ids_key, attention_mask_key=prefix + self.text_attention_mask_key
        )


def _prefix(role: Role) -> str:
    return "" if role == "text" else f"{role}_"


def resolve_text_field(hp: Any, role: Role) -> ModelTextField:
    """Return the text field of `role`, with its overrides in `hp` applied."""

    def pick(name: str) -> Any:
        override = getattr(hp, f"{role}_{name}", None)
        return getattr(hp, name) if override is None else override

    default_steps = EVENT_TEXT_STEPS if role == "secondary" else FULL_TEXT_STEPS
    named = hp.text_name if role == "text" else getattr(hp, f"{role}_text_name")
    assert named, "check_consistency requires the column"
    column, *joined = [named] if isinstance(named, str) else named
    inputs = InputKeys(hp.text_input_ids_key, hp.text_attention_mask_key).of(role)
    return ModelTextField(
        role=role,
        column=column,
        joined=tuple(joined),
        tokenizer=pick("tokenizer"),
        steps=tuple(getattr(hp, f"{_prefix(role)}text_processing_steps") or default_steps),
        max_sen_len=pick("max_sen_len"),
        max_chunks=hp.max_total_chunks if hp.chunk_trancate else None,
        reinit_pooler=pick("reinit_pooler"),
        reinit_layers=pick("reinit_layers"),
        is_embeddings_trainable=pick("is_embeddings_trainable"),
        **asdict(inputs),
    )
