"""Fit a companion on the prepared training rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from container.companion.bag import TokenBag, token_counts
from container.companion.forests import EXTRA_TREES, FOREST, fit_forest
from container.companion.graph import Companion, build_companion, predict
from container.companion.linear import (
    FOLDS,
    LinearText,
    TextPart,
    as_logits,
    count_scores,
    fit_linear,
    fit_linear_columns,
    num_columns,
    out_of_fold,
)
from container.companion.parts import ChosenParts, Part, choose_parts
from container.companion.trees import FittedTrees, fit_trees, most_rows
from container.data.folds import even_folds, hash_order
from container.data.records import RecordArrays
from container.decision.softmax import log_softmax
from container.errors import NotMade
from contracts.text_fields import ModelTextField

MOST_ROWS = 100_000
MOST_TOKENS = 20_000_000  # of all texts
MOST_CLASSES = 50
WIDE_ROWS = 2_000  # with more, the companion has trees alone: they gain from rows, and other parts cost time
TREES, COLUMNS, TEXT = "boosted trees", "linear", "linear over the texts"
FEWEST_ROWS = 2 * FOLDS  # of a class
_MOST_WEIGHTS = 400_000  # of a text, over all classes
_MOST_TERMS = 30_000
_TINY = 1e-12
_CHECKED_ROWS = 256
_FEWEST_EQUAL = 0.95  # of the checked rows
_TOLERANCE = 0.01


@dataclass(frozen=True)
class Fitted:
    """A companion with what its report needs.

    Attributes:
        parts: the models of which the companion is made.
        trees: boosted trees over the columns that the parts read.
        table: trees over the table alone; None without a table.
        classes: ids of the classes that it was fitted on. [M]
        log_shares: of each other class, the logarithm of its share; of `classes`, that of the share left for them. [K]
        rows: positions in train of the rows that it was fitted on. [N]
        uses_texts: whether its parts read the texts, or the table alone.
        labels: index in `classes` of the label of each of these rows. [N]
    """

    companion: Companion
    parts: ChosenParts
    trees: FittedTrees
    table: FittedTrees | None
    classes: np.ndarray
    log_shares: np.ndarray
    rows: np.ndarray
    uses_texts: bool
    labels: np.ndarray

    @property
    def held_out_logits(self) -> np.ndarray:
        """Return the logits of `rows` by companions of the other folds. [N, K]"""
        return self.all_classes(np.log(np.maximum(self.parts.held_out, _TINY)))

    def text_logits(self, scores: np.ndarray) -> np.ndarray:
        """Return the logarithms of the texts' probabilities from `Companion.scores`. [N, S] -> [N, K]"""
        columns = scores[:, -num_columns(len(self.classes)) :]
        return self.all_classes(log_softmax(as_logits(columns)))

    def table_logits(self, tabular: np.ndarray) -> np.ndarray:
        """Return the logarithms of the probabilities by the table alone. [N, n] -> [N, K]"""
        assert self.table is not None
        return self.all_classes(self.table.logits(tabular))

    def all_classes(self, logits: np.ndarray) -> np.ndarray:
        """Add the classes that were left out. [N, M] -> [N, K]"""
        placed = np.tile(self.log_shares, (len(logits), 1))
        placed[:, self.classes] += logits
        return placed


