"""The SageMaker pipeline's definition: built offline, byte-stable, valid, and consistent with the contracts."""

import json
import os
import subprocess
import sys

import pytest

from contracts.errors import ContractError
from contracts.serving import REQUEST_TYPES, RESPONSE_TYPES
from contracts.step_contract import ProcessingSettings, StepContract, StepFolder
from contracts.steps import (
    DATA_LOADING,
    MONITOR,
    PROCESSING_STEPS,
    PYTORCH_TRAINING,
    REGISTRATION,
    STEPS,
    TABULAR_PREPROCESSING,
    TRACKING,
    VERSION_FACTS,
)
from pipeline import graph, plan
from pipeline.aws import resolve
from pipeline.aws.definition import definition
from pipeline.aws.resolve import aws_plan
from pipeline.aws.session import sagemaker_sdk
from pipeline.card import model_card
from pipeline.condition import ConditionOutcome
from pipeline.graph import EDGES, Source, source
from pipeline.plan import make_plan
from testing.jobs import REPOSITORY
from testing.pipelines import (
    AWS,
    CONFIG,
    IMAGE,
    MLFLOW,
    all_steps,
    configuration,
    everything,
    filled_in,
    loopback_only,
    write_config,
)

# Those of the pipeline of the training.
PROCESSING = [contract for contract in PROCESSING_STEPS.values() if contract is not MONITOR]


def built(config):
    with loopback_only():
        text = definition(config)
    return {**json.loads(text), "text": text}


def split_by(method):
    return {**CONFIG["settings"], "TabularPreprocessing": {"split_by": method}}


