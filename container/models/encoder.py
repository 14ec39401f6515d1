"""Encode text: a Hugging Face backbone over packed chunks, and a pooler that returns one vector per chunk."""

from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from container.data.batch import PackedText
from container.models.attention import (
    DenseLayout,
    Layout,
    PackedLayout,
    as_autocast_would,
    change_hidden_inputs,
    compute_first_tokens_only,
)
from container.models.families import EncoderFamily, Split, encoder_family
from container.models.word_encoders import WordEncoder


class Pooler(nn.Module):
    """Return tanh(Linear(d -> d)) of each chunk's first token; every family gets this pooler.

    Poolers turn the states of the tokens of `text` [N, d], or of padded chunks [S, T, d], into one vector per chunk
    [S, d]. This one also takes the states of the first tokens alone, [S, d] or [S, 1, d].
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, states: Tensor, text: PackedText) -> Tensor:
        first = states if len(states) == len(text.lengths) else states.index_select(0, text.cu_seqlens[:-1])
        return torch.tanh(self.dense(first))

    def forward_dense(self, states: Tensor, _: Tensor) -> Tensor:
        return torch.tanh(self.dense(states[:, 0]))


class MeanPooler(nn.Module):
    """Return the mean of each chunk's tokens, as sentence encoders are trained with; it has no weights."""

    def forward(self, states: Tensor, text: PackedText) -> Tensor:
        chunk_of_token = torch.repeat_interleave(text.cu_seqlens.diff(), output_size=len(states))
        return mean_over_groups(states, chunk_of_token, num_groups=len(text.lengths))

    def forward_dense(self, states: Tensor, mask: Tensor) -> Tensor:
        """mask: 1 for a token, 0 for padding. [S, T]"""
        real = mask[:, :, None].to(states.dtype)
        return (states * real).sum(1) / real.sum(1).clamp(min=1)


