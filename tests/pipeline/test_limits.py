"""The service's limits: checked before anything is sent, and a file carries what a job cannot contain."""

import copy
import json

import pandas as pd
import pytest
from botocore.session import Session
from botocore.validate import ParamValidator

from container.steps.program import _variables
from contracts.errors import ContractError
from contracts.hyperparameter_files import load_hyperparameters, parse_hyperparameters
from contracts.paths import SETTINGS_FILE, JobPaths
from contracts.steps import MONITOR, PROCESSING_STEPS, PYTORCH_TRAINING, TABULAR_PREPROCESSING
from pipeline.aws.definition import definition
from pipeline.aws.deploy import start, upsert
from pipeline.aws.limits import _KEYS, _OPERATIONS, Value, _requests, key_of, value_of, violations
from pipeline.aws.resolve import aws_plan
from pipeline.config_types import Name
from pipeline.local.cache import StepDirectory
from pipeline.local.process import _create_root, run_step
from pipeline.plan import LONGEST_VALUE, MOST_VALUES, _not_sent, make_plan
from testing.pipelines import (
    APPROVED,
    AWS,
    BATCH_SCORE,
    CLASSES,
    COLUMNS,
    CONFIG,
    EVERYTHING,
    all_steps,
    alternative,
    configuration,
    everything,
    filled_in,
    loopback_only,
    serverless,
    tuned,
    wide,
)

PACKAGE_JOB = {
    "ProcessingJobName": "job",
    "RoleArn": "arn:aws:iam::123456789012:role/SageMaker",
    "AppSpecification": {"ImageUri": "image", "ContainerArguments": ["package"]},
    "Environment": {"DATA_KEY": "x"},
    "ProcessingResources": {
        "ClusterConfig": {"InstanceCount": 1, "InstanceType": "ml.m5.xlarge", "VolumeSizeInGB": 30}
    },
    "Tags": [{"Key": "team", "Value": "Größe 1"}],
}

# Those of the pipeline of the training.
PROCESSING = [contract for contract in PROCESSING_STEPS.values() if contract is not MONITOR]


@pytest.fixture(scope="module")
def service():
    return Session().get_service_model("sagemaker")


@pytest.fixture(scope="module")
def pipelines():
    with loopback_only():
        made = {"wide": wide, "alternative": alternative, "tuned": tuned, "serverless": serverless}
        configs = (everything(), *(named(name, config()) for name, config in made.items()))
        return {config.name: json.loads(definition(config)) for config in configs}


def test_a_name_needs_no_botocore_and_has_the_pattern_of_its_model(service):
    (pattern,) = Name.__metadata__
    for shape in ("PipelineName", "EntityName", "EndpointName"):
        of_service, _, length = service.shape_for(shape).metadata["pattern"].rpartition("{")
        assert pattern.regex == of_service.replace("a-zA-Z", "A-Za-z") + "*"
        assert length.startswith("0,")


def named(name, config):
    return config.model_copy(update={"name": name})


def found_in(service, changes, parameters=None):
    """Return the violations of a processing job in which `changes` are made, by path."""
    job = copy.deepcopy(PACKAGE_JOB)
    for path, value in changes.items():
        *parents, name = path.split(".")
        place = job
        for parent in parents:
            place = place[parent]
        if value is None:
            del place[name]
        else:
            place[name] = value
    shape = service.operation_model("CreateProcessingJob").input_shape
    return {".".join(found.path): found.problem for found in violations(shape, job, parameters or {})}


@pytest.mark.parametrize(
    ("path", "value", "place", "problem"),
    [
        ("Environment.DATA_KEY", "x" * 257, "", "has 257 characters; the service accepts at most 256"),
        ("RoleArn", "arn", "", "has 3 characters; the service requires at least 20"),
        ("Environment", {f"V{n}": "" for n in range(101)}, "", "has 101 entries; the service accepts at most 100"),
        ("Tags", [{"Key": "a", "Value": ""}] * 51, "", "has 51 items; the service accepts at most 50"),
        ("AppSpecification.ContainerArguments", [], "", "has 0 items; the service requires at least 1"),
        ("ProcessingResources.ClusterConfig.InstanceCount", 101, "", "is refused: the service accepts at most 100"),
        ("ProcessingResources.ClusterConfig.InstanceCount", 0, "", "is refused: the service requires at least 1"),
        ("ProcessingResources.ClusterConfig.InstanceType", "ml.m5.xlage", "", "did you mean 'ml.m5.xlarge'?"),
        ("Environment", {"A-B": ""}, ".A-B", "does not match the service's pattern"),
        ("Tags", [{"Key": "a%", "Value": ""}], ".0.Key", "does not match the service's pattern"),
        ("AppSpecification.ImageUri", None, "", "is no value; the service requires one"),
        ("AppSpecification.ContainerArgument", ["a"], "", "botocore does not know; did you mean 'ContainerArguments'?"),
    ],
)
def test_a_value_beyond_each_kind_of_limit_is_found(service, path, value, place, problem):
    found = found_in(service, {path: value})
    assert list(found) == [f"{path}{place}"]
    assert problem in found[f"{path}{place}"]
    assert found_in(service, {}) == {}


