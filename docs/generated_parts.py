"""Write the generated parts of a page, each between two comments, or compare them with the page."""

import sys
from collections.abc import Mapping
from pathlib import Path


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
    if "--check" not in sys.argv[1:]:
        target.write_text(current, encoding="utf-8")
    elif current != page:
        print(f"{target} is out of date: run `make docs`.")
        return 1
    return 0
