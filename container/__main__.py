"""Run a command of container/commands.py: python -m container COMMAND."""

import os

from container.cores import share_of_cores
from contracts.program import run_program

if __name__ == "__main__":
    os.environ.update(share_of_cores(1))  # before libraries that start threads are imported
    run_program("container.commands")
