"""Try out an encoder: python -m container.start container.models.try_out FOLDER NAME.

FOLDER contains its config.json. Exit code 1 means that a classifier cannot use it; stdout then has the cause, in which
NAME replaces FOLDER, and the fix, as a JSON list.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from container.models.backbone import try_out
from contracts.errors import ContractError


def main(arguments: Sequence[str]) -> int:
    """Run the command line."""
    folder, name = arguments
    try:
        try_out(Path(folder))
    except ContractError as error:
        print(json.dumps([error.cause.replace(folder, name), error.fix]))
        return 1
    return 0