ENVIRONMENT = {"AWS_PROFILE": "mine", "AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "mine"}


@pytest.fixture(scope="module")
def small():
    """Build with a user's AWS variables, and record whether the environment changed."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        before = dict(os.environ)
        pipeline = built(configuration(settings=split_by("hash")))
        pipeline["environment_changed"] = dict(os.environ) != before
    return pipeline


@pytest.fixture(scope="module")
def other():
    """Build with a maximum, a stratified split and no step cache."""
    return built(
        configuration(
            settings=split_by("stratified"),
            condition={"metric": "test/loss", "maximum": 0.4},
            aws={**configuration().aws.model_dump(), "cache_expires": None},
        )
    )


@pytest.fixture(scope="module")
def full():
    return built(everything())


def defaults(pipeline):
    return {each["Name"]: each["DefaultValue"] for each in pipeline["Parameters"]}


def arguments(pipeline, step):
    return all_steps(pipeline)[step]["Arguments"]


@pytest.mark.parametrize(("which", "expected"), [("small", "ShardedByS3Key"), ("other", "FullyReplicated")])
def test_part_files_are_sharded_over_instances_unless_the_split_needs_all_rows(which, expected, request):
    sent = arguments(request.getfixturevalue(which), TABULAR_PREPROCESSING.name)
    found = {each["InputName"]: each["S3Input"] for each in sent["ProcessingInputs"]}
    assert found["DATA"]["S3DataDistributionType"] == expected
    assert found["SIGNATURE"]["S3DataDistributionType"] == "FullyReplicated"


def test_another_process_prints_the_same_bytes_and_makes_no_aws_calls(tmp_path, full):
    path = write_config(tmp_path, everything().model_dump(mode="json", exclude_none=True))
    code = (
        "import sys; from testing.pipelines import loopback_only; from pipeline.commands import main\n"
        f"with loopback_only(): sys.exit(main(['definition', '--config', {str(path)!r}]))"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    printed = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        env={**environment, "PYTHONHASHSEED": "1", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout == full["text"]
    assert printed.stderr == ""


def insert_a_step_before_training(patch):
    """Put the step Enrichment between DataLoading and TabularPreprocessing."""
    enrichment = StepContract(
        "Enrichment",
        "processing",
        "enrich",
        "Adds columns.",
        inputs=(StepFolder("DATA", "processing/input/data", ("*",), "The table."),),
        outputs=(StepFolder("ENRICHED", "processing/output/data", ("*",), "The table with more columns."),),
        settings=ProcessingSettings,
    )
    before = (DATA_LOADING, enrichment, *graph.BEFORE_CONDITION[1:])
    for module in (graph, plan):
        patch.setattr(module, "ORDER", (*before, *graph.AFTER_CONDITION))
    patch.setitem(EDGES, (enrichment.name, "DATA"), Source(DATA_LOADING, "DATA"))
    patch.setitem(EDGES, (TABULAR_PREPROCESSING.name, "DATA"), Source(enrichment, "ENRICHED"))


def test_a_step_inserted_before_training_is_defined_and_joined(monkeypatch):
    insert_a_step_before_training(monkeypatch)
    pipeline = built(configuration())
    assert [step["Name"] for step in pipeline["Steps"]][:4] == [
        "DataLoading", "Enrichment", "TabularPreprocessing", "PyTorchTraining"
    ]  # fmt: skip
    uris = {
        each["InputName"]: each["S3Input"]["S3Uri"]
        for each in arguments(pipeline, TABULAR_PREPROCESSING.name)["ProcessingInputs"]
    }
    assert "Steps.Enrichment." in json.dumps(uris["DATA"])
    assert "Steps.DataLoading." in json.dumps(uris["SIGNATURE"])


@pytest.mark.parametrize(
    ("step", "changes_it"),
    [
        ({"Enrichment": {"data_key": "other"}}, True),
        ({"PyTorchTraining": {"use_precomputed_imputation": True}}, True),
        ({"Payload": {"check_rows": 7}}, False),
    ],
)
def test_the_checkpoint_key_of_a_training_depends_on_the_steps_before_it(step, changes_it, monkeypatch):
    insert_a_step_before_training(monkeypatch)
    settings = CONFIG["settings"]
    aws = {**AWS, "inputs": {"model_artifacts_input": "s3://raw/artifacts"}}
    first, other = (
        aws_plan(configuration(aws=aws, settings=given)).specs["CheckpointKey"].default
        for given in (settings, {**settings, **step})
    )
    assert (first != other) is changes_it


def test_building_a_definition_leaves_the_environment_as_it_was(small):
    assert small["environment_changed"] is False


def test_settings_of_the_sdk_on_this_machine_are_ignored_with_a_line(small, monkeypatch, capfd):
    monkeypatch.setenv("SAGEMAKER_ADMIN_CONFIG_OVERRIDE", "/nowhere")
    assert built(configuration(settings=split_by("hash")))["text"] == small["text"]
    line = "SAGEMAKER_ADMIN_CONFIG_OVERRIDE: is ignored; the pipeline depends on its configuration alone.\n"
    assert capfd.readouterr().err == line


@pytest.mark.parametrize("contract", PROCESSING, ids=lambda step: step.name)
def test_a_processing_job_has_the_paths_of_its_contract(contract, full):
    sent = arguments(full, contract.name)
    assert sent["AppSpecification"]["ContainerEntrypoint"] == ["python", "-m", "container"]
    assert sent["AppSpecification"]["ContainerArguments"] == [contract.command]
    inputs = {each["InputName"]: each["S3Input"]["LocalPath"] for each in sent["ProcessingInputs"]}
    assert inputs == {folder.name: folder.container_path for folder in contract.inputs if folder.name != "settings"}
    outputs = sent["ProcessingOutputConfig"]["Outputs"]
    assert {each["OutputName"]: each["S3Output"]["LocalPath"] for each in outputs} == {
        folder.name: folder.container_path for folder in contract.outputs
    }


@pytest.mark.parametrize("contract", PROCESSING, ids=lambda step: step.name)
def test_the_environment_of_a_step_is_read_by_its_contract(contract, full):
    looked_up = {name: "1" if name.endswith("DataKey") else value for name, value in defaults(full).items()}
    sent = filled_in(arguments(full, contract.name).get("Environment", {}), looked_up)
    assert set(sent) <= set(contract.settings.variables())
    contract.settings.from_environment(sent)


def test_an_execution_that_does_not_set_the_keys_of_its_data_is_refused(full):
    sent = filled_in(arguments(full, DATA_LOADING.name)["Environment"], defaults(full))
    with pytest.raises(ContractError, match="DATA_KEY: 'not-looked-up' .*\\n.*Start executions with `python -m"):
        DATA_LOADING.settings.from_environment(sent)


def test_training_gets_its_channels_and_no_command(full):
    sent = arguments(full, PYTORCH_TRAINING.name)
    channels = [each["ChannelName"] for each in sent["InputDataConfig"]]
    assert channels == [folder.name for folder in PYTORCH_TRAINING.inputs if folder.name not in graph.WRITTEN_INPUTS]
    assert "ContainerArguments" not in sent["AlgorithmSpecification"]
    assert PYTORCH_TRAINING.command == "train", "the command that the service starts a training image with"


def test_every_input_is_joined_to_an_output_of_the_contract():
    for (step, name), origin in EDGES.items():
        contract = next(each for each in STEPS if each.name == step)
        assert source(contract, contract.input(name)) is origin
        assert origin.step.output(origin.output)
    joined = [folder.name for step in STEPS for folder in step.inputs if folder.required and not source(step, folder)]
    assert joined == ["batch_input", "records"], "of steps that are off by default"


def test_all_of_the_section_aws_reaches_the_jobs(full):
    training = arguments(full, PYTORCH_TRAINING.name)
    key = "arn:aws:kms:eu-west-1:123456789012:key/1234"
    tags = [{"Key": "cost-center", "Value": "7"}, {"Key": "team", "Value": "risk"}]
    vpc = {"Subnets": ["subnet-1", "subnet-2"], "SecurityGroupIds": ["sg-1"]}
    assert training["EnableManagedSpotTraining"] is True
    assert training["EnableNetworkIsolation"] is True
    assert training["EnableInterContainerTrafficEncryption"] is True
    assert training["StoppingCondition"] == {"MaxRuntimeInSeconds": 7200, "MaxWaitTimeInSeconds": 10_000}
    assert training["OutputDataConfig"]["KmsKeyId"] == key
    assert training["VpcConfig"] == vpc
    assert training["Tags"] == tags
    assert training["AlgorithmSpecification"]["TrainingImage"] == IMAGE
    assert defaults(full)["PyTorchTrainingInstanceCount"] == 2
    for contract in PROCESSING:
        sent = arguments(full, contract.name)
        assert sent["NetworkConfig"]["VpcConfig"] == vpc
        assert sent["NetworkConfig"]["EnableNetworkIsolation"] is (contract is not TRACKING)
        assert sent["ProcessingOutputConfig"]["KmsKeyId"] == key
        assert sent["ProcessingResources"]["ClusterConfig"]["VolumeKmsKeyId"] == key
        assert sent["Tags"] == tags
        assert sent["AppSpecification"]["ImageUri"] == (MLFLOW["image"] if contract is TRACKING else IMAGE)
    for step in set(STEPS) - {MONITOR}:
        policies = all_steps(full)[step.name]["RetryPolicies"]
        assert {policy["MaxAttempts"] for policy in policies} == {5}
        assert {policy["BackoffRate"] for policy in policies} == {1.5}


def test_the_key_of_the_step_cache_has_no_execution_id(full):
    keys = {
        "Processing": ("AppSpecification", "Environment", "ProcessingInputs"),
        "Training": ("AlgorithmSpecification", "CheckpointConfig", "Environment", "HyperParameters", "InputDataConfig"),
    }
    for step in all_steps(full).values():
        for key in keys.get(step["Type"], ()):
            assert "Execution." not in json.dumps(step["Arguments"].get(key))
        if step["Type"] in keys and step["Name"] != TRACKING.name:
            assert step["CacheConfig"] == {"Enabled": True, "ExpireAfter": "P30D"}


def test_new_data_under_the_same_uri_misses_the_step_cache(full):
    given = [name for name in defaults(full) if name.startswith("Input_") and name != "Input_champion"]
    for contract in (*PROCESSING, PYTORCH_TRAINING):
        sent = arguments(full, contract.name)
        inputs = json.dumps(sent["InputDataConfig" if contract is PYTORCH_TRAINING else "ProcessingInputs"])
        from_outside = any(f"Parameters.{name}" in inputs for name in given)
        key = sent.get("Environment", {}).get("DATA_KEY")
        assert key == ({"Get": f"Parameters.{contract.name}DataKey"} if from_outside else None)
    assert "Parameters.DataLoadingDataKey" in json.dumps(arguments(full, DATA_LOADING.name)["Environment"])


def test_checkpoints_of_other_data_are_in_another_folder(full):
    *_, folder = arguments(full, PYTORCH_TRAINING.name)["CheckpointConfig"]["S3Uri"]["Std:Join"]["Values"]
    names = ["CheckpointKey", "DataLoadingDataKey", "PyTorchTrainingDataKey"]
    assert folder == {"Std:Join": {"On": "-", "Values": [{"Get": f"Parameters.{name}"} for name in names]}}


def test_a_cache_that_is_switched_off_is_off(other):
    assert all_steps(other)[DATA_LOADING.name]["CacheConfig"] == {"Enabled": False}


def test_metric_definitions_read_the_lines_that_training_prints(full):
    import re

    definitions = arguments(full, PYTORCH_TRAINING.name)["AlgorithmSpecification"]["MetricDefinitions"]
    line = "metrics: step=120 epoch=1.50; val/loss=0.31; val/auroc=0.97; val/f1_score=nan;"
    found = {each["Name"]: re.findall(each["Regex"], line) for each in definitions}
    assert found["val/loss"] == ["0.31"]
    assert found["val/auroc"] == ["0.97"]
    assert found["val/f1_score"] == ["nan"]
    assert found["train/loss"] == []
    assert all(len(each["Regex"]) <= 500 for each in definitions)
    assert len(definitions) <= 40


def test_hyperparameters_are_parameters_and_the_environment_follows_them(full):
    sent = arguments(full, PYTORCH_TRAINING.name)["HyperParameters"]
    assert sent["lr"] == {"Get": "Parameters.Hp_lr"}
    assert defaults(full)["Hp_lr"] == "0.002"
    assert json.loads(defaults(full)["Hp_tab_field_list"]) == ["price", "quantity"]
    environment = arguments(full, "TabularPreprocessing")["Environment"]
    assert environment["LABEL_FIELD"] == {"Get": "Parameters.Hp_label_name"}


def test_the_condition_and_the_reason_carry_metric_and_limits(full):
    decide = arguments(full, "MetricCondition")
    measured = {
        "Std:JsonGet": {
            "PropertyFile": {"Get": "Steps.ModelMetricsComputation.PropertyFiles.decision"},
            "Path": "decision.value",
        }
    }
    lead = {"Std:JsonGet": {**measured["Std:JsonGet"], "Path": "decision.champion.lead"}}
    assert [(each["Type"], each["LeftValue"], each["RightValue"]) for each in decide["Conditions"]] == [
        ("GreaterThanOrEqualTo", measured, {"Get": "Parameters.Threshold"}),
        ("GreaterThanOrEqualTo", lead, 0.0),
    ]
    reason = filled_in(arguments(full, "MetricTooLow")["ErrorMessage"], defaults(full))
    assert reason.startswith(
        "The model was not registered: test/auroc is 0.5, but must be at least 0.8 (Threshold), and its lead over the "
        "approved registered model at least 0, but it is 0.5 (-1e+30: Input_champion was not set; set it, or use "
        "python -m pipeline start)."
    )


def test_an_execution_that_does_not_name_the_registered_model_gets_the_file_that_says_so(full):
    inputs = {
        each["InputName"]: each["S3Input"] for each in arguments(full, "ModelMetricsComputation")["ProcessingInputs"]
    }
    assert inputs["champion"]["S3Uri"] == {"Get": "Parameters.Input_champion"}
    assert defaults(full)["Input_champion"] == "s3://my-bucket/teams/risk/demo/settings/not-looked-up/"
    assert arguments(full, "ModelMetricsComputation")["Environment"]["CHAMPION_MARGIN"] == "1.0"


LEADS = {"value": 0.85, "difference": 0.05, "standard_error": 0.02, "records": 400}


@pytest.mark.parametrize(
    ("limit", "value", "lead", "holds"),
    [
        ({"minimum": 0.8}, 0.9, 0.0, True),
        ({"minimum": 0.8}, 0.9, -1e-9, False),
        ({"minimum": 0.8}, 0.79, 1.0, False),
        ({"minimum": 0.8}, None, 1.0, False),
        ({"maximum": 0.8, "metric": "test/loss"}, 0.9, 1.0, False),
        ({"maximum": 0.8, "metric": "test/loss"}, 0.7, 0.0, True),
    ],
)
def test_the_condition_needs_the_threshold_and_a_lead_that_is_not_negative(limit, value, lead, holds):
    condition = configuration(condition={"metric": "test/auroc", "beat": "newest", **limit}).condition
    assert ConditionOutcome(condition, value, {**LEADS, "lead": lead}).holds == holds


def test_the_sentence_has_both_values_their_difference_and_its_standard_error():
    condition = configuration(condition={"metric": "test/auroc", "minimum": 0.8, "beat": "newest"}).condition
    assert ConditionOutcome(condition, 0.9, {**LEADS, "lead": 0.05}).sentence() == (
        "test/auroc is 0.9; required: at least 0.8 (condition.minimum) and as good as the newest registered model, "
        "which has 0.85 on the same 400 records (difference +0.05, standard error 0.02, required 0 standard errors)."
    )


def test_a_maximum_reverses_the_condition(other):
    (condition,) = arguments(other, "MetricCondition")["Conditions"]
    assert condition["Type"] == "LessThanOrEqualTo"
    assert arguments(other, "ModelMetricsComputation")["Environment"]["DECISION_METRIC"] == "test/loss"
    assert "at most" in json.dumps(arguments(other, "MetricTooLow"))


def test_nothing_is_packaged_or_registered_unless_the_condition_holds(full):
    decide = arguments(full, "MetricCondition")
    afterwards = ["Package", "Payload", "Registration", "BatchScoreModel", "BatchScore"]
    endpoint = ["EndpointModel", "EndpointConfig", "Endpoint"]
    assert [step["Name"] for step in decide["IfSteps"]] == [*afterwards, *endpoint]
    assert [step["Type"] for step in decide["ElseSteps"]] == ["Fail"]
    assert [step["Name"] for step in full["Steps"]][-1] == "MetricCondition"


def test_the_package_that_is_registered_is_the_one_that_was_tested(full):
    sent = arguments(full, REGISTRATION.name)
    (container,) = sent["InferenceSpecification"]["Containers"]
    packaged = "Steps.Package.ProcessingOutputConfig.Outputs['packaged_model'].S3Output.S3Uri"
    assert container["ModelDataUrl"]["Std:Join"]["Values"] == [{"Get": packaged}, "model.tar.gz"]
    tested = {each["InputName"]: each["S3Input"]["S3Uri"] for each in arguments(full, "Payload")["ProcessingInputs"]}
    assert tested["model_input"] == {"Get": packaged}
    assert sent["InferenceSpecification"]["SupportedContentTypes"] == list(REQUEST_TYPES)
    assert sent["InferenceSpecification"]["SupportedResponseMIMETypes"] == list(RESPONSE_TYPES)
    assert sent["SamplePayloadUrl"]["Std:Join"]["Values"][-1] == "payload.tar.gz"
    assert sent["ModelMetrics"]["ModelQuality"]["Statistics"]["S3Uri"]["Std:Join"]["Values"][-1] == "evaluation.json"
    card = json.loads(sent["ModelCard"]["ModelCardContent"])
    observed = card["evaluation_details"][0]["evaluation_observation"]
    assert observed.startswith("Required, without parameters of the execution: test/auroc at least 0.8")


def test_a_version_says_what_it_was_made_of(full):
    sent = arguments(full, REGISTRATION.name)
    properties = sent["CustomerMetadataProperties"]
    assert properties["image"] == IMAGE
    assert properties["data_key"] == {"Get": "Parameters.DataLoadingDataKey"}
    assert properties["execution"] == {"Get": "Execution.PipelineExecutionArn"}
    assert properties["training_job"] == {"Get": "Steps.PyTorchTraining.TrainingJobName"}
    for name in VERSION_FACTS:
        (fact,) = properties[name]["Std:Join"]["Values"]
        assert fact["Std:JsonGet"]["Path"] == f"version.{name}"
    card = json.loads(sent["ModelCard"]["ModelCardContent"])
    with sagemaker_sdk("eu-west-1"):
        from sagemaker.core.shapes.model_card_shapes import ModelCardContent

        ModelCardContent.model_validate(card)
    job = card["training_details"]["training_job_details"]
    assert job["training_environment"] == {"container_image": [IMAGE]}
    changed = {each["name"]: each["value"] for each in job["hyper_parameters"]}
    assert changed["lr"] == "0.002"
    assert card["additional_information"]["custom_details"]["encoder_license"] == "none: no encoder is pretrained"


def test_the_card_states_the_license_of_a_pretrained_encoder_or_that_it_is_not_stated():
    hyperparameters = {**CONFIG["hyperparameters"], "tokenizer": "MiniLM", "encoder_config": {}, "lr": 2e-5}
    for stated, shown in {"Apache-2.0": "Apache-2.0", "": "not stated: set registration.encoder_license"}.items():
        config = configuration(registration={"encoder_license": stated}, hyperparameters=hyperparameters)
        card = json.loads(model_card(config, make_plan(config, {}), None, image=None))
        details = card["additional_information"]["custom_details"]
        assert details == {"encoder": "MiniLM", "encoder_license": shown}
        changed = card["training_details"]["training_job_details"]["hyper_parameters"]
        assert "lr" not in [each["name"] for each in changed], "its value is the default"


def test_packages_and_metrics_are_kept_in_another_folder_than_what_expires(full):
    def folder(step, output=0):
        outputs = arguments(full, step)["ProcessingOutputConfig"]["Outputs"]
        return outputs[output]["S3Output"]["S3Uri"]["Std:Join"]["Values"][0].rpartition("/")[2]

    kept = {name: folder(name) for name in ("Package", "Payload", "ModelMetricsComputation")}
    assert set(kept.values()) == {"models"}
    assert {folder(name) for name in ("DataLoading", "TabularPreprocessing")} == {"executions"}
    scores = arguments(full, "BatchScore")["TransformOutput"]["S3OutputPath"]["Std:Join"]["Values"][0]
    assert scores.endswith("/scores")


REFUSED = {
    "no section aws": ({"aws": None}, "aws: is missing"),
    "an unknown step": ({"settings": {"Preprocess": {}}}, "settings.Preprocess: unknown step"),
    "an unknown setting": (
        {"settings": {**CONFIG["settings"], "TabularPreprocessing": {"train_ration": 0.5}}},
        "settings.TabularPreprocessing.train_ration: unknown setting; did you mean 'train_ratio'",
    ),
    "a refused setting": (
        {"settings": {**CONFIG["settings"], "TabularPreprocessing": {"train_ratio": 2}}},
        "settings.TabularPreprocessing.train_ratio: 2 is invalid",
    ),
    "a duplicate setting": (
        {"settings": {**CONFIG["settings"], "TabularPreprocessing": {"label_field": "label"}}},
        "settings.TabularPreprocessing.label_field: repeats hyperparameters.label_name",
    ),
    "an unknown hyperparameter": (
        {"hyperparameters": {**CONFIG["hyperparameters"], "bacth_size": 8}},
        "bacth_size: unknown hyperparameter; did you mean 'batch_size'",
    ),
    "a hyperparameter without a name": (
        {"hyperparameters": {**CONFIG["hyperparameters"], " ": 8}},
        "' ': unknown hyperparameter",
    ),
    "no data": (
        {"settings": {}},
        "aws.inputs.input_data: is missing, and settings.DataLoading.generate_rows is not set",
    ),
    "an unknown input": (
        {"aws": {**configuration().aws.model_dump(), "inputs": {"inptu_data": "s3://raw/x"}}},
        "aws.inputs.inptu_data: unknown external input; did you mean 'input_data'",
    ),
    "several instances of one": (
        {"aws": {**configuration().aws.model_dump(), "steps": {"Package": {"instance_count": 2}}}},
        "aws.steps.Package.instance_count: is 2",
    ),
    "a processing job that is too long": (
        {"aws": {**configuration().aws.model_dump(), "steps": {"Package": {"max_runtime_seconds": 864_000}}}},
        "aws.steps.Package.max_runtime_seconds: is 864000, but a processing job runs 432000 s (5 days) at most",
    ),
    "instances of a step that is off": (
        {"aws": {**configuration().aws.model_dump(), "steps": {"BatchScore": {}}}},
        "aws.steps.BatchScore: is for the step BatchScore, which is off",
    ),
    "waiting shorter than running": (
        {"aws": {**configuration().aws.model_dump(), "spot": {"enabled": True, "max_wait_seconds": 60}}},
        "aws.spot.max_wait_seconds: is 60",
    ),
}


@pytest.mark.parametrize(("changes", "cause"), REFUSED.values(), ids=REFUSED.keys())
def test_a_contradiction_is_named_before_anything_is_built(changes, cause):
    with pytest.raises(ContractError) as error:
        definition(configuration(**changes))
    assert cause in error.value.cause
    assert error.value.fix


def test_the_plan_is_made_once_for_a_definition(monkeypatch):
    made = []
    monkeypatch.setattr(resolve, "make_plan", lambda *given, **named: made.append(1) or plan.make_plan(*given, **named))
    definition(configuration())
    assert made == [1]
