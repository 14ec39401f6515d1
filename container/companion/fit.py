"""Fit a companion on the prepared training rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from container.companion.bag import TokenBag, token_counts
from container.companion.graph import Companion, build_companion, predict
from container.companion.linear import FOLDS, LinearText, count_scores, fit_linear, num_columns, out_of_fold
from container.companion.trees import FittedTrees, fit_trees, most_rows
from container.data.records import RecordArrays
from container.decision.softmax import log_softmax
from container.errors import NotMade
from container.preprocessing.risk_tables import fold_of
from contracts.text_fields import ModelTextField

MOST_ROWS = 100_000
MOST_TOKENS = 20_000_000  # of all texts
MOST_CLASSES = 50
FEWEST_ROWS = 2 * FOLDS  # of a class
_MOST_WEIGHTS = 400_000  # of a text, over all classes
_MOST_TERMS = 30_000
_HASHES = 2**31
_TINY = 1e-12
_CHECKED_ROWS = 256
_FEWEST_EQUAL = 0.95  # of the checked rows
_TOLERANCE = 0.01


@dataclass(frozen=True)
class Fitted:
    """A companion with what its report needs.

    Attributes:
        trees: the companion's.
        table: trees over the table alone; None without a table.
        classes: ids of the classes that it was fitted on. [M]
        log_shares: of each other class, the logarithm of its share; of `classes`, that of the share left for them. [K]
        rows: positions in train of the rows that it was fitted on. [N]
        uses_texts: whether its trees read the texts, or the table alone.
        labels: index in `classes` of the label of each of these rows. [N]
    """

    companion: Companion
    trees: FittedTrees
    table: FittedTrees | None
    classes: np.ndarray
    log_shares: np.ndarray
    rows: np.ndarray
    uses_texts: bool
    labels: np.ndarray

    def text_logits(self, scores: np.ndarray) -> np.ndarray:
        """Return the logarithms of the texts' probabilities from `Companion.scores`. [N, S] -> [N, K]"""
        if len(self.classes) == 2:
            return self.all_classes(log_softmax(scores[:, -1:] * np.array([-0.5, 0.5])))
        return self.all_classes(log_softmax(scores[:, -len(self.classes) :]))

    def table_logits(self, tabular: np.ndarray) -> np.ndarray:
        """Return the logarithms of the probabilities by the table alone. [N, n] -> [N, K]"""
        assert self.table is not None
        return self.all_classes(np.log(np.maximum(self.table.probabilities(tabular), _TINY)))

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
    error: features of texts that say nothing about the label are noise, which costs quality where rows are few.

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
    units = np.concatenate([part.unit for part in train])[rows]
    classes = np.flatnonzero((sampled >= FEWEST_ROWS) & (_distinct(labels[rows], units, len(counts)) > 1))
    if len(classes) < 2:
        raise NotMade(f"fewer than two classes have {FEWEST_ROWS} training rows, in more than one group")
    if len(classes) > MOST_CLASSES:
        raise NotMade(f"{len(classes)} classes are more than {MOST_CLASSES}")
    rows = rows[np.isin(labels[rows], classes)]
    chosen = _take(train, rows)
    units, labels = (np.concatenate(each) for each in zip(*((part.unit, part.label) for part in chosen)))
    codes = np.searchsorted(classes, labels)
    stands_for = counts[classes] / sampled[classes]  # rows of train for each row of a class
    stands_for *= sampled[classes].sum() / counts[classes].sum()  # their mean is 1, which regularization assumes
    of_records = np.concatenate([part.weight for part in chosen]).astype(np.float64)
    weights = np.asarray(class_weights)[labels] * stands_for[codes] * (of_records / of_records.mean())
    folds = _even_folds(units, codes, seed=seed)
    bags, terms = _terms(chosen, len(fields), columns=num_columns(len(classes)))
    tabular = np.concatenate([part.tabular for part in chosen])
    given = {"weights": weights, "folds": folds, "seed": seed}
    if fields:
        linear = fit_linear(terms, codes, weights=weights)
        scores = out_of_fold(terms, codes, weights=weights, folds=folds).astype(np.float32)  # [N, S]
        trees = fit_trees(np.hstack([tabular, scores, token_counts(chosen)]), codes, **given)
        table = fit_trees(tabular, codes, **given, sizes=[trees.held_out.leaves]) if tabular.shape[1] else None
    else:
        linear = LinearText((), np.empty(0))
        trees = table = fit_trees(tabular, codes, **given)
    uses_texts = table is None or (bool(fields) and _is_better(trees, table, codes, weights=weights))
    trees = trees if uses_texts or table is None else table
    log_shares = _log_shares(totals * (counts.sum() / totals.sum()), class_weights, classes)
    companion = build_companion(
        fields, bags, linear, trees, num_numbers=tabular.shape[1], classes=classes, log_shares=log_shares
    )
    fitted = Fitted(companion, trees, table, classes, log_shares, rows, uses_texts, codes)
    _check_graph(fitted, chosen, fields, linear=linear, terms=terms)
    return fitted


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
    features = np.hstack([tabular, found, token_counts(records)]) if fitted.uses_texts else tabular
    expected = np.exp(fitted.all_classes(np.log(np.maximum(fitted.trees.probabilities(features), _TINY))))
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


def hash_order(numbers: np.ndarray, *, seed: int) -> np.ndarray:
    """Return positions that order rows by a hash of their numbers. [N]"""
    return np.argsort(fold_of(numbers, seed=seed, num_folds=_HASHES), kind="stable")


def _take(train: Sequence[RecordArrays], rows: np.ndarray) -> list[RecordArrays]:
    """Return the rows at these positions in train, in order; a part without any is left out."""
    ends = np.cumsum([len(part.row) for part in train])
    of_parts = np.split(rows, np.searchsorted(rows, ends[:-1]))
    starts = ends - [len(part.row) for part in train]
    parts = zip(train, of_parts, starts, strict=True)
    return [part.take(positions - start) for part, positions, start in parts if len(positions)]


def _even_folds(units: np.ndarray, codes: np.ndarray, *, seed: int) -> np.ndarray:
    """Return the fold of each row: the rows of a class, in the order of a hash, go to the folds in turn.

    Groups of several rows stay together, with about even shares of the classes.

    Raises:
        NotMade: fewer than FOLDS groups, or a class in one fold.
    """
    distinct = len(np.unique(units))
    if distinct < FOLDS:
        raise NotMade(f"the training rows have {distinct} groups, and there are {FOLDS} folds")
    if distinct < len(units):
        from sklearn.model_selection import StratifiedGroupKFold

        splitter = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=seed % 2**32)
        in_fold = [held_out for _, held_out in splitter.split(codes, codes, units)]
        folds = np.repeat(np.arange(FOLDS), [len(rows) for rows in in_fold])[np.argsort(np.concatenate(in_fold))]
        if _distinct(codes, folds, codes.max() + 1).min() < 2:
            raise NotMade("the few groups of a class are in one fold, and the other folds know nothing of it")
        return folds
    folds = np.empty(len(codes), np.int64)
    for code in np.unique(codes):
        of_class = np.flatnonzero(codes == code)
        folds[of_class[hash_order(units[of_class], seed=seed)]] = np.arange(len(of_class)) % FOLDS
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
