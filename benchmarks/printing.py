"""Print benchmark results: a description of the machine, and tables in Markdown."""

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

_PACKAGES = ("torch", "transformers", "tokenizers", "pyarrow", "numpy")


def print_machine() -> None:
    """Print cores, processor, load and package versions."""
    cores = len(os.sched_getaffinity(0))
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    print(f"{cores} cores of {model}, load {os.getloadavg()[0]:.1f} at the start")
    print(f"Python {platform.python_version()}, {versions}", flush=True)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a title and a Markdown table with columns aligned for a terminal."""
    widths = [max(map(len, column)) for column in zip(columns, *rows)]
    print(f"\n{title}\n")
    for row in (columns, ["-" * width for width in widths], *rows):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |")
    print(flush=True)
