"""With engine: sagemaker, SageMaker's tuner replaces the training step; a local run searches in the training step."""

import json
import re

import boto3
import pytest
from pydantic import ValidationError

from contracts.errors import ContractError
from contracts.hyperparameter_files import TUNER_METRIC, load_hyperparameters
from contracts.paths import JobPaths
from contracts.steps import PYTORCH_TRAINING
from contracts.tuning import Tuning
from contracts.tuning_space import tunable
from pipeline.aws.definition import build_pipeline, definition
from pipeline.aws.limits import key_of
from pipeline.aws.resolve import aws_plan
from pipeline.aws.session import offline_session, sagemaker_sdk
from pipeline.local.run import name_engine
from pipeline.plan import LONGEST_VALUE, MOST_VALUES, make_plan
from testing.pipelines import (
    AWS,
    CONFIG,
    EVERYTHING,
    SEARCH,
    all_steps,
    alternative,
    configuration,
    filled_in,
    loopback_only,
    tuned,
)

STEP = PYTORCH_TRAINING.name


def built(config):
    with loopback_only():
        text = definition(config)
    return {**json.loads(text), "text": text}


def step_of(config):
    return all_steps(built(config))[STEP]["Arguments"]


def defaults(pipeline):
    return {each["Name"]: each["DefaultValue"] for each in pipeline["Parameters"]}


@pytest.fixture(scope="module")
def pipeline():
    return built(tuned())


@pytest.fixture(scope="module")
def sent(pipeline):
    step = all_steps(pipeline)[STEP]
    assert step["Type"] == "Tuning"
    return step["Arguments"]


@pytest.fixture(scope="module")
def job(sent):
    return sent["TrainingJobDefinition"]


@pytest.fixture(scope="module")
def plain():
    """A tuner with few settings, and a warm pool instead of spot instances."""
    aws = {**AWS, "training": {"keep_alive_seconds": 900}, "kms_key": EVERYTHING["kms_key"]}
    return step_of(tuned(aws=aws, metric="val_loss", max_hours=None, parallel=None, trials=3))


@pytest.fixture(scope="module")
def grouped():
    return step_of(tuned(aws=alternative().aws.model_dump(exclude_none=True)))


def test_moto_creates_the_tuning_job_and_the_pipeline(local_aws, pipeline, sent):
    client = boto3.client("sagemaker")
    arguments = filled_in(sent, defaults(pipeline))
    client.create_hyper_parameter_tuning_job(HyperParameterTuningJobName="claims", **arguments)
    described = client.describe_hyper_parameter_tuning_job(HyperParameterTuningJobName="claims")
    assert described["HyperParameterTuningJobConfig"]["Strategy"] == "Bayesian"
    assert described["TrainingJobDefinition"]["StaticHyperParameters"]["label_name"] == "label"


def test_each_setting_of_the_space_is_a_range_of_its_kind(sent):
    ranges = sent["HyperParameterTuningJobConfig"]["ParameterRanges"]
    assert ranges == {
        "ContinuousParameterRanges": [
            {"Name": "lr", "MinValue": "0.0001", "MaxValue": "0.01", "ScalingType": "Logarithmic"},
            {"Name": "dropout", "MinValue": "0.0", "MaxValue": "0.3", "ScalingType": "Linear"},
        ],
        "IntegerParameterRanges": [{"Name": "batch_size", "MinValue": "8", "MaxValue": "32", "ScalingType": "Linear"}],
        "CategoricalParameterRanges": [
            {"Name": "model_class", "Values": ["trimodal_bert", "trimodal_cross_attn"]},
            {"Name": "run_scheduler", "Values": ["true", "false"]},
            {"Name": "weight_decay", "Values": ["0.0", "1e-05"]},
        ],
    }


def test_the_tuner_has_the_limits_and_the_objective_of_the_section(sent):
    config = sent["HyperParameterTuningJobConfig"]
    assert config["ResourceLimits"] == {
        "MaxNumberOfTrainingJobs": 20,
        "MaxParallelTrainingJobs": 4,
        "MaxRuntimeInSeconds": 21_600,
    }
    assert config["HyperParameterTuningJobObjective"] == {"Type": "Maximize", "MetricName": "val/auroc"}
    assert (config["Strategy"], config["TrainingJobEarlyStoppingType"]) == ("Bayesian", "Auto")


