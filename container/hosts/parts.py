"""Transfer the files of a sharded channel ("parts") from host to host, in blocks over TCP.

A request is a line of JSON with the token that only the job's hosts know. The response is a line of JSON with the error
if the part cannot be read, followed by the part's bytes.
"""

import contextlib
import hashlib
import json
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any, cast

from container.hosts.control import json_line
from container.tables.data_files import data_files
from contracts.atomic_files import AtomicFile
from contracts.errors import ContractError
from contracts.input_files import exists

logger = logging.getLogger(__name__)

STALLED = 45.0  # seconds without a byte after which a transfer fails
_BLOCK = 4 << 20  # bytes
_REQUEST = 1 << 16  # bytes; an S3 key has up to 1024


class TransferError(Exception):
    """A part could not be transferred, or its content differs from the announced digest."""


class BrokenOff(TransferError):
    """The connection ended or stalled; the control detects whether the other host was lost."""


@dataclass(frozen=True)
class Part:
    """A file of a channel.

    Attributes:
        name: path in the channel's folder, with slashes.
        size: bytes.
        digest: SHA-256 of the content.
    """

    channel: str
    name: str
    size: int
    digest: str


@dataclass(frozen=True)
class Held:
    """A part, and the first host that has it."""

    part: Part
    host: str


def parts_of(channel: str, folder: Path, *, on_bytes: Callable[[int], None]) -> dict[Part, Path]:
    """Hash the data files of a channel's folder; return none if there is no folder.

    Args:
        on_bytes: called with the number of bytes of each block that was read.
    """
    paths = data_files(folder) if exists(folder) else ()
    return {Part(channel, path.relative_to(folder).as_posix(), *_read(path, on_bytes)): path for path in paths}


def same_part(path: Path, part: Part, *, on_bytes: Callable[[int], None]) -> bool:
    """Return whether `path` is a file, not a link, with the content of `part`."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size != part.size:
        return False
    return _read(path, on_bytes)[1] == part.digest


def merge_parts(parts_of_hosts: Mapping[str, Iterable[Part]]) -> list[Held]:
    """Merge the parts of all hosts, sorted by channel and name; a part that several hosts have appears once.

    Raises:
        ContractError: two hosts have different files with one name, or a file and a folder with one name.
    """
    merged: dict[tuple[str, str], Held] = {}
    for host, parts in parts_of_hosts.items():
        for part in parts:
            _check_name(part, host)
            held = merged.setdefault((part.channel, part.name), Held(part, host))
            if held.part != part:
                raise ContractError(
                    f"channel {part.channel}: hosts {held.host} and {host} have different files named {part.name} "
                    f"({held.part.size} and {part.size} bytes, SHA-256 {held.part.digest[:12]} and {part.digest[:12]})",
                    "Give each file of the channel a different name. If all hosts should get the same files, set the "
                    "channel's distribution to FullyReplicated.",
                )
    for (channel, name), held in merged.items():
        for folder in list(PurePosixPath(name).parents)[:-1]:
            if (channel, str(folder)) in merged:
                raise ContractError(
                    f"channel {channel}: {folder} is a file on host {merged[channel, str(folder)].host}, and a folder "
                    f"with the file {name} on host {held.host}",
                    "Rename one of them.",
                )
    return [merged[key] for key in sorted(merged)]


class PartServer:
    """Send this host's parts to the hosts that request them, in background threads, until it is closed.

    Args:
        address: this host's address on the network between the hosts.
    """

    def __init__(self, address: str, files: Mapping[Part, Path]) -> None:
        self._files = {(part.channel, part.name): (part, path) for part, path in files.items()}
        self._server = socket.create_server((address, 0), backlog=64)
        self.port: int = self._server.getsockname()[1]
        self.token = secrets.token_hex(16)
        threading.Thread(target=self._accept, name="parts", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the socket is closed
            while True:
                connection, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Respond to one host until it closes the connection; close it on a wrong token."""
        connection.settimeout(STALLED)
        ignored = contextlib.suppress(OSError, ValueError, KeyError, TypeError)
        with connection, ignored, connection.makefile("rb") as lines:
            while line := lines.readline(_REQUEST):
                request = json.loads(line)
                if not secrets.compare_digest(str(request["token"]), self.token):
                    return
                part, path = self._files[request["channel"], request["name"]]
                if not self._send(connection, part, path):
                    return

    def _send(self, connection: socket.socket, part: Part, path: Path) -> bool:
        """Send one part; return False if it could not be read to its end."""
        try:
            file = path.open("rb")
        except OSError as error:
            connection.sendall(json_line({"error": str(error)}))
            return True
        with file:
            connection.sendall(json_line({"error": None}))
            remaining = part.size
            while remaining:
                try:
                    block = file.read(min(remaining, _BLOCK))
                except OSError as error:
                    logger.error("%s cannot be read: %s", path, error)
                    return False
                if not block:
                    logger.error("%s became shorter during the job: it had %d bytes", path, part.size)
                    return False
                connection.sendall(block)
                remaining -= len(block)
        return True


