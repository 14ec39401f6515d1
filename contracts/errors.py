"""Define the error that a user causes and can correct: its cause and what to change."""

_SHOWN_CHARACTERS = 200


class ContractError(ValueError):
    """Input that breaks the contract.

    Args:
        cause: what is wrong, in one line, naming the file, column, row or key and the value.
        fix: what to change, in one line.
    """

    def __init__(self, cause: str, fix: str = "") -> None:
        super().__init__(cause, fix)
        self.cause = cause
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.cause}\n{self.fix}" if self.fix else self.cause


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
