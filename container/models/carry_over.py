"""Start a model from the weights of an earlier one, as far as they have the same meaning in both."""

import json
import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from container.models.build import load_classifier
from container.models.classifier import Classifier
from container.models.ensemble import Ensemble
from container.models.tabular import TabularBranch
from container.preprocessing.fitted import FittedPreprocessing
from contracts.artifacts import tokenizer_folder
from contracts.spelling import counted

logger = logging.getLogger(__name__)

_SHOWN = 5


@dataclass(frozen=True)
class Meanings:
    """The meaning of each position along one axis of a weight.

    Attributes:
        axis: of the weight; it may be divided into positions of several values each.
        of: the meanings, None for a position without one.
        what: the name of these things, for the log.
    """

    axis: int
    of: Sequence[Hashable | None]
    what: str


def carry_over(model: Classifier, fitted: FittedPreprocessing, tokenizers: Path, *, initial: Path) -> None:
    """Copy the weights of the model folder `initial` into `model`, and log what was copied and what not.

    Token vectors are copied by token, columns of the table by name, category vectors by category, and the outputs by
    label. Fitted statistics, which are buffers, stay those of the new data.

    Args:
        fitted, tokenizers: the rules that are fitted on the new data, and the folder of their tokenizers.

    Raises:
        ContractError: the files of the earlier model are damaged.
    """
    earlier = load_classifier(initial)
    if isinstance(earlier, Ensemble):
        logger.info("initial model %s: its first network of %d is the start", initial, len(earlier.members))
        earlier = earlier.members[0]
    old, new = dict(earlier.named_parameters()), dict(model.named_parameters())
    before = _meanings(earlier, FittedPreprocessing.load(initial), initial)
    after = _meanings(model, fitted, tokenizers)
    copied: dict[str, tuple[int, int]] = {}
    lost: list[str] = []
    with torch.no_grad():
        for name, weight in new.items():
            if name not in old:
                lost.append(f"{name} (new)")
            elif name in after and name in before:
                pairs = _same(before[name], after[name])
                copied[after[name].what] = (len(pairs), sum(each is not None for each in after[name].of))
                _copy(weight, old[name], after[name], before[name], pairs)
            elif old[name].shape == weight.shape:
                weight.copy_(old[name])
            else:
                lost.append(f"{name} ({list(old[name].shape)} then, {list(weight.shape)} now)")
    whole = len(new) - len(lost)
    parts = ", ".join(f"{number:,} of {total:,} {what}" for what, (number, total) in copied.items())
    logger.info(
        "initial model %s: %s carry over%s", initial, counted(whole, "weight"), f"; of these, {parts}" * bool(parts)
    )
    if lost:
        more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
        logger.info("initial model: these weights start anew: %s%s", "; ".join(lost[:_SHOWN]), more)


def _same(before: Meanings, after: Meanings) -> list[tuple[int, int]]:
    """Return the positions of the same meaning, then and now."""
    places = {meaning: place for place, meaning in enumerate(before.of) if meaning is not None}
    return [(places[meaning], place) for place, meaning in enumerate(after.of) if meaning in places]


def _copy(new: Tensor, old: Tensor, after: Meanings, before: Meanings, pairs: Sequence[tuple[int, int]]) -> None:
    """Copy the slices of `pairs`, if the values of a slice have the same number."""
    (to, source) = (_divided(weight, meanings) for weight, meanings in ((new, after), (old, before)))
    if pairs and to.shape[1:] == source.shape[1:]:
        then, now = map(torch.tensor, zip(*pairs))
        to[now] = source[then]


def _divided(weight: Tensor, meanings: Meanings) -> Tensor:
    """Return a view whose first axis has a position for each meaning."""
    moved = weight.movedim(meanings.axis, 0)
    return moved.unflatten(0, (len(meanings.of), -1)).movedim(1, -1) if len(moved) != len(meanings.of) else moved


def _meanings(model: Classifier, fitted: FittedPreprocessing, folder: Path) -> dict[str, Meanings]:
    names = {id(weight): name for name, weight in model.named_parameters()}
    of_names: dict[str, Meanings] = {}
    for role, branch in model.branches.items():
        tokens = _tokens(folder / tokenizer_folder(role))
        for module in branch.modules():
            if isinstance(module, nn.Embedding) and module.num_embeddings >= len(tokens) > 0:
                others = range(len(tokens), module.num_embeddings)
                of_names[names[id(module.weight)]] = Meanings(0, [*tokens, *others], f"tokens of {role}")
                break
    output = cast("nn.Linear", model.fusion.output)
    for weight in (output.weight, output.bias):
        of_names[names[id(weight)]] = Meanings(0, list(map(str, fitted.class_labels)), "classes")
    if model.tabular is not None:
        of_names |= {names[id(weight)]: meanings for weight, meanings in _of_table(model.tabular, fitted)}
    return of_names


def _of_table(tabular: Any, fitted: FittedPreprocessing) -> Iterator[tuple[Tensor, Meanings]]:
    columns: list[Hashable | None] = list(fitted.feature_columns)
    numbers, what = columns[: tabular.num_numbers], "table inputs"
    if tabular.categories is not None:
        codes = [
            (column, category)
            for column, categories in fitted.embedded_categories.items()
            for category in (None, *categories)
        ]
        yield tabular.categories.table.weight, Meanings(0, codes, "category vectors")
    if tabular.embedding is not None:
        yield tabular.embedding.weight, Meanings(0, numbers, what)
        yield tabular.embedding.bias, Meanings(0, numbers, what)
    if not isinstance(tabular, TabularBranch):
        if tabular.embedding is None:
            yield tabular.weight, Meanings(0, numbers, what)
        yield tabular.bias, Meanings(0, columns, what)
        return
    if isinstance(tabular.norm, nn.LayerNorm):
        yield tabular.norm.weight, Meanings(0, numbers, what)
        yield tabular.norm.bias, Meanings(0, numbers, what)
    width = 1 if tabular.embedding is None else tabular.embedding.width
    inputs = [(column, i) for column in numbers for i in range(width)]
    if tabular.categories is not None:
        inputs += [(column, i) for column in columns[tabular.num_numbers :] for i in range(tabular.categories.width)]
    yield tabular.linear.weight, Meanings(1, inputs, what)


def _tokens(folder: Path) -> list[Hashable]:
    """Return the token of each id; the id itself where the vocabulary has none."""
    content: Mapping[str, Any] = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    vocabulary = content["model"].get("vocab") or {}
    if isinstance(vocabulary, list):  # Unigram: [token, score] pairs in the order of their ids
        vocabulary = {token: i for i, (token, _) in enumerate(vocabulary)}
    ids = {**vocabulary, **{each["content"]: each["id"] for each in content.get("added_tokens") or ()}}
    tokens: list[Hashable] = [*range(max(ids.values(), default=-1) + 1)]
    for token, i in ids.items():
        tokens[i] = token
    return tokens
