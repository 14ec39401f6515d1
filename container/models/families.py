"""Encoder families: which are proven to compute on packed chunks, and where each keeps its layers."""

from dataclasses import dataclass

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from contracts.errors import ContractError


@dataclass(frozen=True)
class EncoderFamily:
    """What has to be known of a Hugging Face model_type.

    Attributes:
        packed: proven, values and gradients, equal to the padded forward (tests/test_packed_encoders.py).
        layers: path of the ModuleList of its layers in the backbone; None = not known.
        shared_layers: one set of weights is run several times.
        unproven: nothing is known of it: what its forward leaves unused is found by trying.
    """

    packed: bool
    layers: str | None
    shared_layers: bool = False
    unproven: bool = False


FAMILIES: dict[str, EncoderFamily] = {
    "bert": EncoderFamily(packed=True, layers="encoder.layer"),
    "roberta": EncoderFamily(packed=True, layers="encoder.layer"),
    "xlm-roberta": EncoderFamily(packed=True, layers="encoder.layer"),
    "camembert": EncoderFamily(packed=True, layers="encoder.layer"),
    "distilbert": EncoderFamily(packed=True, layers="transformer.layer"),
    "electra": EncoderFamily(packed=True, layers="encoder.layer"),
    "albert": EncoderFamily(packed=True, layers="encoder.albert_layer_groups", shared_layers=True),
    "modernbert": EncoderFamily(packed=True, layers="layers"),
    "nomic_bert": EncoderFamily(packed=True, layers="layers"),
    "deberta-v2": EncoderFamily(packed=False, layers="encoder.layer"),
    "mpnet": EncoderFamily(packed=False, layers="encoder.layer"),
}


def encoder_family(config: PretrainedConfig, *, source: str) -> EncoderFamily:
    """The family of a config; one we do not know runs padded.

    Raises:
        ContractError: the model is no text encoder.
    """
    kind = config.model_type
    if (
        config.is_encoder_decoder
        or getattr(config, "is_decoder", False)
        or kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    ):
        raise ContractError(
            f"{source}: model_type {kind!r} is not a text encoder, whose tokens see both ways",
            f"Use an encoder of one of these families: {', '.join(FAMILIES)}.",
        )
    return FAMILIES.get(kind, EncoderFamily(packed=False, layers=None, unproven=True))


def encoder_layers(backbone: PreTrainedModel, family: EncoderFamily) -> nn.ModuleList | None:
    """The backbone's layers in order; None where the family is not known."""
    if family.layers is None:
        return None
    layers = backbone.get_submodule(family.layers)
    assert isinstance(layers, nn.ModuleList)
    return layers


def embedding_tables(backbone: PreTrainedModel) -> list[nn.Embedding]:
    """The tables of the input embeddings: words, positions, token types."""
    words = backbone.get_input_embeddings()
    for child in backbone.children():
        tables = [module for module in child.modules() if isinstance(module, nn.Embedding)]
        if any(table is words for table in tables):
            return tables
    raise AssertionError("an encoder has input embeddings")


def position_table(backbone: PreTrainedModel) -> nn.Embedding | None:
    """The learned table of absolute positions; None where positions are rotary or relative."""
    for name, module in backbone.named_modules():
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(module, nn.Embedding):
            return module
    return None


def first_position(backbone: PreTrainedModel) -> int:
    """Row of the position table that a chunk's first token gets: 0, or past the padding row (RoBERTa and its kin)."""
    table = position_table(backbone)
    return 0 if table is None or table.padding_idx is None else table.padding_idx + 1


def longest_chunk(backbone: PreTrainedModel) -> int | None:
    """Tokens that the encoder has positions for; None where its config names no limit."""
    table = position_table(backbone)
    if table is not None:
        return table.num_embeddings - first_position(backbone)
    return getattr(backbone.config, "max_position_embeddings", None)
