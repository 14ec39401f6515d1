"""Call what some file systems refuse, in one place, and name the disk that is full.

Shares of Windows and of virtual machines, NFS, Lustre and FUSE lack calls that a local disk has. Where a call only adds
safety, its refusal is no error; where its result is needed, the error names the call.
"""

import errno
import fcntl
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from contracts.errors import ContractError, chain_of

logger = logging.getLogger(__name__)

_REFUSED = (errno.EINVAL, errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
_FIX = "Free space, or use a larger volume."
LOCK = ".lock"
_POLL = 0.1  # seconds
# Messages without the system's error: of torch's zip writer, which counts its bytes; of tokenizers and safetensors.
_FULL = re.compile(r"^\[enforce fail at [^]]*inline_container[^]]*\] \. unexpected pos|\(os error 28\)$")


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` durable, if its file system can; otherwise a power failure may undo them."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
    finally:
        os.close(descriptor)


@contextmanager
def alone_in(folder: Path, *, seconds: float = float("inf"), busy: ContractError | None = None) -> Iterator[IO[str]]:
    """Hold the lock of a folder, which is created, and yield the file of the lock.

    Without locks in the file system, nothing but a warning keeps another process from using the folder.

    Args:
        seconds: to wait for another process that holds the lock.
        busy: raised after this time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as file:
        deadline = time.monotonic() + seconds
        while not _locked(file):
            if time.monotonic() >= deadline:
                assert busy is not None, "without an error, it waits"
                raise busy
            time.sleep(_POLL)
        yield file


def _locked(file: IO[str]) -> bool:
    """Lock an open file; return False if another process has the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        logger.warning("%s: flock failed (%s): start no other run here before this one ends", file.name, error)
    return True


def move(source: Path, target: Path) -> None:
    """Rename a file or folder; over devices, copy it, so that `target` is still complete or missing."""
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy = target.with_name(f".{target.name}.moved-{os.getpid()}")
        try:
            copy_folder(source, copy) if source.is_dir() else shutil.copyfile(source, copy)
            os.replace(copy, target)
        except BaseException:
            shutil.rmtree(copy, ignore_errors=True)
            copy.unlink(missing_ok=True)
            raise
        shutil.rmtree(source, ignore_errors=True) if source.is_dir() else source.unlink()


def link_or_copy(source: Path, target: Path) -> None:
    """Make a hard link, or a copy where the file system refuses the link."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def link_folder(source: Path, link: Path) -> None:
    """Make a symbolic link to a file or folder; raise ContractError where the file system refuses it."""
    try:
        link.symlink_to(source.absolute(), target_is_directory=source.is_dir())
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        raise ContractError(
            f"{link}: the file system refuses symbolic links: symlink: {error.strerror}",
            "Use a folder on another file system, such as a local disk.",
        ) from error


def copy_folder(source: Path, target: Path, *, ignored: Callable[[str], bool] = lambda _name: False) -> None:
    """Copy the files of a folder to a new one, without permissions and times, which some file systems refuse to set."""
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.is_dir():
            copy_folder(path, target / path.name, ignored=ignored)
        elif not ignored(path.name):
            shutil.copyfile(path, target / path.name)


@contextmanager
def naming_full_disk(*folders: Path, needs: str = "") -> Iterator[None]:
    """Raise ContractError where the block ends because a disk is full.

    Args:
        folders: where the block writes; the error names the one with the least space.
        needs: what the block needs, as a sentence.
    """
    try:
        yield
    except ContractError:
        raise
    except Exception as error:
        full = disk_full(error, *folders, needs=needs)
        if full is None:
            raise
        raise full from error


def disk_full(error: BaseException, *folders: Path, needs: str = "") -> ContractError | None:
    """Return the error of a full disk, with the space that is left; None if `error` does not follow from one.

    Args:
        folders, needs: as for `naming_full_disk`.
    """
    link = next(filter(_is_of_full_disk, chain_of(error)), None)
    if link is None:
        return None
    name = getattr(link, "filename", None)
    places = [Path(os.fsdecode(name))] if isinstance(name, (str, bytes)) else folders  # it may be a descriptor
    usage = {place: shutil.disk_usage(_existing(place)) for place in places}
    if not usage:
        return ContractError("the disk is full", _FIX)
    place = min(usage, key=lambda place: usage[place].free)
    left = f"{megabytes(usage[place].free)} of {megabytes(usage[place].total)} are free"
    return ContractError(f"{place}: the disk is full: {left}{needs and f'. {needs}'}", _FIX)


def _is_of_full_disk(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return bool(_FULL.search(str(*error.args[:1])))


def megabytes(size: float) -> str:
    """Return a number of bytes in MB."""
    return f"{size / 1e6:,.1f} MB"


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
