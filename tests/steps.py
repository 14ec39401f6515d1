"""Step programs for the tests: inputs under a root, `python -m container STEP` as a process of its own."""

import os
import shutil
from pathlib import Path

from contracts.step_contract import StepContract, message_file
from testing import warm


def give(root: Path, contract: StepContract, **inputs: Path | dict[str, bytes | str]) -> Path:
    """Lay inputs out by logical name: copies of a folder or file, or files by name; returns the root."""
    for name, content in inputs.items():
        folder = contract.input(name).path(root)
        if isinstance(content, dict):
            for file, text in content.items():
                path = folder / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text.encode() if isinstance(text, str) else text)
        elif content.is_dir():
            shutil.copytree(content, folder)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(content, folder)
    return root


def run_step(contract: StepContract, root: Path, *, expect: int = 0, **environment: str) -> str:
    """Run the program; its exit code must be `expect`. Returns its log, or the first line of the message it left."""
    code, log = warm.run(
        ["-m", "container", *contract.command_line(), "--root", str(root)],
        environment={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        timeout=120,
    )
    assert code == expect, f"exit code {code}\n{log}"
    return message_file(root).read_text().splitlines()[0] if expect else log
