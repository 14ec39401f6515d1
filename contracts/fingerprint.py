"""Decide whether an earlier result may be resumed or reused: it depends on the same values."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.errors import ContractError, shown


@dataclass(frozen=True)
class Fingerprint:
    """The values on which a result depends, by name.

    Attributes:
        parts: JSON values.
    """

    parts: Mapping[str, Any]

    @classmethod
    def of(cls, parts: Mapping[str, Any]) -> "Fingerprint":
        """Return the fingerprint of values that JSON can represent; paths become texts, tuples lists."""
        return cls(json.loads(json.dumps(parts, default=str)))

    def digest(self, length: int) -> str:
        """Return the first `length` hexadecimal digits of a hash of the values."""
        return digest_of(self.parts)[:length]

    def check(self, saved: Mapping[str, Any], *, began: str, fix: str) -> None:
        """Raise ContractError if the values of an earlier run differ; it names each, and shows the first.

        Args:
            saved: the parts of the earlier run.
            began: the earlier run and a verb, for the message, e.g. "the checkpoint in F was trained with".
        """
        names = [*self.parts, *(name for name in saved if name not in self.parts)]
        changed = [name for name in names if saved.get(name) != self.parts.get(name)]
        if changed:
            name, *others = changed
            also = f" (also changed: {', '.join(others)})" if others else ""
            raise ContractError(
                f"{name}: {began} {shown(saved.get(name))}, this run has {shown(self.parts.get(name))}{also}", fix
            )


def digest_of(value: Any) -> str:
    """Return a hash of a JSON value. It does not depend on the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def digest_of_file(path: Path) -> str:
    """Return a hash of the content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
