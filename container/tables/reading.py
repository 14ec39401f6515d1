"""Remember how a raw table is read, so that `predict` and a second `init` need no option."""

import codecs
import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from contracts.errors import ContractError
from contracts.input_files import exists, read_as
from contracts.paths import JobPaths

FILE = "reading.json"
_TABS = {r"\t": "\t", "tab": "\t"}  # as a shell passes them


@dataclass(frozen=True)
class Reading:
    r"""How the files of a table are read; None: as their content shows.

    `init` writes the facts to input/config/reading.json, and `predict` and `init` read them from there. An option has
    precedence. A new fact is a field here with the default None, and an option of the same name in the command line.

    Attributes:
        delimiter: of text files.
        encoding: of text files, a name of Python's codecs.
        sheet: of a workbook.
        escapes: of text files: "backslash" (no quotes, and \n is a line break, as databases write) or "none".
    """

    delimiter: str | None = None
    encoding: str | None = None
    sheet: str | None = None
    escapes: str | None = None

    @classmethod
    def of(cls, options: Any, paths: JobPaths | None = None) -> Self:
        """Return the facts that the options name, completed by those that the job remembers."""
        file = None if paths is None else paths.config / FILE
        known = read_as(file, cls, "Run init again.") if file is not None and exists(file) else cls()
        options_given = {each.name: getattr(options, each.name, None) for each in fields(cls)}
        if (named := options_given["delimiter"]) is not None:
            delimiter = options_given["delimiter"] = _TABS.get(str(named), str(named))
            if len(delimiter.encode()) != 1:
                raise ContractError(
                    f"--delimiter: {delimiter!r} is not one character of ASCII", r"Name one, e.g. ';' or '\t'."
                )
        if (encoding := options_given["encoding"]) is not None:
            try:
                codecs.lookup(encoding)
            except LookupError:
                raise ContractError(
                    f"--encoding: {encoding!r} is not known", "Name one of Python's, e.g. cp1252 or utf-8."
                ) from None
        return replace(known, **{name: value for name, value in options_given.items() if value is not None})

    def save(self, paths: JobPaths) -> None:
        """Write the facts."""
        content = {name: value for name, value in asdict(self).items() if value is not None}
        (paths.config / FILE).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
