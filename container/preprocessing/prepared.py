"""Open a job's prepared data."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from container.preprocessing.fitted import FittedPreprocessing
from contracts.artifacts import tokenizer_folder
from contracts.errors import ContractError

MARKER = "prepared.json"
SUMMARY = "summary.json"
INITIAL_MODEL = "the initial model"  # a name among the digests of the inputs
DISTRIBUTIONS = "distributions.json"  # of train


@dataclass(frozen=True)
class EncoderFiles:
    """The folders of a text field's encoder.

    Attributes:
        config_folder: tokenizer files and the encoder's config.json, in the prepared folder.
        weights_folder: the pretrained encoder; None for random weights.
    """

    config_folder: Path
    weights_folder: Path | None = None


@dataclass(frozen=True)
class PreparedData:
    """Prepared splits on disk, and everything fitted.

    Attributes:
        tabular_dim: K.
        rows: by split.
        encoders: by role of the text field.
        input_format: name of the format of train, e.g. csv.
        digests: hash of the prepared rows by split; hashes of the files of each pretrained encoder by ENCODER and name.
        summary: statistics of the data as JSON values, for the report.
        reused: whether an earlier run prepared the data.
    """

    folder: Path
    fitted: FittedPreprocessing
    rows: Mapping[str, int]
    encoders: Mapping[str, EncoderFiles]
    input_format: str
    digests: Mapping[str, Any]
    summary: Mapping[str, Any]
    reused: bool = False

    def starting_from(self, digest: str | None) -> "PreparedData":
        """Return the data of a job that starts from a model whose weights have a digest."""
        return self if digest is None else replace(self, digests={**self.digests, INITIAL_MODEL: digest})

    @property
    def tabular_dim(self) -> int:
        return len(self.fitted.feature_columns)

    def split(self, name: str) -> Path:
        """Return the path of a split's Arrow file."""
        return self.folder / f"{name}.arrow"


def open_prepared(folder: Path) -> PreparedData:
    """Return the data that `prepare_data` wrote, without reading rows.

    Raises:
        ContractError: the folder is not complete.
    """
    marker = folder / MARKER
    if not marker.is_file():
        raise ContractError(
            f"{folder}: contains no complete prepared data ({MARKER} is missing)", "Prepare the data again."
        )
    described = json.loads(marker.read_text("utf-8"))
    return PreparedData(
        folder=folder,
        fitted=FittedPreprocessing.load(folder),
        rows=described["rows"],
        encoders={
            role: EncoderFiles(folder / tokenizer_folder(role), Path(weights) if weights else None)
            for role, weights in described["weights"].items()
        },
        input_format=described["input_format"],
        digests=described["digests"],
        summary=json.loads((folder / SUMMARY).read_text("utf-8")),
    )
