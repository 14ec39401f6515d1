"""Check a step's settings and inputs against the training's hyperparameters, before the first job runs."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from contracts.artifacts import PROBABILITY_COLUMN, probability_column
from contracts.consistency import used_columns
from contracts.errors import ContractError, shown
from contracts.hyperparameters import Hyperparameters
from contracts.input_files import files_below
from contracts.metrics_settings import ModelMetricsSettings
from contracts.model_classes import FROM_SCRATCH
from contracts.package_inputs import CalibrationMap, read_scripts
from contracts.serving import CALIBRATION, ServingSettings
from contracts.settings.data import ROW_COLUMNS
from contracts.spelling import did_you_mean
from contracts.step_contract import StepContract, StepSettings
from contracts.steps import (
    MODEL_METRICS,
    PAYLOAD,
    PREVIOUS,
    PYTORCH_TRAINING,
    PayloadSettings,
    PyTorchTrainingSettings,
)
from pipeline.graph import outside_inputs

_ARTIFACTS, _CALIBRATION, _PRETRAINED = "model_artifacts_input", "calibration_model", "pretrained"
_SCRIPTS = "inference_scripts_input"


def check_against_training(
    contract: StepContract, settings: StepSettings, hp: Hyperparameters, outside: Mapping[str, str]
) -> None:
    """Raise ContractError for a setting that the predictions or the model of these hyperparameters cannot meet.

    Args:
        outside: the external inputs, by logical name.
    """
    place = f"settings.{contract.name}"
    # selected_features.json, one of the artifacts, may leave out columns.
    needed = None if _ARTIFACTS in outside else feature_columns(hp)
    if isinstance(settings, PyTorchTrainingSettings):
        _check_training(settings, hp, outside)
    if isinstance(settings, ModelMetricsSettings):
        _check_metrics(settings, hp, outside)
    if isinstance(settings, PayloadSettings):
        _check_defaults(settings, hp)
    if isinstance(settings, ServingSettings):
        _check_serving(place, settings, hp, needed)


def check_encoders_without_network(encoders: Sequence[str], outside: Mapping[str, str]) -> None:
    """Raise ContractError if an encoder would be downloaded: it is no path of the image, and no input has it."""
    for name in encoders:
        if _PRETRAINED not in outside and name != FROM_SCRATCH and not name.startswith("/"):
            raise ContractError(
                f"tokenizer: {name!r} would be downloaded, but the training job has no network (aws.network_isolation)",
                f"Copy the encoder to S3 and set aws.inputs.{_PRETRAINED}, or set aws.network_isolation to false.",
            )


def check_local_input(name: str, path: Path) -> None:
    """Raise ContractError where a local input has no file for its step, or one that the step would refuse."""
    place, (_, folder) = f"inputs.{name}", outside_inputs()[name]
    files = files_below(path).files if path.is_dir() else [path]
    if not any(fnmatch(file.name.lower(), pattern) for file in files for pattern in folder.files):
        found = f"has no file that is named {' or '.join(folder.files)}" if files else "has no files"
        raise ContractError(f"{place}: {path} {found}", f"Provide it: {folder.about}")
    if name == _SCRIPTS:
        read_scripts(path, place=place)
    if name == _CALIBRATION:
        CalibrationMap.read(path / CALIBRATION if path.is_dir() else path)


def check_metrics_columns(environment: Mapping[str, str], columns: Sequence[str]) -> None:
    """Raise ContractError where the metrics need a column that neither the table nor the predictions have.

    Args:
        environment: of the step of the metrics.
        columns: those of the table.
    """
    settings = ModelMetricsSettings.from_environment(environment)
    known = [*columns, settings.id_field, settings.label_field]
    for field in ("amount_field", "group_fields"):
        value: str | tuple[str, ...] = getattr(settings, field) or ()
        for name in (value,) if isinstance(value, str) else value:
            if name not in known and not PROBABILITY_COLUMN.fullmatch(name):
                raise ContractError(
                    f"settings.{MODEL_METRICS.name}.{field}: {name!r} is not a column of the table"
                    + did_you_mean(name, known),
                    f"Use one of: {', '.join(known)}.",
                )


def feature_columns(hp: Hyperparameters) -> list[str]:
    """Return the columns that the model reads."""
    roles = used_columns(hp).items()
    return [name for role, names in roles if role not in ROW_COLUMNS for name in names]


def _check_training(settings: PyTorchTrainingSettings, hp: Hyperparameters, outside: Mapping[str, str]) -> None:
    for name, is_set in settings.model_dump().items():
        if is_set and _ARTIFACTS not in outside:
            raise ContractError(
                f"settings.{PYTORCH_TRAINING.name}.{name}: is true, but there is no input {_ARTIFACTS}",
                f"Set {_ARTIFACTS} among the inputs, or remove the setting.",
            )
    for name in ("train_filename", "val_filename", "test_filename"):
        if getattr(hp, name) is not None:
            raise ContractError(
                f"hyperparameters.{name}: is {getattr(hp, name)!r}, but the pipeline chooses the names of the splits",
                "Remove it.",
            )
    if _CALIBRATION in outside and hp.num_classes > 2:
        raise ContractError(
            f"{_CALIBRATION}: is an input, but it maps the probability of class 1, and num_classes is {hp.num_classes}",
            "Remove it; the hyperparameter calibration works for any number of classes.",
        )


def _check_metrics(settings: ModelMetricsSettings, hp: Hyperparameters, outside: Mapping[str, str]) -> None:
    place, metric = f"settings.{MODEL_METRICS.name}", settings.decision_metric
    split, _, name = metric.partition("/")
    if split not in ("val", "test"):
        raise ContractError(
            f"condition.metric: {metric!r} names the split {split!r}, which has no predictions",
            f"Use val/{name} or test/{name}.",
        )
    if hp.num_classes > 2 and "_recall_at_" in name:
        raise ContractError(
            f"condition.metric: {metric!r} is for two classes, and num_classes is {hp.num_classes}",
            f"Use another metric, e.g. {split}/auroc.",
        )
    if name.endswith("_difference") and PREVIOUS not in outside:
        raise ContractError(
            f"condition.metric: {metric!r} compares with a previous model, and there is none",
            f"Set {PREVIOUS} among the inputs, or use another metric.",
        )
    if settings.class_labels and len(settings.class_labels) != hp.num_classes:
        raise ContractError(
            f"{place}.class_labels: has {len(settings.class_labels)} labels, and num_classes is {hp.num_classes}",
            "Remove it: the step reads the labels from the training job's metrics.json.",
        )
    scores = [probability_column(k) for k in range(hp.num_classes)]
    found = len(settings.score_fields)
    if found not in (0, hp.num_classes) and (found, hp.num_classes) != (1, 2):
        raise ContractError(
            f"{place}.score_fields: has {found} columns, and num_classes is {hp.num_classes}",
            "Remove it: the step finds the columns of the probabilities.",
        )
    for column in settings.score_fields:
        if column not in scores:
            raise ContractError(
                f"{place}.score_fields: {column!r} is not a column of probabilities{did_you_mean(column, scores)}",
                f"Remove it, or use {', '.join(scores[:3])}{', ...' if len(scores) > 3 else ''}.",
            )


def _check_defaults(settings: PayloadSettings, hp: Hyperparameters) -> None:
    columns = feature_columns(hp)
    for name, value in settings.field_defaults.items():
        place = f"settings.{PAYLOAD.name}.field_defaults: {name!r}"
        if name not in columns:
            raise ContractError(
                f"{place} is not a column that the model needs{did_you_mean(name, columns)}",
                f"Use one of: {', '.join(columns)}.",
            )
        if isinstance(value, (list, dict)) or (name in hp.tab_field_list and not _is_number(value)):
            kind = "a number" if name in hp.tab_field_list else "a text or a number"
            raise ContractError(f"{place} is {shown(value)}, which is not {kind}", "Correct the value.")


def _is_number(value: object) -> bool:
    if value is None or isinstance(value, (bool, int, float)):
        return True
    try:
        return isinstance(value, str) and float(value) is not None
    except ValueError:
        return False


def _check_serving(place: str, settings: ServingSettings, hp: Hyperparameters, needed: Sequence[str] | None) -> None:
    variant, columns = settings.serving_onnx_variant, settings.serving_csv_columns
    if variant is not None and (hp.draft or variant not in hp.onnx_variants):
        raise ContractError(
            f"{place}.serving_onnx_variant: is {variant!r}, but the training job writes no model.{variant}.onnx",
            f"Add {variant!r} to hyperparameters.onnx_variants and leave out draft, or remove the setting.",
        )
    if columns is None:
        return
    twice = next((name for name in columns if columns.count(name) > 1), None)
    if twice is not None:
        raise ContractError(f"{place}.serving_csv_columns: names {twice!r} twice", "Name each column once.")
    missing = [name for name in needed or () if name not in columns]
    if missing:
        raise ContractError(
            f"{place}.serving_csv_columns: lacks {missing[0]!r}, which the model needs",
            f"Name every column of a line of CSV, in order; the model needs {', '.join(map(repr, needed or ()))}.",
        )
