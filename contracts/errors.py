"""Define the error that a user causes and can correct: its cause and what to change."""

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Self, TypeVar

Row = TypeVar("Row")

_SHOWN_CHARACTERS = 200


class ContractError(ValueError):
    """Input that breaks the contract.

    Args:
        cause: what is wrong, in one line, naming the file, column, row or key and the value.
        fix: what to change, in one line.

    Attributes:
        row_causes: the cause of each invalid row of a table, by position; empty if the error is not one of single rows.
    """

    def __init__(self, cause: str, fix: str = "") -> None:
        super().__init__(cause, fix)
        self.cause = cause
        self.fix = fix
        self.row_causes: Mapping[int, str] = {}

    @classmethod
    def of_rows(cls, row_causes: Mapping[int, str], fix: str) -> Self:
        """Return an error of single rows, with the cause of the first."""
        error = cls(next(iter(row_causes.values())), fix)
        error.row_causes = row_causes
        return error

    def __str__(self) -> str:
        return f"{self.cause}\n{self.fix}" if self.fix else self.cause


class RowErrors:
    """Collect the errors of several checks of the same rows, so that one error names every invalid row.

    A `with` statement for each check takes its error; `raise_first` follows.
    """

    def __init__(self) -> None:
        self._first: ContractError | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, ContractError):
            return False
        if self._first is None:
            self._first = error
        self._first.row_causes = {**error.row_causes, **self._first.row_causes}
        return True

    def raise_first(self) -> None:
        """Raise the first error, with the invalid rows of all; a row has the cause of its first error."""
        if self._first is not None:
            raise self._first


def invalid_rows(rows: Iterable[Row], check: Callable[[Row], object]) -> dict[int, str]:
    """Return the cause of each row for which `check` raises ContractError, by position."""
    causes: dict[int, str] = {}
    for position, row in enumerate(rows):
        try:
            check(row)
        except ContractError as error:
            causes[position] = error.cause
    return causes


def chain_of(error: BaseException) -> list[BaseException]:
    """Return an error and those that it was raised from, as a traceback shows them."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return chain


def shortened(text: str) -> str:
    """Return the first 200 characters of a value, so that a message keeps its other parts."""
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 300 characters, or its type's name if it has no message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def one_line(text: str) -> str:
    """Return a text with line breaks and other characters without a glyph as in Python source, for a page of text."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def shown(value: object) -> str:
    """Return the first 200 characters of a value as in Python source, in one line for a message."""
    try:
        text = one_line(repr(value))
    except (ValueError, RecursionError):  # thousands of digits or levels
        return f"a {type(value).__name__} that is too long to print"
    return shortened(text)