def test_a_hyperparameter_has_the_smaller_limit_of_documentation_and_model(service):
    shape = service.shape_for("HyperParameters")
    assert not list(violations(shape, {"a": "x" * 256}, {}))
    (found,) = violations(shape, {"a": "x" * 257}, {})
    assert found.problem == "has 257 characters; the service accepts at most 256"
    assert list(violations(shape, {"a": "x\ny"}, {}))


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ({"Get": "Parameters.A"}, Value("1", parameter="A")),
        ({"Get": "Steps.Package.ProcessingJobName"}, Value("", complete=False)),
        ({"Std:JsonGet": {"Path": "a"}}, Value("", complete=False)),
        ({"Std:Join": {"On": "/", "Values": ["a", {"Get": "Parameters.A"}]}}, Value("a/1", parameter="A")),
        ({"Std:Join": {"On": "/", "Values": ["a", {"Get": "Execution.Id"}]}}, Value("a/", complete=False)),
        ({"Key": "a"}, Value({"Key": "a"})),
    ],
)
def test_an_expression_is_what_an_execution_makes_of_it(argument, value):
    assert value_of(argument, {"A": "1"}) == value


def test_an_expression_is_checked_as_far_as_it_is_known(service):
    instance, image = "ProcessingResources.ClusterConfig.InstanceType", "AppSpecification.ImageUri"
    output = {"Get": "Steps.Train.ModelArtifacts.S3ModelArtifacts"}
    assert found_in(service, {instance: {"Get": "Parameters.A"}}, {"A": "ml.m5.large"}) == {}
    assert list(found_in(service, {instance: {"Get": "Parameters.A"}}, {"A": "ml.m5"})) == [instance]
    assert found_in(service, {instance: output, "RoleArn": output, "Environment.DATA_KEY": output}) == {}
    assert found_in(service, {image: {"Std:Join": {"On": "", "Values": ["x" * 255, output]}}}) == {}
    assert list(found_in(service, {image: {"Std:Join": {"On": "", "Values": ["x" * 256, output]}}})) == [image]


@pytest.mark.parametrize(
    ("which", "steps"), [("demo", 15), ("wide", 15), ("alternative", 12), ("tuned", 12), ("serverless", 14)]
)
def test_botocore_accepts_the_arguments_of_every_step(which, steps, pipelines, service):
    defaults = {each["Name"]: each["DefaultValue"] for each in pipelines[which]["Parameters"]}
    assert len(all_steps(pipelines[which])) == steps
    for step in all_steps(pipelines[which]).values():
        if step["Type"] not in ("Condition", "Fail"):
            operation, added = _OPERATIONS[step["Type"]]
            sent = {**filled_in(step["Arguments"], defaults), **added}
            shape = service.operation_model(operation).input_shape
            assert not ParamValidator().validate(sent, shape).generate_report()


def test_no_condition_is_in_the_branch_of_another_one_which_the_service_does_not_support(pipelines):
    for pipeline in pipelines.values():
        for step in all_steps(pipeline).values():
            branches = [step["Arguments"].get(name, []) for name in ("IfSteps", "ElseSteps")]
            assert "Condition" not in [inner["Type"] for branch in branches for inner in branch]


