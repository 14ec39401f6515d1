"""Write files and folders atomically: each gets its name when it is complete.

This protects against a process that is killed while it writes, not against a power failure: nothing calls fsync.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import TypeVar

from contracts.file_systems import move
from contracts.other_programs import NOT_UPLOADED

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
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        yield temporary
        if folder.exists():
            shutil.rmtree(folder)
        move(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
