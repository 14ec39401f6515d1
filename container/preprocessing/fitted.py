"""The rules fitted on train, stored with the prepared data and with the model."""

import hashlib
import json
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from itertools import count, islice
from pathlib import Path
from typing import Any, Self

from container.preprocessing.labels import Label, LabelMap
from container.preprocessing.numeric_transform import NumericTransformParameters
from container.preprocessing.risk_tables import RiskTable, parse_risk_table
from contracts import artifacts
from contracts.errors import ContractError
from contracts.hyperparameters import TextField
from contracts.input_files import expected_content, read_object

FORMAT_VERSION = 1
_FIX = "Use a folder that one job wrote completely."


@dataclass(frozen=True)
class FittedPreprocessing:
    """The rules that turn a raw row into a prepared one.

    Attributes:
        numeric_columns: in order; with `categorical_columns` they yield the K tabular inputs.
        imputation: value that replaces a missing number, by column.
        risk_tables: by categorical column.
        embedded_categories: by categorical column, the categories with an embedding vector; empty without embeddings.
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
        """Return the names of the K tabular inputs: numbers, then risk values, then codes of embedded categories."""
        risks = (risk_feature_names(column, self.class_labels, self.is_binary) for column in self.categorical_columns)
        codes = (f"{column}_code" for column in self.embedded_categories)
        return [*self.numeric_columns, *(name for names in risks for name in names), *codes]

    @property
    def num_codes(self) -> tuple[int, ...]:
        """Return the number of codes of each embedded column: one per category, and one for all others."""
        return tuple(1 + len(categories) for categories in self.embedded_categories.values())

    @cached_property
    def tabular_places(self) -> dict[str, tuple[int, ...]]:
        """Return the positions among the K tabular inputs of each raw column's values."""
        num_risks = 1 if self.is_binary else len(self.class_labels)
        places: dict[str, tuple[int, ...]] = {}
        free = count()
        for column in self.numeric_columns:
            places[column] = (next(free),)
        for column in self.categorical_columns:
            places[column] = tuple(islice(free, num_risks))
        for column in self.embedded_categories:
            places[column] += (next(free),)
        return places

    @cached_property
    def labels(self) -> LabelMap:
        return LabelMap(self.label_name, self.class_labels)

    @property
    def feature_inputs(self) -> tuple[str, ...]:
        """Return the raw columns that a prediction needs."""
        return (*(field.column for field in self.text_fields), *self.numeric_columns, *self.categorical_columns)

    @cached_property
    def fingerprint(self) -> str:
        """Return the hash of all rules, tokenizers included; it does not depend on the folder."""
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
        """Read the JSON files that `save` wrote.

        Raises:
            ContractError: a file is missing, is not JSON, or has another format version.
        """
        path = folder / artifacts.PREPROCESSING
        rules = read_object(path, _FIX)
        if rules.get("format_version") != FORMAT_VERSION:
            raise ContractError(
                f"{path}: format_version is {rules.get('format_version')!r}, but this code reads {FORMAT_VERSION}",
                "Use the version of this project that wrote the folder.",
            )
        imputation_path = folder / f"{artifacts.IMPUTE_DICT}.json"
        imputation = read_object(imputation_path, _FIX)
        with expected_content(path, _FIX):
            for column in rules["numeric_columns"]:
                if column not in imputation:
                    raise ContractError(f"{imputation_path}: has no column {column!r}, which {path.name} names", _FIX)
            return cls._from_json(rules, imputation, folder)

    @classmethod
    def _from_json(cls, rules: Mapping[str, Any], imputation: Mapping[str, Any], folder: Path) -> Self:
        tables_path = folder / f"{artifacts.RISK_TABLE_MAP}.json"
        tables = read_object(tables_path, _FIX)
        labels = tuple(rules["class_labels"])
        is_binary = rules["is_binary"]
        num_values = 1 if is_binary else len(labels)
        return cls(
            text_fields=tuple(_text_field(entry) for entry in rules["text_fields"]),
            id_name=rules["id_name"],
            label_name=rules["label_name"],
            numeric_columns=tuple(rules["numeric_columns"]),
            imputation={column: imputation[column] for column in rules["numeric_columns"]},
            categorical_columns=tuple(rules["categorical_columns"]),
            risk_tables={
                column: parse_risk_table(column, tables.get(column), num_values=num_values, source=str(tables_path))
                for column in rules["categorical_columns"]
            },
            numeric_transform=NumericTransformParameters.from_json(rules["numeric_transform"]),
            class_labels=labels,
            is_binary=is_binary,
            tokenizer_digests=rules["tokenizer_digests"],
            embedded_categories={
                column: tuple(categories) for column, categories in rules.get("embedded_categories", {}).items()
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
    """Return the names of a categorical column's risk values: the column's name, or one name per class."""
    return [column] if is_binary else [f"{column}_{label}" for label in class_labels]


def file_digest(paths: list[Path]) -> str:
    """Return the hash of the names and contents of small files."""
    digest = hashlib.sha256()
    for path in sorted(paths, key=lambda path: path.name):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _text_field(entry: Mapping[str, Any]) -> TextField:
    values = {field.name: entry[field.name] for field in fields(TextField) if field.name in entry}
    return TextField(**{**values, "steps": tuple(values["steps"])})


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", "utf-8")
