"""The classifier as an ordered list of blocks, and runs of them that take up where another stopped.

Between two runs passes the carry: the hidden states [N, d] of the text being encoded, where one is, then the features
of each text that is finished: [B, H], or [N, H] where a head
reads tokens.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from container.data.batch import PackedBatch, PackedText
from container.models.backbone_parts import word_embeddings
from container.models.classifier import Classifier
from container.models.encoder import TextBranch, TextEncoder

_Module = TypeVar("_Module", bound=nn.Module)


@dataclass(frozen=True)
class Block:
    """What a pipeline cannot cut further: an encoder's embeddings, one layer, what ends a text, or the head.

    Attributes:
        name: role and part, for people.
        modules: all its weights and buffers lie in these.
        branch: place of its text in Classifier.branches; None for the head.
        begins: it reads its text's tokens.
        ends: it gives its text's features.
    """

    name: str
    modules: tuple[nn.Module, ...]
    branch: int | None = None
    begins: bool = False
    ends: bool = False


@dataclass(frozen=True)
class Carry:
    """What passes on after a block.

    Attributes:
        hidden: (branch, width d) of the text being encoded; None between texts.
        features: width H of each finished text's features.
        per_token: they are features of tokens [N, H], not of records [B, H].
    """

    hidden: tuple[int, int] | None = None
    features: tuple[int, ...] = ()
    per_token: bool = False

    @property
    def widths(self) -> tuple[int, ...]:
        """Width of each tensor of the carry."""
        return (*(() if self.hidden is None else self.hidden[1:]), *self.features)


def flatten(model: Classifier) -> list[Block]:
    """The blocks of `model` in the order data passes them; together they hold every weight, each exactly once."""
    blocks = []
    for place, (role, branch) in enumerate(model.branches.items()):
        blocks += _branch_blocks(role, branch, place)
    head = tuple(module for module in (model.tabular, model.fusion) if module is not None)
    blocks.append(Block("head", head))
    held = [parameter for block in blocks for module in block.modules for parameter in module.parameters()]
    assert {id(parameter) for parameter in held} == {id(parameter) for parameter in model.parameters()}
    assert len(held) == len(set(held)), "a weight belongs to one block"
    return blocks


def carries(model: Classifier, blocks: Sequence[Block]) -> list[Carry]:
    """The carry after each of all the blocks of `model`; nothing passes on after the last."""
    branches = list(model.branches.values())
    after: list[Carry] = []
    done: tuple[int, ...] = ()
    per_token = any(branch.per_token for branch in branches)
    for block in blocks:
        if block.branch is None:
            after.append(Carry())
        elif block.ends:
            done += (_feature_width(branches[block.branch]),)
            after.append(Carry(None, done, per_token))
        else:
            after.append(Carry((block.branch, branches[block.branch].encoder.width), done, per_token))
    return after


class BlockRun(nn.Module):
    """Consecutive blocks of a classifier, sharing its very modules.

    Args:
        blocks: the run, as `flatten` gave it for `model`.
        carry: what the run receives.
    """

    def __init__(self, model: Classifier, blocks: Sequence[Block], *, carry: Carry) -> None:
        super().__init__()
        self._hidden_enters = carry.hidden is not None
        branches = list(model.branches.values())
        texts: dict[int, list[Block]] = {}
        for block in blocks:
            if block.branch is not None:
                texts.setdefault(block.branch, []).append(block)
        runs = [_TextRun(branches[place], own, text=model.text_indices[place]) for place, own in texts.items()]
        self.texts = cast("Sequence[_TextRun]", nn.ModuleList(runs))
        has_head = any(block.branch is None for block in blocks)
        self.head = restrict(model, blocks[-1:], within=flatten(model)) if has_head else None

    def forward(self, carry: Sequence[Tensor], batch: PackedBatch) -> Tensor | tuple[Tensor, ...]:
        """The carry after the last block, or logits [B, K] where that is the head."""
        hidden = carry[0] if self._hidden_enters else None
        features = list(carry[1:] if self._hidden_enters else carry)
        for run in self.texts:
            hidden = run(hidden, batch, anchor=carry[0] if carry else None)
            if run.ends:
                features.append(hidden)
                hidden = None
        if self.head is not None:
            return self.head.head(features, batch)
        return tuple(features) if hidden is None else (hidden, *features)


class _TextRun(nn.Module):
    """Consecutive blocks of one text: a branch of which other blocks are left out."""

    def __init__(self, branch: TextBranch, blocks: Sequence[Block], *, text: int) -> None:
        super().__init__()
        assert isinstance(branch.encoder, TextEncoder), "checked with the degrees"
        self.text = text
        self.begins, self.ends = blocks[0].begins, blocks[-1].ends
        self._incoming = _Incoming()
        whole = self.begins and self.ends
        self.branch = branch if whole else restrict(branch, blocks, within=_branch_blocks("", branch, 0))
        if self.begins:
            words = word_embeddings(branch.encoder.backbone)
            words.register_forward_hook(self._anchor)
        else:
            # Hugging Face's own forward then runs the layers that are left, whatever it passes to each.
            setattr(self.branch.encoder.backbone, _embeddings_name(branch.encoder), self._incoming)

    def forward(self, hidden: Tensor | None, batch: PackedBatch, *, anchor: Tensor | None) -> Tensor:
        """Hidden states [N, d], or the text's features [B, H] where the run ends it."""
        text: PackedText = batch.texts[self.text]
        with self._incoming.holding(hidden, anchor):
            if self.ends:
                return self.branch(text, num_records=len(batch.rows))
            assert isinstance(self.branch.encoder, TextEncoder)
            return self.branch.encoder.token_states(text)

    def _anchor(self, _module: nn.Module, _inputs: tuple[Any, ...], embedded: Any) -> Tensor:
        return self._incoming.anchored(embedded)


