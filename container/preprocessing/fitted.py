"""Everything fitted on train, and what is needed to apply it; written beside the prepared data and beside the model."""

import hashlib
import json
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from container.preprocessing.labels import Label, LabelMap
from container.preprocessing.numeric_transform import NumericTransformParameters
from container.preprocessing.risk_tables import RiskTable, parse_risk_table
from contracts import artifacts
from contracts.errors import ContractError
from contracts.hyperparameters import TextField

FORMAT_VERSION = 1

__all__ = ["FittedPreprocessing", "NumericTransformParameters", "file_digest", "risk_feature_names"]


@dataclass(frozen=True)
class FittedPreprocessing:
    """The rules that turn a raw row into a prepared one.

    Attributes:
        numeric_columns: in order; with `categorical_columns` they make the K tabular inputs.
        imputation: value of a missing number, by column.
        risk_tables: by categorical column.
        embedded_categories: by categorical column, those that have a vector of their own; empty where none has.
        class_labels: label of each class id.
        tokenizer_digests: hash of each text field's tokenizer files, by role.
    """

    text_fields: tuple[TextField, ...]
    id_name: str
    label_name: str
    numeric_columns: tuple[str, ...]
    imputation: Mapping[str, float]
    categorical_columns: tuple[str, ...]
    risk_tables: Mapping[str, RiskTable]
    numeric_transform: NumericTransformParameters
    class_labels: tuple[Label, ...]
    is_binary: bool
    tokenizer_digests: Mapping[str, str]
    embedded_categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def feature_columns(self) -> list[str]:
        """Names of the K tabular inputs: numbers, then risk values, then codes of embedded categories."""
        risks = (risk_feature_names(column, self.class_labels, self.is_binary) for column in self.categorical_columns)
        codes = (f"{column}_code" for column in self.embedded_categories)
        return [*self.numeric_columns, *(name for names in risks for name in names), *codes]

    @property
    def num_codes(self) -> tuple[int, ...]:
        """How many codes each embedded column has: one per category, and one for all others."""
        return tuple(1 + len(categories) for categories in self.embedded_categories.values())

    @cached_property
    def tabular_places(self) -> dict[str, tuple[int, ...]]:
        """Which of the K tabular inputs each raw column became."""
        places: dict[str, tuple[int, ...]] = {column: (i,) for i, column in enumerate(self.numeric_columns)}
        for column in self.categorical_columns:
            first = sum(map(len, places.values()))
            names = risk_feature_names(column, self.class_labels, self.is_binary)
            places[column] = tuple(range(first, first + len(names)))
        for i, column in enumerate(self.embedded_categories):
            places[column] = (*places[column], len(self.feature_columns) - len(self.embedded_categories) + i)
        return places

    @cached_property
    def labels(self) -> LabelMap:
        return LabelMap(self.label_name, self.class_labels)

    @property
    def feature_inputs(self) -> tuple[str, ...]:
        """The raw columns that a row needs to be scored."""
        return (*(field.column for field in self.text_fields), *self.numeric_columns, *self.categorical_columns)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all rules, tokenizers included; equal rules have equal fingerprints wherever they lie."""
        described = {
            "rules": self._to_json(),
            "imputation": dict(self.imputation),
            "risk_tables": {column: table.to_json() for column, table in self.risk_tables.items()},
        }
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]

    def save(self, folder: Path) -> None:
        """Write preprocessing.json, feature_columns.txt, impute_dict and risk_table_map (.json and .pkl)."""
        folder.mkdir(parents=True, exist_ok=True)
        _write_json(folder / artifacts.PREPROCESSING, self._to_json())
        (folder / artifacts.FEATURE_COLUMNS).write_text("".join(f"{name}\n" for name in self.feature_columns), "utf-8")
        tables = {column: table.to_json() for column, table in self.risk_tables.items()}
        for name, value in ((artifacts.IMPUTE_DICT, dict(self.imputation)), (artifacts.RISK_TABLE_MAP, tables)):
            _write_json(folder / f"{name}.json", value)
            (folder / f"{name}.pkl").write_bytes(pickle.dumps(value, protocol=4))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` wrote, from the JSON files alone.

        Raises:
            ContractError: a file is missing, is no JSON, or of another format version.
        """
        path = folder / artifacts.PREPROCESSING
        found = _read_json(path)
        if found.get("format_version") != FORMAT_VERSION:
            raise ContractError(
                f"{path}: format_version is {found.get('format_version')!r}, but this code reads {FORMAT_VERSION}",
                "Use the version of this project that wrote the folder.",
            )
        labels = tuple(found["class_labels"])
        is_binary = found["is_binary"]
        imputation = _read_json(folder / f"{artifacts.IMPUTE_DICT}.json")
        tables_path = folder / f"{artifacts.RISK_TABLE_MAP}.json"
        tables = _read_json(tables_path)
        num_values = 1 if is_binary else len(labels)
        return cls(
            text_fields=tuple(_text_field(entry) for entry in found["text_fields"]),
            id_name=found["id_name"],
            label_name=found["label_name"],
            numeric_columns=tuple(found["numeric_columns"]),
            imputation={column: imputation[column] for column in found["numeric_columns"]},
            categorical_columns=tuple(found["categorical_columns"]),
            risk_tables={
                column: parse_risk_table(column, tables.get(column), num_values=num_values, source=str(tables_path))
                for column in found["categorical_columns"]
            },
            numeric_transform=NumericTransformParameters.from_json(found["numeric_transform"]),
            class_labels=labels,
            is_binary=is_binary,
            tokenizer_digests=found["tokenizer_digests"],
            embedded_categories={
                column: tuple(categories) for column, categories in found.get("embedded_categories", {}).items()
            },
        )

    def _to_json(self) -> dict[str, Any]:
        return {
            "format_version": FORMAT_VERSION,
            "text_fields": [asdict(field) for field in self.text_fields],
            "id_name": self.id_name,
            "label_name": self.label_name,
            "numeric_columns": list(self.numeric_columns),
            "categorical_columns": list(self.categorical_columns),
            "feature_columns": self.feature_columns,
            "numeric_transform": self.numeric_transform.to_json(),
            "class_labels": list(self.class_labels),
            "is_binary": self.is_binary,
            "tokenizer_digests": dict(self.tokenizer_digests),
            **({"embedded_categories": dict(self.embedded_categories)} if self.embedded_categories else {}),
        }


def risk_feature_names(column: str, class_labels: tuple[Label, ...], is_binary: bool) -> list[str]:
    """Names of a categorical column's risk values: its own, or one per class."""
    return [column] if is_binary else [f"{column}_{label}" for label in class_labels]


def file_digest(paths: list[Path]) -> str:
    """Hash of the names and contents of small files."""
    digest = hashlib.sha256()
    for path in sorted(paths, key=lambda path: path.name):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _text_field(entry: Mapping[str, Any]) -> TextField:
    known = {field.name for field in fields(TextField)}
    values = {name: value for name, value in entry.items() if name in known}
    return TextField(**{**values, "steps": tuple(values["steps"])})


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ContractError(f"{path}: cannot be read: {error}", "Use a folder that a job wrote completely.") from error
