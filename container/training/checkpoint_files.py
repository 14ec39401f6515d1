"""Find and remove checkpoints on disk, without torch.

    checkpoints/
      epoch=1-step=120.ckpt/   DCP's files, state.json, manifest.json (names and sizes of these files, written last)
      last.ckpt, best.ckpt     the name of the newest and of the best folder
      .sagemaker-ignore/       unfinished saves and removals

A checkpoint is written into the last folder, which is not uploaded, and renamed when it is complete. The pointers are
small text files, not links, because the sync of a checkpoint folder to S3 loses links. Other programs put files beside
all of these at any time (contracts/other_programs.py): only the manifest says what belongs to a checkpoint.
"""

import json
import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.file_systems import move
from contracts.other_programs import MARKERS, NOT_UPLOADED, remove_folder, remove_in_place

logger = logging.getLogger(__name__)

LAST, BEST = "last.ckpt", "best.ckpt"
_NAME = re.compile(r"epoch=\d+-step=\d+\.ckpt")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk: its folder and state.json."""

    folder: Path
    content: dict[str, Any]

    @property
    def step(self) -> int:
        return self.content["step"]


def unfinished_save(folder: Path, name: str) -> Path:
    """Return the folder in which the checkpoint `name` is written."""
    return folder / NOT_UPLOADED / name


def clear_unfinished(folder: Path) -> None:
    """Remove the files of unfinished saves, after completing those that only lack their name."""
    _finish_saves(folder)
    remove_in_place(folder / NOT_UPLOADED)


def clear_checkpoints(folder: Path) -> None:
    """Remove every checkpoint, also of an unfinished save, and the files that name one, and nothing else."""
    clear_unfinished(folder)
    for path in checkpoint_folders(folder):
        remove_folder(path)
    for name in (LAST, BEST):
        (folder / name).unlink(missing_ok=True)


def checkpoint_folders(folder: Path) -> list[Path]:
    """Return the folders with the name of a checkpoint; all others belong to the user."""
    return [path for path in folder.glob("*.ckpt") if _NAME.fullmatch(path.name) and path.is_dir()]


def complete_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return all complete checkpoints, oldest first; log the name of each incomplete or damaged one."""
    _finish_saves(folder)
    complete = []
    for path in checkpoint_folders(folder):
        try:
            complete.append(_read(path))
        except (OSError, ValueError) as error:
            logger.warning("checkpoint %s is incomplete and is skipped: %s", path.name, error)
    return sorted(complete, key=lambda checkpoint: checkpoint.step)


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the complete checkpoint of the latest step, if there is one; log and change nothing."""
    checkpoints: list[Checkpoint] = []
    for path in checkpoint_folders(folder):
        with suppress(OSError, ValueError):
            checkpoints.append(_read(path))
    return max(checkpoints, key=lambda checkpoint: checkpoint.step, default=None)


def remove_old_checkpoints(folder: Path, *, keep: int, newest: str | None = None, uploads: bool = True) -> None:
    """Keep the best checkpoint, the newest ones, and those without which the upload would have no complete one.

    Args:
        keep: number of the newest ones.
        newest: name of the newest one. A later step is of a run that another host has lost: training went back to a
            checkpoint that all hosts have.
        uploads: false: the job has ended, and needs no upload.
    """
    names = [each.folder.name for each in complete_checkpoints(folder)]
    current = names[: names.index(newest) + 1] if newest in names else names
    best = [(folder / BEST).read_text().strip()] if (folder / BEST).is_file() else []
    kept = {*current[-keep:], *best, *(_needed_uploads(folder, current) if uploads else ())}
    for name in names:
        if name not in kept:
            remove_folder(folder / name)
    clear_unfinished(folder)


def _needed_uploads(folder: Path, names: Sequence[str]) -> list[str]:
    """Return the newest checkpoint that is uploaded, and the oldest one after it whose upload has begun.

    The service also removes from S3 what a job removes. With saves faster than uploads, no upload would be completed.
    """
    uploaded = [number for number, name in enumerate(names, 1) if _is_uploaded(folder / name)]
    count = max(uploaded, default=0)
    begun = [name for name in names[count:] if any(path.name.endswith(MARKERS) for path in (folder / name).iterdir())]
    return [*names[count - 1 : count], *begun[:1]]


def _is_uploaded(path: Path) -> bool:
    """Return whether all files of a complete checkpoint are marked as uploaded."""
    files = [*json.loads((path / "manifest.json").read_text()), "manifest.json"]
    return all((path / f"{name}{MARKERS[1]}").exists() for name in files)


def _finish_saves(folder: Path) -> None:
    """Rename what was saved completely, where a process ended before it could replace a save of the same step."""
    for path in checkpoint_folders(folder / NOT_UPLOADED):
        final = folder / path.name
        if not final.exists():
            with suppress(OSError, ValueError):
                _read(path)
                move(path, final)


def _read(path: Path) -> Checkpoint:
    """Return the checkpoint in a folder; raise OSError or ValueError if it is not complete."""
    files = json.loads((path / "manifest.json").read_text())
    if not isinstance(files, dict) or not {".metadata", "state.json"} <= files.keys():
        raise ValueError("manifest.json has no list of files")
    damaged = [name for name, size in files.items() if (path / name).stat().st_size != size]
    if damaged:
        raise ValueError(f"the size of {damaged[0]} differs from manifest.json")
    content = json.loads((path / "state.json").read_text())
    if not isinstance(content, dict) or "step" not in content:
        raise ValueError("state.json has no step")
    return Checkpoint(path, content)
