"""Give every host all files of the sharded channels before data is prepared.

Every host hashes its files, publishes their names, sizes and hashes, and fetches missing files from the hosts that have
them. A channel's folder then contains links to this host's files and copies of the other files, under the same names on
every host. Fitted values, the order of rows and checkpoints therefore do not depend on the distribution of the files.
The next run keeps copies with the same content.
"""

import contextlib
import errno
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from container.hosts.control import SILENCE, Control
from container.hosts.parts import (
    BrokenOff,
    Held,
    Part,
    PartClient,
    PartServer,
    TransferError,
    as_json,
    from_json,
    merge_parts,
    parts_of,
    same_part,
)
from contracts.errors import ContractError
from contracts.paths import JobPaths

logger = logging.getLogger(__name__)

STUCK = 110.0  # seconds without progress after which a host is stuck; above STALLED, so that transfers fail first
_TEMPORARY = ".fetching"
_PARTS, _MOVED, _HELD = "parts", "parts moved", "parts held"
_SECONDS_BETWEEN_LINES = 15
_MORE_DISK = (
    "Give the job a larger volume (VolumeSizeInGB), or set the channel's distribution to FullyReplicated and its input "
    "mode to FastFile, which downloads nothing in advance."
)


@dataclass(frozen=True)
class GatheredChannels:
    """Complete channels.

    Attributes:
        paths: the job's paths, with the folders of gathered channels.
        contents: hash of each file of the gathered channels.
    """

    paths: JobPaths
    contents: Mapping[Path, str]


def gather_channels(control: Control, paths: JobPaths, channels: Sequence[str]) -> GatheredChannels:
    """Fetch all files of `channels` to every host; all hosts call it together.

    Raises:
        ContractError: hosts have different files with one name, the disk is too small, or a transfer failed.
        HostTrouble: another host failed or was lost.
    """
    if not channels:
        return GatheredChannels(paths, {})
    progress = _Progress("hashing this host's files", control)
    own = {part: path for name in channels
           for part, path in parts_of(name, paths.input_channel(name), on_bytes=progress).items()}  # fmt: skip
    with contextlib.closing(PartServer(control.address(), own)) as server:
        offer = {"address": control.address(), "port": server.port, "token": server.token, "parts": as_json(own)}
        offers = control.gather(_PARTS, offer, on_wait=_StuckHosts(control, _PARTS))
        all_parts = merge_parts({host: from_json(offer["parts"]) for host, offer in offers.items()})
        for name in channels:
            sizes = [held.part.size for held in all_parts if held.part.channel == name]
            own_sizes = [part.size for part in own if part.channel == name]
            if not sizes:
                raise ContractError(
                    f"channel {name}: is sharded, but none of the {control.topology.size} hosts received a file of it "
                    f"({paths.input_channel(name)})",
                    "Correct the channel's S3 URI, or upload files there.",
                )
            logger.info(
                "channel %s is sharded: this host received %d of its %d files (%s of %s)",
                name, len(own_sizes), len(sizes), _amount(sum(own_sizes)), _amount(sum(sizes)),
            )  # fmt: skip
        targets = {paths.gathered_channel(held.part.channel) / held.part.name: held for held in all_parts}
        missing = _link_own_files(control, paths, channels, targets, own)
        _fetch_all(control, paths, _by_host(missing, control), offers)
        control.gather(_HELD, None, on_wait=_StuckHosts(control, _HELD))  # serve until every host has all files
    folders = ", ".join(str(paths.gathered_channel(name)) for name in channels)
    logger.info("host %s has all files of %s", control.topology.current, folders)
    contents = {path: held.part.digest for path, held in targets.items()}
    return GatheredChannels(replace(paths, gathered=frozenset(channels)), contents)


