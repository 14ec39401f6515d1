"""Find the folders that a request to SageMaker chooses: each LocalPath in the files that the service writes."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from contracts.errors import ContractError, shown
from contracts.input_files import escaped, exists, read_object
from contracts.paths import DEFAULT_ROOT, JobPaths

_FIX = "Keep the file that the service writes, or remove it: then the folder is the default one."


def with_local_paths(paths: JobPaths) -> JobPaths:
    """Return `paths` with the folders that CheckpointConfig and TensorBoardOutputConfig of a training job choose."""

    def chosen(file: Path) -> Path | None:
        return local_path(read_object(file, _FIX), file, paths.root) if exists(file) else None

    tensorboard = paths.config / "tensorboardoutputconfig.json"
    return replace(paths, checkpoint_folder=chosen(paths.checkpoint_config), tensorboard_folder=chosen(tensorboard))


def local_path(configuration: Mapping[str, object], file: Path, root: Path) -> Path | None:
    """Return the LocalPath of a part of `file`; None if it has none.

    A path below /opt/ml is one below `root`, which is /opt/ml on the service. Any other is the same under every root.
    """
    text = configuration.get("LocalPath")
    if text is None or text == "":
        return None
    if not isinstance(text, str) or not os.path.isabs(text):
        raise ContractError(
            f"{escaped(file)}: LocalPath is {shown(text)}, which is no absolute path", f"Set one below {DEFAULT_ROOT}."
        )
    path = Path(os.path.normpath(text))
    return root / path.relative_to(DEFAULT_ROOT) if path.is_relative_to(DEFAULT_ROOT) else path