@pytest.mark.parametrize(
    ("send", "changes", "cause"),
    [
        (
            definition,
            {"aws": {**AWS, "steps": {"Package": {"instance_type": "ml.m5.xlage"}}}},
            "aws.steps.Package.instance_type: 'ml.m5.xlage' is not a value that botocore knows; did you mean "
            "'ml.m5.xlarge'?",
        ),
        (
            upsert,
            {"registration": {"transform_instances": ["ml.m5.xlarge", "ml.m5.tiny"]}},
            "registration.transform_instances: 'ml.m5.tiny' is not a value that botocore knows",
        ),
    ],
)
def test_a_refused_value_is_named_by_its_key_before_anything_is_sent(send, changes, cause):
    with loopback_only(), pytest.raises(ContractError) as error:
        send(configuration(**changes))
    assert error.value.cause.startswith(cause)
    assert error.value.fix


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"Hp_label_name": "x" * 257}, f"'{'x' * 199}... has 257 characters; the service accepts at most 256"),
        ({"Input_input_data": "s3://bucket/" + "x" * 1024}, "has 1036 characters; the service accepts at most 1024"),
        ({"TabularPreprocessingInstanceCount": "101"}, "is refused: the service accepts at most 100"),
    ],
)
def test_a_parameter_beyond_a_limit_is_named_before_anything_is_sent(overrides, problem):
    with loopback_only(), pytest.raises(ContractError) as error:
        start(everything(), overrides)
    (name,) = overrides
    assert error.value.cause.startswith(f"parameter {name}: ")
    assert problem in error.value.cause


def test_an_argument_that_no_parameter_sets_is_named_by_its_key(pipelines):
    config = everything()
    plan = aws_plan(config).plan
    keys = set()

    def walk(step, argument, path):
        parts = argument.items() if isinstance(argument, dict) else enumerate(argument)
        for name, part in parts:
            if isinstance(part, list) or (isinstance(part, dict) and not {"Get", "Std:Join"} & set(part)):
                walk(step, part, (*path, str(name)))
            elif not value_of(part, defaults).parameter:  # a parameter has its own key
                keys.add(key_of(plan, step, (*path, str(name))))

    for each in (config, named("alternative", alternative()), named("tuned", tuned())):
        defaults = {name: spec.default for name, spec in aws_plan(each).specs.items()}
        for step, _, arguments in _requests(aws_plan(each), json.dumps(pipelines[each.name]), defaults):
            walk(step, arguments, ())
    keep_alive = key_of(plan, PYTORCH_TRAINING.name, ("ResourceConfig", "KeepAlivePeriodInSeconds"))
    assert {key for key in _KEYS.values() if "{" not in key} - keys == {keep_alive}
    assert {"aws.steps.TabularPreprocessing.volume_gb", "aws.steps.PyTorchTraining.max_runtime_seconds"} <= keys
    assert key_of(plan, "Package", ("Environment", "INCLUDE_WEIGHTS")) == "settings.Package.include_weights"
    assert key_of(plan, TABULAR_PREPROCESSING.name, ("Environment", "LABEL_FIELD")) == "hyperparameters.label_name"
    assert key_of(plan, PYTORCH_TRAINING.name, ("HyperParameters", "lr")) == "hyperparameters.lr"
    columns = ("PrimaryContainer", "Environment", "SERVING_CSV_COLUMNS")
    assert key_of(plan, "BatchScoreModel", columns) == "settings.BatchScore.serving_csv_columns"


def test_a_long_value_is_in_a_file_that_the_job_gets_as_an_input(pipelines):
    plan = aws_plan(named("wide", wide())).plan
    steps = all_steps(pipelines["wide"])
    for contract in (*PROCESSING, PYTORCH_TRAINING):
        sent, in_file = steps[contract.name]["Arguments"], plan.step(contract).in_file
        training = contract is PYTORCH_TRAINING
        found = [
            [each["ChannelName"], each["DataSource"]["S3DataSource"]["S3Uri"]] if training
            else [each["InputName"], each["S3Input"]["S3Uri"]]
            for each in sent["InputDataConfig" if training else "ProcessingInputs"]
        ]  # fmt: skip
        uris = [uri for name, uri in found if name == "settings"]
        assert len(uris) == bool(in_file)
        assert all(uri.startswith("s3://my-bucket/teams/risk/wide/settings/") for uri in uris)
        values = sent.get("HyperParameters" if training else "Environment", {})
        assert not set(values) & set(in_file)
    names = {contract.name: set(plan.step(contract).in_file) for contract in (*PROCESSING, PYTORCH_TRAINING)}
    assert names == {
        "DataLoading": set(),
        "TabularPreprocessing": {"LABEL_MAP"},
        "PyTorchTraining": {"tab_field_list", "multiclass_categories"},
        "Tracking": {"MLFLOW_TAGS"},
        "ModelMetricsComputation": {"CLASS_LABELS", "GROUP_FIELDS"},
        "Package": set(),
        "Payload": {"FIELD_DEFAULTS"},
    }
    assert "Hp_tab_field_list" not in aws_plan(wide()).specs