def fit_companion(
    train: Sequence[RecordArrays], fields: Sequence[ModelTextField], *, class_weights: Sequence[float], seed: int
) -> Fitted:
    """Fit the linear scores of the texts, then trees over the table, these scores and the texts' numbers of tokens.

    The trees read the table alone unless the texts decrease the log loss of held-out rows by more than its standard
    error: features of texts that say nothing about the label are noise, which costs quality where rows are few. With
    at most WIDE_ROWS rows, other models over the same columns are fitted too, and those that help are added.

    A class with fewer than FEWEST_ROWS rows, or with one group of rows, gets its share of the rows as a constant
    probability. In a sample, a row has the weight of the rows that it stands for, so the probabilities assume the
    shares of all rows.

    Args:
        class_weights: of the network's loss, so that both assume the same shares of the classes. [K]

    Raises:
        NotMade: too few rows, too many classes, or a graph that computes something else than the fitted models.
    """
    limit = _row_limit(train[0].tabular.shape[1], len(fields), min(len(class_weights), MOST_CLASSES))
    of_all = np.concatenate([part.weight for part in train])
    labels = np.where(of_all > 0, np.concatenate([part.label for part in train]), -1)  # a weight of 0 hides the label
    rows = _chosen_rows(train, labels, limit=limit, seed=seed)
    counts = np.bincount(labels[labels >= 0], minlength=len(class_weights))  # [K]
    totals = np.bincount(labels[labels >= 0], of_all[labels >= 0], len(counts))
    sampled = np.bincount(labels[rows], minlength=len(class_weights))  # [K]
    classes = _classes_to_fit(sampled, labels[rows], np.concatenate([part.unit for part in train])[rows])
    rows = rows[np.isin(labels[rows], classes)]
    chosen = _take(train, rows)
    units, labels = (np.concatenate(each) for each in zip(*((part.unit, part.label) for part in chosen)))
    codes = np.searchsorted(classes, labels)
    weights = np.asarray(class_weights)[labels] * _of_rows(chosen, codes, counts[classes], sampled[classes])
    folds = _even_folds(units, codes, seed=seed)
    bags, terms = _terms(chosen, len(fields), columns=num_columns(len(classes)))
    tabular = np.concatenate([part.tabular for part in chosen])
    given = {"weights": weights, "folds": folds, "seed": seed}
    if fields:
        linear = fit_linear(terms, codes, weights=weights)
        scores = out_of_fold(terms, codes, weights=weights, folds=folds).astype(np.float32)  # [N, S]
        columns = np.hstack([tabular, scores, token_counts(chosen)])
        trees = fit_trees(columns, codes, **given)
        table = fit_trees(tabular, codes, **given, sizes=[trees.held_out.leaves]) if tabular.shape[1] else None
    else:
        linear, scores = LinearText((), np.empty(0)), np.empty((len(rows), 0), np.float32)
        columns, trees = tabular, fit_trees(tabular, codes, **given)
        table = trees
    uses_texts = table is None or (bool(fields) and _is_better(trees, table, codes, weights=weights))
    if not uses_texts:
        assert table is not None
        columns, trees = tabular, table
    num_scores = scores.shape[1] if uses_texts else 0
    parts = _candidates(trees, columns, codes, num_numbers=tabular.shape[1], num_scores=num_scores, **given)
    kept = choose_parts(parts, codes, weights=weights, num_columns=columns.shape[1])
    log_shares = _log_shares(totals * (counts.sum() / totals.sum()), class_weights, classes)
    companion = build_companion(
        fields, bags, linear, kept, num_numbers=tabular.shape[1], classes=classes, log_shares=log_shares
    )
    fitted = Fitted(companion, kept, trees, table, classes, log_shares, rows, uses_texts, codes)
    _check_graph(fitted, chosen, fields, linear=linear, terms=terms)
    return fitted


