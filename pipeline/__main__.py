"""Run a command of pipeline/commands.py: python -m pipeline COMMAND."""

from contracts.program import run_program

if __name__ == "__main__":
    run_program("pipeline.commands")
