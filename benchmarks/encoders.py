"""Build encoders of known shapes with random weights, and random chats for them, without input files."""

import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from container.data.batch import PackedBatch, PackedText
from container.models.build import build_classifier
from container.models.classifier import Classifier
from container.preprocessing.numeric_transform import NumericTransformParameters
from container.preprocessing.prepared import EncoderFiles
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.hyperparameters import Hyperparameters

MEAN_TOKENS, SPREAD = 180, 0.7  # tokens per chat: mean, and standard deviation of the logarithm
SHORTEST = 8


@dataclass(frozen=True)
class Shape:
    """The sizes of a BERT encoder, and the number of records per step of its benchmark."""

    name: str
    layers: int
    width: int
    heads: int
    batch_size: int
    vocabulary: int = 30522
    longest: int = 512

    @property
    def layer_parameters(self) -> int:
        """Return P, the parameters of the layers: attention, a feed-forward of 4 widths, biases and two norms."""
        return self.layers * (12 * self.width**2 + 13 * self.width)

    def flops(self, lengths: tuple[int, ...], *, first_tokens_only: bool = False) -> float:
        """Return the FLOP of forward and backward for chunks of `lengths` tokens: (6 P + 12 L h s) per token.

        s = sum(s_i^2) / sum(s_i) is the mean number of tokens that a token attends to. Recomputation is not counted.

        Args:
            first_tokens_only: the last layer computes keys and values of every token, and the rest for first tokens.
        """
        squares = sum(length**2 for length in lengths)
        every = 6 * self.layer_parameters * sum(lengths) + 12 * self.layers * self.width * squares
        if not first_tokens_only:
            return every
        of_others = sum(lengths) - len(lengths), 10 * self.width**2 + 11 * self.width  # tokens, parameters
        return every - 6 * math.prod(of_others) - 12 * self.width * (squares - sum(lengths))

    def gemm_rate(self, tokens: int, *, threads: int) -> float:
        """Measure the FLOP/s of a layer's products for 3 s: y = x W', dx = dy W, dw = dy' x; on a GPU in bfloat16."""
        torch.set_num_threads(threads)
        gpu = torch.cuda.is_available()
        kind: Any = {"device": "cuda", "dtype": torch.bfloat16} if gpu else {}
        sizes = [(self.width, self.width)] * 4 + [(self.width, 4 * self.width), (4 * self.width, self.width)]
        operands = [
            (torch.randn(tokens, n, **kind), torch.randn(tokens, m, **kind), torch.randn(m, n, **kind))
            for n, m in sizes
        ]
        seconds = []
        while sum(seconds) < 3:
            start = time.perf_counter()
            for x, dy, weight in operands:
                _ = x @ weight.T, dy @ weight, dy.T @ x
            if gpu:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        return 6 * tokens * sum(n * m for n, m in sizes) / statistics.median(seconds)


BASE = Shape("BERT-base", layers=12, width=768, heads=12, batch_size=256)
LARGE = Shape("BERT-large", layers=24, width=1024, heads=16, batch_size=128)
SMALL = Shape("MiniLM-L6", layers=6, width=384, heads=12, batch_size=8)
TINY = Shape("tiny BERT", layers=2, width=64, heads=4, batch_size=6, vocabulary=99, longest=64)


def hyperparameters(folder: Path, shape: Shape, **values: Any) -> Hyperparameters:
    """Return the settings of a job that classifies chats with the encoder that `build_model` writes to `folder`."""
    columns = {"id_name": "id", "label_name": "label", "text_name": "chat", "model_class": "bert"}
    sizes = {"max_sen_len": shape.longest, "batch_size": shape.batch_size}
    return parse_hyperparameters({**columns, **sizes, "tokenizer": str(folder), **values})


def build_model(folder: Path, shape: Shape, hp: Hyperparameters, *, dropout: float) -> Classifier:
    """Return the plain model on the CPU; its random weights depend only on hp.seed."""
    config = {
        "model_type": "bert",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": 4 * shape.width,
        "max_position_embeddings": shape.longest,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": 0.0,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    transform = NumericTransformParameters("none")
    return build_classifier(hp, [EncoderFiles(folder)], tabular_dim=0, numeric_transform=transform)


def chat_lengths(count: int, *, longest: int, random: np.random.Generator) -> list[int]:
    """Return the token counts of `count` chats: lognormal, at most `longest`; mean MEAN_TOKENS if `longest` is 512."""
    mean = MEAN_TOKENS * longest / 512
    drawn = random.lognormal(np.log(mean) - SPREAD**2 / 2, SPREAD, size=count)
    return np.clip(np.round(drawn), min(SHORTEST, longest), longest).astype(int).tolist()


def chats(shape: Shape, *, records: int, seed: int, multiple: int = 1) -> PackedBatch:
    """Return a batch of `records` random chats with one chunk each, on the host.

    Args:
        multiple: cut the longest chat so that the number of all tokens is a multiple of this.
    """
    random = np.random.default_rng(seed)
    lengths = chat_lengths(records, longest=shape.longest, random=random)
    lengths[int(np.argmax(lengths))] -= sum(lengths) % multiple
    return chats_of_lengths(shape, lengths, random)


def chats_of_lengths(shape: Shape, lengths: Sequence[int], random: np.random.Generator) -> PackedBatch:
    """Return a batch of random chats with one chunk of each of `lengths` tokens, on the host."""
    records = len(lengths)
    tokens = torch.from_numpy(random.integers(1, shape.vocabulary, sum(lengths)))
    text = PackedText.of_chunks(tokens, lengths=lengths, chunk_record=torch.arange(records))
    return PackedBatch(
        texts=(text,),
        tabular=torch.zeros(records, 0),
        labels=torch.from_numpy(random.integers(0, 2, records)),
        rows=torch.arange(records),
        weights=torch.ones(records),
    )
