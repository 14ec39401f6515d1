"""What cannot run on AWS is refused before anything is sent: instance types, and resources of other places."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.session import Session

from contracts.errors import ContractError
from pipeline.aws import deploy, feasibility
from pipeline.aws.deploy import check_estimate
from pipeline.aws.feasibility import NO_BFLOAT16, NO_CODE, check_account, check_bucket, check_instances, check_places
from pipeline.aws.inputs import _check_neighbours
from pipeline.aws.resolve import aws_plan
from testing.jobs import REPOSITORY
from testing.pipelines import APPROVED, AWS, BATCH_SCORE, CONFIG, EVERYTHING, MLFLOW, SEARCH, configuration

IMAGE, DIGEST = AWS["image"], "@sha256:" + "0" * 64
SCORED = {"batch_score": BATCH_SCORE, "registration": APPROVED}


def on(instance_type: str, step: str = "PyTorchTraining", **aws: Any) -> Any:
    return configuration(aws={**AWS, "steps": {step: {"instance_type": instance_type}}, **aws})


def check(config: Any, **overrides: Any) -> None:
    resolved = aws_plan(config)
    check_places(resolved)
    check_instances(resolved, overrides)


def refusal(config: Any, **overrides: Any) -> ContractError:
    with pytest.raises(ContractError) as error:
        check(config, **overrides)
    assert error.value.fix
    return error.value


@pytest.mark.parametrize(
    ("config", "cause"),
    [
        (on("ml.p3.2xlarge"), "aws.steps.PyTorchTraining: ml.p3.2xlarge has a GPU for which the image has no code"),
        (on("ml.p2.xlarge", "Package"), "aws.steps.Package: ml.p2.xlarge has a GPU for which the image has no code"),
        (on("ml.p3dn.24xlarge"), "ml.p3dn.24xlarge has a GPU for which the image has no code"),
        (on("ml.trn1.2xlarge"), "ml.trn1.2xlarge has an accelerator for which the image has no code"),
        (on("ml.p6e-gb200.36xlarge"), "ml.p6e-gb200.36xlarge has an ARM processor, and the image is for x86-64"),
        (
            on("ml.g5.xlarge", accelerator="cpu"),
            "aws.steps.PyTorchTraining: ml.g5.xlarge has a GPU, and aws.accelerator says that the image is for CPUs",
        ),
        (
            configuration(aws={**AWS, "deploy": {"real_time": {"instance_type": "ml.c7g.large"}}}),
            "aws.deploy: ml.c7g.large has an ARM processor",
        ),
        (
            configuration(registration={"inference_instances": ["ml.m5.large", "ml.inf2.xlarge"]}),
            "registration.inference_instances.1: ml.inf2.xlarge has an accelerator",
        ),
        (
            configuration(registration={"transform_instances": ["ml.p3.2xlarge"]}),
            "registration.transform_instances.0: ml.p3.2xlarge has a GPU",
        ),
        (
            configuration(
                aws={
                    **AWS,
                    "training": {
                        "instance_groups": {
                            "a": {"instance_type": "ml.g5.xlarge"}, "b": {"instance_type": "ml.p3.2xlarge"}
                        },
                        "training_group": "a",
                    },
                }
            ),
            "aws.training.instance_groups.b: ml.p3.2xlarge has a GPU",
        ),
    ],
)  # fmt: skip
def test_an_instance_type_on_which_the_image_has_no_code_is_refused(config, cause):
    assert cause in refusal(config).cause


@pytest.mark.parametrize("instance_type", ["ml.m5.xlarge", "ml.c7i.large", "ml.g6e.xlarge", "ml.p5.48xlarge"])
def test_an_instance_type_that_the_image_supports_is_accepted(instance_type):
    check_instances(aws_plan(on(instance_type)), {})


def test_an_execution_cannot_change_to_a_type_without_code():
    cause = refusal(on("ml.g5.xlarge"), PackageInstanceType="ml.p3.2xlarge").cause
    assert cause.startswith("parameter PackageInstanceType: ml.p3.2xlarge has a GPU")


BF16 = {**CONFIG["hyperparameters"], "bf16": True}


@pytest.mark.parametrize(
    ("changes", "overrides"),
    [
        ({"hyperparameters": BF16}, {}),
        ({}, {"Hp_bf16": "true"}),
        ({"tuning": {"space": {"bf16": [False, True]}}}, {}),
        ({"tuning": {**SEARCH, "space": {"bf16": [False, True]}}}, {}),
    ],
)
def test_bfloat16_on_a_gpu_without_it_is_refused(changes, overrides):
    aws = {**AWS, "steps": {"PyTorchTraining": {"instance_type": "ml.g4dn.xlarge"}}}
    error = refusal(configuration(aws=aws, **changes), **overrides)
    assert error.cause.startswith("hyperparameters.bf16: is true, but the GPU of ml.g4dn.xlarge")


def test_bfloat16_is_refused_for_the_type_of_an_execution_and_accepted_where_the_gpu_has_it():
    config = configuration(hyperparameters=BF16, aws={**AWS, "steps": on("ml.g5.xlarge").aws.model_dump()["steps"]})
    check_instances(aws_plan(config), {})
    assert (
        "parameter PyTorchTrainingInstanceType" in refusal(config, PyTorchTrainingInstanceType="ml.g4dn.xlarge").cause
    )


def test_the_families_agree_with_the_catalogue_of_gpus_and_with_the_service():
    catalogue = json.loads((REPOSITORY / "container/planning/catalogue.json").read_text())
    for instance_type, instance in catalogue["instances"].items():
        capability = catalogue["gpus"][instance["gpu"]]["capability"] if instance.get("gpu") else 9.0
        family = instance_type.split(".")[1]
        assert (family in NO_CODE, family in NO_BFLOAT16) == (capability < 7.5, capability < 8.0), instance_type
    service = Session().get_service_model("sagemaker")
    names = ("ProcessingInstanceType", "TrainingInstanceType", "ProductionVariantInstanceType", "TransformInstanceType")
    known = {value.split(".")[1] for name in names for value in service.shape_for(name).enum}
    assert {*NO_BFLOAT16, *feasibility._OTHER_CHIPS} <= known
    assert {family for family in known if feasibility._ARM.fullmatch(family)} == {
        "c6g", "c6gd", "c6gn", "c7g", "c8g", "m6g", "m6gd", "m8g", "p6e-gb200", "r6g", "r6gd", "r7gd", "r8g"
    }  # fmt: skip


TOPIC = "arn:aws-cn:sns:cn-north-1:123456789012:done"


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        (
            {"image": IMAGE.replace("eu-west-1", "us-east-1")},
            "aws.image: .* is in us-east-1, but aws.region is eu-west-1",
        ),
        ({"image": "trainer" + DIGEST}, "aws.image: .* is not an image of Amazon ECR"),
        ({"kms_key": "arn:aws:kms:us-east-1:123456789012:key/1"}, "aws.kms_key: .* is in us-east-1"),
        ({"kms_key": "arn:aws:kms:us-east-1:123456789012:alias/own"}, "aws.kms_key: .* is in us-east-1"),
        ({"role": "arn:aws-cn:iam::123456789012:role/x"}, "aws.role: .* is in the partition aws-cn, but aws.region"),
        ({"bucket": "sagemaker-us-east-1-123456789012"}, "aws.bucket: .* is in us-east-1"),
        ({"region": "cn-north-1"}, "aws.image: .* is in eu-west-1, but aws.region is cn-north-1"),
        ({"deploy": {"asynchronous": {"error_topic": TOPIC}}}, "aws.deploy.asynchronous.error_topic: .* aws-cn"),
        ({"region": "Ireland"}, "aws.region: 'Ireland' is not a region of AWS"),
    ],
)
def test_a_resource_of_another_region_or_partition_is_refused(changes, cause):
    with pytest.raises(ContractError, match=cause):
        check_places(aws_plan(configuration(aws={**AWS, **changes})))


def test_the_image_of_the_tracker_is_checked_too():
    elsewhere = {**MLFLOW, "image": MLFLOW["image"].replace("eu-west-1", "us-east-1")}
    assert refusal(configuration(mlflow=elsewhere)).cause.startswith("mlflow.image: ")


def test_a_configuration_with_everything_can_run():
    resolved = aws_plan(configuration(aws=EVERYTHING, settings={}, **SCORED))
    check_places(resolved)
    check_instances(resolved, {})


def test_a_role_of_another_account_than_the_credentials_is_refused():
    sts = SimpleNamespace(get_caller_identity=lambda: {"Account": "999999999999"})
    with pytest.raises(
        ContractError, match="aws.role: .* is of the account 123456789012, but the credentials are of 9"
    ):
        check_account(aws_plan(configuration()), sts)


def response(status: int, region: str | None) -> dict[str, Any]:
    return {
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {"x-amz-bucket-region": region or "eu-west-1"}}
    }


@pytest.mark.parametrize("status", [200, 403])
def test_a_bucket_of_another_region_is_refused_whether_the_caller_may_read_it_or_not(status):
    def head_bucket(Bucket: str) -> Any:  # boto3's name
        assert Bucket == "raw"
        if status != 200:
            raise ClientError(response(status, "us-east-1") | {"Error": {"Code": "403"}}, "HeadBucket")
        return response(status, "us-east-1")

    with pytest.raises(ContractError, match="aws.inputs.input_data: s3://raw/x is in us-east-1, but aws.region is eu"):
        check_bucket("aws.inputs.input_data", "s3://raw/x", "eu-west-1", SimpleNamespace(head_bucket=head_bucket))


@pytest.mark.parametrize(
    ("uri", "keys", "cause"),
    [
        ("s3://raw/table", ["table/a.csv", "table_old/b.csv"], "also the beginning of s3://raw/table_old/"),
        ("s3://raw/table", ["table/a.csv", "table.csv"], "also the beginning of s3://raw/table.csv"),
        ("s3://raw/a.csv", ["a.csv", "a.csv.bak"], "also the beginning of s3://raw/a.csv.bak"),
        ("s3://raw/tab", ["table/a.csv", "tablet/b.csv"], "also the beginning of"),
        ("s3://raw/table/", ["table/a.csv"], None),
        ("s3://raw/table", ["table/a.csv", "table/x/b.csv"], None),
        ("s3://raw/a.csv", ["a.csv"], None),
        ("s3://raw/table/part-", ["table/part-0.csv", "table/part-1.csv"], None),  # meant: both are files
        ("s3://raw", ["table/a.csv", "other/b.csv"], None),
    ],
)
def test_a_prefix_that_also_matches_a_neighbour_is_refused(uri, keys, cause):
    if cause is None:
        return _check_neighbours("aws.inputs.input_data", uri, keys)
    with pytest.raises(ContractError, match=cause):
        _check_neighbours("aws.inputs.input_data", uri, keys)


@pytest.mark.parametrize(("limit", "is_refused"), [(7_100, True), (7_300, False)])
def test_a_training_that_would_be_stopped_before_its_end_is_refused(limit, is_refused, monkeypatch):
    asked = []
    monkeypatch.setattr(deploy, "print_estimate", lambda *_, rows: asked.append(rows) or 2.0)
    steps = {"PyTorchTraining": {"instance_type": "ml.g5.xlarge", "max_runtime_seconds": limit}}
    resolved = aws_plan(configuration(aws={**AWS, "steps": steps, "training": {"rows": 5000}}))
    if is_refused:
        with pytest.raises(ContractError, match="max_runtime_seconds: is 7100, but the training takes about 7,200 s"):
            check_estimate(resolved)
    else:
        check_estimate(resolved)
    assert asked == [5000]


def test_the_estimate_of_a_generated_table_is_for_its_rows(monkeypatch):
    asked = []
    monkeypatch.setattr(deploy, "print_estimate", lambda *_, rows: asked.append(rows))
    check_estimate(aws_plan(configuration()))
    assert asked == [300]
