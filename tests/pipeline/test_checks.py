"""A contradiction between a step's settings, the inputs and the hyperparameters is found before the first job."""

from typing import Any

import pytest
from pydantic import ValidationError

from contracts.errors import ContractError
from contracts.fingerprint import ContentDigests
from contracts.steps import BATCH_SCORE, PYTORCH_TRAINING, TABULAR_PREPROCESSING
from pipeline.aws.definition import checked_definition
from pipeline.aws.resolve import aws_plan
from pipeline.checks import check_metrics_columns
from pipeline.local.run import Run, _fingerprint, require_inputs
from pipeline.plan import make_plan
from testing.pipelines import AWS, CONFIG, configuration

THREE = {"is_binary": False, "num_classes": 3, "multiclass_categories": [0, 1, 2]}
COLUMNS = ["chat", "shiptrack", "price", "quantity", "marketplace"]


def changed(hyperparameters: dict[str, Any] | None = None, *, inputs: dict[str, str] | None = None, **settings: Any):
    return configuration(
        hyperparameters={**CONFIG["hyperparameters"], **(hyperparameters or {})},
        settings={**CONFIG["settings"], **settings},
        aws={**AWS, "inputs": inputs or {}},
    )


@pytest.mark.parametrize(
    ("config", "cause"),
    [
        (
            changed({"weight_name": "w", "group_name": "g"}, Payload={"field_defaults": {"w": 1}}),
            "field_defaults: 'w' is not a column that the model needs",
        ),
        (changed(Payload={"field_defaults": {"price": "abc"}}), r"field_defaults: 'price' is 'abc', .* not a number"),
        (changed(Payload={"field_defaults": {"chat": ["a"]}}), r"field_defaults: 'chat' is \['a'\], .* not a text"),
        (
            changed(THREE, ModelMetricsComputation={"class_labels": ["a", "b"]}),
            r"settings\.ModelMetricsComputation\.class_labels: has 2 labels, and num_classes is 3",
        ),
        (
            changed(ModelMetricsComputation={"score_fields": ["probability"]}),
            r"score_fields: 'probability' is not a column of probabilities",
        ),
        (
            changed(ModelMetricsComputation={"score_fields": ["prob_class_0"]}),
            r"score_fields: .* 'prob_class_0' is in the place of class 1's scores",
        ),
        (
            changed(THREE, ModelMetricsComputation={"score_fields": ["prob_class_0", "prob_class_1"]}),
            r"score_fields: has 2 columns, and num_classes is 3",
        ),
        (
            changed(PyTorchTraining={"use_precomputed_risk_tables": True}),
            r"settings\.PyTorchTraining\.use_precomputed_risk_tables: is true, but there is no input",
        ),
        (changed({"val_filename": "val.csv"}), r"hyperparameters\.val_filename: is 'val\.csv'"),
        (changed(THREE, inputs={"calibration_model": "s3://raw/c"}), r"calibration_model: is an input, .* is 3"),
        (
            changed(Registration={"serving_onnx_variant": "int8"}),
            r"settings\.Registration\.serving_onnx_variant: is 'int8', but the training job writes no model\.int8",
        ),
        (
            changed(Registration={"serving_csv_columns": ["order_id", "chat", "price", "quantity", "marketplace"]}),
            r"settings\.Registration\.serving_csv_columns: lacks 'shiptrack'",
        ),
        (
            changed(Registration={"serving_csv_columns": [*COLUMNS, "chat"]}),
            r"settings\.Registration\.serving_csv_columns: names 'chat' twice",
        ),
    ],
)
def test_a_setting_that_a_later_job_would_refuse_is_an_error_of_the_plan(config, cause):
    with pytest.raises(ContractError, match=cause) as raised:
        aws_plan(config)
    assert raised.value.fix


@pytest.mark.parametrize(
    "config",
    [
        changed(Payload={"field_defaults": {"price": "1.5", "quantity": None, "chat": 7}}),
        changed(
            THREE,
            ModelMetricsComputation={
                "class_labels": ["a", "b", "c"],
                "score_fields": ["prob_class_0", "prob_class_1", "prob_class_2"],
            },
        ),
        changed(
            inputs={"model_artifacts_input": "s3://raw/a", "calibration_model": "s3://raw/c"},
            PyTorchTraining={"use_precomputed_risk_tables": True},
        ),
        changed({"onnx_variants": ["int8"]}, Registration={"serving_onnx_variant": "int8"}),
        changed(Registration={"serving_csv_columns": ["order_id", *COLUMNS]}),
    ],
)
def test_settings_that_fit_are_accepted(config):
    aws_plan(config)


@pytest.mark.parametrize("new", [None, True, 1.5, " "])
def test_a_new_label_that_is_no_label_is_an_error_of_the_plan(new):
    with pytest.raises((ContractError, ValidationError), match=f"the new label of 'a' is {new!r}"):
        aws_plan(changed(TabularPreprocessing={"label_map": {"a": new}}))


@pytest.mark.parametrize(
    ("encoder", "inputs", "isolated", "accepted"),
    [
        ("bert-base-uncased", {}, True, False),
        (["from_scratch", "bert-base-uncased"], {}, True, False),
        ("bert-base-uncased", {}, False, True),
        ("bert-base-uncased", {"pretrained": "s3://raw/encoders"}, True, True),
        ("/opt/encoders/minilm", {}, True, True),
    ],
)
def test_an_encoder_that_a_job_without_a_network_would_download_is_an_error(encoder, inputs, isolated, accepted):
    several = isinstance(encoder, list)
    settings = {"tokenizer": "from_scratch" if several else encoder, "encoder_config": {}}
    config = configuration(
        hyperparameters={**CONFIG["hyperparameters"], **settings},
        tuning={"space": {"tokenizer": encoder}} if several else None,
        aws={**AWS, "inputs": inputs, "network_isolation": isolated},
    )
    if accepted:
        checked_definition(aws_plan(config))
    else:
        with pytest.raises(ContractError, match=r"tokenizer: 'bert-base-uncased' would be downloaded"):
            checked_definition(aws_plan(config))