def test_a_loss_is_minimized_and_limits_that_are_not_set_are_those_of_the_service(plain):
    tuner = plain["HyperParameterTuningJobConfig"]
    assert tuner["HyperParameterTuningJobObjective"] == {"Type": "Minimize", "MetricName": "val/loss"}
    assert tuner["ResourceLimits"] == {"MaxNumberOfTrainingJobs": 3, "MaxParallelTrainingJobs": 1}
    assert plain["TrainingJobDefinition"]["StaticHyperParameters"]["early_stop_metric"] == "val/loss"


def test_a_trial_has_everything_that_the_section_aws_gives_a_training_job(job):
    key = EVERYTHING["kms_key"]
    assert job["EnableNetworkIsolation"] is True
    assert job["EnableInterContainerTrafficEncryption"] is True
    assert job["EnableManagedSpotTraining"] is True
    assert job["VpcConfig"] == {"Subnets": ["subnet-1", "subnet-2"], "SecurityGroupIds": ["sg-1"]}
    assert job["StoppingCondition"] == {"MaxRuntimeInSeconds": 7200, "MaxWaitTimeInSeconds": 10_000}
    assert job["RetryStrategy"] == {"MaximumRetryAttempts": 5}
    assert job["OutputDataConfig"]["KmsKeyId"] == key
    assert "VolumeKmsKeyId" not in job["ResourceConfig"], "g5 has local storage"
    assert job["ResourceConfig"]["InstanceCount"] == {"Get": f"Parameters.{STEP}InstanceCount"}
    assert job["ResourceConfig"]["InstanceType"] == {"Get": f"Parameters.{STEP}InstanceType"}
    assert job["AlgorithmSpecification"]["TrainingInputMode"] == "FastFile"
    assert job["RoleArn"] == EVERYTHING["role"]


def test_a_trial_has_the_channels_of_a_training_job(job):
    channels = {each["ChannelName"]: each["DataSource"]["S3DataSource"] for each in job["InputDataConfig"]}
    assert list(channels) == ["train", "val", "test", "model_artifacts_input", "pretrained", "initial_model"]
    assert channels["train"]["S3DataDistributionType"] == "FullyReplicated"


def test_a_trial_has_instance_groups_and_a_warm_pool(grouped, plain):
    resources = grouped["TrainingJobDefinition"]["ResourceConfig"]
    assert [each["InstanceGroupName"] for each in resources["InstanceGroups"]] == ["gpu", "cpu"]
    assert grouped["TrainingJobDefinition"]["Environment"]["INSTANCE_GROUP"] == "gpu"
    resources = plain["TrainingJobDefinition"]["ResourceConfig"]
    assert (resources["KeepAlivePeriodInSeconds"], resources["VolumeKmsKeyId"]) == (900, EVERYTHING["kms_key"])


def test_the_step_has_tags_retries_and_the_cache(pipeline, sent):
    step = all_steps(pipeline)[STEP]
    assert sent["Tags"] == [{"Key": "cost-center", "Value": "7"}, {"Key": "team", "Value": "risk"}]
    assert {policy["MaxAttempts"] for policy in step["RetryPolicies"]} == {5}
    assert step["CacheConfig"] == {"Enabled": True, "ExpireAfter": "P30D"}
    assert "Execution." not in json.dumps({**sent, "InputDataConfig": None})


def test_new_data_under_the_same_uri_misses_the_step_cache(job):
    assert job["Environment"]["DATA_KEY"] == {"Get": f"Parameters.{STEP}DataKey"}


def test_only_trials_on_spot_instances_have_checkpoints_in_s3(job, plain):
    assert job["CheckpointConfig"]["S3Uri"]["Std:Join"]["Values"][-1]["Std:Join"]["Values"][0] == {
        "Get": "Parameters.CheckpointKey"
    }
    assert "CheckpointConfig" not in plain["TrainingJobDefinition"]


def test_another_space_has_another_folder_of_checkpoints():
    keys = [
        aws_plan(config).specs["CheckpointKey"].default
        for config in (tuned(), tuned(space={**SEARCH["space"], "lr": [1e-3]}))
    ]
    assert keys[0] != keys[1]


