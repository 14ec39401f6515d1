"""Say what is wrong with a table before a model is trained on it, with numbers."""

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow.compute as pc

from container.init.profile import RawTables
from container.init.roles import NEARLY_EMPTY, Column
from container.init.splits import Repeated
from container.tables.dates import ISO
from container.tables.values import keys
from contracts.spelling import counted

FEWEST_ROWS = 10  # of a label
LEAKS = 0.9  # share of the errors of always guessing the most frequent label that one column removes
_BINS = 20


def warnings_of(
    raw: RawTables,
    *,
    counts: Mapping[str, Sequence[int]],
    repeated: Repeated,
    group: str | None,
    time: str | None,
) -> Iterator[str]:
    """Yield sentences.

    Args:
        counts: rows of each label by split.
    """
    yield from raw.reading.warnings()
    rare = [f"{label} ({sum(rows)})" for label, rows in counts.items() if sum(rows) < FEWEST_ROWS]
    if rare:
        yield f"Fewer than {FEWEST_ROWS} rows have the label {', '.join(rare)}: the model can hardly learn it."
    for split, k in (("train", 0), ("val", 1), ("test", 2)):
        absent = [label for label, rows in counts.items() if not rows[k]]
        if absent and (split == "train" or not rare):
            yield f"{split} has no row with the label {', '.join(absent)}."
    yield from _of_few_cells(raw)
    yield from _of_leakage(raw)
    yield from _of_labels_in_texts(raw)
    yield from _of_repeated(raw, repeated, counts)
    if group is None:
        yield from _of_groups(raw)
    times = [name for name in raw.of_role("date") if raw.columns[name].facts.date_format == ISO]  # as --time reads them
    if times and time is None:
        yield f"{', '.join(times)}: if the model will score later rows, split by time: --time {_quoted(times[0])}."


def _of_few_cells(raw: RawTables) -> Iterator[str]:
    """Yield a sentence for each column that would be a number or a date without a few cells."""
    for column in raw.columns.values():
        facts = column.facts
        by_cells = column.role in ("category", "text", "ignored") and facts.missing <= NEARLY_EMPTY
        if by_cells and not column.is_given and not facts.is_named_code and (found := facts.nearly()):
            role, cells = found
            yield (
                f"{column.name}: of {len(facts.keys):,} cells, {len(cells):,} cannot be read as a {role}, e.g. "
                f"{cells[0].as_py()!r}, so it is no {role} ({column.role}: {column.why}). To use it as a "
                f"{role}, correct or empty these cells, and repeat init with --force."
            )


def _of_leakage(raw: RawTables) -> Iterator[str]:
    """Yield a sentence for each column that alone predicts the label, measured on the half that it is not fitted on."""
    labels = pc.fill_null(raw.reading.read(raw.sample[raw.label]), "").dictionary_encode()
    codes = labels.indices.to_numpy()
    known = np.array([name != "" for name in labels.dictionary.to_pylist()])[codes]
    half = np.arange(len(codes)) % 2 == 0
    fitted, held_out = known & half, known & ~half
    if fitted.sum() < FEWEST_ROWS or held_out.sum() < FEWEST_ROWS:
        return
    guess = np.bincount(codes[fitted]).argmax()
    base = float((codes[held_out] == guess).mean())
    for column in raw.columns.values():
        if column.role not in ("number", "category", "text") or base == 1:
            continue
        values = _values(column)  # [S]
        table = np.zeros((int(values.max()) + 1, len(labels.dictionary)))
        np.add.at(table, (values[fitted], codes[fitted]), 1)
        best = np.where(table.sum(1) > 0, table.argmax(1), guess)
        accuracy = float((best[values[held_out]] == codes[held_out]).mean())
        if (accuracy - base) / (1 - base) > LEAKS:
            yield (
                f"{column.name}: predicts {accuracy:.1%} of the labels alone (always {labels.dictionary[int(guess)]}: "
                f"{base:.1%}). If its value is not known when the model is asked, leave it out: "
                f"--ignore {_quoted(column.name)}."
            )


def _values(column: Column) -> np.ndarray:
    """Return the index of each cell's value, of numbers with many values that of a bin. [S] int64"""
    facts = column.facts
    if column.role == "number" and facts.is_number and facts.distinct > _BINS:
        edges = np.nanquantile(facts.numbers, np.linspace(0, 1, _BINS + 1)[1:-1])
        return np.where(np.isnan(facts.numbers), _BINS, np.searchsorted(edges, facts.numbers, side="right"))
    return pc.fill_null(keys(facts.sample), "").dictionary_encode().indices.to_numpy().astype(np.int64)


def _of_labels_in_texts(raw: RawTables) -> Iterator[str]:
    """Yield a sentence for each text that contains the row's own label much more often than the other labels."""
    names = [name for name in raw.labels if len(name) >= 3 and re.search("[a-zA-Z]", name)]
    if len(names) < 2:
        return
    labels = raw.reading.read(raw.sample[raw.label])
    for text in raw.of_role("text"):
        own = others = 0
        cells = keys(raw.sample[text])
        for name in names[:50]:
            literal = "".join(sign if sign.isalnum() else rf"\x{{{ord(sign):x}}}" for sign in name)
            found = pc.fill_null(pc.match_substring_regex(cells, pattern=rf"(?i)\b{literal}\b"), False)
            same = pc.fill_null(pc.equal(labels, name), False)
            own += pc.sum(pc.and_(found, same)).as_py() or 0
            others += pc.sum(pc.and_(found, pc.invert(same))).as_py() or 0
        rows = len(cells) - cells.null_count
        if own > 0.5 * rows and own > 2 * others:
            yield f"{text}: {own / rows:.0%} of the texts contain the name of their own label."


def _of_repeated(raw: RawTables, repeated: Repeated, counts: Mapping[str, Sequence[int]]) -> Iterator[str]:
    rows = sum(map(sum, counts.values()))
    for what, shared in repeated.shared.items():
        if shared > 0.001 * rows:
            noun, of = ("row", "(all inputs and the label)") if what == "rows" else ("text", f"of {what}")
            yield f"Several splits have the same {counted(shared, noun)} {of}: metrics of val and test look too good."
    if repeated.ids:
        ids = raw.of_role("id")[0]
        yield f"{ids}: {repeated.ids:,} rows repeat an id of an earlier row, e.g. {repeated.id_example}."


def _of_groups(raw: RawTables) -> Iterator[str]:
    for column in raw.columns.values():
        facts = column.facts
        if (
            column.role in ("category", "ignored")
            and facts.is_named_person
            and facts.distinct > 20
            and facts.repeats > 0.1
        ):
            yield (
                f"{column.name}: {len(facts.keys):,} rows have {facts.distinct:,} values. To keep rows of one value "
                f"in one split: --group {_quoted(column.name)}."
            )


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[\w.-]+", name) else f'"{name}"'