class PartClient:
    """A connection with one host's PartServer; a context manager.

    Raises:
        BrokenOff: the host cannot be reached.
    """

    def __init__(self, address: str, port: int, token: str) -> None:
        self._token = token
        try:
            self._connection = socket.create_connection((address, port), timeout=STALLED / 2)
        except OSError as error:
            raise BrokenOff(f"{address}:{port} cannot be reached: {error}") from error
        self._connection.settimeout(STALLED)
        self._responses = cast(BufferedReader, self._connection.makefile("rb", buffering=_BLOCK))
        self._block = memoryview(bytearray(_BLOCK))

    def __enter__(self) -> "PartClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._responses.close()
        self._connection.close()

    def fetch(self, part: Part, target: Path, *, temporary: Path, on_bytes: Callable[[int], None]) -> None:
        """Write the part to `temporary`, check its digest, and rename it to `target`.

        Raises:
            TransferError: the connection ended or stalled, the host could not read the part, or its content changed.
            OSError: the part cannot be written.
        """
        self._request(part)
        with AtomicFile(target, temporary=temporary):
            with temporary.open("wb") as file:
                digest = hashlib.sha256()
                for block in self._blocks(part):
                    file.write(block)
                    digest.update(block)
                    on_bytes(len(block))
            if digest.hexdigest() != part.digest:
                raise TransferError(f"its content has changed since that host hashed it ({part.digest[:12]})")
            target.parent.mkdir(parents=True, exist_ok=True)

    def _request(self, part: Part) -> None:
        try:
            self._connection.sendall(json_line({"token": self._token, "channel": part.channel, "name": part.name}))
            response = json.loads(self._responses.readline(_REQUEST) or b"{}")
        except (OSError, ValueError) as error:
            raise BrokenOff(_why(error)) from error
        if "error" not in response:
            raise BrokenOff("the connection ended before its first byte")
        if response["error"]:
            raise TransferError(f"that host cannot read it: {response['error']}")

    def _blocks(self, part: Part) -> Iterable[memoryview]:
        remaining = part.size
        while remaining:
            try:
                count = self._responses.readinto(self._block[: min(remaining, _BLOCK)])
            except OSError as error:
                raise BrokenOff(f"{_why(error)} after {part.size - remaining} of {part.size} bytes") from error
            if not count:
                raise BrokenOff(f"the connection ended after {part.size - remaining} of {part.size} bytes")
            yield self._block[:count]
            remaining -= count


def as_json(parts: Iterable[Part]) -> list[tuple[Any, ...]]:
    return [astuple(part) for part in parts]


def from_json(content: Iterable[Iterable[Any]]) -> list[Part]:
    return [Part(str(channel), str(name), int(size), str(digest)) for channel, name, size, digest in content]


def _check_name(part: Part, host: str) -> None:
    """Raise ContractError if a name from another host is outside the channel's folder."""
    pure = PurePosixPath(part.name)
    within = pure.parts and not pure.is_absolute() and ".." not in pure.parts and str(pure) == part.name
    if not within or PurePosixPath(part.channel).name != part.channel:
        raise ContractError(
            f"channel {part.channel}: host {host} has a file named {part.name!r}, outside the channel's folder",
            "Rename the file.",
        )


def _read(path: Path, on_bytes: Callable[[int], None]) -> tuple[int, str]:
    """Return the size and SHA-256 of a file."""
    digest, size = hashlib.sha256(), 0
    block = memoryview(bytearray(_BLOCK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            digest.update(block[:count])
            size += count
            on_bytes(count)
    return size, digest.hexdigest()


def _why(error: Exception) -> str:
    return f"no data came for {STALLED:.0f} s" if isinstance(error, TimeoutError) else f"the connection broke: {error}"
