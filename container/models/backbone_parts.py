"""Find the parts of a Hugging Face backbone: its layers, embedding tables and positions."""

from torch import nn
from transformers import PreTrainedModel

from container.models.families import EncoderFamily


def encoder_layers(backbone: PreTrainedModel, family: EncoderFamily) -> nn.ModuleList | None:
    """Return the backbone's layers in order; None if the family is not known."""
    if family.layers is None:
        return None
    layers = backbone.get_submodule(family.layers)
    assert isinstance(layers, nn.ModuleList)
    return layers


def word_embeddings(backbone: PreTrainedModel) -> nn.Embedding:
    """Return the table of the backbone's word embeddings."""
    words = backbone.get_input_embeddings()
    assert isinstance(words, nn.Embedding)
    return words


def embedding_tables(backbone: PreTrainedModel) -> list[nn.Embedding]:
    """Return the tables of the input embeddings: words, positions, token types."""
    words = word_embeddings(backbone)
    for child in backbone.children():
        tables = [module for module in child.modules() if isinstance(module, nn.Embedding)]
        if any(table is words for table in tables):
            return tables
    raise AssertionError("an encoder has input embeddings")


def position_table(backbone: PreTrainedModel) -> nn.Embedding | None:
    """Return the learned table of absolute positions; None if positions are rotary or relative."""
    for name, module in backbone.named_modules():
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(module, nn.Embedding):
            return module
    return None


def first_position(backbone: PreTrainedModel) -> int:
    """Return a first token's row in the position table: 0, or after the padding row (RoBERTa and variants)."""
    table = position_table(backbone)
    return 0 if table is None or table.padding_idx is None else table.padding_idx + 1


def longest_chunk(backbone: PreTrainedModel) -> int | None:
    """Return the number of tokens that the encoder has positions for; None if its config sets no limit."""
    table = position_table(backbone)
    if table is not None:
        return table.num_embeddings - first_position(backbone)
    return getattr(backbone.config, "max_position_embeddings", None)
