"""Make the model's inputs of a record's coalitions: every text is encoded once, the rest is the head's."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import numpy as np
import pyarrow as pa

from container.attribution.parts import Part
from container.data.records import RecordArrays
from container.preprocessing.transform import Preprocessor
from contracts.artifacts import ONNX_TABULAR
from contracts.text_fields import TextField

_ROWS = 256  # coalitions in a run of the head
_TOKENS = 16_384  # that a head which reads tokens gets in a run

Arrays = Mapping[str, np.ndarray]


def text_variants(
    parts: Sequence[Part], active: Sequence[int], coalitions: np.ndarray, preprocessor: Preprocessor
) -> tuple[RecordArrays, np.ndarray]:
    """Return the different texts of the coalitions; several texts of a variant have nothing to do with each other.

    Args:
        active: the position in `parts` of each column of `coalitions`. [n]
        coalitions: the active parts that each keeps. [M, n]

    Returns:
        A record for each variant [V], and the variant of each text in each coalition [texts, M].
    """
    fitted = preprocessor.fitted
    fields: list[list[tuple[str | None, ...]]] = []
    which = np.zeros((len(fitted.text_fields), len(coalitions)), np.int64)
    for index, field in enumerate(fitted.text_fields):
        of_field = [i for i, part in enumerate(active) if parts[part].column in field.columns]
        kept, which[index] = np.unique(coalitions[:, of_field], axis=0, return_inverse=True)
        fields.append([_texts(field, [parts[active[i]] for i, is_in in zip(of_field, row) if is_in]) for row in kept])
    columns: dict[str, pa.Array] = {}
    count = max(map(len, fields), default=1)
    rows = list(zip_longest(*fields))
    for index, field in enumerate(fitted.text_fields):
        for place, column in enumerate(field.columns):
            columns[column] = pa.array([row[index] and row[index][place] for row in rows], pa.string())
    table = pa.table(dict.fromkeys(fitted.feature_inputs, pa.nulls(count)) | columns)
    batch = preprocessor.transform(table).batch
    return RecordArrays.from_batch(batch, [field.role for field in fitted.text_fields]), which


def _texts(field: TextField, kept: Sequence[Part]) -> tuple[str | None, ...]:
    """Return the text of each column of a field with the parts that it keeps; without any, the text is missing."""
    texts = ("".join(part.text or "" for part in kept if part.column == column) for column in field.columns)
    return tuple(text or None for text in texts)


class HeadInputs:
    """The head's inputs for M coalitions of a record, in runs of limited size.

    Args:
        features: of each variant, by role: arrays of a record, [F], or of its tokens [C, T] or [C, T, F].
        which: the variant of each text in each coalition. [texts, M]
        tabular: the table's values of each coalition. [M, K]
        alone: every run has one coalition.
    """

    def __init__(
        self, features: Sequence[Sequence[Arrays]], which: np.ndarray, tabular: np.ndarray, *, alone: bool
    ) -> None:
        self._variants = [
            {name: _stacked([arrays[name] for arrays in of_role]) for name in of_role[0]}
            for of_role in zip(*features, strict=True)
        ]
        self._which, self._tabular = which, tabular
        shapes = [array.shape[1:3] for each in self._variants for array in each.values() if array.ndim > 2]
        self._tokens = sum(int(np.prod(shape)) for shape in shapes)  # of a coalition
        self._rows = 1 if alone else max(1, min(_ROWS, _TOKENS // max(1, self._tokens)))

    def __len__(self) -> int:
        """Return the number of runs."""
        return (len(self._tabular) + self._rows - 1) // self._rows

    def padded_tokens(self, run: int) -> int:
        """Return the tokens that the head reads in a run."""
        return self._tokens * len(self._tabular[run * self._rows : (run + 1) * self._rows])

    def feed(self, run: int) -> dict[str, np.ndarray]:
        """Return the inputs of a run, by name."""
        rows = slice(run * self._rows, (run + 1) * self._rows)
        feed = {ONNX_TABULAR: self._tabular[rows]}
        for variants, which in zip(self._variants, self._which, strict=True):
            for name, array in variants.items():
                taken = array[which[rows]]
                feed[name] = taken.reshape(len(taken), -1, taken.shape[-1]) if taken.ndim == 4 else taken
        return feed


def _stacked(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Stack the features of variants; those of tokens, [C, T] or [C, T, F], are padded with zeros."""
    if arrays[0].ndim == 1:
        return np.stack(arrays)
    shape = np.max([array.shape for array in arrays], axis=0)
    stacked = np.zeros((len(arrays), *shape), arrays[0].dtype)
    for target, array in zip(stacked, arrays):
        target[: array.shape[0], : array.shape[1]] = array
    return stacked
