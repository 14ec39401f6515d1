"""Put files of services and editors beside the files in a folder."""

from collections.abc import Callable
from pathlib import Path
from random import Random

from contracts.other_programs import MARKERS

# Of SageMaker's uploader, macOS, Windows, editors, NFS, sync programs and rsync.
_BESIDE: tuple[Callable[[str], str], ...] = (
    *(lambda name, ending=ending: f"{name}{ending}" for ending in MARKERS),
    lambda name: f"._{name}",
    lambda name: f".{name}.swp",
    lambda name: f".{name}.sagemaker-ignore",
    lambda name: f"{name}~",
    lambda name: f"#{name}#",
    lambda name: f"{name}.part",
    lambda name: f".{name}.icloud",
    lambda name: f".{name}.x7Qp2a",
)
_ALONE = (
    ".DS_Store", "Thumbs.db", "desktop.ini", ".nfs000000000000a1", ".Trash-0/files", "__MACOSX/._x", ".directory",
    ".ipynb_checkpoints/x", ".sagemaker-ignore/x",
)  # fmt: skip


def add_foreign_files(folder: Path, rng: Random, recipe: list[str]) -> None:
    """Put up to ten files beside files and folders below `folder`, and into its folders."""
    entries = sorted(path for path in folder.rglob("*"))
    for _ in range(rng.randint(1, 10)):
        beside = rng.choice(entries)
        if rng.random() < 0.7:
            path = beside.with_name(rng.choice(_BESIDE)(beside.name))
        else:
            path = (beside if beside.is_dir() else beside.parent) / rng.choice(_ALONE)
        if not path.exists():
            recipe.append(str(path.relative_to(folder)))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(rng.choice((b"", b"x", b"{}")))
