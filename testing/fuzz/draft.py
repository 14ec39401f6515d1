"""A table before it is written: rows whose number and ids the generator knows, and mutations of its cells and names."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from testing.fuzz import values

COLUMNS: tuple[str, ...] = ("order_id", "chat", "price", "quantity", "color", "label")
ROWS = {"train": 24, "val": 10, "test": 10}


@dataclass
class Draft:
    """A table of cells.

    Attributes:
        names: the header.
        rows: the cells; None is missing.
        raw: (row, column) of cells that a CSV gets as they are, without quotes; row -1 is the header.
        id_column: position of the ids.
        recipe: the mutations so far.
        first_names: the header before it was mutated.
    """

    names: list[str]
    rows: list[list[str | None]]
    raw: set[tuple[int, int]] = field(default_factory=set)
    id_column: int = 0
    recipe: list[str] = field(default_factory=list)
    first_names: list[str] = field(default_factory=list)

    @property
    def ids(self) -> list[str | None]:
        return [row[self.id_column] for row in self.rows]

    def place(self, name: str) -> int:
        """Return the position of a column by its first name."""
        return self.first_names.index(name)

    def __post_init__(self) -> None:
        self.first_names = self.first_names or list(self.names)


def plain_draft(rng: Random, split: str) -> Draft:
    """Return a table that the product accepts, with its columns in any order."""
    names = list(COLUMNS)
    if rng.random() < 0.5:
        rng.shuffle(names)
    rows: list[list[str | None]] = []
    for number in range(ROWS[split]):
        label = number % 2
        cells = {
            "order_id": f"{number:05d}",
            "chat": rng.choice(values.PLAIN_TEXTS),
            "price": f"{rng.uniform(0, 50):.2f}",
            "quantity": str(rng.randint(1, 9)),
            "color": rng.choice(("red", "green", "blue")),
            "label": str(label),
        }
        rows.append([cells[name] for name in names])
    return Draft(names, rows, id_column=names.index("order_id"))


def _set(draft: Draft, rng: Random, name: str, cells: Callable[[], str | None]) -> None:
    """Change one cell, several cells or all cells of a column."""
    if not draft.rows or name not in draft.first_names:
        return
    place = draft.place(name)
    share = rng.choice(("one", "one", "some", "all"))
    chosen = [rng.randrange(len(draft.rows))] if share == "one" else range(len(draft.rows))
    shown: str | None = None
    for row in chosen:
        if share != "some" or rng.random() < 0.3:
            draft.rows[row][place] = shown = cells()
    draft.recipe.append(f"{share} of {name}: {str(shown)[:40]!r}")


def change_texts(draft: Draft, rng: Random) -> None:
    """Put nasty texts into a text or category column."""
    fixed = values.text(rng)
    name = rng.choice(("chat", "chat", "color"))
    _set(draft, rng, name, lambda: fixed if rng.random() < 0.8 else rng.choice(values.SMALL_TEXTS))


def change_numbers(draft: Draft, rng: Random) -> None:
    """Put nasty numbers into a numeric column."""
    fixed = rng.choice(values.NUMBERS)
    _set(draft, rng, rng.choice(("price", "quantity")), lambda: fixed)


def change_ids(draft: Draft, rng: Random) -> None:
    """Put nasty ids into the id column."""
    fixed = rng.choice(values.IDS)
    _set(draft, rng, "order_id", lambda: fixed if rng.random() < 0.7 else rng.choice(values.IDS))


def change_labels(draft: Draft, rng: Random) -> None:
    """Put nasty labels into the label column, or write the two classes in another way."""
    if "label" not in draft.first_names:
        return
    if rng.random() < 0.5:
        pairs = (
            ("yes", "no"),
            ("0.0", "1.0"),
            ("true", "false"),
            ("A", "B"),
            ("-1", "1"),
            ("é", "e\u0301"),
            (" 0", "1 "),
        )
        pair = rng.choice(pairs)
        place = draft.place("label")
        for row in draft.rows:
            row[place] = pair[row[place] == "1"]
        draft.recipe.append(f"labels {pair}")
    else:
        fixed = rng.choice(values.LABELS)
        _set(draft, rng, "label", lambda: fixed)


def remove_cells(draft: Draft, rng: Random) -> None:
    """Make cells of a column missing."""
    _set(draft, rng, rng.choice(COLUMNS), lambda: None)


def raw_quotes(draft: Draft, rng: Random) -> None:
    """Write one or two cells with quotes that are not escaped."""
    cells = ('"open', 'close"', 'mid"dle', '"a"b', '"a" ', ' "a"', '"', '""', '"""', '"a""', 'a""', '5" x', '"a"\0')
    column = rng.choice((0, len(draft.names) - 1, rng.randrange(len(draft.names))))
    for row in rng.sample(range(-1, len(draft.rows)), rng.choice((1, 1, 2))):
        cell = rng.choice(cells)
        if row == -1:
            draft.names[column] = cell
        else:
            draft.rows[row][column] = cell
        draft.raw.add((row, column))
        draft.recipe.append(f"raw {cell!r} in row {row + 1}, column {column + 1} of {len(draft.names)}")


def change_names(draft: Draft, rng: Random) -> None:
    """Rename, repeat, add or remove columns."""
    name = rng.choice(values.NAMES)
    place = rng.randrange(len(draft.names))
    action = rng.choice(("rename", "add", "add", "repeat", "remove", "many", "blank"))
    draft.recipe.append(f"{action} column {draft.names[place]!r} {name[:40]!r}")
    if action == "rename":
        draft.names[place] = name
    elif action == "remove":
        if place == draft.id_column:
            return
        draft.names.pop(place)
        draft.first_names.pop(place)
        for row in draft.rows:
            row.pop(place)
        draft.id_column -= place < draft.id_column
    else:
        count = rng.choice((50, 3000)) if action == "many" else 1
        for number in range(count):
            new = {"add": name, "repeat": draft.names[place], "many": f"c{number}", "blank": ""}[action]
            draft.names.append(new)
            draft.first_names.append(f"added {len(draft.names)}")
            for row in draft.rows:
                row.append("" if action == "many" else rng.choice(values.SMALL_TEXTS))


def change_rows(draft: Draft, rng: Random) -> None:
    """Remove all rows, keep one, repeat rows, or keep the rows of one class."""
    action = rng.choice(("none", "one", "two", "twice", "one class", "more"))
    label = draft.place("label") if "label" in draft.first_names else 0
    draft.rows = {
        "none": [],
        "one": draft.rows[:1],
        "two": draft.rows[:2],
        "twice": [list(row) for row in draft.rows * 2],
        "one class": [row for row in draft.rows if row[label] == "1"],
        "more": [list(row) for row in draft.rows * 40],
    }[action]
    draft.recipe.append(f"rows: {action}")


CELL_MUTATIONS = (change_texts, change_texts, change_numbers, change_ids, change_labels, remove_cells, change_rows)
