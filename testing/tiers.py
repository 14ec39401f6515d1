"""Which of a grid's cells `make test` runs, and which are left to `make test-long`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def long_except(short: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """`values` as parameters, marked long but for those in `short`, each of which must be among them."""
    values = list(values)
    assert all(value in values for value in short), "a short one is not in the grid"
    return [value if value in short else _long(value) for value in values]


def _long(value: Any) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.long)
