"""List the files of a model with their hashes, and check those that a backend reads."""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from contracts import artifacts
from contracts.errors import ContractError
from contracts.fingerprint import digest_of_file
from contracts.input_files import check_file, exists, read_as

logger = logging.getLogger(__name__)

_BY_BACKEND = (".onnx", ".onnx.data", ".pth", ".pkl")  # a backend reads its own of these, and all other files


@dataclass(frozen=True)
class ModelFiles:
    """The content of files.json: the SHA-256 of each file that the job wrote into model/, by path."""

    format_version: Literal[1]
    sha256: Mapping[str, str]


def write_model_files(folder: Path, files: Iterable[Path]) -> Path:
    """Write files.json about `files` of `folder`, and return its path."""
    hashes = {path.relative_to(folder).as_posix(): digest_of_file(path) for path in files}
    path = folder / artifacts.MODEL_FILES
    path.write_text(json.dumps({"format_version": 1, "sha256": hashes}, indent=1) + "\n", "utf-8")
    return path


@contextmanager
def checked_files(folder: Path, backend: str, *, variant: str | None) -> Iterator[None]:
    """Check, after the block has loaded a model, that it has read the files that files.json listed before.

    So a folder that is replaced meanwhile is an error, and no mixture of two models. A file that the backend does not
    read may be absent: model.pth for ONNX Runtime, or an unused variant. A model of an earlier version has no list: log
    a warning.

    Raises:
        ContractError: a listed file is missing or changed, or files.json does not list a file that the backend reads.
    """
    path = folder / artifacts.MODEL_FILES
    if not exists(path):
        logger.warning("%s: is missing, so the model's files are not checked; a model of version 0.1 has none.", path)
        yield
        return
    listed = read_as(path, ModelFiles, artifacts.MODEL_FIX).sha256
    yield
    graph = artifacts.onnx_file(variant)
    own = (
        {graph, f"{graph}.data", artifacts.head_file(variant)}
        if backend != "torch"
        else {artifacts.MODEL_STATE, artifacts.COMPANION}
    )
    for name in own:
        if exists(folder / name) and name not in listed:
            raise ContractError(
                f"{folder / name}: is not a file of this model: {path} does not list it", artifacts.MODEL_FIX
            )
    for name, digest in listed.items():
        if name not in own and name.endswith(_BY_BACKEND):
            continue
        if not exists(folder / name):
            raise ContractError(f"{folder / name}: is missing, but {path} lists it", artifacts.MODEL_FIX)
        check_file(folder / name)
        if digest_of_file(folder / name) != digest:
            raise ContractError(f"{folder / name}: is not the file whose hash {path} contains", artifacts.MODEL_FIX)
