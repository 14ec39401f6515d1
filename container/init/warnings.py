"""Say what is wrong with a table before a model is trained on it, with numbers."""

import shlex
from collections.abc import Iterator, Mapping, Sequence

from container.evaluation.curves import expected_auroc_width
from container.evaluation.data_findings import FEW_RECORDS
from container.init.labels import listed_rows, spelled_alike
from container.init.leaks import Doubt, labels_in_texts, leaks_of
from container.init.notations import doubts_of
from container.init.profile import RawTables
from container.init.splits import Repeated
from contracts.paths import SPLITS
from contracts.spelling import counted

FEWEST_ROWS = 10  # of a label
_SPELLINGS = 3  # named categories
_AUROC = 0.8  # for which an interval is given


def warnings_of(
    raw: RawTables,
    *,
    counts: Mapping[str, Sequence[int]],
    repeated: Repeated,
    group: str | None,
    time: str | None,
) -> Iterator[Doubt]:
    """Yield sentences.

    Args:
        counts: rows of each label by split.
    """
    leaks = list(leaks_of(raw))
    yield from map(Doubt, raw.reading.warnings())
    yield from map(Doubt, _of_labels(counts))
    for column in raw.columns.values():
        yield from map(Doubt, doubts_of(column))
        if column.role == "category" and not column.part:
            yield from map(Doubt, _of_spellings(column.name, column.facts.counts))
    yield from leaks
    yield from labels_in_texts(raw)
    yield from map(Doubt, _of_repeated(raw, repeated, counts))
    if group is None:
        yield from map(Doubt, _of_groups(raw))
    leaking = {name for leak in leaks for name in leak.inputs}
    dates = [raw.columns[name].facts for name in raw.of_role("date") if name not in leaking]
    times = [facts.name for facts in dates if not facts.missing]  # --time needs one in each row
    if times and time is None:
        yield Doubt(
            f"{', '.join(times)}: if the model will score later rows, split by time: --time {shlex.quote(times[0])}."
        )


def _of_spellings(name: str, counts: Mapping[str, int]) -> Iterator[str]:
    alike = spelled_alike(counts)
    if alike:
        named = "; ".join(listed_rows({value: counts[value] for value in values}) for values in alike[:_SPELLINGS])
        yield f"{name}: {counted(len(alike), 'value')} with several spellings: {named}. Write each in one way."


def _of_labels(counts: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Yield sentences on labels with few rows, in all rows and in a split."""
    rare = [f"{label} ({sum(rows)})" for label, rows in counts.items() if sum(rows) < FEWEST_ROWS]
    if rare:
        yield f"Fewer than {FEWEST_ROWS} rows have the label {', '.join(rare)}: the model can hardly learn it."
    for split, k in (("train", 0), ("val", 1), ("test", 2)):
        absent = [label for label, rows in counts.items() if not rows[k]]
        if absent and (split == "train" or not rare):
            yield f"{split} has no row with the label {', '.join(absent)}."
    few = {}
    for split, rows in zip(SPLITS[1:], [*zip(*counts.values())][1:]):
        fewest, label = min((count, label) for label, count in zip(counts, rows) if count)
        if fewest < FEW_RECORDS and sum(rows) > fewest:
            few[split] = (
                f"{split} has {counted(fewest, 'row')} with the rarest label {label}",
                fewest,
                sum(rows) - fewest,
            )
    if few:
        _, fewest, others = min(few.values(), key=lambda each: each[1])
        width = expected_auroc_width(_AUROC, fewest, others)
        yield (
            f"{'; '.join(text for text, _, _ in few.values())}. Around an AUROC of {_AUROC} of this label, the 95 % "
            f"interval will be about {width:.2f} wide, so smaller differences say nothing."
        )


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
            and facts.is_named("person")
            and facts.distinct > 20
            and facts.repeats > 0.1
        ):
            yield (
                f"{column.name}: {len(facts.keys):,} rows have {facts.distinct:,} values. To keep rows of one value "
                f"in one split: --group {shlex.quote(column.name)}."
            )