def check_room(folder: Path, needed: int) -> None:
    """Raise ContractError if the disk of `folder` has less than `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ContractError(
            f"{folder}: the files of the other hosts take {_amount(needed)}, but the disk has {_amount(free)} free. "
            "Every host stores all files of a channel that is ShardedByS3Key",
            _MORE_DISK,
        )


def _link_own_files(
    control: Control, paths: JobPaths, channels: Sequence[str], targets: Mapping[Path, Held], own: Mapping[Part, Path]
) -> list[Held]:
    """Link this host's files, keep copies with the right content, remove other files; return the missing parts."""
    progress = _Progress("checking files of an earlier run", control)
    missing = []
    paths.gathered_channel(_TEMPORARY).unlink(missing_ok=True)  # from a run that was killed
    for channel in channels:
        folder = paths.gathered_channel(channel)
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.rglob("*"), reverse=True):  # the content of a folder before the folder
            if path.is_dir() and not path.is_symlink():
                with contextlib.suppress(OSError):
                    path.rmdir()  # fails unless the folder is empty
            elif path not in targets:
                path.unlink()
    for path, held in targets.items():
        if held.part in own:
            path.unlink(missing_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(own[held.part])
        elif not same_part(path, held.part, on_bytes=progress):
            path.unlink(missing_ok=True)
            missing.append(held)
    return missing


def _by_host(missing: Sequence[Held], control: Control) -> dict[str, list[Part]]:
    """Group by host, starting with the host after this one, so that hosts do not all request from one host first."""
    hosts, rank = control.topology.hosts, control.topology.rank
    order = {host: (other - rank) % len(hosts) for other, host in enumerate(hosts)}
    ordered = sorted(missing, key=lambda held: order[held.host])
    return {host: [held.part for held in group] for host, group in groupby(ordered, key=lambda held: held.host)}


def _fetch_all(
    control: Control, paths: JobPaths, missing: Mapping[str, Sequence[Part]], offers: Mapping[str, Mapping[str, Any]]
) -> None:
    if not missing:
        return
    needed = sum(part.size for parts in missing.values() for part in parts)
    temporary = paths.gathered_channel(_TEMPORARY)
    check_room(temporary.parent, needed)
    count = sum(map(len, missing.values()))
    files = f"{count} file{'s' if count > 1 else ''} ({_amount(needed)})"
    logger.info("fetching %s from %s", files, ", ".join(missing))
    started, progress = time.monotonic(), _Progress("fetching files of other hosts", control, of=needed)
    for host, parts in missing.items():
        part, offer = parts[0], offers[host]
        try:
            with PartClient(offer["address"], offer["port"], offer["token"]) as client:
                for part in parts:
                    target = paths.gathered_channel(part.channel) / part.name
                    client.fetch(part, target, temporary=temporary, on_bytes=progress)
        except TransferError as error:
            if isinstance(error, BrokenOff):
                _await_trouble(control)
            raise ContractError(
                f"channel {part.channel}: {part.name} could not be fetched from host {host}: {error}",
                "Read that host's log. The security group of the job must allow traffic within itself. Do not change "
                "files of a channel during the job.",
            ) from error
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            cause = f"{temporary.parent}: the disk is full: files of other hosts could not be fetched"
            raise ContractError(cause, _MORE_DISK) from error
    seconds = time.monotonic() - started
    logger.info("fetched %s in %.1f s (%s/s)", _amount(needed), seconds, _amount(needed / max(seconds, 1e-9)))


def _await_trouble(control: Control) -> None:
    """Give the control time to detect a lost host, and raise HostTrouble if there is one."""
    deadline = time.monotonic() + SILENCE + 5
    while time.monotonic() < deadline:
        control.raise_trouble()
        time.sleep(0.1)


class _StuckHosts:
    """Raise ContractError during a wait if a connected host, such as one whose disk hangs, makes no progress."""

    def __init__(self, control: Control, key: str) -> None:
        self._control, self._key = control, key
        self._progress: dict[str, tuple[Any, float]] = {}

    def __call__(self) -> None:
        now, moved, done = time.monotonic(), self._control.seen(_MOVED), self._control.seen(self._key)
        for host in self._control.topology.hosts:
            before = self._progress.get(host)
            if before is None or before[0] != moved.get(host):
                self._progress[host] = moved.get(host), now
            elif host not in done and now - before[1] > STUCK:
                raise ContractError(
                    f"host {host} is connected, but has read and fetched nothing of the sharded channels for "
                    f"{STUCK:.0f} s",
                    "Check that host's log and disk, and run the job again.",
                )


class _Progress:
    """Count bytes, and report progress every _SECONDS_BETWEEN_LINES in the log and to the other hosts."""

    def __init__(self, phase: str, control: Control, *, of: int | None = None) -> None:
        self._phase, self._control, self._of = phase, control, of
        self._bytes = 0
        self._started = self._last = time.monotonic()

    def __call__(self, count: int) -> None:
        self._bytes += count
        now = time.monotonic()
        if now - self._last > _SECONDS_BETWEEN_LINES:
            self._last = now
            self._control.publish(_MOVED, [self._phase, self._bytes])
            rate = self._bytes / (now - self._started)
            of = f" of {_amount(self._of)}, {(self._of - self._bytes) / rate:.0f} s left" if self._of else ""
            logger.info("%s: %s%s (%s/s)", self._phase, _amount(self._bytes), of, _amount(rate))


def _amount(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
