"""Write files and folders atomically: each gets its name when it is complete, or several do together.

This protects against a process that is killed while it writes, not against a power failure: nothing calls fsync.
"""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import TypeVar

from contracts.file_systems import move
from contracts.other_programs import NOT_UPLOADED, remove_folder, remove_in_place

_NEW, _JOURNAL = "new", "journal.json"  # of a replacement; the journal is written once the new files are complete
_AnyPath = TypeVar("_AnyPath", bound=PurePath)


def temporary_path(path: _AnyPath) -> _AnyPath:
    """Return the name, in the same folder, under which `path` is written: hidden, and never uploaded."""
    return path.with_name(f".{path.name}{NOT_UPLOADED}")


class AtomicFile:
    """A context manager that yields a temporary path to write to, and renames it to `path` at the end of the block.

    An exception removes the temporary file and leaves `path` as it was.

    Args:
        temporary: the temporary path, on the same disk. Each of several concurrent writers needs a different one.
    """

    def __init__(self, path: Path, *, temporary: Path | None = None) -> None:
        self._path = path
        self.temporary = temporary or temporary_path(path)

    def commit(self) -> None:
        """Rename the temporary file to `path`."""
        move(self.temporary, self._path)

    def discard(self) -> None:
        """Remove the temporary file."""
        self.temporary.unlink(missing_ok=True)

    def __enter__(self) -> Path:
        return self.temporary

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.discard()


def write_text_atomically(path: Path, text: str) -> None:
    """Write `text` as UTF-8 to `path`."""
    with AtomicFile(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def atomic_folder(folder: Path, *, temporary: Path | None = None) -> Iterator[Path]:
    """Yield a path at which to create a folder; replace `folder` by it at the end of the block.

    An exception removes the new folder and leaves `folder` as it was. Each call first removes the temporary folder of a
    killed process.
    """
    temporary = temporary or temporary_path(folder)
    remove_in_place(temporary)
    try:
        yield temporary
        remove_folder(folder)
        move(temporary, folder)
    finally:
        remove_in_place(temporary)


@contextmanager
def replace_together(root: Path, old: Iterable[Path]) -> Iterator[Path]:
    """Yield a folder. At the end of the block, its files get the same paths below `root`: all of them, or none.

    An exception leaves `root` as it was; after a kill, the next program that works in `root` does the rest, or nothing.

    Args:
        old: files and folders below `root`: their files without a new one are removed.
    """
    settle_replacement(root)
    folder = root / NOT_UPLOADED
    try:
        (folder / _NEW).mkdir(parents=True)
        yield folder / _NEW
        moved = _files(folder / _NEW)
        names = [str(path.relative_to(folder / _NEW)) for path in moved]
        replaced = [str(path.relative_to(root)) for place in old for path in _files(place)]
        removed = sorted({*replaced} - {*names})
        write_text_atomically(folder / _JOURNAL, json.dumps({"removed": removed, "moved": names}))
    finally:
        settle_replacement(root)


def settle_replacement(root: Path) -> None:
    """Do the rest of a replacement, or remove what a process left of it; no other process may work in `root`."""
    complete_replacement(root)
    remove_in_place(root / NOT_UPLOADED)


def complete_replacement(root: Path) -> None:
    """Do the rest of a replacement that a killed process had prepared; call this before files of `root` are read."""
    folder = root / NOT_UPLOADED
    if not (folder / _JOURNAL).is_file():
        return
    journal = json.loads((folder / _JOURNAL).read_text(encoding="utf-8"))
    for name in journal["removed"]:
        (root / name).unlink(missing_ok=True)
    for name in journal["moved"]:
        if (folder / _NEW / name).exists():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            move(folder / _NEW / name, root / name)
    (folder / _JOURNAL).unlink()
    remove_in_place(folder)


def _files(place: Path) -> list[Path]:
    """Return a file or a link, or the files and links below a folder; none where there is nothing."""
    if place.is_dir() and not place.is_symlink():
        return [path for path in sorted(place.rglob("*")) if path.is_symlink() or not path.is_dir()]
    return [place] if os.path.lexists(place) else []
