"""Write tar.gz files whose bytes depend on their content alone; extract them after a check of each member."""

import errno
import gzip
import io
import shutil
import tarfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

from contracts.atomic_files import AtomicFile
from contracts.errors import ContractError
from contracts.input_files import escaped, is_foreign

_LEVEL = 1  # weights hardly compress, and a higher level takes three times as long
_CHUNK = 1 << 20


def write_archive(path: Path, members: Mapping[str, Path | bytes]) -> None:
    """Write a tar.gz atomically; its bytes depend on the names and contents of its members alone.

    Args:
        members: name inside the archive -> a file, or its content.
    """
    with (
        AtomicFile(path) as temporary,
        temporary.open("wb") as file,
        gzip.GzipFile("", "wb", compresslevel=_LEVEL, fileobj=file, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in sorted(members):
            content = members[name]
            entry = tarfile.TarInfo(name)  # owner root, mode 644, time 0
            entry.size = len(content) if isinstance(content, bytes) else content.stat().st_size
            if isinstance(content, bytes):
                archive.addfile(entry, io.BytesIO(content))
            else:
                with content.open("rb") as source:
                    archive.addfile(entry, source)


def extract_archive(archive: Path, target: Path, *, wanted: Callable[[str], bool] = lambda _name: True) -> list[str]:
    """Extract the files and folders of a tar.gz below `target`, without foreign ones; refuse other kinds of members.

    Args:
        wanted: whether to extract a member, by its name.

    Returns:
        The names of the files, sorted.

    Raises:
        ContractError: the file is no complete tar.gz or is too large for the disk, or a member is a link or a device,
            leads out of the folder or occurs twice.
    """
    target.mkdir(parents=True, exist_ok=True)
    names: set[str] = set()
    try:
        with gzip.open(archive) as plain, tarfile.open(fileobj=plain, mode="r:") as tar:
            for member in tar:
                if _is_foreign(member.name) or not wanted(member.name):
                    continue
                name = _checked_name(archive, member)
                if name in names:
                    raise _refused(archive, member, "occurs twice")
                free = shutil.disk_usage(target).free
                if member.size > free:
                    raise _refused(archive, member, f"has {member.size} bytes, but {target} has {free} bytes free")
                try:
                    if _extract(tar, member, target / name):
                        names.add(name)
                except (FileExistsError, NotADirectoryError, IsADirectoryError):
                    raise _refused(archive, member, "is a file and a folder") from None
                except OSError as error:
                    if error.errno != errno.ENAMETOOLONG:
                        raise
                    raise _refused(archive, member, "has a name that is too long") from None
            _check_end(plain)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ContractError(
            f"{archive}: is not a complete tar.gz file: {error}", "Copy it again, or write it again."
        ) from error
    return sorted(names)


def _check_end(plain: gzip.GzipFile) -> None:
    """Read the rest of an archive, which checks its checksum; tarfile ends at a damaged header as at the last one."""
    while block := plain.read(_CHUNK):
        if block.strip(b"\0"):
            raise tarfile.ReadError("the header of a member is damaged, or another archive follows")


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> bool:
    """Write a member to `path`; return whether it is a file."""
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    source = tar.extractfile(member)
    assert source is not None, "a regular file has content"
    with source, path.open("wb") as file:
        shutil.copyfileobj(source, file, _CHUNK)
    return True


def _is_foreign(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return ".." not in parts and any(map(is_foreign, parts))


def _checked_name(archive: Path, member: tarfile.TarInfo) -> str:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name:
        raise _refused(archive, member, "leads out of the archive's folder")
    if escaped(member.name) != member.name or "\0" in member.name:
        raise _refused(archive, member, "has a name that is not UTF-8 text")
    if not (member.isreg() or member.isdir()):
        raise _refused(archive, member, "is neither a file nor a folder")
    return str(path)


def _refused(archive: Path, member: tarfile.TarInfo, reason: str) -> ContractError:
    fix = "Write an archive of regular files and folders only, each once."
    return ContractError(f"{archive}: its member {escaped(member.name)!r} {reason}", fix)
