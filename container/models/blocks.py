"""Split the classifier into an ordered list of blocks, and run consecutive blocks separately.

One run passes the carry to the next: the hidden states [N, d] of the text being encoded, if any, then the features of
each finished text: [B, H], or [N, H] if the fusion head reads tokens.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from container.data.batch import PackedBatch, PackedText
from container.models.classifier import Classifier
from container.models.encoder import TextBranch, TextEncoder, encode_texts, word_embeddings

_Module = TypeVar("_Module", bound=nn.Module)


@dataclass(frozen=True)
class Block:
    """Hold a part that a pipeline cannot split: an encoder's embeddings, one layer, the end of a text, or the head.

    Attributes:
        name: role and part, for messages.
        modules: contain all its weights and buffers.
        branch: index of its text in Classifier.branches; None for the head.
        begins: it reads the text's tokens.
        ends: it returns the text's features.
    """

    name: str
    modules: tuple[nn.Module, ...]
    branch: int | None = None
    begins: bool = False
    ends: bool = False


@dataclass(frozen=True)
class Carry:
    """Describe the tensors that a block passes to the next one.

    Attributes:
        hidden: (branch, width d) of the text being encoded; None between texts.
        features: width H of each finished text's features.
        per_token: features belong to tokens [N, H], not to records [B, H].
    """

    hidden: tuple[int, int] | None = None
    features: tuple[int, ...] = ()
    per_token: bool = False

    @property
    def widths(self) -> tuple[int, ...]:
        """Return the width of each tensor of the carry."""
        return self.features if self.hidden is None else (self.hidden[1], *self.features)


def flatten(model: Classifier) -> list[Block]:
    """Return the blocks of `model` in the order of the forward pass; each weight belongs to exactly one block."""
    blocks = []
    for index, (role, branch) in enumerate(model.branches.items()):
        blocks += _branch_blocks(role, branch, index)
    blocks.append(Block("head", tuple(module for module in (model.tabular, model.fusion) if module is not None)))
    parameters = [parameter for block in blocks for module in block.modules for parameter in module.parameters()]
    assert set(parameters) == set(model.parameters())
    assert len(parameters) == len(set(parameters)), "a weight belongs to one block"
    return blocks


def carries(model: Classifier, blocks: Sequence[Block]) -> list[Carry]:
    """Return the carry after each block of `model`; it is empty after the last."""
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
    """Run consecutive blocks of a classifier, whose modules it shares.

    Args:
        blocks: consecutive blocks from `flatten(model)`.
        carry: description of the tensors that the run receives.
    """

    def __init__(self, model: Classifier, blocks: Sequence[Block], *, carry: Carry) -> None:
        super().__init__()
        self._hidden_enters = carry.hidden is not None
        branches = list(model.branches.values())
        texts: dict[int, list[Block]] = {}
        for block in blocks:
            if block.branch is not None:
                texts.setdefault(block.branch, []).append(block)
        runs = [_TextRun(branches[i], parts, text=model.text_indices[i]) for i, parts in texts.items()]
        self.texts = cast("Sequence[_TextRun]", nn.ModuleList(runs))
        has_head = any(block.branch is None for block in blocks)
        self.head = restrict(model, blocks[-1:], within=flatten(model)) if has_head else None

    def forward(self, carry: Sequence[Tensor], batch: PackedBatch) -> Tensor | tuple[Tensor, ...]:
        """Return the carry after the last block, or logits [B, K] if that is the head."""
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
    """Run consecutive blocks of one text: its branch without the other blocks."""

    def __init__(self, branch: TextBranch, blocks: Sequence[Block], *, text: int) -> None:
        super().__init__()
        assert isinstance(branch.encoder, TextEncoder), "checked with the parallel degrees"
        self.text = text
        self.begins, self.ends = blocks[0].begins, blocks[-1].ends
        self._incoming = _Incoming()
        whole = self.begins and self.ends
        if not whole:
            branch.encoder.compute_every_token()  # the text's end may be in another run
        self.branch = branch if whole else restrict(branch, blocks, within=_branch_blocks("", branch, 0))
        if self.begins:
            word_embeddings(branch.encoder.backbone).register_forward_hook(self._incoming.anchor)
        else:
            # The backbone's own forward then runs the remaining layers, with the arguments that they need.
            setattr(self.branch.encoder.backbone, _embeddings_name(branch.encoder), self._incoming)

    def forward(self, hidden: Tensor | None, batch: PackedBatch, *, anchor: Tensor | None) -> Tensor:
        """Return hidden states [N, d], or the text's features [B, H] if the run ends it."""
        text: PackedText = batch.texts[self.text]
        with self._incoming.holding(hidden, anchor):
            if self.ends:
                return self.branch(*encode_texts([self.branch], [text]), text, num_records=len(batch.rows))
            assert isinstance(self.branch.encoder, TextEncoder)
            return self.branch.encoder.token_states(text)


