"""Decide whether an earlier result may be resumed or reused: it depends on the same values and the same files."""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.atomic_files import write_text_atomically
from contracts.errors import ContractError, shown
from contracts.input_files import files_below


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


class ContentDigests:
    """Digests of the content of files, which a JSON file keeps between runs, so that an unchanged file is read once."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._known: dict[str, list[Any]] = {}
        with suppress(OSError, ValueError):  # a damaged file only costs time
            self._known = json.loads(cache.read_text())
        self._seen: dict[str, list[Any]] = {}

    def of(self, root: Path) -> str:
        """Return the digest of a file, or of a folder's files with their relative names; links are followed."""
        if root.is_file():
            return digest_of([root.name, self.of_content(root)])
        return digest_of([[str(path.relative_to(root)), self.of_content(path)] for path in files_below(root).files])

    def of_content(self, path: Path) -> str:
        """Return `digest_of_file` of a file, or of the file to which a link leads."""
        real = path.resolve()
        status = real.stat()
        # cp -p and rsync -t copy modification times, so the change time and the inode are needed to detect new content.
        stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        entry = self._seen.get(str(real)) or self._known.get(str(real))
        if entry is None or entry[:-1] != stamp:
            entry = [*stamp, digest_of_file(real)]
        self._seen[str(real)] = entry
        return str(entry[-1])

    def save(self) -> None:
        """Save the digests for the next run, without those of deleted files."""
        kept = {**self._known, **self._seen}
        kept = {path: entry for path, entry in kept.items() if path in self._seen or os.path.exists(path)}
        self._cache.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(self._cache, json.dumps(kept))


def digest_of(value: Any) -> str:
    """Return a hash of a JSON value. It does not depend on the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def digest_of_file(path: Path) -> str:
    """Return a hash of the content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
