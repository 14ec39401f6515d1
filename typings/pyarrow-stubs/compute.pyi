"""Tell type checkers that pyarrow.compute makes its functions at import, from Arrow's registry."""

from typing import Any

def __getattr__(name: str) -> Any: ...