def restrict(module: _Module, blocks: Sequence[Block], *, within: Sequence[Block], in_place: bool = False) -> _Module:
    """Return `module` with only those weights of its blocks `within` that are in `blocks`; names do not change.

    Args:
        in_place: change `module` itself; otherwise a copy that shares the blocks' modules.
    """
    kept = {module for block in blocks for module in block.modules}
    known = {module for block in within for module in block.modules}

    def part_of(parent: nn.Module) -> nn.Module:
        part = parent if in_place else _shallow_copy(parent)
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


def _shallow_copy(module: nn.Module) -> nn.Module:
    """Return a copy with the same children; hooks registered later are separate."""
    result = copy.copy(module)
    result.__dict__.update({name: copy.copy(value) for name, value in vars(module).items() if isinstance(value, dict)})
    return result


class _Incoming(nn.Module):
    """Replace the embeddings: return the hidden states that another run computed."""

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
        assert self._hidden is not None, "hidden states come from the previous run"
        return self._hidden[None].clone()  # [1, N, d]; not a view: a backbone without layers returns it, with hooks

    def anchor(self, _module: nn.Module, _inputs: tuple[Any, ...], embedded: Tensor) -> Tensor:
        """Make `embedded` depend on a tensor that the run received.

        A zero-bubble schedule finds the weights to differentiate on the paths from a stage's inputs. Without the
        anchor, a text that begins in a later stage is on none of them.
        """
        return embedded if self._anchor is None else _Anchor.apply(embedded, self._anchor)


class _Anchor(torch.autograd.Function):
    """The identity function, with the anchor as a second input."""

    @staticmethod
    def forward(ctx, value: Tensor, anchor: Tensor) -> Tensor:  # noqa: ARG004
        return value.view_as(value)

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return gradients[0], None


def _branch_blocks(role: str, branch: TextBranch, index: int) -> list[Block]:
    encoder, layers = branch.encoder, branch.encoder.layers
    if not encoder.packed or layers is None:
        return [Block(role, (branch,), index, begins=True, ends=True)]
    children = [child for child in encoder.backbone.children() if next(child.parameters(), None) is not None]
    (at,) = [i for i, child in enumerate(children) if layers in child.modules()]
    end = [*children[at + 1 :], encoder.pooler, branch.projection]
    return [
        Block(f"{role}.embeddings", tuple(children[:at]), index, begins=True),
        *(Block(f"{role}.layer {i}", (layer,), index) for i, layer in enumerate(layers)),
        Block(f"{role}.pooler", tuple(module for module in end if module is not None), index, ends=True),
    ]


def _embeddings_name(encoder: TextEncoder) -> str:
    words = word_embeddings(encoder.backbone)
    return next(name for name, child in encoder.backbone.named_children() if words in child.modules())


def _feature_width(branch: TextBranch) -> int:
    linears = [module for module in branch.projection.modules() if isinstance(module, nn.Linear)]
    return linears[-1].out_features if linears else branch.encoder.width
