"""Decide the role of each column, with the reason."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from container.init.codes import code_rule
from container.init.facts import FEW, FEWEST, UNIQUE, ColumnFacts
from container.preprocessing.category_parts import category_part
from contracts.errors import ContractError
from contracts.spelling import SIMILAR, did_you_mean
from contracts.tabular_inputs import date_inputs
from contracts.value_types import EPOCHS, CategoryPart

Role = Literal["id", "label", "text", "number", "category", "date", "ignored"]

INPUTS: tuple[Role, ...] = ("text", "number", "category", "date")  # roles of the columns that the model reads

NEARLY_EMPTY = 0.97  # share of missing cells
CODES = 0.5  # share of codes among such columns from which whole numbers are a category
# By the form of many values, the parts that may be their category, the first one with enough rows of each value.
PARTS: dict[str, tuple[CategoryPart, ...]] = {
    "e-mail addresses": ("domain", "top_level_domain"),
    "URLs": ("domain", "top_level_domain"),
    "IP addresses": ("first_byte",),
    "phone numbers": ("first_3", "first_2"),
    "postal codes": ("first_3", "first_2"),
}
ROWS_OF_PART = 5  # rows of each value of a part, on average
FEWEST_TEXTS = 10  # distinct values of a text of many words, or whose name says that it is one
FEWEST_FILLED = 200  # cells of a column that may be nearly empty


@dataclass(frozen=True)
class Column:
    """A column with its role.

    Attributes:
        why: a clause without a full stop.
        is_given: whether the user chose the role.
        part: of each value, which is the category; None: all.
    """

    facts: ColumnFacts
    role: Role
    why: str
    is_given: bool = False
    part: CategoryPart | None = None

    @property
    def name(self) -> str:
        return self.facts.name


def decide_roles(
    facts: Mapping[str, ColumnFacts], *, label: str, given: Mapping[str, tuple[Role, str]]
) -> dict[str, Column]:
    """Return the columns with their roles, in the order of the table.

    Args:
        label: the column of the label.
        given: roles that the user chose, by column, with the reason.

    Raises:
        ContractError: a column that the table lacks, several ids, or no column for the model.
    """
    for name in (label, *given):
        if name not in facts:
            hint = did_you_mean(name, list(facts), hint=SIMILAR)
            raise ContractError(f"the table has no column {name!r}{hint}", f"Its columns: {', '.join(facts)}.")
    if label in given:
        raise ContractError(f"--label: {label!r} is also given by {given[label][1]}", "Give each column one role.")
    chosen = [name for name, (role, _) in given.items() if role == "id"]
    if len(chosen) > 1:
        raise ContractError(f"--id: names {len(chosen)} columns: {', '.join(chosen)}", "Name one of them.")
    for name, (role, option) in given.items():
        _check_cells(facts[name], role, option)
    columns = {}
    for name, of_column in facts.items():
        if name == label:
            columns[name] = Column(of_column, "label", "the label")
        elif name in given:
            columns[name] = Column(of_column, *given[name], is_given=True)
        else:
            columns[name] = _with_part(Column(of_column, *role_of(of_column)))
    columns = _one_name(_one_id(columns, chosen))
    if not any(column.role in INPUTS for column in columns.values()):
        raise ContractError(
            "no column is a text, a number, a category or a date",
            "Name the columns of the model with --text, --number, --category and --date.",
        )
    return columns


def _check_cells(facts: ColumnFacts, role: Role, option: str) -> None:
    """Raise ContractError if the user's role is a number or a date, and cells are no such value, or all are missing."""
    if role in ("number", "date") and not facts.distinct:
        raise ContractError(f"{option}: column {facts.name!r}: every cell is empty", f"Leave out {option}.")
    if role not in ("number", "date") or (facts.is_number if role == "number" else facts.date_format is not None):
        return
    read, others, words = facts.read_as(role)
    example = next(iter(words), facts.values[0])
    what = f"{others:,} of {read + others:,} cells cannot be read as a {role}, e.g. {example!r}" if others else ""
    if what or role == "date":
        raise ContractError(
            f"{option}: column {facts.name!r}: {what or 'some times have a time zone, and others have none'}",
            f"Correct or empty these cells in the table, or leave out {option}.",
        )


def _with_part(column: Column) -> Column:
    """Return the column; as a category of a part of its values, if they have a form of PARTS and are many."""
    facts, form = column.facts, column.facts.form if column.role in ("id", "ignored", "text", "category") else None
    whole = form in ("phone numbers", "postal codes") and column.role == "category"
    if form is None or whole or facts.distinct <= FEW:
        return column
    for part in PARTS[form]:
        parts = category_part(facts.keys, part).drop_null()
        found = len(parts.unique())
        if found > 1 and len(parts) >= ROWS_OF_PART * found:
            why = f"{form}: {found} values of category_part {part}; the whole values are {facts.distinct:,}"
            return replace(column, role="category", why=why, part=part)
    return column


