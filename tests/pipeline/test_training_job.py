"""The training job of a definition: input mode, sharded channels, instance groups, warm pools, TensorBoard."""

import json

import pytest
from pydantic import ValidationError

from contracts.errors import ContractError
from pipeline.aws.definition import definition
from pipeline.aws.deploy import parse_overrides, start
from pipeline.aws.resolve import aws_plan
from testing.pipelines import AWS, EVERYTHING, all_steps, alternative, configuration, everything, loopback_only

GROUPS = alternative().aws.training.model_dump()["instance_groups"]
KEY = EVERYTHING["kms_key"]
EXPRESS = "s3://encoders--euw1-az1--x-s3/"


def training_of(**section):
    with loopback_only():
        pipeline = json.loads(definition(configuration(aws={**AWS, **section})))
    return all_steps(pipeline)["PyTorchTraining"]["Arguments"]


def sources(sent):
    return {each["ChannelName"]: each["DataSource"]["S3DataSource"] for each in sent["InputDataConfig"]}


@pytest.fixture(scope="module")
def everything_on():
    with loopback_only():
        return all_steps(json.loads(definition(everything())))["PyTorchTraining"]["Arguments"]


@pytest.fixture(scope="module")
def grouped():
    with loopback_only():
        return all_steps(json.loads(definition(alternative())))["PyTorchTraining"]["Arguments"]


def test_channels_have_the_input_mode_of_the_job(everything_on, grouped):
    assert everything_on["AlgorithmSpecification"]["TrainingInputMode"] == "FastFile"
    assert {each["InputMode"] for each in everything_on["InputDataConfig"]} == {"FastFile"}
    assert {each["InputMode"] for each in grouped["InputDataConfig"]} == {"File"}


def test_every_instance_gets_all_files_of_every_channel(everything_on):
    assert {source["S3DataDistributionType"] for source in sources(everything_on).values()} == {"FullyReplicated"}


def test_tensorboard_has_an_s3_path_and_no_local_path(everything_on, grouped):
    assert everything_on["TensorBoardOutputConfig"] == {"S3OutputPath": "s3://my-bucket/teams/risk/demo/tensorboard"}
    assert "TensorBoardOutputConfig" not in grouped


def test_instance_groups_replace_the_instances_and_their_parameters(grouped):
    assert grouped["ResourceConfig"]["InstanceGroups"] == [
        {"InstanceGroupName": "gpu", "InstanceType": "ml.g5.2xlarge", "InstanceCount": 2},
        {"InstanceGroupName": "cpu", "InstanceType": "ml.m5.xlarge", "InstanceCount": 1},
    ]
    assert not {"InstanceType", "InstanceCount"} & set(grouped["ResourceConfig"])
    assert not {"PyTorchTrainingInstanceType", "PyTorchTrainingInstanceCount"} & set(aws_plan(alternative()).specs)


def test_the_container_learns_its_group_which_alone_receives_the_channels(grouped):
    assert grouped["Environment"]["INSTANCE_GROUP"] == "gpu"
    assert {tuple(source["InstanceGroupNames"]) for source in sources(grouped).values()} == {("gpu",)}


def test_a_warm_pool_is_kept_and_an_express_bucket_keeps_its_slash():
    sent = training_of(training={"keep_alive_seconds": 1800}, inputs={"pretrained": EXPRESS})
    assert sent["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 1800
    assert sources(sent)["pretrained"]["S3Uri"] == {"Get": "Parameters.Input_pretrained"}


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"training": {"keep_alive_seconds": 60}, "spot": {"enabled": True}}, "exclude each other"),
        (
            {"training": {"keep_alive_seconds": 60, "instance_groups": GROUPS, "training_group": "gpu"}},
            "exclude each other",
        ),
        ({"training": {"instance_groups": GROUPS}}, "go together"),
        ({"spot": {"max_wait_seconds": 100_000}}, "no effect without enabled"),
        ({"training": {"instance_groups": GROUPS, "training_group": "tpu"}}, "'tpu' is not one of"),
        ({"training": {"channels": {"train": {"distribution": "ShardedByS3Key"}}}}, "distribution"),
        ({"inputs": {"pretrained": EXPRESS + "bert"}}, "must end in /"),
        ({"bucket": "scores--euw1-az1--x-s3"}, "only inputs can be in one"),
        ({"deploy": {"asynchronous": {"output": EXPRESS}}}, "only inputs can be in one"),
    ],
)
def test_a_contradiction_about_the_training_job_is_refused(changes, cause):
    with pytest.raises(ValidationError, match=cause):
        configuration(aws={**AWS, **changes})


