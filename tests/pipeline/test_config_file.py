"""A configuration that a later step or the service would refuse is refused when it is read, with its key and a fix."""

import copy
import json
from typing import Any

import pytest
import yaml
from botocore.session import Session

from contracts.errors import ContractError
from contracts.steps import PAYLOAD
from pipeline.aws.definition import checked_definition
from pipeline.aws.resolve import aws_plan
from pipeline.config_file import _Loader, load_config
from pipeline.plan import LONGEST_VALUE, MOST_VALUES, make_plan
from testing.pipelines import BATCH_SCORE, CONFIG, EVERYTHING, configuration

INPUTS = {name: EVERYTHING["inputs"][name] for name in ("batch_input", "pretrained")}
AWS = {**EVERYTHING, "inputs": INPUTS, "deploy": None, "spot": {}}


def check(tmp_path, text: str | bytes):
    path = tmp_path / "pipeline.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    resolved = aws_plan(load_config(path))
    checked_definition(resolved)
    return resolved


def written(**changes: Any) -> str:
    return yaml.safe_dump({**copy.deepcopy(CONFIG), "aws": AWS, "batch_score": BATCH_SCORE, **changes})


def settings(step, **values):
    return {"settings": {**CONFIG["settings"], step: values}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"name: \xff", "cannot be read as YAML in UTF-8: unacceptable character #x00ff: invalid start byte"),
        (b"- a\n- b", "contains a list, not a mapping"),
        (b"name: a\nname: b", "the key 'name' occurs twice"),
        (b"a: {b: 1, b: 2}", "the key 'b' occurs twice"),
        (b"name: a\naws:\n\tregion: x", "found character '\\t'"),
        (b"a: &a [*a]", "a: unknown key"),
        (b"a: " + b"[" * 5000, "maximum recursion depth"),
        (b"name: " + b"9" * 5000, "Exceeds the limit"),
        (written().replace("lr: 0.002", "lr: 0,2"), "lr: '0,2' is invalid"),
        (b"", "is empty"),
        (b"name: a\ncondition: {metric: test/auroc, minimum: 0,85}", "condition: the key 85 in"),
        (written(condition={"metric": "test/auroc", "minimum": True}), "condition.minimum: True"),
    ],
)
def test_a_file_that_is_not_one_plain_mapping_is_refused(tmp_path, text, words):
    with pytest.raises(ContractError) as raised:
        check(tmp_path, text)
    assert words in raised.value.cause
    assert raised.value.fix


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("name", ["pipeline.json", "pipeline.yaml"])
def test_a_byte_order_mark_changes_nothing(tmp_path, name, encoding):
    text = json.dumps({**CONFIG, "hyperparameters": {"label_name": "catégorie"}}, ensure_ascii=False)
    (tmp_path / "plain.json").write_text(text)
    (tmp_path / name).write_text(text, encoding=encoding)
    assert load_config(tmp_path / name) == load_config(tmp_path / "plain.json")


def test_labels_that_yaml_1_1_reads_as_other_types_are_texts():
    assert yaml.load("[no, yes, on, 010, 1:30, 2024-01-31]", Loader=_Loader) == [
        "no", "yes", "on", "010", "1:30", "2024-01-31"
    ]  # fmt: skip
    assert yaml.load("[true, false, null, 10, -1, 0.5, 1e-4]", Loader=_Loader) == [True, False, None, 10, -1, 0.5, 1e-4]


