"""The rules fitted on train, stored with the prepared data and with the model."""

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, TypeAdapter

from container.preprocessing.category_parts import category_part
from container.preprocessing.labels import Label, LabelMap
from container.preprocessing.numeric_transform import NumericTransformParameters
from container.preprocessing.risk_tables import RiskTable, category_keys, category_names, parse_risk_table
from container.tables.dates import DateReading
from container.tables.table_file import Origin
from container.tables.values import Kind, kind_of_texts, numbers
from contracts import artifacts
from contracts.errors import ContractError, one_line
from contracts.fingerprint import digest_of
from contracts.input_files import read_as
from contracts.serving import INPUT_ORDER
from contracts.settings.data import ROW_COLUMNS
from contracts.tabular_inputs import code_input, date_inputs, indicator_input, risk_inputs
from contracts.text_fields import TextField
from contracts.value_types import CategoryPart, Number, NumberFormat


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The content of preprocessing.json.

    Attributes:
        numeric_columns: in order. See `feature_columns` for the K tabular inputs.
        missing_indicators: the numeric columns with an input that tells whether the number was missing.
        embedded_categories: by categorical column, the categories with an embedding vector; empty without embeddings.
        subtracted: by numeric column, what is subtracted before its numbers become float32, where that is needed.
        category_kinds: by categorical column, how texts are read; None in a model of an older version.
        category_part: by categorical column, the part of a value that is its category, if it is not all.
        number_format: notation of numeric columns and of the weight, if they are not written as 1234.5.
        number_units: their currency or percent sign, "" for none; None in a model of an older version: any.
        null_values: words in lower case for a missing number or date, besides the usual ones.
        dates: by date column, how it is written; its parts are numeric columns (`date_inputs`).
        class_labels: label of each class id.
        weight_name, group_name: columns that a prediction does not need.
        id_name: None if the number of a row is its id.
        tokenizer_digests: hash of each text field's tokenizer files, by role.
    """

    format_version: Literal[1]
    text_fields: tuple[TextField, ...]
    id_name: str | None
    label_name: str
    numeric_columns: tuple[str, ...]
    categorical_columns: tuple[str, ...]
    numeric_transform: NumericTransformParameters
    class_labels: Annotated[tuple[Label, ...], Field(min_length=2)]
    is_binary: bool
    tokenizer_digests: Mapping[str, str]
    missing_indicators: tuple[str, ...] = ()
    embedded_categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    subtracted: Mapping[str, Number] = field(default_factory=dict)
    category_kinds: Mapping[str, Kind] | None = None
    category_part: Mapping[str, CategoryPart] = field(default_factory=dict)
    number_format: Mapping[str, NumberFormat] = field(default_factory=dict)
    number_units: Mapping[str, str] | None = None
    null_values: tuple[str, ...] = ()
    dates: Mapping[str, DateReading] = field(default_factory=dict)
    weight_name: str | None = None
    group_name: str | None = None

    def __post_init__(self) -> None:
        if self.is_binary and len(self.class_labels) != 2:
            raise ValueError(f"is_binary is true, but class_labels has {len(self.class_labels)} labels")
        if any("dialogue_chunker" in text.steps[:-2] for text in self.text_fields):
            raise ValueError("text_fields has a step between dialogue_chunker and tokenizer")
        for name in ("embedded_categories", "category_part", "missing_indicators", "subtracted", "number_format"):
            columns = "categorical_columns" if "categor" in name else "numeric_columns"
            if unknown := set(getattr(self, name)) - {*getattr(self, columns), self.weight_name}:
                raise ValueError(f"{columns} lacks {sorted(unknown)}, which {name} names")
        if unknown := set(self._date_of_part) - set(self.numeric_columns):
            raise ValueError(f"numeric_columns lacks {sorted(unknown)}, the parts of dates")
        if self.category_kinds is not None and self.category_kinds.keys() != set(self.categorical_columns):
            raise ValueError(f"category_kinds is of {sorted(self.category_kinds)}, not of categorical_columns")
        for name in ROW_COLUMNS:
            if getattr(self, name) in self.feature_inputs:
                raise ValueError(f"{name} is {getattr(self, name)!r}, which is also an input of the model")
        transform, num_inputs = self.numeric_transform, len(self.feature_columns) - len(self.embedded_categories)
        for name in ("mean", "scale", "quantiles", "bins"):
            if len(getattr(transform, name)) not in (0, num_inputs):
                raise ValueError(f"numeric_transform.{name} has not one entry for each of {num_inputs} scaled inputs")

    @cached_property
    def feature_columns(self) -> list[str]:
        """Return the names of the K tabular inputs: numbers, indicators, risk values, codes of embedded categories."""
        indicators = map(indicator_input, self.missing_indicators)
        risks = (
            risk_inputs(column, self.class_labels, is_binary=self.is_binary) for column in self.categorical_columns
        )
        codes = map(code_input, self.embedded_categories)
        return [*self.numeric_columns, *indicators, *(name for names in risks for name in names), *codes]

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
            raw = self._date_of_part.get(column, column)
            places[raw] = (*places.get(raw, ()), next(free))
        for column in self.missing_indicators:
            places[column] += (next(free),)
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
        """Return the raw columns that a prediction needs, in the order of CSV without a header."""
        return tuple(name for columns in INPUT_ORDER.values() for name in getattr(self, columns))

    @property
    def other_columns(self) -> tuple[str | None, ...]:
        """Return the columns of the training data that a prediction does not need."""
        return tuple(getattr(self, name) for name in ROW_COLUMNS)

    def numbers_of(self, column: pa.Array | pa.ChunkedArray, name: str, *, origin: Origin) -> np.ndarray:
        """Return a numeric column as `numbers` reads it, as in train. [R] float64"""
        units = self.number_units or {}
        written = self.number_format.get(name)
        return numbers(column, name, origin=origin, written=written, unit=units.get(name), missing=self.null_values)

    @property
    def raw_numbers(self) -> tuple[str, ...]:
        """Return the numeric columns that are columns of the table, not parts of a date."""
        return tuple(name for name in self.numeric_columns if name not in self._date_of_part)

    @cached_property
    def _date_of_part(self) -> dict[str, str]:
        return {part: column for column in self.dates for part in date_inputs(column)}

    @property
    def text_columns(self) -> tuple[str, ...]:
        return tuple(column for text in self.text_fields for column in text.columns)

    def to_json(self) -> dict[str, Any]:
        rules = TypeAdapter(Rules).dump_python(self, mode="json", exclude_defaults=True)
        return {
            **rules,
            "feature_columns": self.feature_columns,
            "numeric_transform": self.numeric_transform.to_json(),
        }


@dataclass(frozen=True, kw_only=True)
class FittedPreprocessing(Rules):
    """The rules that turn a raw row into a prepared one.

    Attributes:
        imputation: value that replaces a missing number, by column.
        risk_tables: by categorical column.
    """

    format_version: Literal[1] = 1
    imputation: Mapping[str, float]
    risk_tables: Mapping[str, RiskTable]

    @cached_property
    def kinds(self) -> Mapping[str, Kind]:
        """Return how the texts of each categorical column are read; in an older model, by its categories."""
        if self.category_kinds is not None:
            return self.category_kinds
        return {column: kind_of_texts(table.risk) for column, table in self.risk_tables.items()}

    def categories(self, column: pa.Array | pa.ChunkedArray, name: str) -> pa.Array:
        """Return the category of each cell of the column `name`. [R] string"""
        return category_keys(category_part(column, self.category_part.get(name)), self.kinds[name])

    @cached_property
    def category_codes(self) -> dict[str, dict[str, int]]:
        """Return the code of each category with an embedding, by column; 0 stands for all other categories."""
        return {
            column: dict(zip(category_names(categories, self.kinds[column]), count(1)))
            for column, categories in self.embedded_categories.items()
        }

    @cached_property
    def fingerprint(self) -> str:
        """Return the hash of all rules, tokenizers included; it depends on no folder and on no setting of the model."""
        described = {
            "rules": self.to_json(),
            "imputation": dict(self.imputation),
            "risk_tables": {column: table.to_json() for column, table in self.risk_tables.items()},
        }
        return digest_of(described)[:32]

    def save(self, folder: Path) -> None:
        """Write preprocessing.json, feature_columns.txt, impute_dict and risk_table_map (.json and .pkl)."""
        folder.mkdir(parents=True, exist_ok=True)
        _write_json(folder / artifacts.PREPROCESSING, self.to_json())
        lines = "".join(f"{one_line(name)}\n" for name in self.feature_columns)
        (folder / artifacts.FEATURE_COLUMNS).write_text(lines, "utf-8")
        tables = {column: table.to_json() for column, table in self.risk_tables.items()}
        for name, value in ((artifacts.IMPUTE_DICT, dict(self.imputation)), (artifacts.RISK_TABLE_MAP, tables)):
            _write_json(folder / f"{name}.json", value)
            (folder / f"{name}.pkl").write_bytes(pickle.dumps(value, protocol=4))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the JSON files that `save` wrote.

        Raises:
            ContractError: a file is missing, is not JSON, does not have the declared content or lacks a column that
                preprocessing.json names.
        """
        rules = read_as(folder / artifacts.PREPROCESSING, Rules, artifacts.MODEL_FIX)
        paths = [folder / f"{name}.json" for name in (artifacts.IMPUTE_DICT, artifacts.RISK_TABLE_MAP)]
        imputation = read_as(paths[0], dict[str, Number], artifacts.MODEL_FIX)
        tables = read_as(paths[1], dict[str, Any], artifacts.MODEL_FIX)
        for path, columns, given in zip(
            paths, (rules.numeric_columns, rules.categorical_columns), (imputation, tables)
        ):
            for column in columns:
                if column not in given:
                    raise ContractError(
                        f"{path}: has no column {column!r}, which preprocessing.json names", artifacts.MODEL_FIX
                    )
        num_values = 1 if rules.is_binary else len(rules.class_labels)
        kinds = rules.category_kinds or dict.fromkeys(rules.categorical_columns)
        return cls(
            **{name.name: getattr(rules, name.name) for name in fields(Rules)},
            imputation={column: imputation[column] for column in rules.numeric_columns},
            risk_tables={
                column: parse_risk_table(
                    column, tables[column], num_values=num_values, source=str(paths[1]), kind=kinds[column]
                )
                for column in rules.categorical_columns
            },
        )


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", "utf-8")