def test_the_steps_after_the_tuner_read_the_artifacts_of_its_best_job(pipeline):
    config = tuned()
    with sagemaker_sdk(config.aws.region):
        from sagemaker.mlops.workflow.steps import TuningStep

        session = offline_session(config.aws.region, config.aws.bucket)
        tuner = next(step for step in build_pipeline(aws_plan(config), session).steps if step.name == STEP)
        best = TuningStep.get_top_model_s3_uri(tuner, 0, "my-bucket", f"teams/risk/demo/{STEP}").to_string().expr
    steps = all_steps(pipeline)
    sources = {
        (name, each["InputName"]): filled_in(each["S3Input"]["S3Uri"], defaults(pipeline))
        for name in ("ModelMetricsComputation", "Package", "Payload")
        for each in steps[name]["Arguments"]["ProcessingInputs"]
    }
    model = filled_in(best, {})
    assert sources["Package", "model_input"] == model
    assert model.startswith(f"s3://my-bucket/teams/risk/demo/{STEP}/sample-job/output/")
    predictions = model.replace("model.tar.gz", "output.tar.gz")
    assert sources["ModelMetricsComputation", "eval_output"] == sources["Payload", "eval_output"] == predictions
    output = steps[STEP]["Arguments"]["TrainingJobDefinition"]["OutputDataConfig"]["S3OutputPath"]
    assert model.startswith(f"{output}/")


def test_a_hyperparameter_of_the_space_is_no_parameter_of_an_execution(pipeline, job):
    names = {*SEARCH["space"], "tuning"}
    assert not names & set(job["StaticHyperParameters"])
    assert not {f"Hp_{name}" for name in (*names, "early_stop_metric")} & set(defaults(pipeline))
    assert job["StaticHyperParameters"]["label_name"] == {"Get": "Parameters.Hp_label_name"}


def test_a_trial_reads_its_hyperparameters_as_an_ordinary_job(pipeline, sent, tmp_path):
    chosen = {"lr": "0.00123", "batch_size": "16", "model_class": "trimodal_cross_attn", "run_scheduler": "false"}
    static = filled_in(sent["TrainingJobDefinition"]["StaticHyperParameters"], defaults(pipeline))
    paths = JobPaths(tmp_path)
    paths.config.mkdir(parents=True)
    content = {**static, **chosen, TUNER_METRIC: "val/auroc", "sagemaker_region": '"eu-west-1"'}
    (paths.config / "hyperparameters.json").write_text(json.dumps(content))
    hp = load_hyperparameters(paths)
    assert (hp.lr, hp.batch_size, hp.model_class, hp.run_scheduler) == (0.00123, 16, "trimodal_cross_attn", False)
    assert (hp.tuning, hp.early_stop_metric, hp.label_name) == (None, "val/auroc", "label")


def test_no_trial_searches_itself_however_long_the_space_is():
    space = {**SEARCH["space"], "max_epochs": list(range(1, 31)), "max_sen_len": list(range(100, 130))}
    config = tuned(space=space)
    assert len(json.dumps(space)) > LONGEST_VALUE
    plan = aws_plan(config).plan
    assert "tuning" not in plan.step(PYTORCH_TRAINING).in_file
    assert "tuning" in make_plan(config, config.aws.inputs).step(PYTORCH_TRAINING).in_file


def test_the_hyperparameters_that_the_tuner_adds_count_for_the_limit(monkeypatch):
    monkeypatch.setattr("pipeline.plan.MOST_VALUES", 20)
    assert MOST_VALUES == 100
    plan = aws_plan(tuned()).plan
    step = plan.step(PYTORCH_TRAINING)
    assert len(step.sent(plan.hyperparameters)) + len(SEARCH["space"]) + 1 <= 20
    assert step.in_file


