"""Kind checkpoints: folders of checkpoints among files of other programs, which a job reads, moves and removes."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from container.training.checkpoint_files import (
    BEST,
    LAST,
    checkpoint_folders,
    clear_checkpoints,
    clear_unfinished,
    complete_checkpoints,
    unfinished_save,
)
from contracts.other_programs import MARKERS, NOT_UPLOADED, remove_folder
from testing.fuzz.foreign_files import add_foreign_files
from testing.fuzz.outcome import ACCEPTED, REFUSED, Case, Outcome


def run(case: Case) -> Outcome:
    """Generate a folder of checkpoints, and do to it what jobs do."""
    rng, folder = case.rng, case.folder / "job" / "checkpoints"
    steps = sorted(rng.sample(range(1, 100), rng.randint(1, 4)))
    for step in steps:
        _write(folder / _name(step), step, rng)
    for name in (LAST, BEST):
        (folder / name).write_text(f"{_name(rng.choice(steps))}\n")
    if rng.random() < 0.4:
        unfinished = unfinished_save(folder, _name(200))
        _write(unfinished, 200, rng)
        if rng.random() < 0.5:
            (unfinished / "manifest.json").unlink()
            case.recipe.append("an unfinished save")
        else:
            steps.append(200)
            case.recipe.append("a save without its name")
    damaged = rng.random() < 0.3
    if damaged:
        case.recipe.append("a file that is cut")
        cut = rng.choice(sorted(folder.glob(f"{_name(steps[0])}/*[!n]")))  # any but manifest.json and state.json
        cut.write_bytes(b"")
        steps = steps[1:]
    add_foreign_files(folder, rng, case.recipe)
    problems = []
    for action in rng.sample(_ACTIONS, 2):
        case.recipe.append(action.__name__)
        case.begin()
        with _late_files(rng):
            folder, steps = action(folder, steps)
        found = [each.step for each in complete_checkpoints(folder)]
        if found != steps:
            problems.append(f"{action.__name__}: the complete checkpoints are {found}, not {steps}")
        if not damaged and len(checkpoint_folders(folder)) != len(steps):
            problems.append(f"{action.__name__}: {len(checkpoint_folders(folder))} folders, not {len(steps)}")
    return Outcome(REFUSED if damaged else ACCEPTED, problems, case.recipe)


def find(folder: Path, steps: list[int]) -> tuple[Path, list[int]]:
    return folder, steps


def clear_unfinished_saves(folder: Path, steps: list[int]) -> tuple[Path, list[int]]:
    clear_unfinished(folder)
    return folder, steps


def clear(folder: Path, steps: list[int]) -> tuple[Path, list[int]]:
    clear_checkpoints(folder)
    return folder, []


def remove_the_oldest(folder: Path, steps: list[int]) -> tuple[Path, list[int]]:
    for checkpoint in complete_checkpoints(folder)[:1]:
        remove_folder(checkpoint.folder)
    return folder, steps[1:]


def restore(folder: Path, steps: list[int]) -> tuple[Path, list[int]]:
    """Return a copy with what is uploaded."""
    complete_checkpoints(folder)
    copy = folder.with_name(f"{folder.name}-copy")
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(*(f"*{end}" for end in (*MARKERS, NOT_UPLOADED))))
    return copy, steps


_ACTIONS: tuple[Callable[[Path, list[int]], tuple[Path, list[int]]], ...] = (
    find, clear_unfinished_saves, clear, remove_the_oldest, restore,
)  # fmt: skip


def _name(step: int) -> str:
    return f"epoch={step // 10}-step={step}.ckpt"


def _write(folder: Path, step: int, rng: Random) -> None:
    folder.mkdir(parents=True)
    files = {".metadata": b"m", "state.json": json.dumps({"step": step}).encode()}
    files |= {f"__{rank}_0.distcp": rng.randbytes(9) for rank in range(rng.randint(1, 3))}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    sizes = {name: len(content) for name, content in files.items()}
    (folder / "manifest.json").write_text(json.dumps(sizes))


@contextmanager
def _late_files(rng: Random) -> Iterator[None]:
    """Put files into folders while they are removed."""
    rmdir, left = os.rmdir, rng.choice((0, 0, 1, 5))

    def late(path, *, dir_fd=None):  # type: ignore[no-untyped-def]
        nonlocal left
        if left:
            left -= 1
            inside = os.open(path, os.O_RDONLY, dir_fd=dir_fd)
            os.close(os.open(f"late{left}{rng.choice(MARKERS)}", os.O_CREAT, dir_fd=inside))
            os.close(inside)
        rmdir(path, dir_fd=dir_fd)

    os.rmdir = late
    try:
        yield
    finally:
        os.rmdir = rmdir