def test_a_mapping_may_override_a_key_that_it_merges():
    assert yaml.load("a: &x {b: 1}\nc: {<<: *x, b: 2}", Loader=_Loader) == {"a": {"b": 1}, "c": {"b": 2}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"condition": {"metric": "test/foo", "minimum": 0.5}}, "condition.metric: 'test/foo' is invalid: 'foo'"),
        ({"condition": {"metric": "train/auroc", "minimum": 0.5}}, "condition.metric: 'train/auroc' names the split"),
        (
            {"condition": {"metric": "test/auroc_difference", "minimum": 0.0}},
            "condition.metric: 'test/auroc_difference' compares with a previous model, and there is none",
        ),
        (settings("Payload", serving_max_tokens=5), "settings.Payload.serving_max_tokens: repeats settings.R"),
        ({"aws": {**AWS, "region": "Ireland"}}, "aws.region: 'Ireland' is not a region"),
        ({"aws": {**AWS, "tags": {"a": "b\n"}}}, "does not match the service's pattern"),
        ({"condition": {"metric": "test/auroc", "minimum": 85}}, "85 is not between 0 and 1, as test/auroc is"),
        ({"condition": {"metric": "test/brier_score", "maximum": 3}}, "3 is not between 0 and 2"),
        ({"mlflow": {"tracking_uri": "https://h", "tags": {"a=b": "c"}}}, "it is not letters, digits, blanks and"),
        ({"mlflow": {"tracking_uri": "https://h", "tags": {"-a": "c"}}}, "it is not letters, digits, blanks and"),
        ({"condition": {"metric": "test/auroc", "maximum": 0.8}}, "test/auroc is better if it is higher: give minimum"),
        ({"condition": {"metric": "test/loss", "minimum": 0.8}}, "test/loss is better if it is lower: give maximum"),
        (settings("ModelMetricsComputation", flagged_shares="0,2"), "settings.ModelMetricsComputation.flagged_shares"),
        (
            {"registration": {"inference_instances": ["m5.large"]}},
            "registration.inference_instances: 'm5.large' is not",
        ),
        ({"registration": {"approval": "approved"}}, "registration.approval: 'approved'"),
        ({"tuning": {"space": {"lr": {"low": 1e-3}}}}, "tuning.space.lr.high: is missing in"),
        ({"tuning": {"space": {"lr": {"lov": 1e-3}}}}, "tuning.space.lr.lov: unknown key in"),
        ({"tuning": {"space": {"lr": {"low": 1, "high": 2, "scal": 3}}}}, "tuning.space.lr.scal: unknown key in"),
        ({"tuning": {"space": {"lr": 0.1}}}, "is invalid: Input should be a list of values, or an object with low"),
        ({"registration": {"caveats": "x" * 5000}}, "registration.caveats"),
        *(
            ({"aws": {**AWS, key: value}}, f"aws.{key}")
            for key, value in {
                "kms_key": "a b",
                "tags": {"a%": "b"},
                "role": "arn:aws:iam::123456789012:role/a b",
                "image": f"{'a' * 300}@sha256:{'0' * 64}",
                "prefix": "a b",
                "cache_expires": "PT",
                "inputs": {"input_data": "s3://RAW x/"},
                "steps": {"Package": {"instance_type": "ml.m5 large"}},
                "subnets": ["a b"],
                "bucket": "a_b",
                "training": {"keep_alive_seconds": 30_000},
                "retries": {"backoff_rate": 99},
            }.items()
        ),
    ],
)
def test_a_value_that_a_later_step_or_the_service_refuses_is_named_by_its_key(tmp_path, changes, words):
    with pytest.raises(ContractError) as raised:
        check(tmp_path, written(**changes))
    assert words in raised.value.cause
    assert raised.value.fix


@pytest.mark.parametrize("key", ["aws:team", "AWS:team"])
def test_a_key_of_a_tag_that_aws_reserves_is_refused(tmp_path, key):
    with pytest.raises(ContractError, match=f"'{key}' begins with aws:, which AWS reserves"):
        check(tmp_path, written(aws={**AWS, "tags": {key: "risk"}}))


def test_a_metric_of_two_classes_does_not_decide_about_three(tmp_path):
    classes = {"is_binary": False, "num_classes": 3, "multiclass_categories": [0, 1, 2]}
    changes = {
        "hyperparameters": {**CONFIG["hyperparameters"], **classes},
        "condition": {"metric": "test/count_recall_at_0.1", "minimum": 0.5},
    }
    with pytest.raises(ContractError, match="is for two classes, and num_classes is 3"):
        check(tmp_path, written(**changes))


def test_an_empty_text_is_refused_because_the_step_would_take_its_default():
    settings = {**CONFIG["settings"], "Payload": {"default_text_value": " "}}
    with pytest.raises(ContractError, match=r"settings\.Payload\.default_text_value: is empty"):
        make_plan(configuration(settings=settings), {})


def test_payload_checks_records_as_the_registered_model_reads_them():
    registered = {"serving_max_tokens": 99, "serving_csv_header": "absent", "serving_threads": 2}
    plan = make_plan(configuration(settings={**CONFIG["settings"], "Registration": registered}), {})
    environment = plan.step(PAYLOAD).environment
    assert environment == {"SERVING_MAX_TOKENS": "99", "SERVING_CSV_HEADER": "absent"}


def test_a_null_is_sent_so_that_a_preset_does_not_replace_it():
    config = configuration(hyperparameters={**CONFIG["hyperparameters"], "preset": "recommended", "head_lr": None})
    assert make_plan(config, {}).hyperparameters["head_lr"] == "null"


def test_a_configuration_with_everything_is_accepted(tmp_path):
    aws = check(tmp_path, written()).aws
    assert aws.tags == AWS["tags"]


def test_lengths_are_at_most_those_of_the_service():
    service = Session().get_service_model("sagemaker")

    def longest(shape):
        return service.shape_for(shape).metadata["max"]

    documented = service.operation_model("CreateTrainingJob").input_shape.members["HyperParameters"].documentation
    assert "Each key and value is limited to 256 characters" in documented
    assert min(longest("ProcessingEnvironmentValue"), 256) == LONGEST_VALUE < longest("TrainingEnvironmentValue")
    assert {longest("ProcessingEnvironmentMap"), longest("HyperParameters")} == {MOST_VALUES}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"aws": {**AWS, "tags": {"cost-center": 7}}}, "aws.tags.cost-center: 7 in"),
        ({"name": 2024}, "name: 2024 in"),
        ({"registration": {"creator": True}}, "registration.creator: True in"),
    ],
)
def test_a_number_where_a_text_is_needed_is_an_error_that_says_quote_it(tmp_path, changes, words):
    with pytest.raises(ContractError) as raised:
        check(tmp_path, written(**changes))
    assert words in raised.value.cause
    assert raised.value.fix.startswith('Quote it: "')