def role_of(facts: ColumnFacts) -> tuple[Role, str]:
    """Return the role of a column beside others, and the reason."""
    if not facts.distinct:
        return "ignored", "empty"
    if facts.missing > NEARLY_EMPTY and len(facts.keys) < FEWEST_FILLED:
        return "ignored", f"nearly empty: {facts.missing:.0%} missing"
    if facts.distinct == 1:
        return ("category", "one value, or missing") if facts.missing else ("ignored", "constant")
    if facts.is_index:
        return "ignored", "an index that pandas saved"
    if facts.date_format is not None:
        return "date", facts.date_format if facts.date_format in EPOCHS else "dates"
    return _role_of_numbers(facts) if facts.is_number else _role_of_texts(facts)


def _role_of_numbers(facts: ColumnFacts) -> tuple[Role, str]:
    enough, unique = len(facts.keys) >= FEWEST, not facts.repeats and not facts.missing
    if enough and facts.is_dense:
        return "id", "unique whole numbers, like a counter"
    if sign := facts.code_reason:
        if enough and unique and facts.is_named_code and not facts.is_named("postal"):
            return "id", f"unique, {sign}"
        if enough and facts.repeats <= UNIQUE:
            return "ignored", f"codes that hardly repeat ({sign})"
        return "category", f"codes, not amounts: {sign}"
    if facts.number_format:
        return "number", f"numbers such as {facts.examples()[0]} (number_format {facts.number_format})"
    if not facts.is_whole or facts.is_named_amount:
        return "number", "numbers"
    share = code_rule().share(facts)
    values = f"{facts.distinct:,} whole numbers"
    if share > CODES and enough and facts.repeats <= UNIQUE:
        return "ignored", f"codes that hardly repeat ({share:.0%} by name and values)"
    if share > CODES:
        return "category", f"{values}, codes rather than amounts ({share:.0%} by name and values)"
    return "number", f"{values}, amounts ({1 - share:.0%} by name and values)"


def _role_of_texts(facts: ColumnFacts) -> tuple[Role, str]:
    enough, several = len(facts.keys) >= FEWEST, facts.words >= 1.2
    new = 1 - facts.repeats  # share of the cells with a value that no earlier cell has
    like_code = facts.is_named_code or any(any(sign.isdigit() for sign in value) for value in facts.examples(20))
    if enough and not several and facts.repeats <= UNIQUE and not facts.is_named_code and facts.written_as_values:
        return "ignored", "most cells are numbers or dates, but in no notation all"
    if enough and not several and not facts.repeats and not facts.missing and like_code:
        return "id", "unique codes"
    if enough and not several and facts.repeats <= UNIQUE:
        return "ignored", "codes that hardly repeat"
    words = f"{facts.words:.0f} words on average"
    many = facts.distinct > FEW or (new > 0.9 and facts.words >= 3)
    sentences = (facts.words >= 4 and new > 0.3) or (facts.words >= 8 and facts.distinct > 4 * FEW)
    if facts.distinct > FEWEST_TEXTS and (facts.words >= 6 or (several and facts.is_named("text", last=True))):
        many = sentences = True
    if enough and facts.has_persons and new < 0.5:
        return "ignored", "names of persons"
    if many and (sentences or (several and new > 0.5)):
        return "text", f"lists or JSON, read as text; {words}" if facts.has_lists else f"{words}, {new:.0%} distinct"
    kind = "lists or JSON, " if facts.has_lists else ""
    return "category", f"{kind}{facts.distinct:,} values"


def _one_id(columns: Mapping[str, Column], chosen: Sequence[str]) -> dict[str, Column]:
    """Return the columns of which at most one is the id; the others are ignored."""
    found = [column for column in columns.values() if column.role == "id"]
    found.sort(key=lambda column: (column.name not in chosen, not column.facts.is_named_code))  # stable
    other = {column.name: f"{column.why}; {found[0].name!r} is the id" for column in found[1:]}
    return {
        name: replace(column, role="ignored", why=other[name]) if name in other else column
        for name, column in columns.items()
    }


def _one_name(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Return the columns without those that have the name of an input which the model gets of a date."""
    dates = (column.name for column in columns.values() if column.role == "date")
    made = {name: f"date {date!r}" for date in dates for name in date_inputs(date)}
    return {
        name: replace(column, role="ignored", why=f"the {made[name]} gives the model an input of this name")
        if name in made and column.role in ("number", "category") and not column.is_given
        else column
        for name, column in columns.items()
    }
