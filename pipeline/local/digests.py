"""Digests of files and folders by content, remembered by size and time so that a second look reads nothing."""

import hashlib
import json
import os
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from re import match
from typing import Any

from contracts.atomic_files import write_text_atomically

DISTRIBUTION = "text-table-trainer"


class ContentDigests:
    """Digests that outlive the process.

    Args:
        memory: a JSON file of what was read before; made where there is none.
    """

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        self._known: dict[str, list[Any]] = json.loads(memory.read_text()) if memory.is_file() else {}
        self._seen: dict[str, list[Any]] = {}

    def of(self, place: Path) -> str:
        """Digest of a file, or of a folder's files with their relative names; links are followed."""
        if place.is_file():
            return digest_of([place.name, self._file(place)])
        return digest_of(sorted([str(path.relative_to(place)), self._file(path)] for path in files_in(place)))

    def save(self) -> None:
        """Save the digests for the next run, without those of deleted files."""
        kept = {**self._known, **self._seen}
        kept = {path: entry for path, entry in kept.items() if path in self._seen or os.path.exists(path)}
        write_text_atomically(self._memory, json.dumps(kept))

    def _file(self, path: Path) -> str:
        real = path.resolve()
        status = real.stat()
        # Times of writing are copied along (cp -p, rsync -t), so that they alone do not show another content.
        stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        entry = self._seen.get(str(real)) or self._known.get(str(real))
        if entry is None or entry[:-1] != stamp:
            with real.open("rb") as file:
                entry = [*stamp, hashlib.file_digest(file, "sha256").hexdigest()]
        self._seen[str(real)] = entry
        return str(entry[-1])


def files_in(folder: Path) -> Iterable[Path]:
    """Every file below a folder, links followed."""
    for parent, _, names in os.walk(folder, followlinks=True):
        for name in names:
            yield Path(parent, name)


def digest_of(value: Any) -> str:
    """Return the digest of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def code_digest() -> str:
    """Return a digest of the code that steps run and the versions of its dependencies; it replaces the image's."""
    parts: list[list[str]] = []
    for package in ("contracts", "container"):
        spec = find_spec(package)
        assert spec is not None
        assert spec.submodule_search_locations, f"{package} is a package"
        folder = Path(next(iter(spec.submodule_search_locations)))
        parts += [
            [package, str(path.relative_to(folder)), hashlib.sha256(path.read_bytes()).hexdigest()]
            for path in sorted(folder.rglob("*"))
            if path.suffix in (".py", ".html", ".json")
        ]
    return digest_of([parts, _versions()])


def _versions() -> list[list[str]]:
    try:
        lines = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return []
    found = []
    for line in lines:
        name = match(r"[A-Za-z0-9._-]+", line)
        if "extra ==" in line or name is None:
            continue
        try:
            found.append([name[0], version(name[0])])
        except PackageNotFoundError:
            continue
    return found
