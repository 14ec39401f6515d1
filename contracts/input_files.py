"""Read files and folders that a user provides; raise ContractError for everything that cannot be read."""

import codecs
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import TypeAdapter, ValidationError

from contracts.errors import ContractError, first_line, shown
from contracts.json_text import parse_json
from contracts.other_programs import UNFINISHED_OUTPUT

T = TypeVar("T")

_PERMISSIONS = "Give the job's user the permission to read it, or remove it."
# Names of files and folders that macOS and Windows create, in lower case.
_SYSTEM_NAMES = frozenset({"__macosx", "desktop.ini", "ehthumbs.db", "icon\r", "thumbs.db"})
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_PAGES = (b"<!doctype html", b"<html", b"<?xml")  # also an error message of S3
_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}


class Listing(NamedTuple):
    """The content of a folder.

    Attributes:
        files: regular files, sorted by path.
        ignored: files and folders whose names mark them as no data; they are not opened.
    """

    files: list[Path]
    ignored: list[Path]


def escaped(path: str | os.PathLike[str]) -> str:
    """Return a path for messages, with the bytes that are not UTF-8 escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def is_foreign(name: str) -> bool:
    """Return whether a file or folder of this name belongs to an operating system, an editor or a tool, not to a user.

    Every listing of a user's folder or archive ignores it: names that begin with ".", such as ._model.onnx of macOS, or
    with "~$"; names that end with "~"; and _SYSTEM_NAMES.
    """
    return name.startswith((".", "~$")) or name.endswith("~") or name.lower() in _SYSTEM_NAMES


def check_root(root: Path) -> None:
    """Raise ContractError for a folder of a job or a run whose path no text file, log or command line can contain."""
    name = str(root)
    if escaped(root) != name or any(character < " " or character == "\x7f" for character in name):
        raise ContractError(
            f"--root: {name!r} is not UTF-8, or has a control character", "Rename the folder, or use another one."
        )


def exists(path: Path) -> bool:
    """Return whether a folder has an entry `path`, which may be a link to nothing.

    Raises:
        ContractError: the folder cannot be read, or the name is too long.
    """
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    return True


def check_file(path: Path) -> None:
    """Raise ContractError unless `path` is a readable regular file, or a link to one; nothing is opened."""
    if not stat.S_ISREG(mode := _mode(path)):
        kind = _KINDS.get(stat.S_IFMT(mode), "a device")
        raise ContractError(f"{escaped(path)}: is {kind}, not a file", "Remove it, or put a regular file there.")
    if not os.access(path, os.R_OK):
        raise ContractError(f"{escaped(path)}: cannot be read: permission denied", _PERMISSIONS)


def check_stand_in(path: Path) -> None:
    """Raise ContractError if a file is a Git LFS pointer or a web page, left by a download in place of the file."""
    with path.open("rb") as file:
        start = file.read(64)
    if start.startswith(_LFS_POINTER):
        raise ContractError(
            f"{escaped(path)}: is a Git LFS pointer, not the file itself",
            "Run `git lfs pull` where the repository was cloned, and copy the file again.",
        )
    if start.removeprefix(codecs.BOM_UTF8).lstrip().lower().startswith(_PAGES):
        raise ContractError(
            f"{escaped(path)}: is a web page, not the file itself: it begins with {shown(start.decode('latin-1'))}",
            "Download the file again; the page may show why it was refused.",
        )


def check_writable(folder: Path) -> None:
    """Raise ContractError unless `folder` is a folder in which files can be created, or can itself be created."""
    nearest = folder
    for path in (*reversed(folder.parents), folder):
        if not exists(path):
            break
        if not stat.S_ISDIR(_mode(path)):
            raise ContractError(
                f"{escaped(path)}: is no folder, but the job writes a folder there", "Remove or rename it."
            )
        nearest = path
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ContractError(
            f"{escaped(nearest)}: cannot be written: permission denied", "Give the job's user the permission to write."
        )


def files_below(folder: Path, *, ignored_prefixes: tuple[str, ...] = ()) -> Listing:
    """List all files below a folder, without foreign ones; links to files and to folders are followed.

    Args:
        ignored_prefixes: beginnings of the names of more files and folders to ignore.

    Raises:
        ContractError: the unfinished output of a step, a file or folder that cannot be read, a link that leads to
            nothing or back to a folder that contains it, a pipe, a socket, a device, or a name that is not UTF-8.
    """
    listing = Listing([], [])
    _collect(folder, (os.path.realpath(folder),), ignored_prefixes, listing)
    listing.files.sort()
    listing.ignored.sort()
    return listing


def read_json(path: Path, fix: str) -> Any:
    """Return the content of a JSON file.

    Raises:
        ContractError: the file is missing, or is not JSON in UTF-8; with another fix, if it cannot be opened.
    """
    if not exists(path):
        raise ContractError(f"{escaped(path)}: cannot be read: it does not exist", fix)
    check_file(path)
    try:
        return parse_json(path.read_bytes())
    except OSError as error:
        raise _unreadable(path, error) from error
    except ValueError as error:
        check_stand_in(path)
        reason = f"it is not JSON in UTF-8: {first_line(error)}" if path.stat().st_size else "the file is empty"
        raise ContractError(f"{escaped(path)}: cannot be read: {reason}", fix) from error


def read_object(path: Path, fix: str) -> dict[str, Any]:
    """Return the object in a JSON file; raise ContractError as `read_json`, or for another type."""
    content = read_json(path, fix)
    if not isinstance(content, dict):
        raise ContractError(f"{escaped(path)}: contains a {type(content).__name__}, not an object", fix)
    return content


def read_as(path: Path, kind: type[T], fix: str) -> T:
    """Return the object in a JSON file as `kind`, a dict or a dataclass; no type is converted.

    Raises:
        ContractError: as `read_object`, or the content is not what `kind` declares.
    """
    return checked(read_object(path, fix), kind, path, fix)


def checked(content: dict[str, Any], kind: type[T], path: Path, fix: str) -> T:
    """Return the content of the JSON file `path` as `kind`, as `read_as` does."""
    try:
        return TypeAdapter(kind).validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key, reason = shown(".".join(map(str, first["loc"]))), first["msg"].removeprefix("Value error, ")
        if first["type"] == "missing":
            problem = f"has no {key}"
        elif first["type"] == "extra_forbidden":
            problem = f"has an unknown key {key}"
        elif first["type"] == "value_error":
            problem = f"{key}: {reason}" if first["loc"] else reason
        else:
            problem = f"has the value {shown(first['input'])} for {key}: {reason}"
        raise ContractError(f"{escaped(path)}: {problem}", fix) from None


@contextmanager
def expected_content(path: Path, fix: str) -> Iterator[None]:
    """Raise ContractError where the block does not find the keys and values of the file `path` that it needs."""
    try:
        yield
    except ContractError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        problem = f"has no {error}" if isinstance(error, KeyError) else f"has a wrong value: {first_line(error)}"
        raise ContractError(f"{escaped(path)}: {problem}", fix) from error


def _collect(folder: Path, real: tuple[str, ...], ignored_prefixes: tuple[str, ...], found: Listing) -> None:
    """Add the content of `folder`; `real` are the real paths of the folders that lead to it."""
    try:
        with os.scandir(folder) as entries:
            names = [(entry.name, entry.is_symlink()) for entry in entries]
    except OSError as error:
        raise _unreadable(folder, error) from error
    if (UNFINISHED_OUTPUT, False) in names:
        raise ContractError(
            f"{escaped(folder)}: is incomplete: the program that wrote it was killed", "Run that program again."
        )
    for name, is_link in names:
        path = folder / name
        if is_foreign(name) or name.startswith(ignored_prefixes):
            found.ignored.append(path)
            continue
        if escaped(name) != name:
            raise ContractError(f"{escaped(path)}: the name is not UTF-8", "Rename it.")
        if not stat.S_ISDIR(_mode(path)):
            check_file(path)
            found.files.append(path)
            continue
        target = os.path.realpath(path) if is_link else os.path.join(real[-1], name)
        if target in real:
            raise ContractError(
                f"{escaped(path)}: leads back to the folder {escaped(target)}, which contains it", "Remove the link."
            )
        _collect(path, (*real, target), ignored_prefixes, found)


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError | ValueError) -> ContractError:
    """Return the error for a path that the system refuses."""
    if isinstance(error, FileNotFoundError):
        if path.is_symlink():
            return ContractError(
                f"{escaped(path)}: is a link to {escaped(os.readlink(path))}, which does not exist",
                "Copy the file itself there, or remove the link.",
            )
        return ContractError(f"{escaped(path)}: does not exist", "Put it there, or correct the path.")
    if isinstance(error, PermissionError):
        return ContractError(f"{escaped(path)}: cannot be read: permission denied", _PERMISSIONS)
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return ContractError(f"{escaped(path)}: cannot be read: {reason}", "Correct the path, or remove what is there.")