def restrict(module: _Module, blocks: Sequence[Block], *, within: Sequence[Block], in_place: bool = False) -> _Module:
    """Return `module` without the weights of those blocks `within` it that are not in `blocks`; names do not change.

    Args:
        in_place: drop them from `module` itself; otherwise from a copy that shares the blocks' modules.
    """
    kept = {module for block in blocks for module in block.modules}
    known = {module for block in within for module in block.modules}

    def part_of(parent: nn.Module) -> nn.Module:
        part = parent if in_place else _twin(parent)
        children: dict[str, nn.Module | None] = {}
        for name, child in parent._modules.items():
            if child is None or child in kept or next(child.parameters(), None) is None:
                children[name] = child
            elif child in known:
                if not isinstance(parent, nn.ModuleList):
                    children[name] = nn.Identity()
            elif not isinstance(parent, nn.ModuleDict) or any(inner in kept for inner in child.modules()):
                children[name] = part_of(child)
        part._modules = children
        return part

    return cast("_Module", part_of(module))


def _twin(module: nn.Module) -> nn.Module:
    """A copy with the same children, and hooks of its own from here on."""
    twin = copy.copy(module)
    twin.__dict__.update({name: copy.copy(value) for name, value in vars(module).items() if isinstance(value, dict)})
    return twin


class _Incoming(nn.Module):
    """Stands where embeddings were: gives the hidden states that another run computed."""

    def __init__(self) -> None:
        super().__init__()
        self._hidden: Tensor | None = None
        self._anchor: Tensor | None = None

    @contextmanager
    def holding(self, hidden: Tensor | None, anchor: Tensor | None) -> Iterator[None]:
        self._hidden, self._anchor = hidden, anchor
        try:
            yield
        finally:
            self._hidden = self._anchor = None

    def forward(self, *_: object, **__: object) -> Tensor:
        assert self._hidden is not None, "the text did not begin here"
        return self._hidden[None].clone()  # [1, N, d]; no view: what a backbone without layers returns gets hooks

    def anchored(self, embedded: Tensor) -> Tensor:
        """`embedded` as a function of what the run received.

        A zero-bubble schedule finds the weights to differentiate on the paths from a stage's inputs; a text that begins
        in a later stage would not lie on any.
        """
        return embedded if self._anchor is None else _Anchor.apply(embedded, self._anchor)


class _Anchor(torch.autograd.Function):
    """The identity, which has the anchor among its inputs."""

    @staticmethod
    def forward(ctx, value: Tensor, anchor: Tensor) -> Tensor:  # noqa: ARG004
        return value.view_as(value)

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return gradients[0], None


def _branch_blocks(role: str, branch: TextBranch, place: int) -> list[Block]:
    encoder, layers = branch.encoder, branch.encoder.layers
    if not encoder.packed or layers is None:
        return [Block(role, (branch,), place, begins=True, ends=True)]
    backbone = encoder.backbone
    own = [child for child in backbone.children() if next(child.parameters(), None) is not None]
    (at,) = [i for i, child in enumerate(own) if layers in child.modules()]
    begin, end = own[:at], [*own[at + 1 :], encoder.pooler, branch.projection]
    end = [module for module in end if module is not None]
    return [
        Block(f"{role}.embeddings", tuple(begin), place, begins=True),
        *(Block(f"{role}.layer {i}", (layer,), place) for i, layer in enumerate(layers)),
        Block(f"{role}.pooler", tuple(end), place, ends=True),
    ]


def _embeddings_name(encoder: TextEncoder) -> str:
    words = word_embeddings(encoder.backbone)
    return next(name for name, child in encoder.backbone.named_children() if words in child.modules())


def _feature_width(branch: TextBranch) -> int:
    linear = [module for module in branch.projection.modules() if isinstance(module, nn.Linear)]
    return linear[-1].out_features if linear else branch.encoder.width