@pytest.mark.parametrize(
    ("instance_type", "volume_key"),
    [("ml.m5.xlarge", KEY), ("ml.g5.2xlarge", None), ("ml.g4dn.xlarge", None), ("ml.g6.xlarge", None)],
)
def test_volumes_have_the_key_unless_instances_have_local_storage_and_outputs_always_have_it(instance_type, volume_key):
    names = ("PyTorchTraining", "TabularPreprocessing", "BatchScore")
    steps = {name: {"instance_type": instance_type} for name in names}
    inputs = {"batch_input": "s3://raw/records"}
    with loopback_only():
        config = configuration(aws={**AWS, "kms_key": KEY, "steps": steps, "inputs": inputs}, batch_score={})
        made = all_steps(json.loads(definition(config)))
    training, processing, transform = (made[name]["Arguments"] for name in names)
    volumes = (training["ResourceConfig"], processing["ProcessingResources"]["ClusterConfig"])
    assert [each.get("VolumeKmsKeyId") for each in (*volumes, transform["TransformResources"])] == [volume_key] * 3
    outputs = (training["OutputDataConfig"], processing["ProcessingOutputConfig"], transform["TransformOutput"])
    assert [each["KmsKeyId"] for each in outputs] == [KEY] * 3


def test_volumes_have_no_key_on_instances_whose_local_storage_the_sdk_does_not_know():
    sent = training_of(kms_key=KEY, steps={"PyTorchTraining": {"instance_type": "ml.p6-b300.48xlarge"}})
    assert "VolumeKmsKeyId" not in sent["ResourceConfig"]


@pytest.mark.parametrize(
    ("name", "given"), [("PyTorchTrainingInstanceType", "ml.m5.xlarge"), ("PackageInstanceType", "ml.g5.xlarge")]
)
def test_an_execution_cannot_change_to_instances_with_other_storage_while_volumes_have_a_key(name, given):
    with loopback_only(), pytest.raises(ContractError, match=f"parameter {name}: {given} cannot replace"):
        start(everything(), {name: given})


def test_a_key_of_volumes_is_refused_if_only_other_instance_groups_have_local_storage(grouped):
    assert "VolumeKmsKeyId" not in grouped["ResourceConfig"]
    training = {"instance_groups": GROUPS, "training_group": "cpu"}
    with pytest.raises(ContractError, match="aws.kms_key: is for the volumes of the group 'cpu'"):
        definition(configuration(aws={**AWS, "training": training, "kms_key": KEY}))


def test_instances_are_set_once():
    aws = {**AWS, "training": {"instance_groups": GROUPS, "training_group": "gpu"}}
    with pytest.raises(ContractError, match="aws.steps.PyTorchTraining.instance_count: is set, and"):
        aws_plan(configuration(aws={**aws, "steps": {"PyTorchTraining": {"instance_count": 2}}}))


def test_an_execution_cannot_name_a_prefix_that_the_bucket_does_not_allow():
    config = configuration(aws={**AWS, "inputs": {"pretrained": EXPRESS}})
    with pytest.raises(ContractError, match="parameter Input_pretrained: .* must end in /"):
        parse_overrides(aws_plan(config), {"Input_pretrained": EXPRESS + "bert"})
