"""Blend the logits of the network and of the companion, unless val shows that this does not help."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from container.companion.factors import fit_factors, losses_of
from container.companion.graph import Companion
from container.preprocessing.risk_tables import fold_of
from contracts.artifacts import COMPANION
from contracts.errors import ContractError

_FOLDS = 5
LEAST_GAIN = 0.001  # of val's log loss; a companion of less is not worth its size


@dataclass(frozen=True)
class Blend:
    """network * logits + companion * logits of the companion."""

    network: float
    companion: float

    def __call__(self, network: np.ndarray, companion: np.ndarray) -> np.ndarray:
        """[N, K], [N, K] -> [N, K] float32"""
        return (self.network * network + self.companion * companion).astype(np.float32)


@dataclass(frozen=True)
class BlendedCompanion:
    """A companion as a part of the model."""

    companion: Companion
    blend: Blend

    def __call__(self, network: np.ndarray, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the blended logits of records from the network's, and from the inputs of model.onnx. [B, K]"""
        return self.blend(network, self.companion(inputs)[0])

    def save(self, folder: Path) -> None:
        """Write companion.onnx, with the blend as metadata."""
        saved = onnx.ModelProto()
        saved.CopyFrom(self.companion.graph)
        onnx.helper.set_model_props(saved, {name: repr(value) for name, value in asdict(self.blend).items()})
        onnx.save(saved, str(folder / COMPANION))

    @classmethod
    def load(cls, folder: Path) -> "BlendedCompanion | None":
        """Return the companion of a model/ folder; None if the model has none.

        Raises:
            ContractError: the file is damaged.
        """
        path = folder / COMPANION
        if not path.is_file():
            return None
        try:
            graph = onnx.load(str(path))
            return cls(Companion(graph), Blend(**{prop.key: float(prop.value) for prop in graph.metadata_props}))
        except (DecodeError, TypeError, ValueError) as error:
            raise ContractError(f"{path}: cannot be loaded: {error}", "Copy the model folder again.") from error


@dataclass(frozen=True)
class BlendTrial:
    """The blend fitted on val, and what it is worth there.

    Attributes:
        improvement: mean decrease of the weighted log loss of val records, each by a blend of the other folds, compared
            with a scale of the network's logits that is fitted in the same way.
        standard_error: of `improvement`.
    """

    blend: Blend
    improvement: float
    standard_error: float

    @property
    def helps(self) -> bool:
        """Return whether a gain is plausible: a small val seldom proves one (docs/companion.md)."""
        return self.improvement + self.standard_error > LEAST_GAIN


def try_blend(
    network: np.ndarray, companion: np.ndarray, labels: np.ndarray, *, units: np.ndarray, weights: np.ndarray, seed: int
) -> BlendTrial:
    """Fit the blend on N labelled val records, and measure it by cross-fitting.

    Args:
        network, companion: logits. [N, K] each
        units: numbers of the records or their groups, which determine the folds. [N]
        weights: of the records in val/loss, above 0. [N]
    """
    parts = np.stack([network, companion]).astype(np.float64)  # [2, N, K]
    of_records = weights / weights.mean()
    folds = fold_of(units, seed=seed, num_folds=_FOLDS)
    gains = np.zeros(len(labels))
    for fold in range(_FOLDS):
        val, rest = folds == fold, folds != fold
        for used, sign in ((1, 1), (2, -1)):
            factors = fit_factors(parts[:used, rest], labels[rest], weights=of_records[rest])
            gains[val] += sign * losses_of(parts[:used, val], labels[val], factors)
    gains *= of_records
    factors = fit_factors(parts, labels, weights=of_records)
    return BlendTrial(Blend(*factors.tolist()), float(gains.mean()), float(gains.std() / np.sqrt(len(gains))))