UNTUNABLE = {
    "lists": (
        {"space": {"primary_text_processing_steps": [["tokenizer"], ["text_normalizer", "tokenizer"]]}},
        "tuning.space.primary_text_processing_steps: ['tokenizer'] is a list",
    ),
    "objects": (
        {"space": {"encoder_config": [CONFIG["hyperparameters"]["encoder_config"], {"hidden_size": 8}]}},
        "tuning.space.encoder_config: {",
    ),
    "many values": (
        {"space": {"max_sen_len": list(range(32, 64))}},
        "tuning.space: ['32', '33', '34', '35', '36', '37', '38', '39', '40', '41', '42', '43', '44', '45', '46', ",
    ),
    "a short search": ({"max_hours": 0.01}, "tuning: 36 is refused: the service requires at least 120"),
    "TensorBoard": ({"training": {"tensorboard": True}}, "aws.training.tensorboard: is true, but"),
}


@pytest.mark.parametrize(("changes", "cause"), UNTUNABLE.values(), ids=UNTUNABLE.keys())
def test_what_the_tuner_cannot_do_is_an_error_that_names_the_setting(changes, cause):
    section = {key: value for key, value in changes.items() if key != "training"}
    config = tuned(aws=AWS, **section)
    if "training" in changes:
        training = config.aws.training.model_copy(update=changes["training"])
        config = config.model_copy(update={"aws": config.aws.model_copy(update={"training": training})})
    with loopback_only(), pytest.raises(ContractError) as refused:
        definition(config)
    assert refused.value.cause.startswith(cause)
    assert refused.value.fix


@pytest.mark.parametrize(
    ("section", "cause"),
    [
        ({"final_seeds": 3}, "final_seeds cannot be set with engine: sagemaker"),
        ({"engine": "container", "strategy": "Random"}, "strategy cannot be set with engine: container"),
        ({"max_hours": 721}, "max_hours is 721"),
        ({"trials": 751}, "trials is 751, but a tuning job of SageMaker with strategy Bayesian has at most 750"),
        ({"parallel": 101}, "parallel is 101, but a tuning job of SageMaker with strategy Bayesian has at most 100"),
        ({"space": {name: [1] for name in tunable()[:31]}}, "the number of settings in space is 31, but"),
        ({"strategy": "Grid"}, "'Bayesian' or 'Random'"),
        ({"space": {"lr": {"low": 0, "high": 1, "scale": "log"}}}, "log scale needs a number above 0"),
    ],
)
def test_a_key_that_the_engine_does_not_have_is_refused(section, cause):
    with pytest.raises(ValidationError, match=re.escape(cause)):
        tuned(**section)


def test_the_quotas_of_the_service_are_limits_of_its_tuner_only():
    assert tuned(trials=10_000, strategy="Random").tuning
    assert tuned(trials=750, parallel=100, max_hours=720).tuning
    assert configuration(tuning={"trials": 10_000, "parallel": 101, "max_hours": 721}).tuning


def test_a_refused_argument_of_the_tuner_is_named_by_its_key():
    aws = {**AWS, "steps": {STEP: {"instance_type": "ml.m5.xlage"}}}
    with loopback_only(), pytest.raises(ContractError, match=f"aws.steps.{STEP}.instance_type: 'ml.m5.xlage'"):
        definition(tuned(aws=aws))
    plan = aws_plan(tuned()).plan
    paths = {
        "tuning.space": "HyperParameterTuningJobConfig.ParameterRanges.CategoricalParameterRanges.0.Values",
        "tuning": "HyperParameterTuningJobConfig.ResourceLimits.MaxNumberOfTrainingJobs",
        "hyperparameters.label_name": "TrainingJobDefinition.StaticHyperParameters.label_name",
        "aws.retries.max_attempts": "TrainingJobDefinition.RetryStrategy.MaximumRetryAttempts",
    }
    assert [key_of(plan, STEP, tuple(path.split("."))) for path in paths.values()] == list(paths)


def test_a_run_on_this_machine_searches_the_same_space_in_the_training_step(capsys):
    config = tuned(aws=AWS)
    plan = make_plan(config, {})
    found = Tuning.model_validate(json.loads(plan.hyperparameters["tuning"]))
    assert found == Tuning.model_validate(
        {name: SEARCH[name] for name in ("metric", "trials", "max_hours", "parallel", "space")}
    )
    assert plan.hyperparameters["lr"] == json.dumps(CONFIG["hyperparameters"]["lr"])
    name_engine(config)
    assert capsys.readouterr().err.splitlines() == [
        f"tuning.engine: sagemaker is for AWS; here, {STEP} searches the same space itself."
    ]
