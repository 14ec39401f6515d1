"""Declare texts: steps, chunks, names of inputs."""

from contracts import conditions, value_types
from contracts.declaration import Settings, declare
from contracts.model_classes import TWO_TEXT_CLASSES
from contracts.text_fields import EVENT_TEXT_STEPS, FULL_TEXT_STEPS, TextStep


class TextSettings(Settings):
    """The settings of texts: steps, chunks, names of inputs."""

    max_sen_len: int = declare(
        512, scope="prepare", ge=4, le=131_072, needs=(conditions.not_overridden("max_sen_len"),)
    )
    """Tokens per chunk, including special tokens."""

    primary_max_sen_len: int | None = declare(None, scope="prepare", ge=4, le=131_072, classes=TWO_TEXT_CLASSES)
    """Override for the primary text."""

    secondary_max_sen_len: int | None = declare(None, scope="prepare", ge=4, le=131_072, classes=TWO_TEXT_CLASSES)
    """Override for the secondary text."""

    chunk_trancate: bool = declare(False, scope="prepare", needs=(conditions.TEXTS,))
    """Keep only the first max_total_chunks chunks of a record; the number of removed chunks is logged. chunk_truncate
    is accepted too.
    """

    max_total_chunks: int = declare(5, scope="prepare", ge=1, le=1_000_000, needs=(conditions.TRUNCATES,))
    """Chunks kept per record and text if chunk_trancate is true."""

    fixed_tokenizer_length: bool = declare(True, scope="run", needs=(conditions.NEVER_PADS,))
    """Accepted, no effect: batches are packed, without padding."""

    text_input_ids_key: value_types.OnnxName = declare("input_ids", scope="after", needs=(conditions.TEXTS,))
    """Name of the token input in model.onnx; with two texts, prefixed with primary_ or secondary_."""

    text_attention_mask_key: value_types.OnnxName = declare("attention_mask", scope="after", needs=(conditions.TEXTS,))
    """Name of the mask input in model.onnx, with the same prefixes."""

    text_processing_steps: list[TextStep] | None = declare(
        None,
        scope="prepare",
        needs=(conditions.ONE_TEXT,),
        about="Steps for the one text, in order. Default: " + ", ".join(FULL_TEXT_STEPS) + ".",
    )

    primary_text_processing_steps: list[TextStep] | None = declare(None, scope="prepare", classes=TWO_TEXT_CLASSES)
    """Steps for the primary text, in order. Default: the default of text_processing_steps."""

    secondary_text_processing_steps: list[TextStep] | None = declare(
        None,
        scope="prepare",
        classes=TWO_TEXT_CLASSES,
        about="Steps for the secondary text. Default: " + ", ".join(EVENT_TEXT_STEPS) + ".",
    )
