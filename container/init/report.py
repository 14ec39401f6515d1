"""Show the roles of the columns: a table for the terminal, and init.md."""

import json
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from container.init.profile import RawTables
from container.init.roles import Column
from contracts.errors import one_line
from contracts.paths import SPLITS
from contracts.spelling import shorten

MOST_COLUMNS = 60  # in the terminal; init.md has all
_NARROWEST, _WIDEST = 80, 160
_SHOWN = 40  # characters of an example
_NAME, _ROLE, _MISSING = 24, 8, 7


def table_lines(raw: RawTables) -> Iterator[str]:
    """Yield the lines of the table of columns, as wide as the terminal."""
    width = min(max(shutil.get_terminal_size((100, 24)).columns, _NARROWEST), _WIDEST)
    columns = list(raw.columns.values())
    name_width = min(_NAME, max(len("column"), *(len(one_line(column.name)) for column in columns)))
    rest = width - name_width - _ROLE - _MISSING - 8
    why_width = rest // 2
    example_width = rest - why_width
    row = f"{{:{name_width}}}  {{:{_ROLE}}}  {{:>{_MISSING}}}  {{:{why_width}}}  {{}}"
    yield row.format("column", "role", "missing", "why", "examples").rstrip()
    yield "-" * width
    for column in columns[:MOST_COLUMNS]:
        wrapped = textwrap.wrap(column.why, why_width) or [""]
        name, examples = shorten(one_line(column.name) or "''", name_width), shorten(_examples(column), example_width)
        yield row.format(name, column.role, _missing(column), wrapped[0], examples).rstrip()
        for line in wrapped[1:]:
            yield row.format("", "", "", line, "").rstrip()
    if len(columns) > MOST_COLUMNS:
        yield f"... and {len(columns) - MOST_COLUMNS:,} more columns in init.md."


def summary_lines(raw: RawTables, counts: Mapping[str, Sequence[int]], how: str) -> Iterator[str]:
    """Yield the lines about the splits and the labels."""
    rows = [sum(of_label[k] for of_label in counts.values()) for k in range(len(SPLITS))]
    splits = ", ".join(f"{split} {count:,}" for split, count in zip(SPLITS, rows))
    yield f"Rows: {splits}; split {how}."
    total = max(sum(rows), 1)
    shares = [f"{label} {sum(of_label) / total:.1%}" for label, of_label in counts.items()]
    more = f" and {len(shares) - 10} more" if len(shares) > 10 else ""
    yield f"Labels of {raw.label}: {', '.join(shares[:10])}{more}."


def page(
    raw: RawTables,
    counts: Mapping[str, Sequence[int]],
    *,
    how: str,
    warnings: Sequence[str],
    settings: Mapping[str, Any],
    why: Mapping[str, str],
    command: str,
) -> str:
    """Return init.md."""
    lines = ["# What init found", "", *summary_lines(raw, counts, how), ""]
    lines += ["## Columns", "", "| column | role | missing | why | examples |", "| -- | -- | -- | -- | -- |"]
    for column in raw.columns.values():
        cells = (column.name, column.role, _missing(column), column.why, _examples(column))
        lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    lines += ["", "## Warnings", "", *(f"- {sentence}" for sentence in warnings or ("none",)), ""]
    lines += ["## Rows of each label", "", f"| label | {' | '.join(SPLITS)} |", "| -- | -- | -- | -- |"]
    lines += [f"| {_cell(label)} | {' | '.join(map(str, rows))} |" for label, rows in counts.items()]
    lines += ["", "## Hyperparameters", "", "```json", json.dumps(settings, indent=2, ensure_ascii=False), "```", ""]
    lines += [f"- `{name}`: {reason}." for name, reason in why.items()]
    return "\n".join([*lines, "", "## Train", "", "```", command, "```", ""])


def _missing(column: Column) -> str:
    share = column.facts.missing
    return f"{share:.1%}" if share else ""


def _examples(column: Column) -> str:
    return " | ".join(shorten(one_line(value), _SHOWN) for value in column.facts.examples())


def _cell(text: str) -> str:
    return one_line(text).replace("|", "\\|")
