"""Folders that are one per host: which of their entries every host has, and copying the files of all to each."""

import io
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

_CHUNK = 32 << 20  # bytes


class HostFolders:
    """The first rank of every host, in a gloo group of their own; made by all ranks together.

    On one host there is nothing to agree on and nothing to copy.
    """

    def __init__(self, *, timeout: timedelta) -> None:
        world_size = dist.get_world_size()
        per_host = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
        self._firsts = list(range(0, world_size, per_host))
        self.is_first = dist.get_rank() in self._firsts
        several = len(self._firsts) > 1
        group = dist.new_group(self._firsts, backend="gloo", timeout=timeout) if several else None
        self._group = group if isinstance(group, dist.ProcessGroup) else None

    def common(self, names: set[str]) -> set[str]:
        """Those of `names` that every host has; on ranks that are not the first of their host, nothing."""
        if self._group is None or not self.is_first:
            return names
        everyone: list[set[str]] = [set() for _ in self._firsts]
        dist.all_gather_object(everyone, names, group=self._group)
        return set.intersection(*everyone)

    def share(self, folder: Path) -> None:
        """Give the folder of each host the files of all; called by the first ranks.

        A host that cannot read or write goes on receiving, so that no other one waits for it, and raises at the end.
        """
        if self._group is None:
            return
        own = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
        everyone: list[dict[str, int]] = [{} for _ in self._firsts]
        dist.all_gather_object(everyone, own, group=self._group)
        failed: OSError | None = None
        for source, files in zip(self._firsts, everyone):
            for name, size in files.items():
                try:
                    self._copy(folder / name, size, source=source)
                except OSError as error:
                    failed = failed or error
        if failed is not None:
            raise failed

    def _copy(self, path: Path, size: int, *, source: int) -> None:
        """Send one file from the host of rank `source` to all others."""
        sends = dist.get_rank() == source
        failed: OSError | None = None
        try:
            file = path.open("rb") if sends else path.open("wb")
        except OSError as error:
            file, failed = None, error
        for start in range(0, size, _CHUNK):
            part = torch.empty(min(_CHUNK, size - start), dtype=torch.uint8)
            view = memoryview(part.numpy().data)
            if isinstance(file, io.BufferedReader) and file.readinto(view) != len(view):
                failed = failed or OSError(f"{path}: shorter than when it was written")
            dist.broadcast(part, src=source, group=self._group)
            if isinstance(file, io.BufferedWriter) and failed is None:
                try:
                    file.write(view)
                except OSError as error:
                    failed = error
        if file is not None:
            try:
                if not sends:
                    file.flush()
                    os.fsync(file.fileno())
                file.close()
            except OSError as error:
                failed = failed or error
        if failed is not None:
            raise failed
