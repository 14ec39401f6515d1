"""Compare two registered versions by `python -m container compare`, on the test rows that both scored."""

import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from contracts import artifacts
from contracts.errors import ContractError
from pipeline.local.process import start_program

COMPARED = ("test_predictions", "val_predictions", "out_of_fold_predictions", artifacts.METRICS)


def compare(fetch: Callable[[int, Path], None], numbers: Sequence[int]) -> int:
    """Print how the second version differs from the first; return the exit code.

    Args:
        fetch: writes model/ and output/data/ of a version to a folder.
    """
    if len(set(numbers)) < len(numbers):
        raise ContractError(f"compare: version {numbers[0]} is given twice", "Name two versions.")
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        names = [f"version-{number}" for number in numbers]
        for name, number in zip(names, numbers):
            fetch(number, Path(folder, name))
        return start_program(["compare", *names], {}, None, folder=Path(folder)).wait()


def unpack(archive: Path, folder: Path, *, only: Sequence[str] = ()) -> None:
    """Unpack an archive; with `only`, its files whose names begin so."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as files:
        members = [each for each in files if not only or Path(each.name).name.startswith(tuple(only))]
        files.extractall(folder, members, filter="data")