def test_a_list_of_csv_columns_is_a_variable_of_the_model_up_to_its_limit():
    def scoring(count):
        settings = {"BatchScore": {"serving_csv_columns": COLUMNS[:count]}}
        return configuration(aws=EVERYTHING, registration=APPROVED, batch_score=BATCH_SCORE, settings=settings)

    with loopback_only():
        steps = all_steps(json.loads(definition(scoring(10))))
        with pytest.raises(ContractError) as error:
            definition(scoring(20))
    columns = steps["BatchScoreModel"]["Arguments"]["PrimaryContainer"]["Environment"]["SERVING_CSV_COLUMNS"]
    assert len(columns) > LONGEST_VALUE
    plan = aws_plan(scoring(10)).plan
    assert not [step.contract.name for step in plan.steps if step.in_file], "no job reads the list from a file"
    assert error.value.cause.startswith("settings.BatchScore.serving_csv_columns: ")
    assert "characters; the service accepts at most 1024" in error.value.cause
    assert error.value.fix.startswith("Use JSON Lines")


def test_a_hyperparameter_of_several_lines_or_beyond_the_hundredth_is_in_the_file():
    plan = make_plan(configuration(hyperparameters={**CONFIG["hyperparameters"], "label_name": "two\nlines"}), {})
    assert plan.step(PYTORCH_TRAINING).in_file == {"label_name": "two\nlines"}
    assert plan.step(TABULAR_PREPROCESSING).in_file == {"LABEL_FIELD": "two\nlines"}
    names = {f"{number}": "x" for number in range(MOST_VALUES + 2)}
    assert list(_not_sent(names)) == ["100", "101"]


@pytest.mark.parametrize("contract", PROCESSING, ids=lambda step: step.name)
def test_a_step_reads_from_the_file_what_the_environment_lacks(contract, tmp_path):
    plan = make_plan(wide(), wide().aws.inputs).step(contract)
    directory = StepDirectory(tmp_path)
    _create_root(plan, directory, {}, {})
    read = contract.settings.from_environment(_variables(contract, directory.ml, plan.sent(plan.environment)))
    assert read == contract.settings.from_environment(plan.environment)


def test_training_reads_from_the_file_what_its_hyperparameters_lack(tmp_path):
    plan = make_plan(wide(), wide().aws.inputs)
    _create_root(plan.step(PYTORCH_TRAINING), StepDirectory(tmp_path), {}, plan.hyperparameters)
    paths = JobPaths(tmp_path / "ml")
    assert "tab_field_list" not in json.loads((paths.config / "hyperparameters.json").read_text())
    read = load_hyperparameters(paths)
    assert read.tab_field_list == COLUMNS
    assert read == parse_hyperparameters(dict(wide().hyperparameters))


def test_a_local_step_applies_a_label_map_of_300_classes(tmp_path):
    rows = {"order_id": range(1200), "label": [CLASSES[number % 300] for number in range(1200)]}
    (tmp_path / "table").mkdir()
    pd.DataFrame(rows).to_csv(tmp_path / "table" / "part-0.csv", index=False)
    plan = make_plan(wide(), wide().aws.inputs).step(TABULAR_PREPROCESSING)
    directory = StepDirectory(tmp_path)
    run_step(plan, directory, {"DATA": tmp_path / "table"}, {})
    splits = directory.output(TABULAR_PREPROCESSING, "processed_data").glob("*/*_processed_data.csv")
    table = pd.concat(pd.read_csv(path) for path in splits)
    assert (table["label"] == table["order_id"] % 300).all()
    assert len(table) == 1200


def test_the_environment_takes_precedence_over_the_file(tmp_path):
    contract = TABULAR_PREPROCESSING
    folder = contract.input("settings").path(tmp_path)
    folder.mkdir(parents=True)
    (folder / SETTINGS_FILE).write_text('{"LABEL_FIELD": "a", "TIME_FIELD": "t"}')
    assert _variables(contract, tmp_path, {"LABEL_FIELD": "b", "TIME_FIELD": ""}) == {
        "LABEL_FIELD": "b",
        "TIME_FIELD": "t",
    }
    (folder / SETTINGS_FILE).write_text('{"LABEL_FEILD": "a"}')
    with pytest.raises(ContractError, match="LABEL_FEILD is not a variable of TabularPreprocessing; did you mean"):
        _variables(contract, tmp_path, {})
