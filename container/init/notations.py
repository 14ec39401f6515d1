"""Say how init read numbers and dates where it had a choice, and take what the user says instead."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.init.facts import ColumnFacts
from container.init.roles import NEARLY_EMPTY, Column
from container.steps.preprocess.column_sample import ColumnNotations
from container.tables.dates import read_dates
from container.tables.notations import PLAIN
from container.tables.number_notations import read_numbers
from contracts.errors import ContractError
from contracts.spelling import SIMILAR, did_you_mean
from contracts.value_types import DATE_FORMATS, ISO, NUMBER_FORMATS, UTC_SUFFIX

_FREQUENT = 3  # words of a warning
_LONGEST = 40  # characters, on average, of the cells of a column that may have numbers or dates
_NEARLY_ALL = 0.95  # share of the cells
_UNIT = r"^[+-]?[0-9][0-9.,]* ?(?P<unit>[A-Za-z\x{b5}\x{b0}]+[23]?)$"  # 53 kg, 3 days
_SPAN = "^[0-9]{1,3}:[0-5][0-9](:[0-5][0-9])?$"
_MOST_UNITS = 8


@dataclass(frozen=True)
class WrittenAs:
    """What the user says about notations.

    Attributes:
        number_format, date_format: by column, as the hyperparameters of these names.
        null_values: words for missing numbers and dates.
    """

    number_format: Mapping[str, str] = field(default_factory=dict)
    date_format: Mapping[str, str] = field(default_factory=dict)
    null_values: Sequence[str] = ()

    @classmethod
    def of_options(cls, number_format: Sequence[str], date_format: Sequence[str], null: Sequence[str]) -> "WrittenAs":
        """Read `--number-format COLUMN=NOTATION`, `--date-format COLUMN=NOTATION` and `--null WORD`.

        Raises:
            ContractError: a notation that is not known.
        """
        dates = [*DATE_FORMATS, *(f"{each}{UTC_SUFFIX}" for each in DATE_FORMATS)]
        numbers = _by_column("--number-format", number_format, NUMBER_FORMATS)
        return cls(numbers, _by_column("--date-format", date_format, dates), null)

    def of(self, name: str, *, is_date: bool) -> ColumnNotations:
        """Return the notations that a column may have; `is_date` as in ColumnNotations."""
        missing = [word.strip().lower() for word in self.null_values]
        number_format, date_format = self.number_format.get(name), self.date_format.get(name)
        return ColumnNotations(missing, number_format=number_format, date_format=date_format, is_date=is_date)


def _by_column(option: str, values: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    by_column = {}
    for value in values:
        name, _, written = value.rpartition("=")
        if not name or written not in known:
            hint = did_you_mean(written, list(known), hint=SIMILAR)
            raise ContractError(
                f"{option}: {value!r} is not COLUMN=NOTATION{hint}", f"The notations: {', '.join(map(repr, known))}."
            )
        by_column[name] = written
    return by_column


def doubts_of(column: Column) -> Iterator[str]:
    """Yield a sentence for each choice about the notation of a column, and for cells that keep it from a role."""
    facts, role = column.facts, column.role
    if role == "number":
        yield from _of_number(facts)
    elif role == "date":
        yield from _of_date(facts)
    elif role in ("category", "text", "ignored") and not column.is_given and facts.missing <= NEARLY_EMPTY:
        yield from _of_others(column)


def _of_number(facts: ColumnFacts) -> Iterator[str]:
    notations, written = facts.notations.numbers, facts.number_format or PLAIN
    if (others := notations.rivals(written)) and not facts.notations.is_chosen:
        cells = facts.sample.drop_null()
        here, there = (read_numbers(cells, each, strict=True).values for each in (written, others[0]))
        place = int(np.flatnonzero((here != there) & ~np.isnan(there))[0])
        why = "nothing in the table shows decimal commas" if facts.decimal_comma is None else "as other columns do"
        yield (
            f"{facts.name}: {cells[place].as_py()!r} is read as {here[place]:g}, {why}. If it is {there[place]:g}: "
            f"{option('--number-format', facts.name, others[0] or NUMBER_FORMATS[0])}."
        )
    if notations.units["%"] and (bare := notations.counts[written].read - notations.units["%"]):
        signs = f"{notations.units['%']:,} of {notations.counts[written].read:,} numbers have a percent sign"
        yield f"{facts.name}: {signs}, and {bare:,} have none: 98 % is read as 98, and 0.98 as 0.98. Write all alike."


def _of_date(facts: ColumnFacts) -> Iterator[str]:
    notations, written = facts.notations.dates, facts.date_format or ISO
    if notations.is_ambiguous and not facts.notations.is_chosen:
        cells = facts.sample.drop_null()
        days = [
            pa.array(read_dates(cells, each).seconds).cast(pa.int64()).cast(pa.timestamp("s")).cast(pa.string())
            for each in (written, notations.rivals(written)[0])
        ]
        place = pc.index(pc.not_equal(*days), True).as_py()
        here, there = (each[place].as_py()[:10] for each in days)
        yield (
            f"{facts.name}: {cells[place].as_py()!r} is read as {here}, because no day is above 12. If it is {there}: "
            f"{option('--date-format', facts.name, notations.rivals(written)[0])}."
        )


def _of_others(column: Column) -> Iterator[str]:
    facts = column.facts
    if not len(facts.keys) or facts.characters.mean() > _LONGEST:
        return
    dates, units = facts.notations.dates, facts.notations.numbers.units
    zoned = dates.counts[dates.equal[0]].zoned
    if dates.reads_all(dates.equal[0]) and zoned and facts.date_format is None:
        bare = dates.counts[dates.equal[0]].read - zoned
        yield (
            f"{column.name}: {zoned:,} times have a time zone, and {bare:,} have none, so it is no date "
            f"({column.role}: {column.why}). To read these as UTC: "
            f"{option('--date-format', column.name, dates.equal[0] + UTC_SUFFIX)}."
        )
    currencies = [f"{unit} ({count:,})" for unit, count in units.most_common() if unit]
    if len(currencies) > 1:
        yield (
            f"{column.name}: the numbers are in {', '.join(currencies[:_FREQUENT])}, so it is no number "
            f"({column.role}: {column.why}). Write all in one, or give each one a column."
        )
    nearly = facts.nearly()
    if not nearly and facts.written_as_values and not facts.is_named_code and not facts.form:
        examples = " and ".join(map(repr, facts.examples(2)))
        yield (
            f"{column.name}: no notation reads all cells, e.g. {examples}, so it is no number and no date "
            f"({column.role}: {column.why}). Write all alike."
        )
    if nearly and not facts.is_named_code:
        role, others, words = nearly
        read = facts.read_as(role)[0]
        frequent = words.most_common(_FREQUENT)
        counts = ", ".join(f"{word!r} ({count:,})" for word, count in frequent)
        null = " ".join(f"--null {shlex.quote(word)}" for word, _ in frequent)
        yield (
            f"{column.name}: of {read + others:,} cells, {others:,} cannot be read as a {role}, e.g. "
            f"{next(iter(words))!r}, so it is no {role} ({column.role}: {column.why}). The most frequent: {counts}. "
            f"To read them as missing: {null}. Otherwise correct the cells."
        )
    parts = pc.extract_regex(facts.keys, pattern=_UNIT)
    kinds = Counter(parts.field("unit").filter(parts.is_valid()).to_pylist())
    if sum(kinds.values()) > _NEARLY_ALL * len(facts.keys) and len(kinds) <= _MOST_UNITS:
        names = ", ".join(repr(unit) for unit, _ in kinds.most_common(_FREQUENT))
        yield f"{column.name}: the cells are numbers with {names}. To use it as a number, write them in one unit."
    spans = pc.sum(pc.match_substring_regex(facts.keys, pattern=_SPAN)).as_py() or 0
    if spans > _NEARLY_ALL * len(facts.keys):
        yield f"{column.name}: the cells are times such as {facts.values[0]}. To use it as a number, write seconds."


def option(name: str, column: str, written: str) -> str:
    """Return an option as a shell reads it."""
    return f"{name} {shlex.quote(f'{column}={written}')}"
