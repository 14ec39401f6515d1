"""Imitate SageMaker's uploader, which marks and copies the files of a folder while a job writes into it."""

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from contracts.other_programs import MARKERS, NOT_UPLOADED

UPLOADING, UPLOADED = MARKERS
SECONDS = 0.1  # of an upload
_POLL = 0.01


class Uploader:
    """The files of `folder` and their copies in `bucket`.

    Args:
        everywhere: also mark what the service leaves alone.
    """

    def __init__(self, folder: Path, bucket: Path, *, everywhere: bool = False) -> None:
        self._folder, self._bucket, self._everywhere = folder, bucket, everywhere
        self._uploads: dict[Path, float] = {}  # when each ends
        self._known: dict[Path, tuple[int, int]] = {}
        self._open = True

    def run(self) -> None:
        while self._open:
            self._pass()
            time.sleep(_POLL)

    def stop(self) -> None:
        self._open = False

    def _pass(self) -> None:
        found = set()
        for path in self._files():
            found.add(path)
            with suppress(OSError):  # the job removes files at any time
                status = path.stat()
                seen = status.st_mtime_ns, status.st_size
                if self._known.get(path) != seen and path not in self._uploads:
                    _beside(path, UPLOADING).touch()
                    self._known[path], self._uploads[path] = seen, time.monotonic() + SECONDS
        for path, ends in list(self._uploads.items()):
            if time.monotonic() > ends:
                del self._uploads[path]
                self._finish(path)
        for path in self._known.keys() - found:
            del self._known[path]
            self._copy_of(path).unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        paths: list[Path] = []
        with suppress(OSError):  # of a folder that is removed
            paths += (path for path in self._folder.rglob("*") if not path.name.endswith(MARKERS) and path.is_file())
        return [path for path in paths if self._everywhere or NOT_UPLOADED not in str(path)]

    def _finish(self, path: Path) -> None:
        with suppress(OSError):
            copy = self._copy_of(path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            _beside(path, UPLOADING).replace(_beside(path, UPLOADED))

    def _copy_of(self, path: Path) -> Path:
        return self._bucket / path.relative_to(self._folder)


@contextmanager
def uploading(folder: Path, bucket: Path, *, everywhere: bool = False) -> Iterator[None]:
    """Upload the files of `folder` during the block; afterwards, `bucket` has those of the last moment."""
    uploader = Uploader(folder, bucket, everywhere=everywhere)
    thread = threading.Thread(target=uploader.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        uploader.stop()
        thread.join()


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(f"{path.name}{ending}")
