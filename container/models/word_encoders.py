"""Encode text from word embeddings by recurrent or convolutional layers, each chunk separately."""

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from container.data.batch import PackedText, to_device


class WordEncoder(nn.Module):
    """Define the interface of an encoder that returns one vector per chunk from word embeddings.

    Attributes:
        backbone: the table of embeddings, which can be pretrained.
        width: size of a chunk's vector.
    """

    packed = True
    layers = None
    kind: str
    width: int

    def __init__(self, words: nn.Embedding) -> None:
        super().__init__()
        self.backbone = words

    def forward(self, text: PackedText) -> Tensor:
        """Return a vector per chunk. [S, width]"""
        raise NotImplementedError

    def forward_dense(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """See TextEncoder.forward_dense. [S, width]"""
        raise NotImplementedError


class RecurrentEncoder(WordEncoder):
    """Bidirectional LSTM; a chunk's vector is the forward direction's last state and the backward direction's first.

    Args:
        width: size of one direction's state.
        dropout: dropout between layers.
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
            embedded[to_device(tokens, device)],
            batch_sizes,
            to_device(order, device),
            to_device(order.argsort(), device),
        )
        with torch.autocast("cuda", enabled=False):  # it computes LSTMs in float16, also where bfloat16 is asked for
            _, (states, _) = self.recurrent(sequence)  # [2 * layers, S, H]
        return torch.cat([states[-2], states[-1]], dim=1)

    def forward_dense(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        lengths = mask.sum(1).clamp(min=1)  # [S]
        if torch.onnx.is_in_onnx_export():
            return self._forward_onnx(self.backbone(input_ids).transpose(0, 1), lengths.int())
        rows = [row[: int(length)] for row, length in zip(input_ids, lengths)]
        chunk_record = torch.arange(len(rows))
        return self(PackedText.of_chunks(torch.cat(rows), lengths=lengths.tolist(), chunk_record=chunk_record))

    def _forward_onnx(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Emit ONNX's LSTM operator, which takes lengths; tracing torch's LSTM gives one node per token.

        Args:
            hidden: [T, S, d]
            lengths: [S] int32
        """
        num_steps, num_chunks = hidden.shape[0], hidden.shape[1]
        width, last = self.recurrent.hidden_size, hidden
        for layer in range(self.recurrent.num_layers):
            states, last = torch.onnx.ops.symbolic_multi_out(
                "LSTM",
                (hidden, *self._onnx_weights(layer), lengths),
                {"hidden_size": width, "direction": "bidirectional"},
                dtypes=(hidden.dtype, hidden.dtype),
                shapes=((num_steps, 2, num_chunks, width), (2, num_chunks, width)),
            )
            hidden = states.transpose(1, 2).flatten(2)  # [T, S, 2 H]
        return torch.cat([last[0], last[1]], dim=1)

    def _onnx_weights(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return a layer's weights of both directions: input [2, 4 H, d], recurrent [2, 4 H, H] and bias [2, 8 H]."""
        inputs, recurrent, biases = [], [], []
        for direction in ("", "_reverse"):
            names = (f"{kind}_l{layer}{direction}" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
            w_ih, w_hh, b_ih, b_hh = (_onnx_gates(getattr(self.recurrent, name)) for name in names)
            inputs.append(w_ih)
            recurrent.append(w_hh)
            biases.append(torch.cat([b_ih, b_hh]))
        return torch.stack(inputs), torch.stack(recurrent), torch.stack(biases)


class ConvolutionalEncoder(WordEncoder):
    """For each kernel size, Conv1d -> ReLU -> max over pairs in each layer, then the maximum over the chunk; concat.

    Chunks are surrounded by zeros, which do not change a maximum after ReLU. Padded chunks, and packed chunks with a
    few zeros between them, therefore give the same result.

    Args:
        channels: number of channels of each layer.
    """

    kind = "cnn"

    def __init__(self, words: nn.Embedding, *, kernel_sizes: Sequence[int], channels: Sequence[int]) -> None:
        super().__init__(words)
        widths = (words.embedding_dim, *channels)
        self.stacks = nn.ModuleList(
            nn.ModuleList(nn.Conv1d(in_width, out_width, size) for in_width, out_width in zip(widths, channels))
            for size in kernel_sizes
        )
        self.width = len(kernel_sizes) * channels[-1]
        self._stride = 2 ** (len(channels) - 1)  # tokens per position of the last layer
        # Half a kernel of the last layer, in tokens; such a gap separates chunks in every layer.
        self._gap = (max(kernel_sizes) // 2) * self._stride

    def forward(self, text: PackedText) -> Tensor:
        stride, tokens, chunks = self._stride, len(text.tokens), len(text.lengths)
        # Each chunk begins at a multiple of the stride, so that its pairs do not depend on other chunks.
        lengths = text.cu_seqlens.diff().long()
        spans = (lengths + self._gap + stride - 1) // stride * stride  # [S]
        starts = spans.cumsum(0) - spans
        position = text.positions + starts.repeat_interleave(lengths, output_size=tokens)  # [N]
        # The bound of the sum of the spans depends on no length.
        step = max(stride, _length_step(text.tokens.device))
        size = -(-(tokens + chunks * (self._gap + stride - 1)) // step) * step
        places = torch.arange(0, size, stride, device=starts.device)
        chunk = torch.searchsorted(starts, places, right=True) - 1  # [M / stride]
        embedded = self.backbone(text.tokens)  # [N, d]
        spaced = embedded.new_zeros(size, embedded.shape[1]).index_copy(0, position, embedded)  # [M, d]
        real = torch.zeros_like(spaced[:, :1]).index_fill(0, position, 1.0)  # [M, 1]
        features = self._convolve(spaced.T[None], real.T[None])[0].T  # [M / stride, width]
        index = chunk[:, None].expand_as(features)
        return features.new_zeros(chunks, self.width).scatter_reduce(0, index, features, "amax")

    def forward_dense(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        real = mask[:, None].to(self.backbone.weight.dtype)  # [S, 1, T]
        return self._convolve(self.backbone(input_ids).transpose(1, 2) * real, real).amax(2)

    def _convolve(self, embedded: Tensor, real: Tensor) -> Tensor:
        """Embeddings [R, d, M] and 1 for each token [R, 1, M] -> features. [R, width, M / stride]"""
        features = []
        for stack in self.stacks:
            hidden, mask = embedded, real
            for layer, convolution in enumerate(cast("Sequence[nn.Conv1d]", stack)):
                if layer:
                    hidden, mask = _maximum_of_pairs(hidden), _maximum_of_pairs(mask)
                size = convolution.kernel_size[0]
                hidden = torch.relu(convolution(F.pad(hidden, ((size - 1) // 2, size // 2)))) * mask
            features.append(hidden)
        return torch.cat(features, dim=1)


def _length_step(device: torch.device) -> int:
    """Return a power of two of which a convolution's length is a multiple: cuDNN makes a plan for each new length."""
    return 1 if device.type == "cpu" else 1024


def _maximum_of_pairs(hidden: Tensor) -> Tensor:
    """[R, c, M] -> [R, c, ceil(M / 2)]; for odd M, the last position has no partner."""
    # Not max_pool1d: an exported graph would work for the traced length only.
    return torch.maximum(hidden[..., 0::2], F.pad(hidden, (0, 1))[..., 1::2])


def _by_time(lengths: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the order in which an LSTM reads packed chunks: all first tokens, all second tokens, ..., longest first.

    Returns:
        Index of each token [N], number of chunks with a token at each step [T], and the chunks, the longest first [S].
    """
    length = torch.tensor(lengths)
    order = length.argsort(descending=True, stable=True)
    starts = length.cumsum(0) - length
    step = torch.arange(int(length.max()))[:, None]  # [T, 1]
    is_token = step < length[order]  # [T, S]
    return (starts[order] + step)[is_token], is_token.sum(1), order


def _onnx_gates(weight: Tensor) -> Tensor:
    """Reorder gates from torch's input, forget, cell, output to ONNX's input, output, forget, cell. [4 H, ..]"""
    input_gate, forget, cell, output = weight.chunk(4)
    return torch.cat([input_gate, output, forget, cell])
