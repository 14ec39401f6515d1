"""Export a model with random weights before training, to find an export error early."""

import json
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path

from container.data.batch import PackedBatch
from container.export.onnx import export_onnx
from container.models.build import build_classifier
from container.preprocessing.prepared import EncoderFiles, PreparedData
from contracts import artifacts
from contracts.file_systems import copy_folder
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)

_DEPTHS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")  # the setting's names in different families
_SHALLOW = 2


def rehearse_export(hp: Hyperparameters, data: PreparedData, sample: PackedBatch) -> None:
    """Export the model with two layers per encoder, which takes seconds; the operators do not depend on the depth.
    If that fails, export it at full depth.

    Raises:
        ContractError: the model cannot be exported.
    """
    full = {field.role: data.encoders[field.role].config_folder for field in hp.text_fields}
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        shallow = {role: _shallow(source, Path(folder) / role) for role, source in full.items()}
        try:
            seconds = _export(hp, data, shallow, Path(folder), sample)
        except Exception:  # perhaps the configuration does not allow two layers
            seconds = _export(hp, data, full, Path(folder), sample)
    logger.info("checked in %.1f s that this model can be exported to model.onnx", seconds)


def _export(
    hp: Hyperparameters, data: PreparedData, encoders: Mapping[str, Path], folder: Path, sample: PackedBatch
) -> float:
    model = build_classifier(
        hp,
        [EncoderFiles(source) for source in encoders.values()],
        tabular_dim=data.tabular_dim,
        numeric_transform=data.fitted.numeric_transform,
        num_codes=data.fitted.num_codes,
    )
    return export_onnx(model.eval(), hp, folder / artifacts.MODEL_ONNX, samples=[sample]).seconds


def _shallow(source: Path, target: Path) -> Path:
    copy_folder(source, target, ignored=lambda name: name.endswith((".safetensors", ".bin", ".h5")) or ".onnx" in name)
    path = target / "config.json"
    config = json.loads(path.read_text())
    depth = next((config[name] for name in _DEPTHS if isinstance(config.get(name), int)), 0)
    if depth > _SHALLOW:
        for name, value in config.items():
            if name in _DEPTHS:
                config[name] = _SHALLOW
            elif isinstance(value, list) and len(value) == depth:  # a setting for each layer
                config[name] = value[:_SHALLOW]
    path.write_text(json.dumps(config))
    return target
