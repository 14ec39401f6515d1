"""Reduce the values of a category to the part that other rows share: of an e-mail address, its domain."""

import pyarrow as pa
import pyarrow.compute as pc

from container.tables.values import keys
from contracts.value_types import CategoryPart

# What the values are cleared of, then where the part is in the lower-case rest; without it, the cell is missing.
_HOST = r"^(?:[a-z][a-z0-9+.-]*://)?(?:[^/?#@]*@)?"
_PATTERNS: dict[CategoryPart, tuple[str, str]] = {
    "domain": (r"\s", rf"{_HOST}(?:www\.)?(?P<part>[^/?#@:]+\.[^/?#@:.]+)"),
    "top_level_domain": (r"\s", rf"{_HOST}[^/?#@:]*\.(?P<part>[^/?#@:.]+)"),
    "first_byte": (r"\s", r"^(?P<part>[0-9a-f]{1,4})[.:]"),
    "first_2": (r"[^\pL\pN]", r"^(?P<part>.{2})"),
    "first_3": (r"[^\pL\pN]", r"^(?P<part>.{3})"),
}


def category_part(column: pa.Array | pa.ChunkedArray, part: CategoryPart | None) -> pa.Array | pa.ChunkedArray:
    """Return the part of each value, null where a value has none; the column itself without a part. [R]"""
    if part is None:
        return column
    removed, pattern = _PATTERNS[part]
    distinct = keys(column).dictionary_encode()
    values = pc.replace_substring_regex(pc.utf8_lower(distinct.dictionary), pattern=removed, replacement="")
    return pc.struct_field(pc.extract_regex(values, pattern=pattern), [0]).take(distinct.indices)
