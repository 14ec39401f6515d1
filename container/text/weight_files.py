"""Check files of weights by their headers, before data is prepared: what they are, and whether they are complete.

No torch is imported, and no object of a pickle is built.
"""

import pickle
import zipfile
from codecs import BOM_UTF8
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from contracts.errors import ContractError
from contracts.input_files import check_file, check_stand_in, expected_content, read_object

# In the order in which transformers looks for them.
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")

_AGAIN = "Copy or download the file again."
_BEFORE_1_6 = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)  # how a file of torch.save began before torch 1.6
_ZIP = b"PK\x03\x04"
_STATE_MODULES = ("torch", "collections", "builtins", "__builtin__", "_codecs")  # of the parts of a state dict


def weight_files(folder: Path) -> list[Path]:
    """Return the files from which transformers loads the weights in a folder: one, or an index and its shards."""
    first = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if first is None:
        return []
    shards: list[Path] = []
    if first.suffix == ".json":
        with suppress(ContractError):  # check_weights raises it
            shards = _shards(first)
    return [first, *shards]


def check_weights(folder: Path) -> None:
    """Raise ContractError for the first file of the weights in `folder` that is damaged or no file of weights."""
    for path in weight_files(folder):
        if path.suffix == ".json":
            _shards(path)
        else:
            check_weight_file(path)


def check_weight_file(path: Path) -> None:
    """Check a file of safetensors or torch.save.

    Raises:
        ContractError: it is missing, empty, cut, a Git LFS pointer, a web page or of another format; or it has no
            tensors by name, but another object.
    """
    check_file(path)
    check_stand_in(path)
    size = path.stat().st_size
    if not size:
        raise ContractError(f"{path}: is empty", _AGAIN)
    with path.open("rb") as file:
        if path.suffix == ".safetensors":
            _check_safetensors(path, size)
        elif zipfile.is_zipfile(file):
            _check_archive(path)
        else:
            file.seek(0)
            raise _no_archive(path, file.read(len(_BEFORE_1_6)), size)


def _shards(index: Path) -> list[Path]:
    """Return the files that an index names."""
    content = read_object(index, _AGAIN)
    if index.read_bytes().startswith(BOM_UTF8):
        raise ContractError(
            f"{index}: begins with a byte order mark, which transformers refuses", "Save it without one."
        )
    with expected_content(index, _AGAIN):
        return sorted({index.parent / name for name in content["weight_map"].values()})


def _check_safetensors(path: Path, size: int) -> None:
    """Compare the size with the header, which has the place of each tensor."""
    from safetensors import SafetensorError, safe_open  # serving imports this module, and reads no weights

    try:
        with safe_open(path, framework="np"):
            pass
    except SafetensorError as error:
        raise ContractError(
            f"{path}: is cut, or no file of safetensors: it has {size} bytes: {error}", _AGAIN
        ) from None


def _check_archive(path: Path) -> None:
    """Check the content of a zip archive, which torch.save writes; its directory is at its end, so it is not cut."""
    with _readable(path), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        entry = next((name for name in names if name.rpartition("/")[2] == "data.pkl"), None)
        if entry is None:
            raise ContractError(f"{path}: is no file of torch.save, but another archive", _AGAIN)
        if any(name.rpartition("/")[2] == "constants.pkl" for name in names):
            raise _no_state_dict(path, "is a TorchScript program")
        with archive.open(entry) as pickled:
            content = _Reader(pickled, path).load()
    _check_state(path, content)


class _Inert:
    """Stands for an object of a pickle, of which only the name of its class or function is known."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


class _Reader(pickle.Unpickler):
    """Read a pickle of torch.save without importing or calling what it names."""

    def __init__(self, file: Any, path: Path) -> None:
        super().__init__(file)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] not in _STATE_MODULES:
            raise _no_state_dict(self._path, f"contains an object of {module}.{name}")
        return OrderedDict if name == "OrderedDict" else type(name, (_Inert,), {})

    def persistent_load(self, pid: Any) -> Any:
        """Return nothing for the bytes of a tensor."""


def _check_state(path: Path, content: Any) -> None:
    """Raise ContractError unless `content`, as `_Reader` returns it, has tensors by name."""
    if not isinstance(content, dict):
        raise _no_state_dict(path, f"contains a {type(content).__name__}")
    if not any(type(value).__name__.startswith("_rebuild_") for value in content.values()):
        keys = ", ".join(map(repr, list(content)[:3]))
        raise _no_state_dict(path, f"contains no tensors by name, but a dict of {keys or 'nothing'}")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise ContractError where the block cannot read a pickle or an archive of torch.save."""
    try:
        yield
    except ContractError:
        raise
    except Exception as error:  # a damaged pickle raises nearly anything
        raise ContractError(f"{path}: is cut or damaged: {type(error).__name__}", _AGAIN) from None


def _no_archive(path: Path, start: bytes, size: int) -> ContractError:
    if start.startswith(_ZIP):
        return ContractError(f"{path}: is cut: it has {size} bytes, and the directory at its end is missing", _AGAIN)
    if start == _BEFORE_1_6:
        fix = "Load it with torch.load and save it again with torch.save, or copy model.safetensors in its place."
        return ContractError(f"{path}: has the format of torch before version 1.6", fix)
    return ContractError(f"{path}: is no file of torch.save: it begins with {start!r}", _AGAIN)


def _no_state_dict(path: Path, what: str) -> ContractError:
    return ContractError(
        f"{path}: {what}, so it is no state dict, which has tensors by name",
        "Load it where it was written, and save it with model.save_pretrained(folder).",
    )
