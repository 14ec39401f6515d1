"""Find the folders that a request to SageMaker chooses: each LocalPath in the files that the service writes."""

import os
from dataclasses import replace
from pathlib import Path

from contracts.errors import ContractError, shown
from contracts.input_files import escaped, exists, read_object
from contracts.paths import DEFAULT_ROOT, JobPaths

_FIX = "Keep the file that the service writes, or remove it: then the folder is the default one."


def with_local_paths(paths: JobPaths) -> JobPaths:
    """Return `paths` with the LocalPath of CheckpointConfig and of TensorBoardOutputConfig in a training job's request.

    A path below /opt/ml is one below the root, which is /opt/ml on the service. Any other is the same under every root.
    """

    def chosen(file: Path) -> Path | None:
        text = read_object(file, _FIX).get("LocalPath") if exists(file) else None
        if text is None or text == "":
            return None
        if not isinstance(text, str) or not os.path.isabs(text):
            raise ContractError(
                f"{escaped(file)}: LocalPath is {shown(text)}, which is no absolute path",
                f"Set one below {DEFAULT_ROOT}.",
            )
        path = Path(os.path.normpath(text))
        return paths.root / path.relative_to(DEFAULT_ROOT) if path.is_relative_to(DEFAULT_ROOT) else path

    tensorboard = paths.config / "tensorboardoutputconfig.json"
    return replace(paths, checkpoint_folder=chosen(paths.checkpoint_config), tensorboard_folder=chosen(tensorboard))
