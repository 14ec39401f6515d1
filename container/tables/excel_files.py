"""Read workbooks (.xlsx, .xls, .ods): one sheet, whose cells have types, without a banner above and a total below."""

import re
import zipfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from container.tables.data_files import not_a_table
from container.tables.reading import Reading
from container.tables.records import class_of, column_of, common_type
from container.tables.table_file import TableFile
from contracts.errors import ContractError, first_line, shown

_TOTALS = re.compile(r"(grand |sub)?(totals?|sum|summe|gesamt\w*|insgesamt|totale|totaal)\W*\w*\W*", re.IGNORECASE)
_LONGEST_BANNER = 50  # rows
_WIDE = 0.5  # of the widest row's cells, from which a row may be the header
_BOOK = ("xl/workbook.xml", "xl/_rels/workbook.xml.rels")  # of .xlsx
_SHEET = re.compile(rb'<(?:\w+:)?sheet\b[^>]*\b\w+:id=("[^"]+")')
_RELATION, _TARGET = re.compile(rb"<(?:\w+:)?Relationship\b[^>]*>"), re.compile(rb'\bTarget="([^"]+)"')
_FORMULA = re.compile(
    rb'<c\b[^>]*\br="([A-Z]+)([0-9]+)"[^>]*>\s*<f\b[^>]*?(?:/>|>[^<]*</f>)\s*(?:<v\s*/>|<v></v>)?\s*</c>'
)


