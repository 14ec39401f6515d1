"""A configuration that is written with its defaults filled in, as model/hyperparameters.json is, is the same one."""

import json
import typing
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from container.parallel.degrees import ParallelDegrees
from contracts.errors import ContractError
from contracts.hyperparameter_files import load_hyperparameters, parse_hyperparameters
from contracts.hyperparameters import Hyperparameters
from contracts.model_classes import MODEL_CLASSES
from contracts.paths import JobPaths
from contracts.unused_settings import unused_settings

COLUMNS = {"id_name": "id", "label_name": "label", "tab_field_list": ["price"], "cat_field_list": ["color"]}
# Values of what a type alone does not describe.
VALUES: dict[str, st.SearchStrategy] = {
    "decision_threshold": st.sampled_from([0.3, "best_f1", "cost"]),
    "early_stop_metric": st.sampled_from(["val/loss", "val/auroc"]),
    "tokenizer": st.sampled_from(["from_scratch", "some/encoder"]),
    "primary_tokenizer": st.sampled_from(["from_scratch", "some/encoder"]),
    "secondary_tokenizer": st.sampled_from(["from_scratch", "some/encoder"]),
    "encoder_config": st.just({"hidden_size": 32}), "class_weights": st.sampled_from(["balanced", [1.0, 2.0]]),
    "imputation_dict": st.just({"price": 1.5}), "date_field_list": st.just(["day"]),
    "category_part": st.just({"color": "first_2"}),
    "number_format": st.just({"price": "1.234,5"}), "null_values": st.just(["soon"]),
    "date_format": st.just({}), "risk_tables": st.just({"color": {}}),
    "full_field_list": st.just(["id", "label"]), "categorical_features_to_encode": st.just(["color"]),
    "multiclass_categories": st.just([0, 1]), "kernel_size": st.just([2, 3]),
    "num_channels": st.lists(st.integers(1, 200), min_size=1, max_size=4), "num_layers": st.integers(1, 5),
    "text_processing_steps": st.just(["html_normalizer", "tokenizer"]),
    "primary_text_processing_steps": st.just(["tokenizer"]),
    "secondary_text_processing_steps": st.just(["tokenizer"]), "metric_choices": st.just(["recall"]),
    "onnx_variants": st.just(["int8"]), "bf16": st.booleans(), "compile": st.booleans(), "cuda_graphs": st.booleans(),
    "num_threads": st.integers(1, 9),
    "mlflow_tracking_uri": st.just("https://mlflow.example.com"), "mlflow_tags": st.just({"team": "a"}),
    "tuning": st.just({"trials": 3, "space": {"lr": {"low": 1e-5, "high": 1e-3, "scale": "log"}}}),
}  # fmt: skip
FIXED = {*COLUMNS, "model_class", "text_name", "primary_text_name", "secondary_text_name", "num_classes", "is_binary"}


def _limits(metadata: list[Any]) -> dict[str, Any]:
    return {key: getattr(rule, key) for rule in metadata for key in ("ge", "gt", "le", "lt") if hasattr(rule, key)}


def values_of(name: str) -> st.SearchStrategy:
    """Values of a hyperparameter within its declared type and limits, and its default."""
    field = Hyperparameters.model_fields[name]
    if name in VALUES:
        return VALUES[name] | st.just(field.default)
    kinds = typing.get_args(field.annotation) if type(None) in typing.get_args(field.annotation) else ()
    kind = next((kind for kind in kinds if kind is not type(None)), field.annotation)
    limits = _limits(field.metadata)
    if typing.get_origin(kind) is typing.Literal:
        chosen = st.sampled_from(typing.get_args(kind))
    elif kind is bool:
        chosen = st.booleans()
    elif kind is int:
        chosen = st.integers(limits.get("ge", 0), min(limits.get("lt", 9), 9) - 1)
    elif kind is float:
        low, high = limits.get("ge", limits.get("gt", 0)), min(limits.get("le", limits.get("lt", 2)), 2)
        chosen = st.floats(low, high, exclude_min="gt" in limits, exclude_max="lt" in limits)
    else:
        assert kind is str, f"{name}: give VALUES of it"
        chosen = st.just("name")
    return chosen | st.just(field.default)


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from([*MODEL_CLASSES.values()]))
    texts = ({}, {"text_name": "a"}, {"primary_text_name": "a", "secondary_text_name": "b"})[kind.num_texts]
    names = draw(st.lists(st.sampled_from(sorted(set(Hyperparameters.model_fields) - FIXED)), max_size=12, unique=True))
    return {**COLUMNS, **texts, "model_class": kind.name, **{name: draw(values_of(name)) for name in names}}


def written(hp: Hyperparameters) -> Hyperparameters:
    """`hp` from a file with its defaults filled in, as export writes it."""
    return parse_hyperparameters(json.loads(json.dumps(hp.model_dump(mode="json"))))


def degrees(hp: Hyperparameters, world_size: int) -> ParallelDegrees | str:
    try:
        return ParallelDegrees.resolve(hp, world_size)
    except ContractError as error:
        return error.cause


@settings(max_examples=300)
@given(values=configurations(), world_size=st.sampled_from([1, 2, 4]))
def test_a_configuration_written_with_its_defaults_is_the_same(values, world_size):
    try:
        hp = parse_hyperparameters(values)
    except ContractError:
        assume(False)
    again = written(hp)
    assert again == hp
    assert again.model_fields_set == hp.model_fields_set
    assert (again.text_fields, again.num_channels) == (hp.text_fields, hp.num_channels)
    assert degrees(again, world_size) == degrees(hp, world_size)
    assert unused_settings(again) == unused_settings(hp)


@pytest.mark.parametrize(
    ("values", "channels"),
    [({"num_layers": 3}, [100] * 3), ({"num_channels": [8]}, [8]), ({"num_channels": [8, 6, 4]}, [8, 6, 4])],
)
def test_layers_or_channels_alone_are_read_back(values, channels):
    hp = parse_hyperparameters({**COLUMNS, "text_name": "a", "model_class": "multimodal_cnn", **values})
    assert written(hp).num_channels == hp.num_channels == channels


def test_a_number_of_layers_contradicts_channels_also_when_it_is_the_default():
    with pytest.raises(ContractError, match="num_layers: is 2"):
        parse_hyperparameters(
            {**COLUMNS, "text_name": "a", "model_class": "bimodal_cnn", "num_layers": 2, "num_channels": [8]}
        )


def test_hyperparameters_of_a_model_are_the_input_of_a_job_with_another_strategy(tmp_path):
    paths = JobPaths(tmp_path)
    hp = parse_hyperparameters({**COLUMNS, "text_name": "a", "model_class": "multimodal_bert"})
    code, _, job = paths.hyperparameter_files
    for path, content in ((code, hp.model_dump(mode="json")), (job, {"strategy": "fsdp"})):
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(content))
    assert ParallelDegrees.resolve(load_hyperparameters(paths), 4).axes == {"dp_shard": 4}
