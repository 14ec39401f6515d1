"""Read imputation values, risk tables and selected features of an earlier step; restrict the classes in pickles."""

import importlib
import io
import logging
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from container.tables.table_file import check_present
from contracts import artifacts
from contracts.errors import ContractError
from contracts.input_files import check_stand_in, read_json
from contracts.value_types import LARGEST_NUMBER

logger = logging.getLogger(__name__)

_CONTAINERS = ("dict", "list", "tuple", "set", "frozenset", "str", "int", "float", "bool", "complex")
_NUMPY_INTERNALS = (("multiarray", "_reconstruct"), ("multiarray", "scalar"), ("numeric", "_frombuffer"))
ALLOWED_CLASSES = frozenset(
    [("builtins", name) for name in _CONTAINERS]
    + [("collections", "OrderedDict"), ("collections", "defaultdict"), ("numpy", "ndarray"), ("numpy", "dtype")]
    + [(f"numpy.{core}.{module}", name) for core in ("core", "_core") for module, name in _NUMPY_INTERNALS]
)


@dataclass(frozen=True)
class Precomputed:
    """Precomputed values that the environment requests, in the form of their files; None: they are fitted."""

    imputation: Mapping[str, float] | None
    risk_tables: Mapping[str, Any] | None
    risk_file: str = ""


def load_precomputed(
    folder: Path, *, numeric_columns: Sequence[str], categorical_columns: Sequence[str]
) -> Precomputed:
    """Read the requested artifacts, restricted to the given columns.

    Raises:
        ContractError: a requested file is missing, corrupt or refused, or lacks a column; another value of a variable.
    """
    imputation = risk_tables = None
    if _requested(artifacts.USE_PRECOMPUTED_IMPUTATION, folder, artifacts.IMPUTE_DICT):
        imputation = load_imputation(folder, numeric_columns)
    if _requested(artifacts.USE_PRECOMPUTED_RISK_TABLES, folder, artifacts.RISK_TABLE_MAP):
        path, risk_tables = read_artifact(folder, artifacts.RISK_TABLE_MAP, categorical_columns)
        return Precomputed(imputation, risk_tables, str(path))
    return Precomputed(imputation, risk_tables)


def load_imputation(folder: Path, columns: Sequence[str]) -> dict[str, float]:
    """Return impute_dict of an earlier step: {column: value}."""
    path, values = read_artifact(folder, artifacts.IMPUTE_DICT, columns)
    for column, value in values.items():
        if (
            not isinstance(value, (int, float, np.number))
            or isinstance(value, bool)
            or not abs(value) <= LARGEST_NUMBER
        ):
            raise ContractError(
                f"{path}: column {column!r}: {value!r} is not a finite number of float32",
                "Give each column one number, or set USE_PRECOMPUTED_IMPUTATION to false to fit them.",
            )
    return {column: float(value) for column, value in values.items()}


def selected_features(folder: Path, known: Sequence[str]) -> tuple[str, ...] | None:
    """Return the columns that selected_features.json names; None without the file.

    Raises:
        ContractError: not a list of names, or a name that is neither a numeric nor a categorical column.
    """
    path = folder / artifacts.SELECTED_FEATURES
    if not path.is_file():
        return None
    names = read_json(path, "Write it again.")
    if isinstance(names, Mapping):
        names = names.get("selected_features")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ContractError(
            f"{path}: is not a list of column names",
            'Write ["column", ...] or {"selected_features": ["column", ...]}.',
        )
    check_present(names, known, str(path))
    dropped = [name for name in known if name not in names]
    logger.info(
        "%s selects %d of %d table columns; left out: %s.", path, len(set(names)), len(known), dropped or "none"
    )
    return tuple(dict.fromkeys(names))


def read_artifact(folder: Path, name: str, columns: Sequence[str]) -> tuple[Path, dict[str, Any]]:
    """Return the path of `name`.json, else `name`.pkl, and its values of `columns`."""
    json_path, pickle_path = folder / f"{name}.json", folder / f"{name}.pkl"
    if json_path.is_file():
        path, values = json_path, read_json(json_path, "Write it again.")
    elif pickle_path.is_file():
        path, values = pickle_path, read_pickle(pickle_path)
    else:
        raise ContractError(
            f"{folder}: neither {json_path.name} nor {pickle_path.name} exists, but USE_PRECOMPUTED_* is true",
            "Put one of them into the channel model_artifacts_input, or set the variable to false.",
        )
    if not isinstance(values, Mapping):
        raise ContractError(f"{path}: is a {type(values).__name__}, not an object {{column: value}}", "Write it again.")
    check_present(columns, [name for name in values if isinstance(name, str)], str(path))
    return path, {column: values[column] for column in columns}


def read_pickle(path: Path) -> Any:
    """Return the content of a pickle of containers, numbers, strings and NumPy values; no other class is loaded.

    Raises:
        ContractError: the pickle refers to another class or function, or is corrupt.
    """
    try:
        return _RestrictedUnpickler(path).load()
    except ContractError:
        raise
    except Exception as error:  # a corrupt pickle raises nearly anything
        check_stand_in(path)
        raise ContractError(
            f"{path}: is not a readable pickle: {type(error).__name__}: {error}", "Write it again, or write JSON."
        ) from error


class _RestrictedUnpickler(pickle.Unpickler):
    def __init__(self, path: Path) -> None:
        super().__init__(io.BytesIO(path.read_bytes()))
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        module = "builtins" if module == "__builtin__" else module
        if (module, name) == ("_codecs", "encode"):
            return _bytes_of  # older pickles of NumPy bytes call it
        if (module, name) not in ALLOWED_CLASSES:
            raise ContractError(
                f"{self.path}: the pickle refers to {module}.{name}, which is not allowed",
                "A pickle may contain dicts, lists, numbers, strings and NumPy values only; write JSON instead.",
            )
        return getattr(importlib.import_module(module.replace("numpy.core", "numpy._core")), name)


def _bytes_of(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise ValueError(f"bytes written as {encoding!r}")
    return text.encode("latin1")


def _requested(variable: str, folder: Path, name: str) -> bool:
    """Return whether an environment variable requests an artifact: true, false or not set."""
    value = os.environ.get(variable, "false").strip().lower()
    if value not in ("true", "false"):
        raise ContractError(f"{variable}: is {os.environ[variable]!r}", f"Set {variable} to true or false.")
    present = [path.name for path in (folder / f"{name}.json", folder / f"{name}.pkl") if path.is_file()]
    if present and value == "false":
        logger.info("%s/%s is not used: %s is not true.", folder, present[0], variable)
    return value == "true"