class File(TableFile):
    """A sheet of a workbook, the first or that of the reading."""

    converts = True

    def schema(self) -> pa.Schema:
        header, rows = self._table
        classes = [{class_of(row[i]) for row in rows} for i in range(len(header))]
        return pa.schema([(name, common_type(found)) for name, found in zip(header, classes)])

    def batches(self, schema: pa.Schema, *, rows: int) -> Iterator[pa.RecordBatch]:
        header, cells = self._table
        places = [header.index(name) for name in schema.names]
        for start in range(0, len(cells), rows):
            columns = [
                column_of([row[place] for row in cells[start : start + rows]], field.type)
                for place, field in zip(places, schema)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def count_rows(self) -> int:
        return len(self._table[1])

    @cached_property
    def _table(self) -> tuple[list[str], list[list[Any]]]:
        """The header, and the rows below it."""
        sheet, rows, merged = self._sheet()
        filled = [sum(value is not None for value in row) for row in rows]
        widest = max(filled, default=0)
        if not widest:
            raise ContractError(f"{self.path}: the sheet is empty", "Name another sheet by --sheet.")
        header = next(i for i, count in enumerate(filled) if count > _WIDE * widest)
        if header > _LONGEST_BANNER:
            raise ContractError(
                f"{self.path}: the sheet has {header} rows above the first one that may be a header",
                "Remove them, so that the sheet begins with the names of the columns.",
            )
        columns = [i for i in range(len(rows[header])) if any(row[i] is not None for row in rows[header:])]
        unnamed = [i for i in columns if rows[header][i] is None]
        if unnamed:
            raise ContractError(
                f"{self.path}: row {header + 1}: the header has no name for column {unnamed[0] + 1}",
                "Give every column a name in one row, without merged cells.",
            )
        end = self._end(rows, header, columns)
        inside = [((top, left), end) for (top, left), end in merged if top < len(rows) and left < len(rows[top])]
        over_rows = [corners for corners in inside if header < corners[0][0] < corners[1][0]]
        for (top, left), (bottom, _) in over_rows:
            for row in rows[top : bottom + 1]:
                row[left] = rows[top][left]
        for name in sorted({str(rows[header][left]) for (_, left), _ in over_rows}):
            self.notes.append(f"{name!r} has merged cells: each of their rows has the value")
        if above := [row for row in rows[:header] if any(value is not None for value in row)]:
            self.notes.append(f"left out above the header in row {header + 1}: {_shown(above)}")
        if below := [row for row in rows[end:] if any(value is not None for value in row)]:
            self.notes.append(f"left out below the table: {_shown(below)}")
        names = [str(rows[header][i]).strip() for i in columns]
        self._check_formulas(sheet, header + 1, end)
        return names, [[rows[i][k] for k in columns] for i in range(header + 1, end) if filled[i]]

    def _end(self, rows: Sequence[Sequence[Any]], header: int, columns: Sequence[int]) -> int:
        """Return the number of the row after the last one of the table: before totals and remarks."""
        kinds = [self._kind(row, len(columns)) for row in rows]
        end = len(rows)
        while end > header + 1 and kinds[end - 1]:
            end -= 1
        while end < len(rows) and kinds[end] == "one cell":  # a remark stands below an empty row or a total
            end += 1
        return end

    def _kind(self, row: Sequence[Any], columns: int) -> str:
        """Return what a row at the end of a sheet may be besides a row of the table: "empty", "total", "one cell"."""
        first, *others = [value for value in row if value is not None] or [None]
        if first is None:
            return "empty"
        is_sum = len(others) < columns - 1 and not any(isinstance(value, str) for value in others)
        if is_sum and isinstance(first, str) and _TOTALS.fullmatch(first.strip()):
            return "total"
        return "one cell" if not others and columns > 1 else ""

    def _sheet(self) -> tuple[int, list[list[Any]], Sequence[tuple[tuple[int, int], tuple[int, int]]]]:
        """Return the number of the sheet, its rows, None where a cell is empty, and the corners of merged cells."""
        try:
            from python_calamine import CalamineError, CalamineWorkbook, PasswordError
        except ImportError:
            raise ContractError(
                f"{self.path}: reading workbooks needs python-calamine, which is not installed",
                "Install it with pip install 'text-table-trainer[files]', or save the sheet as CSV UTF-8.",
            ) from None
        wanted = None if self.reading is None else self.reading.sheet
        try:
            workbook = CalamineWorkbook.from_path(str(self.path))
            names = workbook.sheet_names
            name = wanted if wanted in names else names[0]
            if wanted is not None and wanted not in names:
                raise ContractError(
                    f"{self.path}: has no sheet {wanted!r}", f"Its sheets: {', '.join(map(repr, names))}."
                )
            sheet = workbook.get_sheet_by_name(name)
            rows, merged = sheet.to_python(skip_empty_area=False), sheet.merged_cell_ranges or ()
        except PasswordError:
            raise ContractError(
                f"{self.path}: is protected by a password",
                "Save it without a password, or save the sheet as CSV UTF-8.",
            ) from None
        except (CalamineError, OSError) as error:
            if self.path.read_bytes()[:4] not in (b"PK\x03\x04", b"\xd0\xcf\x11\xe0"):
                raise not_a_table(self.path) from None
            raise ContractError(
                f"{self.path}: cannot be read as a workbook: {first_line(error)}", "Save it again as .xlsx."
            ) from error
        if len(names) > 1:
            others = ", ".join(repr(other) for other in names if other != name)
            self.notes.append(f"read the sheet {name!r}; --sheet names another one of: {others}")
        self.found = Reading(sheet=name if wanted else None)
        return names.index(name), [[_value(value) for value in row] for row in rows], merged

    def _check_formulas(self, sheet: int, first: int, end: int) -> None:
        """Raise ContractError where a row has a formula without the value that a program computed."""
        if not zipfile.is_zipfile(self.path):
            return
        with zipfile.ZipFile(self.path) as archive:
            parts = set(archive.namelist())
            book, relations = (archive.read(name) if name in parts else b"" for name in _BOOK)
            wanted = _SHEET.findall(book)[sheet : sheet + 1]
            targets = [_TARGET.search(each) for each in _RELATION.findall(relations) if wanted and wanted[0] in each]
            part = f"xl/{targets[0][1].decode().removeprefix('/xl/')}" if targets and targets[0] else ""
            content = archive.read(part) if part in parts else b""
        for cell in _FORMULA.finditer(content):
            if first < int(cell[2]) <= end:
                raise ContractError(
                    f"{self.path}: cell {cell[1].decode()}{cell[2].decode()} has a formula, but not its value",
                    "Open the workbook in a spreadsheet program and save it, so that the values are stored.",
                )


def _value(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return None if isinstance(value, str) and not value.strip() else value


def _shown(rows: Sequence[Sequence[Any]]) -> str:
    texts = [shown(" ".join(str(value) for value in row if value is not None)) for row in rows]
    return ", ".join(texts[:3]) + (f" and {len(texts) - 3} more rows" if len(texts) > 3 else "")
