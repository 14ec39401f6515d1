"""Write the generated parts of a page, each between two comments, or compare them with the page."""

import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import mdformat
from pydantic.fields import FieldInfo

from contracts.declaration import describe_limits


def short_limits(field: FieldInfo) -> str:
    """Return the limits of a field, with "1 to 9" for "at least 1, at most 9", and without those of every number."""
    number = r"at least (-3\.40282e\+38|-9223372036854775807), at most (3\.40282e\+38|9223372036854775807)"
    text = re.sub(number, "", describe_limits(field))
    return re.sub(r"at least (\S+), at most (\S+?)(?=[,)])", r"\1 to \2", "" if text == " ()" else text)


def item(name: str, facts: str, about: str) -> str:
    """Return a setting as an item of a list, with its default or other facts."""
    return f"- `{name}`{f' ({facts})' if facts else ''}: {about}"


def update_page(target: Path, parts: Mapping[str, str]) -> int:
    """Write the parts into the page; with `--check` on the command line, only check that they are current.

    Args:
        parts: text of each part, by the name in its comments.

    Returns:
        The exit code: 1 if the page was only checked and is out of date.
    """
    page = target.read_text(encoding="utf-8")
    current = page
    for name, text in parts.items():
        begin, end = f"<!-- {name}: written by `make docs` -->", f"<!-- end of {name} -->"
        before, rest = current.split(begin)
        _, after = rest.split(end)
        current = f"{before}{begin}\n\n{text}\n\n{end}{after}"
    return write_page(target, current)


def write_page(target: Path, page: str) -> int:
    """Write a page in the format of `make lint`; with `--check`, only check that it is current.

    Returns:
        The exit code, as of `update_page`.
    """
    options = tomllib.loads(Path(__file__).parents[1].joinpath(".mdformat.toml").read_text(encoding="utf-8"))
    current = mdformat.text(page, options=options, extensions={"gfm", "tables"})
    if "--check" not in sys.argv[1:]:
        target.write_text(current, encoding="utf-8")
    elif current != target.read_text(encoding="utf-8"):
        print(f"{target} is out of date: run `make docs`.")
        return 1
    return 0
