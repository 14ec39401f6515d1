"""Text encoders over word embeddings alone: recurrent and convolutional. Chunks do not see each other."""

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from container.data.batch import PackedText


class WordEncoder(nn.Module):
    """Token ids -> one vector per chunk, by a network over word embeddings.

    Attributes:
        backbone: the table of embeddings; what of the encoder may come from pretraining.
        width: of a chunk's vector.
    """

    packed = True
    layers = None
    kind: str
    width: int

    def __init__(self, words: nn.Embedding) -> None:
        super().__init__()
        self.backbone = words

    def forward(self, text: PackedText) -> Tensor:
        """Vector of each chunk. [S, width]"""
        raise NotImplementedError

    def forward_dense(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Vector of each chunk, from chunks padded on the right; for padding chunks, any finite vector.

        Args:
            input_ids: [S, T] int64
            mask: 1 for a token, 0 for padding. [S, T] int64

        Returns:
            [S, width]
        """
        raise NotImplementedError


class RecurrentEncoder(WordEncoder):
    """Bidirectional LSTM; a chunk's vector is the last state of the forward and the first of the backward direction.

    Args:
        width: of one direction's state.
        dropout: between layers.
    """

    kind = "lstm"

    def __init__(self, words: nn.Embedding, *, width: int, num_layers: int, dropout: float) -> None:
        super().__init__(words)
        self.width = 2 * width
        between = dropout if num_layers > 1 else 0.0
        self.recurrent = nn.LSTM(words.embedding_dim, width, num_layers, dropout=between, bidirectional=True)

    def forward(self, text: PackedText) -> Tensor:
        tokens, batch_sizes, order = _by_time(text.lengths)
        device = text.tokens.device
        embedded = self.backbone(text.tokens)  # [N, d]
        sequence = PackedSequence(
            embedded[tokens.to(device, non_blocking=True)],
            batch_sizes,
            order.to(device, non_blocking=True),
            order.argsort().to(device, non_blocking=True),
        )
        _, (states, _) = self.recurrent(sequence)  # [2 * layers, S, H]
        return torch.cat([states[-2], states[-1]], dim=1)

    def forward_dense(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        lengths = mask.sum(1).clamp(min=1)  # [S]
        if torch.onnx.is_in_onnx_export():
            return self._forward_onnx(self.backbone(input_ids).transpose(0, 1), lengths.int())
        rows = [row[: int(length)] for row, length in zip(input_ids, lengths)]
        chunk_record = torch.arange(len(rows))
        text = PackedText.of_chunks(torch.cat(rows), lengths=lengths.tolist(), chunk_record=chunk_record)
        return self(text)

    def _forward_onnx(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """By ONNX's own LSTM, which knows lengths; traced, torch's would be one node per token.

        Args:
            hidden: [T, S, d]
            lengths: [S] int32
        """
        num_steps, num_chunks = hidden.shape[0], hidden.shape[1]
        width, last = self.recurrent.hidden_size, hidden
        for layer in range(self.recurrent.num_layers):
            every, last = torch.onnx.ops.symbolic_multi_out(
                "LSTM",
                (hidden, *self._onnx_weights(layer), lengths),
                {"hidden_size": width, "direction": "bidirectional"},
                dtypes=(hidden.dtype, hidden.dtype),
                shapes=((num_steps, 2, num_chunks, width), (2, num_chunks, width)),
            )
            hidden = every.transpose(1, 2).flatten(2)  # [T, S, 2 H]
        return torch.cat([last[0], last[1]], dim=1)

    def _onnx_weights(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of both directions of a layer: input [2, 4 H, d], recurrent [2, 4 H, H] and bias [2, 8 H]."""
        inputs, recurrent, biases = [], [], []
        for direction in ("", "_reverse"):
            names = (f"{kind}_l{layer}{direction}" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
            w_ih, w_hh, b_ih, b_hh = (_onnx_gates(getattr(self.recurrent, name)) for name in names)
            inputs.append(w_ih)
            recurrent.append(w_hh)
            biases.append(torch.cat([b_ih, b_hh]))
        return torch.stack(inputs), torch.stack(recurrent), torch.stack(biases)


class ConvolutionalEncoder(WordEncoder):
    """For each kernel size: layers of Conv1d -> ReLU -> max over pairs, then the maximum over the chunk; side by side.

    Zeros lie beyond a chunk's ends, and after ReLU zeros are neutral to a maximum: so padded chunks, and packed ones
    with a few zeros between them, give the same.

    Args:
        channels: of each layer.
    """

    kind = "cnn"

    def __init__(self, words: nn.Embedding, *, kernel_sizes: Sequence[int], channels: Sequence[int]) -> None:
        super().__init__(words)
        widths = (words.embedding_dim, *channels)
        self.stacks = nn.ModuleList(
            nn.ModuleList(nn.Conv1d(enters, leaves, size) for enters, leaves in zip(widths, channels))
            for size in kernel_sizes
        )
        self.width = len(kernel_sizes) * channels[-1]
        self._stride = 2 ** (len(channels) - 1)  # tokens that are one place in the last layer
        # A kernel's window in the last layer, in tokens; a gap that long keeps chunks apart in every layer.
        self._gap = (max(kernel_sizes) // 2) * self._stride

    def forward(self, text: PackedText) -> Tensor:
        stride = self._stride
        # Each chunk begins at a multiple of the stride, so that pairs are those it has when it is alone.
        lengths = torch.tensor(text.lengths)
        spans = (lengths + self._gap + stride - 1) // stride * stride  # [S]
        starts = spans.cumsum(0) - spans
        place = torch.arange(int(lengths.sum())) + (starts - (lengths.cumsum(0) - lengths)).repeat_interleave(lengths)
        owner = torch.arange(len(lengths)).repeat_interleave(spans // stride)  # [M / stride]
        place, owner = (index.to(text.tokens.device, non_blocking=True) for index in (place, owner))
        embedded = self.backbone(text.tokens)  # [N, d]
        spaced = embedded.new_zeros(int(spans.sum()), embedded.shape[1]).index_copy(0, place, embedded)  # [M, d]
        real = torch.zeros_like(spaced[:, :1]).index_fill(0, place, 1.0)  # [M, 1]
        found = self._convolve(spaced.T[None], real.T[None])[0].T  # [M / stride, width]
        index = owner[:, None].expand_as(found)
        return found.new_zeros(len(lengths), self.width).scatter_reduce(0, index, found, "amax")

    def forward_dense(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        real = mask[:, None].to(self.backbone.weight.dtype)  # [S, 1, T]
        return self._convolve(self.backbone(input_ids).transpose(1, 2) * real, real).amax(2)

    def _convolve(self, embedded: Tensor, real: Tensor) -> Tensor:
        """[R, d, M], and where tokens are [R, 1, M] -> what the kernels found at each place. [R, width, M / stride]"""
        found = []
        for stack in self.stacks:
            hidden, here = embedded, real
            for layer, convolution in enumerate(cast("Sequence[nn.Conv1d]", stack)):
                if layer:
                    hidden, here = _maximum_of_pairs(hidden), _maximum_of_pairs(here)
                size = convolution.kernel_size[0]
                hidden = convolution(F.pad(hidden, ((size - 1) // 2, size // 2)))
                hidden = torch.relu(hidden) * here
            found.append(hidden)
        return torch.cat(found, dim=1)


def _maximum_of_pairs(hidden: Tensor) -> Tensor:
    """[R, c, M] -> [R, c, ceil(M / 2)]; the last place may be alone."""
    # Not max_pool1d: an exported graph would hold for the traced length alone.
    return torch.maximum(hidden[..., 0::2], F.pad(hidden, (0, 1))[..., 1::2])


def _by_time(lengths: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """The order in which an LSTM takes packed chunks: all first tokens, all second tokens, ..., long chunks first.

    Returns:
        Index of each token [N], chunks that are still there at each step [T], and the chunks, the longest first [S].
    """
    length = torch.tensor(lengths)
    order = length.argsort(descending=True, stable=True)
    starts = length.cumsum(0) - length
    here = torch.arange(int(length.max()))[:, None] < length[order]  # [T, S]
    tokens = (starts[order] + torch.arange(len(here))[:, None])[here]
    return tokens, here.sum(1), order


def _onnx_gates(weight: Tensor) -> Tensor:
    """torch has gates in the order input, forget, cell, output; ONNX input, output, forget, cell. [4 H, ..]"""
    enters, forget, cell, leaves = weight.chunk(4)
    return torch.cat([enters, leaves, forget, cell])