def test_a_training_runs_again_if_the_files_of_its_encoder_change(tmp_path):
    encoder = tmp_path / "encoder"
    encoder.mkdir()
    (encoder / "model.safetensors").write_bytes(b"one")
    settings = {**CONFIG["hyperparameters"], "tokenizer": str(encoder), "encoder_config": {}}
    config = configuration(aws=None, hyperparameters=settings)
    plan = make_plan(config, config.inputs)

    def identity() -> dict[str, Any]:
        digests = ContentDigests(tmp_path / "digests.json")
        run = Run(config, plan, tmp_path, digests, "code")
        return _fingerprint(run, PYTORCH_TRAINING, {})

    before = identity()
    (encoder / "model.safetensors").write_bytes(b"two")
    assert identity() != before


def test_batch_scores_are_made_again_by_other_local_code(tmp_path, monkeypatch):
    config = configuration(aws=None, batch_score={}, inputs={"batch_input": str(tmp_path)})
    run = Run(config, make_plan(config, config.inputs), tmp_path, ContentDigests(tmp_path / "digests.json"), "image")
    before = _fingerprint(run, BATCH_SCORE, {})
    monkeypatch.setattr("pipeline.local.run.code_digest", lambda packages: f"other {packages}")
    assert _fingerprint(run, BATCH_SCORE, {}) != before


def test_an_input_that_contains_the_root_is_refused(tmp_path):
    config = configuration(aws=None, inputs={"input_data": str(tmp_path)}, settings={})
    (tmp_path / "table.CSV").touch()
    with pytest.raises(ContractError, match=r"inputs\.input_data: .* contains --root"):
        require_inputs(config, tmp_path / "pipeline_run")
    require_inputs(config, tmp_path.parent / "pipeline_run")


SCRIPT = "from container.serving.handler import model_fn, input_fn, output_fn\n"


@pytest.mark.parametrize(
    ("name", "file", "content", "cause"),
    [
        (
            "inference_scripts_input",
            "inference.py",
            f"{SCRIPT}def predict_fn(data): ...",
            "py: line 2: predict_fn has 1",
        ),
        ("inference_scripts_input", "inference.py", SCRIPT, "inference_scripts_input: inference.py: has no predict_fn"),
        ("inference_scripts_input", "rules.py", "x = (", r"inference_scripts_input: rules\.py: '\(' was never closed"),
        ("inference_scripts_input", "notes.txt", "", r"has no file that is named \*\.py"),
        ("calibration_model", "calibration.json", "[]", r"calibration\.json: contains a list, not an object"),
        ("calibration_model", "map.json", "{}", r"has no file that is named calibration\.json"),
        ("pretrained", ".DS_Store", "", r"inputs\.pretrained: .* has no files"),
        ("input_data", "table.docx", "", r"inputs\.input_data: .* has no file that is named \*\.csv or"),
    ],
)
def test_a_local_input_that_a_later_step_would_refuse_is_named_before_anything_runs(
    tmp_path, name, file, content, cause
):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / file).write_text(content)
    config = configuration(aws=None, inputs={name: str(tmp_path / "in")})
    with pytest.raises(ContractError, match=cause):
        require_inputs(config, tmp_path / "root")


@pytest.mark.parametrize("as_file", [True, False])
def test_local_inputs_of_a_package_may_be_a_folder_or_a_file(tmp_path, as_file):
    files = {
        "inference_scripts_input": ("inference.py", f"{SCRIPT}def predict_fn(data, model, context): ..."),
        "calibration_model": ("calibration.json", '{"scores": [0, 1], "probabilities": [0, 1]}'),
    }
    for name, (file, content) in files.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(content)
    inputs = {name: str(tmp_path / name / file if as_file else tmp_path / name) for name, (file, _) in files.items()}
    require_inputs(configuration(aws=None, inputs=inputs), tmp_path / "root")


def test_a_column_of_the_metrics_that_no_table_has_is_named_with_the_nearest_one():
    given = {"ID_FIELD": "id", "LABEL_FIELD": "label"}
    table = ["id", "label", "price", "region"]
    check_metrics_columns({**given, "GROUP_FIELDS": '["region", "label"]', "AMOUNT_FIELD": "prob_class_1"}, table)
    for field, value in (("group_fields", '["region", "pirce"]'), ("amount_field", "pirce")):
        cause = rf"settings\.ModelMetricsComputation\.{field}: 'pirce' is not a column .* did you mean 'price'\?"
        with pytest.raises(ContractError, match=cause):
            check_metrics_columns({**given, field.upper(): value}, table)


def test_the_labels_of_a_map_may_be_whole_numbers():
    config = changed(TabularPreprocessing={"label_map": {1: 0, 2: 1}})
    environment = make_plan(config, config.aws.inputs, section="aws.inputs").step(TABULAR_PREPROCESSING).environment
    assert environment["LABEL_MAP"] == '{"1": 0, "2": 1}'


def test_the_plan_names_the_columns_that_the_model_reads():
    config = configuration()
    assert sorted(make_plan(config, config.inputs).columns) == sorted(COLUMNS)
