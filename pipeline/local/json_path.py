"""Apply the JSONPath of a filter to a record, as batch transform does."""

import re
from collections.abc import Callable
from typing import Any

from contracts.errors import ContractError

_PART = re.compile(
    r"""\.(?P<name>[^.\[\]'\s]+)
    | \[(?P<names>\s*'[^']*'\s*(,\s*'[^']*'\s*)*)\]
    | \[(?P<slice>\s*-?\d*\s*:\s*-?\d*\s*)\]
    | \[(?P<indices>\s*-?\d+\s*(,\s*-?\d+\s*)*)\]""",
    re.VERBOSE,
)
Select = Callable[[Any], Any]


def compile_path(path: str, *, key: str) -> Select:
    """Return the function that selects a path's part of a record.

    The parts of a path are .name, ['name'], ['name','name'], [index], [index,index] and [start:end]; a list of names
    selects an object, a list of indices and a range select an array.

    Args:
        key: the configuration's key of the path, for messages.

    Raises:
        ContractError: the path has another part. SageMaker knows more of them.
    """
    parts, place = [], 1
    while place < len(path):
        found = _PART.match(path, place)
        if found is None or "*" in (found["name"] or ""):
            raise ContractError(
                f"{key}: {path!r} has a part that `run` does not know, from {path[place:]!r}",
                "Use .name, ['name'], [index], [start:end], and lists of names or indices.",
            )
        parts.append(_part(found))
        place = found.end()

    def select(record: Any) -> Any:
        for part in parts:
            record = part(record)
        return record

    return select


def _part(found: re.Match[str]) -> Select:
    if found["slice"] is not None:
        start, end = (int(text) if text.strip() else None for text in found["slice"].split(":"))
        return lambda array: array[start:end]
    if found["indices"] is not None:
        indices = [int(text) for text in found["indices"].split(",")]
        return lambda array: array[indices[0]] if len(indices) == 1 else [array[index] for index in indices]
    names = [found["name"]] if found["name"] is not None else re.findall(r"'([^']*)'", found["names"])
    return lambda entries: entries[names[0]] if len(names) == 1 else {name: entries[name] for name in names}
