"""Define an ensemble: several classifiers of one shape that read the same inputs."""

import math
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from container.data.batch import PackedBatch
from container.models.classifier import Classifier
from container.models.encoder import TextBranch
from container.models.tabular import TabularBranch, TabularFields

MEMBERS = "members"  # the first part of the names of weights


class Ensemble(nn.Module):
    """Average the probabilities of several classifiers; its methods are those of Classifier.

    The weights of member i have the classifier's names after "members.i.".

    Args:
        members: classifiers with the same settings and other weights.
    """

    def __init__(self, members: Sequence[Classifier]) -> None:
        super().__init__()
        # ModuleList is not generic: the cast tells type checkers its items' type.
        self.members = cast("Sequence[Classifier]", nn.ModuleList(members))

    @property
    def branches(self) -> Mapping[str, TextBranch]:
        """Return the text branches of one member, as an example of all."""
        return self.members[0].branches

    @property
    def tabular(self) -> TabularBranch | TabularFields | None:
        """Return the tabular branch of one member, as an example of all."""
        return self.members[0].tabular

    def forward(self, batch: PackedBatch) -> Tensor:
        """Return logits: logarithms of the mean of the members' probabilities. [B, K]"""
        return log_mean([member(batch) for member in self.members])

    def encode(self, batch: PackedBatch) -> list[Tensor]:
        """Return the features of each text, those of the members side by side. [B, n H] or [N, n H] each"""
        encoded = [member.encode(batch) for member in self.members]
        return [torch.cat(features, dim=-1) for features in zip(*encoded, strict=True)]

    def head(self, features: list[Tensor], batch: PackedBatch) -> Tensor:
        """Return logits [B, K] from the features that `encode` returns, and the table of `batch`."""
        parts = [each.chunk(len(self.members), dim=-1) for each in features]
        return log_mean([member.head([part[i] for part in parts], batch) for i, member in enumerate(self.members)])

    def encode_dense(self, texts: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """Return the features of padded chunks, those of the members side by side; see Classifier.encode_dense."""
        encoded = [member.encode_dense(texts) for member in self.members]
        return [torch.cat(features, dim=-1) for features in zip(*encoded, strict=True)]

    def head_dense(self, features: list[Tensor], masks: Sequence[Tensor], tabular: Tensor | None) -> Tensor:
        """Return logits from the features that `encode_dense` returns; see Classifier.head_dense. [B, K]"""
        parts = [each.chunk(len(self.members), dim=-1) for each in features]
        members = enumerate(self.members)
        return log_mean([member.head_dense([part[i] for part in parts], masks, tabular) for i, member in members])


Network = Classifier | Ensemble


def log_mean(logits: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean of the softmaxes. n x [B, K] -> [B, K]"""
    return torch.stack([each.log_softmax(-1) for each in logits]).logsumexp(0) - math.log(len(logits))
