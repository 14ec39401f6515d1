"""Run a program of the job: python -m container.job.start MODULE ARGUMENTS.

The garbage collector ignores the objects of the imported modules, which live as long as the process.
"""

import gc
import importlib
import sys
from collections.abc import Sequence

from container.job.processes import without_collection
from contracts.program import end_process, open_standard_streams


def start_command(module: str, *arguments: str) -> list[str]:
    """Return the arguments of Python that run `module`."""
    return ["-m", "container.job.start", module, *arguments]


def main(module: str, arguments: Sequence[str]) -> int:
    """Import `module`, call its function main and return its exit code."""
    with without_collection():
        program = importlib.import_module(module)
        gc.freeze()
    return program.main(arguments)


if __name__ == "__main__":
    open_standard_streams()
    end_process(main(sys.argv[1], sys.argv[2:]))
