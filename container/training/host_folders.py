"""Compare and exchange the files of a folder that each host has on its own disk."""

import io
import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

_CHUNK = 32 << 20  # bytes


class HostFolders:
    """The first ranks of all hosts, in a separate gloo group; constructed by all ranks together.

    In a job on one host, the methods do nothing.
    """

    def __init__(self, *, timeout: timedelta) -> None:
        world_size = dist.get_world_size()
        per_host = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
        self._firsts = list(range(0, world_size, per_host))
        self.is_first = dist.get_rank() in self._firsts
        group = dist.new_group(self._firsts, backend="gloo", timeout=timeout) if len(self._firsts) > 1 else None
        self._group = group if isinstance(group, dist.ProcessGroup) else None

    def common(self, names: set[str]) -> set[str]:
        """Return those of `names` that every host has; all of them on ranks that are not the first of their host."""
        if self._group is None or not self.is_first:
            return names
        of_hosts: list[set[str]] = [set() for _ in self._firsts]
        dist.all_gather_object(of_hosts, names, group=self._group)
        return set.intersection(*of_hosts)

    def share(self, folder: Path, names: Sequence[str]) -> None:
        """Copy the files `names`, each of which one host has, to the folder of each host; called by the first ranks.

        A host that cannot read or write continues to receive, so that no other host waits, and raises at the end.
        """
        if self._group is None:
            return
        files = {name: (folder / name).stat().st_size for name in names if (folder / name).is_file()}
        of_hosts: list[dict[str, int]] = [{} for _ in self._firsts]
        dist.all_gather_object(of_hosts, files, group=self._group)
        failures = [
            self._copy(folder / name, size, source=source)
            for source, files in zip(self._firsts, of_hosts)
            for name, size in files.items()
        ]
        for failure in failures:
            if failure is not None:
                raise failure

    def _copy(self, path: Path, size: int, *, source: int) -> OSError | None:
        """Send one file from the host of rank `source` to all others; return the first failure on this host."""
        sends = dist.get_rank() == source
        failure: OSError | None = None
        try:
            file = path.open("rb") if sends else path.open("wb")
        except OSError as error:
            file, failure = None, error
        for start in range(0, size, _CHUNK):
            part = torch.empty(min(_CHUNK, size - start), dtype=torch.uint8)
            view = memoryview(part.numpy().data)
            if isinstance(file, io.BufferedReader) and file.readinto(view) != len(view):
                failure = failure or OSError(f"{path}: shorter than when it was written")
            dist.broadcast(part, src=source, group=self._group)
            if isinstance(file, io.BufferedWriter) and failure is None:
                try:
                    file.write(view)
                except OSError as error:
                    failure = error
        if file is not None:
            try:
                if not sends:
                    file.flush()
                    os.fsync(file.fileno())
                file.close()
            except OSError as error:
                failure = failure or error
        return failure