class TextEncoder(nn.Module):
    """Return one vector per chunk from token ids.

    Attention dropout is 0 in every backbone, because the variable-length kernel has none and all paths must agree.

    Args:
        backbone: an encoder without its own pooler; built with ATTENTION if `packed`.
        packed: the family computes on packed chunks; otherwise every batch is padded to its longest chunk.
        autocasts: the backbone runs under autocast; otherwise it computes in the dtype of its weights.
        first_position: position id of a chunk's first token in the family's position table.
        pad_token_id: token id of padding.
        pooler: returns a vector per chunk; None if only the states of tokens are needed.
    """

    def __init__(
        self,
        backbone: PreTrainedModel,
        *,
        packed: bool,
        autocasts: bool = True,
        first_position: int = 0,
        pad_token_id: int = 0,
        pooler: Pooler | MeanPooler | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.packed = packed
        self._autocasts = autocasts
        self.first_position = first_position
        self.pad_token_id = pad_token_id
        self.width: int = backbone.config.hidden_size
        self.pooler = pooler
        family = encoder_family(self.kind)
        layers = self.layers
        for layer in layers or ():
            for name, split in family.tensor_plan.items():
                if split is Split.INPUT:
                    change_hidden_inputs(layer.get_submodule(name), as_autocast_would)
        self._every_token_again: Callable[[], None] | None = None
        if isinstance(pooler, Pooler) and packed and layers and family.attention:
            attention = layers[-1].get_submodule(family.attention)
            self._every_token_again = compute_first_tokens_only(attention, backbone.config)

    def compute_every_token(self) -> None:
        """Make the last layer compute every token, which only a pooler that reads first tokens does not need."""
        if self._every_token_again is not None:
            self._every_token_again()
            self._every_token_again = None

    @property
    def kind(self) -> str:
        return self.backbone.config.model_type

    @property
    def layers(self) -> nn.ModuleList | None:
        """Return the backbone's layers in order; None if they are not known or share one set of weights."""
        family = encoder_family(self.kind)
        return encoder_layers(self.backbone, family) if family.has_own_layers else None

    @property
    def repeated_layers(self) -> list[nn.Module]:
        """Return the layers that compute the same function of hidden states, layout and their weights."""
        layers = list(self.layers or ()) if encoder_family(self.kind).equal_layers else []
        return layers if self._every_token_again is None else layers[:-1]

    def forward(self, text: PackedText) -> Tensor:
        """Return a vector per chunk. [S, d]"""
        assert self.pooler is not None
        return self.pooler(self.token_states(text), text)

    def forward_dense(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Return a vector per chunk, from chunks padded on the right; for empty chunks, any finite vector.

        Args:
            input_ids: [S, T] int64
            mask: 1 for a token, 0 for padding. [S, T] int64

        Returns:
            [S, d]
        """
        assert self.pooler is not None
        return self.pooler.forward_dense(self.token_states_dense(input_ids, mask), mask)

    def token_states(self, text: PackedText) -> Tensor:
        """Return the last hidden state of each token, in the order of `text.tokens`. [N, d]

        A pooler that needs the first tokens only gets them from the last layer: [S, d].
        """
        if self.packed:
            states = self._states(text.tokens[None], positions=text.positions[None], layout=PackedLayout.of(text))
            return states.squeeze(0)
        input_ids = pad_sequence(
            list(text.tokens.split(text.lengths)), batch_first=True, padding_value=self.pad_token_id
        )  # [S, T]
        lengths = text.cu_seqlens.diff()[:, None]  # [S, 1]
        mask = (torch.arange(input_ids.shape[1], device=input_ids.device) < lengths).long()
        states = self.token_states_dense(input_ids, mask)  # [S, T, d]
        return torch.cat([row[:length] for row, length in zip(states, text.lengths)])

    def token_states_dense(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Return the last hidden state of each token of padded chunks; arguments as in forward_dense. [S, T, d]"""
        if self.packed:
            positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]  # [1, T]
            return self._states(input_ids, positions=positions, layout=DenseLayout(mask))
        with nullcontext() if self._autocasts else torch.autocast(input_ids.device.type, enabled=False):
            return self.backbone(input_ids=input_ids, attention_mask=mask).last_hidden_state

    def _states(self, input_ids: Tensor, *, positions: Tensor, layout: Layout) -> Tensor:
        """Run the backbone with the attention of `layout`; `positions` count from 0. [., ., d]"""
        position_ids = positions + self.first_position
        return self.backbone(input_ids=input_ids, position_ids=position_ids, layout=layout).last_hidden_state


class TextBranch(nn.Module):
    """Encode a text field: the projected mean of each record's chunk vectors, or the projected states of its tokens.

    Args:
        projection: Dropout and Linear d -> H, or Identity.
        per_token: return features of tokens, not of records.
    """

    def __init__(self, encoder: TextEncoder | WordEncoder, projection: nn.Module, *, per_token: bool = False) -> None:
        super().__init__()
        self.encoder = encoder
        self.projection = projection
        self.per_token = per_token

    def forward(self, encoded: Tensor, text: PackedText, *, num_records: int) -> Tensor:
        """Return features of each record [B, H] (or [B, d]), or of each token [N, H].

        Args:
            encoded: what `encode_texts` returns for `text`.
        """
        if self.per_token:
            return self.projection(encoded)
        return self.projection(mean_over_groups(encoded, text.chunk_record, num_groups=num_records))

    def forward_dense(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Return the same from input_ids [B, C, T] and mask [B, C, T]; empty chunks are ignored.

        Returns:
            [B, H], or [B, C * T, H]
        """
        if self.per_token:
            assert isinstance(self.encoder, TextEncoder), "word encoders return no states of tokens"
            states = self.encoder.token_states_dense(input_ids.flatten(0, 1), mask.flatten(0, 1))  # [B * C, T, d]
            return self.projection(states).unflatten(0, mask.shape[:2]).flatten(1, 2)
        chunks = self.encoder.forward_dense(input_ids.flatten(0, 1), mask.flatten(0, 1))  # [B * C, d]
        chunks = chunks.unflatten(0, mask.shape[:2])  # [B, C, d]
        real = mask.amax(-1, keepdim=True).to(chunks.dtype)  # [B, C, 1]
        return self.projection((chunks * real).sum(1) / real.sum(1).clamp(min=1))


def encode_texts(branches: Sequence[TextBranch], texts: Sequence[PackedText]) -> list[Tensor]:
    """Return for the text of each branch a vector per chunk [S, d], or the states of its tokens [N, d].

    An encoder that branches share encodes their texts in one pass. One that needs padding takes a pass for each text,
    because it would pad short texts to the longest chunk of a long one.
    """
    passes: dict[Hashable, list[int]] = {}
    for index, branch in enumerate(branches):
        passes.setdefault(branch.encoder if branch.encoder.packed else index, []).append(index)
    encoded: dict[int, Tensor] = {}
    for indices in passes.values():
        branch, text = branches[indices[0]], PackedText.joined([texts[i] for i in indices])
        if branch.per_token:
            assert isinstance(branch.encoder, TextEncoder), "word encoders return no states of tokens"
            states, sizes = branch.encoder.token_states(text), [len(texts[i].tokens) for i in indices]
        else:
            states, sizes = branch.encoder(text), [len(texts[i].lengths) for i in indices]
        encoded.update(zip(indices, states.split(sizes), strict=True))
    return [encoded[index] for index in range(len(branches))]


def encoder_layers_of(module: nn.Module) -> list[nn.Module]:
    """Return the layers of all encoders in `module` whose layers are known, in order."""
    encoders = (encoder for encoder in module.modules() if isinstance(encoder, TextEncoder))
    return [layer for encoder in encoders for layer in encoder.layers or ()]


def mean_over_groups(vectors: Tensor, group: Tensor, *, num_groups: int) -> Tensor:
    """Return the mean of each group's vectors, in float32 at least; no group is empty.

    Args:
        vectors: [n, d]
        group: group number of each vector. [n]

    Returns:
        [num_groups, d]
    """
    vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    sums = vectors.new_zeros(num_groups, vectors.shape[1]).index_add(0, group, vectors)
    counts = vectors.new_zeros(num_groups).index_add(0, group, vectors.new_ones(len(group)))
    return sums / counts[:, None]


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


def _position_table(backbone: PreTrainedModel) -> nn.Embedding | None:
    """Return the learned table of absolute positions; None if positions are rotary or relative."""
    for name, module in backbone.named_modules():
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(module, nn.Embedding):
            return module
    return None


def first_position(backbone: PreTrainedModel) -> int:
    """Return a first token's row in the position table: 0, or after the padding row (RoBERTa and variants)."""
    table = _position_table(backbone)
    return 0 if table is None or table.padding_idx is None else table.padding_idx + 1


def longest_chunk(backbone: PreTrainedModel) -> int | None:
    """Return the number of tokens that the encoder has positions for; None if its config sets no limit."""
    table = _position_table(backbone)
    if table is not None:
        return table.num_embeddings - first_position(backbone)
    return getattr(backbone.config, "max_position_embeddings", None)