def _classes_to_fit(sampled: np.ndarray, labels: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Return the ids of the classes with enough rows, in more than one group; raise NotMade if few or many have them.

    Args:
        sampled: rows of each class. [K]
        labels, units: of the rows. [N] each
    """
    classes = np.flatnonzero((sampled >= FEWEST_ROWS) & (_distinct(labels, units, len(sampled)) > 1))
    if len(classes) < 2:
        raise NotMade(f"fewer than two classes have {FEWEST_ROWS} training rows, in more than one group")
    if len(classes) > MOST_CLASSES:
        raise NotMade(f"{len(classes)} classes are more than {MOST_CLASSES}")
    return classes


def _of_rows(chosen: Sequence[RecordArrays], codes: np.ndarray, counts: np.ndarray, sampled: np.ndarray) -> np.ndarray:
    """Return the weight of each chosen row: its own times the rows of train that it stands for. [N]

    Args:
        codes: class of each row, 0..M-1. [N]
        counts, sampled: rows of each class in train, and chosen. [M] each
    """
    stands_for = counts / sampled
    stands_for *= sampled.sum() / counts.sum()  # their mean is 1, which regularization assumes
    of_records = np.concatenate([part.weight for part in chosen]).astype(np.float64)
    return stands_for[codes] * (of_records / of_records.mean())


def _candidates(
    trees: FittedTrees,
    columns: np.ndarray,
    codes: np.ndarray,
    *,
    num_numbers: int,
    num_scores: int,
    weights: np.ndarray,
    folds: np.ndarray,
    seed: int,
) -> dict[str, Part]:
    """Return the trees; with few rows, also other models over the same columns. [N, F], [N] -> by name"""
    parts: dict[str, Part] = {TREES: trees}
    if len(columns) > WIDE_ROWS:
        return parts
    for kind in (FOREST, EXTRA_TREES):
        parts[kind] = fit_forest(kind, columns, codes, weights=weights, folds=folds, seed=seed)
    parts[COLUMNS] = fit_linear_columns(columns, codes, weights=weights, folds=folds)
    if num_scores:
        end = num_numbers + num_scores
        start = end - num_columns(int(codes.max()) + 1)
        parts[TEXT] = TextPart(as_logits(columns[:, start:end]), start, end)
    return parts


def _row_limit(num_inputs: int, num_texts: int, num_classes: int) -> int:
    num_features = num_inputs + num_texts + count_scores(num_texts, columns=num_columns(num_classes))
    return min(MOST_ROWS, most_rows(num_features=num_features, num_classes=num_classes))


def _log_shares(counts: np.ndarray, class_weights: Sequence[float], classes: np.ndarray) -> np.ndarray:
    shares = (counts + 0.5) * class_weights
    shares /= shares.sum()
    shares[classes] = shares[classes].sum()
    return np.log(shares)


def _check_graph(
    fitted: Fitted,
    chosen: Sequence[RecordArrays],
    fields: Sequence[ModelTextField],
    *,
    linear: LinearText,
    terms: Sequence[sparse.csr_matrix],
) -> None:
    """Raise NotMade if the graph computes something else than `linear` and the trees for some of the chosen rows.

    The trees get the graph's own scores, so both sides compare equal numbers with equal thresholds, and only the sum of
    the leaves is rounded differently. The error of a 16-bit weight is at most 1/65534 of the largest one, so that of a
    score is within the tolerance for records of up to 100,000 tokens. A few other rows are allowed: a graph that is
    wrong because a library changed is wrong for most rows.

    Args:
        terms: of each text of these rows. [N, R] each
    """
    checked = np.unique(np.linspace(0, len(fitted.rows) - 1, _CHECKED_ROWS).astype(np.int64))
    records = _take(chosen, checked)
    scores = linear.scores([matrix[checked] for matrix in terms]) if fields else np.empty((len(checked), 0))
    logits, found = predict(fitted.companion, records, fields)
    largest = max([1.0, *(float(np.abs(weights).max()) for weights in linear.weights)])
    tabular = np.concatenate([part.tabular for part in records])
    columns = np.hstack([tabular, found, token_counts(records)]) if fitted.uses_texts else tabular
    expected = np.exp(fitted.all_classes(log_softmax(fitted.parts.logits(columns))))
    for what, difference, tolerance in (
        ("text scores", np.abs(found - scores), _TOLERANCE * largest),
        ("probabilities", np.abs(np.exp(logits) - expected), _TOLERANCE),
    ):
        equal = float((difference <= tolerance).all(axis=1).mean())
        if equal < _FEWEST_EQUAL:
            raise NotMade(
                f"its graph computes other {what} than the fitted model for {1 - equal:.0%} of {len(difference)} rows"
            )


def _is_better(trees: FittedTrees, other: FittedTrees, labels: np.ndarray, *, weights: np.ndarray) -> bool:
    """Return whether the log loss of held-out rows is lower by more than its standard error."""
    gains = weights * (other.held_out.losses(labels) - trees.held_out.losses(labels))
    return bool(gains.mean() > gains.std() / np.sqrt(len(gains)))


def _chosen_rows(train: Sequence[RecordArrays], labels: np.ndarray, *, limit: int, seed: int) -> np.ndarray:
    """Return the positions of the labelled rows: all, or a sample that a hash of the row's number orders.

    The sample has at most `limit` rows and MOST_TOKENS tokens, so that the terms fit into memory. One half of it has
    equally many rows of each class, as far as train has them, so that it contains enough rows of rare classes.
    """
    usable = np.flatnonzero(labels >= 0)
    labels = labels[usable]
    tokens = np.concatenate([part.token_counts.sum(axis=1) for part in train])[usable]
    half = min(limit, int(MOST_TOKENS / max(1.0, tokens.mean()))) // 2
    of_each = half // len(np.unique(labels))
    order = hash_order(np.concatenate([part.row for part in train])[usable], seed=seed)
    order = order[np.argsort(np.minimum(_place_in_class(labels[order]), of_each), kind="stable")][:limit]
    return np.sort(usable[order[np.cumsum(tokens[order], dtype=np.int64) <= MOST_TOKENS]])


def _place_in_class(labels: np.ndarray) -> np.ndarray:
    """Return the number of earlier rows with the same label. [N]"""
    by_class, counts = np.argsort(labels, kind="stable"), np.bincount(labels)
    place = np.empty_like(by_class)
    place[by_class] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return place


def _take(train: Sequence[RecordArrays], rows: np.ndarray) -> list[RecordArrays]:
    """Return the rows at these positions in train, in order; a part without any is left out."""
    ends = np.cumsum([len(part.row) for part in train])
    of_parts = np.split(rows, np.searchsorted(rows, ends[:-1]))
    starts = ends - [len(part.row) for part in train]
    parts = zip(train, of_parts, starts, strict=True)
    return [part.take(positions - start) for part, positions, start in parts if len(positions)]


def _even_folds(units: np.ndarray, codes: np.ndarray, *, seed: int) -> np.ndarray:
    """Return the fold of each row.

    Raises:
        NotMade: fewer than FOLDS groups, or a class in one fold.
    """
    distinct = len(np.unique(units))
    if distinct < FOLDS:
        raise NotMade(f"the training rows have {distinct} groups, and there are {FOLDS} folds")
    folds = even_folds(units, codes, num_folds=FOLDS, seed=seed)
    if _distinct(codes, folds, codes.max() + 1).min() < 2:
        raise NotMade("the few groups of a class are in one fold, and the other folds know nothing of it")
    return folds


def _distinct(labels: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """Return the number of distinct values of each of `count` labels. [N], [N] -> [count]"""
    pairs = np.unique(np.stack((labels.astype(np.int64), values.astype(np.int64))), axis=1)
    return np.bincount(pairs[0], minlength=count)


def _terms(
    chosen: Sequence[RecordArrays], num_texts: int, *, columns: int
) -> tuple[list[TokenBag], list[sparse.csr_matrix]]:
    """Return the bag of each text, and its terms in the chosen rows. [N, R] each"""
    limit = min(_MOST_TERMS, _MOST_WEIGHTS // columns)
    bags, terms = [], []
    for index in range(num_texts):
        parts = [part.texts[index] for part in chosen]
        bags.append(TokenBag.fit(parts, limit=limit))
        terms.append(sparse.csr_matrix(sparse.vstack([bags[-1].transform(part) for part in parts])))
    return bags, terms
