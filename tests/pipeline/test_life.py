"""The life of a model on AWS: moto's server, with what it lacks in testing/sagemaker_service.py."""

import json
import re
import urllib.request
from datetime import UTC, datetime, timedelta

import boto3
import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError
from pydantic import ValidationError

from contracts.errors import ContractError
from pipeline.aws import trial, waiting
from pipeline.aws.guard import Traffic
from pipeline.commands import main
from pipeline.config_aws import Deploy
from pipeline.estimate import hourly_price
from testing.pipelines import AWS, configuration, write_config
from testing.registrations import ANSWER, register
from testing.sagemaker_service import complete_sagemaker

VARIANT = "endpoint/{}/variant/AllTraffic"
DEPLOY = {"endpoint": "claims", "real_time": {"instance_count": 2}, "scaling": {"maximum": 6, "target": 700}}


@pytest.fixture
def service(local_aws, monkeypatch):
    """AWS without anything of an earlier test but the buckets, and without pauses."""
    for module in (waiting, trial):
        monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    with complete_sagemaker() as completed:
        completed.answer = ANSWER
        yield completed


@pytest.fixture
def command(tmp_path, capsys):
    """Return a function that runs a command, and returns its exit code, its output and its errors."""

    def run(name, *arguments, **changes):
        config = configuration(**{"name": "life", "aws": {**AWS, "deploy": DEPLOY}, **changes})
        file = write_config(tmp_path, config.model_dump(mode="json", exclude_none=True, exclude_unset=True))
        code = main([name, "--config", str(file), *arguments])
        captured = capsys.readouterr()
        assert max(map(len, captured.out.splitlines()), default=0) <= 80, captured.out
        return code, captured.out, captured.err

    return run


def fire(name):
    boto3.client("cloudwatch").set_alarm_state(AlarmName=name, StateValue="ALARM", StateReason="5 errors in a minute")


def present():
    """Return the names of the resources of an endpoint that exist on AWS, by type."""
    client = boto3.client("sagemaker")
    targets = boto3.client("application-autoscaling").describe_scalable_targets(ServiceNamespace="sagemaker")
    return {
        "endpoints": [each["EndpointName"] for each in client.list_endpoints()["Endpoints"]],
        "configs": [each["EndpointConfigName"] for each in client.list_endpoint_configs()["EndpointConfigs"]],
        "models": [each["ModelName"] for each in client.list_models()["Models"]],
        "alarms": [each["AlarmName"] for each in boto3.client("cloudwatch").describe_alarms()["MetricAlarms"]],
        "scaled": [each["ResourceId"] for each in targets["ScalableTargets"]],
    }


@pytest.mark.slow  # 18 commands
def test_the_life_of_a_model(service, command):
    assert command("upsert")[0] == 0
    assert command("start")[0] == 0
    began = datetime.now(UTC) - timedelta(seconds=90)
    service.steps = [
        {
            "StepName": "Registration",
            "StepStatus": "Succeeded",
            "StartTime": began,
            "EndTime": began + timedelta(seconds=30),
            "Metadata": {"RegisterModel": {"Arn": "arn:aws:sagemaker:eu-west-1:123456789012:model-package/life/1"}},
        }
    ]
    code, out, _ = command("status")
    assert code == 0
    assert re.search("Registration +succeeded +30.0 s +version 1", out), out
    register("life"), register("life")
    code, _, err = command("deploy", "1")
    assert code == 1
    assert err.startswith("version 1: is not approved (PendingManualApproval)\nApprove it:")
    for number in ("1", "2"):
        assert command("approve", number, "--why", "AUROC suffices")[0] == 0

    code, out, err = command("deploy", "1")
    assert (code, out.splitlines()[-1]) == (0, "claims has version 1."), err
    assert present()["scaled"] == ["endpoint/claims/variant/AllTraffic"]
    assert command("deploy", "1")[1].splitlines()[-1] == "claims has version 1.", "again changes nothing"
    assert service.updates == []

    boto3.client("cloudwatch").set_alarm_state(AlarmName="claims-errors", StateValue="OK", StateReason="none")
    looks = service.describe

    def describe(backend, endpoint_name):
        if endpoint_name in service.pending:
            fire("claims-errors")
        return looks(backend, endpoint_name)

    service.describe = describe
    code, out, err = command("deploy", "2", "--canary", "50")
    assert code == 1
    assert "version 2: was taken back, and claims has version 1: the alarm claims-errors fired: 5 errors" in err
    (update,) = service.updates
    policy = update["DeploymentConfig"]["BlueGreenUpdatePolicy"]
    assert policy["TrafficRoutingConfiguration"] == {
        "Type": "CANARY",
        "WaitIntervalInSeconds": 300,
        "CanarySize": {"Type": "CAPACITY_PERCENT", "Value": 50},
    }
    alarms = update["DeploymentConfig"]["AutoRollbackConfiguration"]["Alarms"]
    assert [each["AlarmName"] for each in alarms] == ["claims-errors", "claims-latency"]
    assert present()["scaled"] == ["endpoint/claims/variant/AllTraffic"], "set again"

    service.describe = looks
    code, out, err = command("deploy", "2")
    assert "The alarm claims-errors fires already, so it does not guard this update." in out
    assert (code, out.splitlines()[-1]) == (0, "claims has version 2."), err
    assert re.search(r"^2 \* +\S+ +approved", command("versions")[1], re.MULTILINE)

    code, out, err = command("rollback")
    assert (code, out.splitlines()[-1]) == (0, "claims has version 1."), err
    code, _, err = command("rollback")
    assert code == 1
    assert err.startswith("endpoint claims: has no earlier version: none is known")

    assert len(present()["configs"]) == 2, "the newer version's is kept"
    assert command("delete", "--yes")[0] == 0
    assert not any(present().values())
    assert command("delete", "--yes")[0] == 0


@pytest.fixture
def deployed(service, command, request):
    """Deploy the first of two approved versions of a group of its own, and return its name."""
    group = f"group-{abs(hash(request.node.name)) % 10**8}"
    changes = {"registration": {"group": group}, "aws": {**AWS, "deploy": {**DEPLOY, "endpoint": group}}}
    for number in ("1", "2"):
        register(group)
        assert command("approve", number, "--why", "it suffices", **changes)[0] == 0
    assert command("deploy", "1", **changes)[0] == 0
    yield group, changes
    service.pending.clear()
    assert command("delete", "--yes", **changes)[0] == 0


def with_deploy(changes, **deploy):
    return {**changes, "aws": {**AWS, "deploy": {**changes["aws"]["deploy"], **deploy}}}


def refused(ran):
    code, _, err = ran
    assert code == 1
    return err


@pytest.mark.slow
def test_a_deployment_that_cannot_be_is_refused_before_anything_changes(service, command, deployed):
    group, changes = deployed
    before = present()
    command("reject", "2", "--why", "it is biased", **changes)
    assert refused(command("deploy", "2", **changes)).startswith(
        "version 2: is not approved (Rejected: it is biased)\n"
    )
    command("approve", "2", "--why", "it is not", **changes)
    assert refused(command("deploy", "7", **changes)).startswith(
        f"version 7: {group} has no such version\nUse one of: 1, 2."
    )
    missing = with_deploy(changes, guard={"alarms": ["nobody"]})
    assert refused(command("deploy", "2", **missing)).startswith(
        "aws.deploy.guard.alarms: 'nobody' does not exist in eu-west-1"
    )
    one = with_deploy(changes, real_time={"instance_count": 1})
    assert "--canary 10: the endpoint has one instance" in refused(command("deploy", "2", "--canary", "10", **one))
    long = with_deploy(changes, guard={"wait_seconds": 3600})
    assert "guard.wait_seconds: 3600 in 10 steps is 36000 s" in refused(
        command("deploy", "2", "--linear", "10", **long)
    )
    service.pending[group] = ("another", [], -10)
    assert refused(command("deploy", "2", **changes)).startswith(f"endpoint {group}: is Updating to another\n")
    service.pending.clear()
    elsewhere = {**changes, "aws": {**changes["aws"], "role": AWS["role"].replace("1234", "9234")}}
    assert "is of the account 923456789012, but the credentials" in refused(command("deploy", "2", **elsewhere))
    assert refused(command("rollback", **changes)).startswith(f"endpoint {group}: has no earlier version: none is")
    assert (present(), service.updates) == (before, [])


@pytest.mark.slow
def test_a_version_that_answers_otherwise_than_it_was_registered_gets_no_traffic(service, command, deployed):
    group, changes = deployed
    service.answer = ANSWER.replace("0.75", "0.85")
    err = refused(command("deploy", "2", **changes))
    assert "version 2: answers the sample request (application/json) differently: .predictions[0]" in err
    assert service.updates == []
    assert present()["endpoints"] == [group], "the trial is deleted"


@pytest.mark.slow
def test_a_dry_run_prints_the_changes_and_sends_none(service, command, deployed):
    group, changes = deployed
    before = present()
    code, out, _ = command("deploy", "2", "--linear", "50", "--dry-run", **changes)
    assert code == 0
    assert f"would update {group} to version 2" in out.splitlines()
    assert all(line.startswith("would ") for line in out.splitlines())
    assert (
        command("approve", "2", "--why", "again", "--dry-run", **changes)[1] == f"would approve version 2 of {group}\n"
    )
    assert f"would delete the endpoint {group}" in command("delete", "--dry-run", **changes)[1]
    assert (present(), service.updates) == (before, [])


@pytest.mark.slow
def test_an_endpoint_without_our_tag_is_left_alone_unless_it_is_adopted(service, command, deployed):
    group, changes = deployed
    client = boto3.client("sagemaker")
    arn = client.describe_endpoint(EndpointName=group)["EndpointArn"]
    client.delete_tags(ResourceArn=arn, TagKeys=["text-table-trainer:endpoint"])
    for name, arguments in (("deploy", ["2"]), ("rollback", []), ("delete", ["--yes"])):
        assert f"endpoint {group}: was not created by this project" in refused(command(name, *arguments, **changes))
    assert service.updates == []
    code, out, err = command("deploy", "2", "--adopt", **changes)
    assert (code, out.splitlines()[-1]) == (0, f"{group} has version 2."), err


@pytest.mark.slow
def test_a_repeated_deployment_goes_on_with_the_one_that_was_interrupted(service, command, deployed):
    group, changes = deployed

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting.time, "sleep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            command("deploy", "2", **changes)
    code, out, err = command("deploy", "2", **changes)
    assert (code, out.splitlines()[-1]) == (0, f"{group} has version 2."), err
    assert len(service.updates) == 1


@pytest.mark.slow
def test_a_shadow_gets_copies_of_the_requests_and_a_rollback_ends_it(service, command, deployed):
    group, changes = deployed
    (served,) = present()["configs"]
    made = {}
    send = BaseClient._make_api_call

    def record(self, operation, parameters):
        made.setdefault(operation, []).append(parameters)
        return send(self, operation, parameters)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseClient, "_make_api_call", record)
        code, out, err = command("deploy", "2", "--shadow", "40", **changes)
    assert (code, out.splitlines()[-1]) == (0, f"{group} has version 1, and version 2 in its shadow."), err
    tried, config = made["CreateEndpointConfig"]
    assert "ShadowProductionVariants" not in tried, "version 2 answers the sample requests alone"
    (production,), (shadow,) = config["ProductionVariants"], config["ShadowProductionVariants"]
    assert (production["VariantName"], production["ModelName"]) == ("AllTraffic", served)
    assert (shadow["VariantName"], shadow["ModelName"]) == ("Shadow", made["CreateModel"][0]["ModelName"])
    assert shadow["InitialVariantWeight"] / production["InitialVariantWeight"] == 0.4
    (update,) = service.updates
    routing = update["DeploymentConfig"]["BlueGreenUpdatePolicy"]["TrafficRoutingConfiguration"]
    assert routing["Type"] == "ALL_AT_ONCE"
    assert "--shadow: this version is in service itself" in refused(command("deploy", "1", "--shadow", "40", **changes))
    assert "--canary and --shadow: exclude" in refused(
        command("deploy", "2", "--canary", "9", "--shadow", "9", **changes)
    )
    assert command("rollback", **changes)[1].splitlines()[-1] == f"{group} has version 1."
    assert boto3.client("sagemaker").describe_endpoint(EndpointName=group)["EndpointConfigName"] == served


@pytest.mark.parametrize("kind", ["serverless", "asynchronous"])
def test_a_shadow_of_an_endpoint_that_cannot_have_one_is_refused(kind):
    with pytest.raises(ContractError, match="--shadow: SageMaker supports it for real-time endpoints alone"):
        Traffic("SHADOW", 10).check(Deploy.model_validate({kind: {}}))


@pytest.fixture
def creating(service, deployed):
    """Let every trial be Creating until Ctrl-C."""

    def describe(backend, endpoint_name):
        found = looks(backend, endpoint_name)
        return {**found, "EndpointStatus": "Creating"} if endpoint_name.endswith("-trial") else found

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    looks, service.describe = service.describe, describe
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting.time, "sleep", interrupted)
        yield deployed
    service.describe = looks


@pytest.mark.slow
def test_an_interrupt_while_the_trial_is_created_deletes_it(service, command, creating):
    _, changes = creating
    before = present()
    with pytest.raises(KeyboardInterrupt):
        command("deploy", "2", **changes)
    after = present()
    assert {name for name in before if before[name] != after[name]} == {"models"}, "the next command uses the model"
    assert command("delete", "--yes", **changes)[0] == 0
    assert not any(present().values())


@pytest.mark.slow
def test_a_trial_that_an_interrupt_leaves_behind_is_named_with_the_commands_that_delete_it(service, command, creating):
    _, changes = creating
    send = BaseClient._make_api_call

    def refuse(self, operation, parameters):
        if operation == "DeleteEndpoint":
            raise ClientError({"Error": {"Code": "ValidationException", "Message": "It is Creating"}}, operation)
        return send(self, operation, parameters)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseClient, "_make_api_call", refuse)
        lines = refused(command("deploy", "2", **changes)).splitlines()
    left = [name for name in present()["endpoints"] if name.endswith("-trial")]
    assert f"aws sagemaker delete-endpoint --region eu-west-1 --endpoint-name {left[0]}" in lines
    assert f"aws sagemaker delete-endpoint-config --region eu-west-1 --endpoint-config-name {left[0]}" in lines
    assert command("delete", "--yes", **changes)[0] == 0
    assert not any(present().values()), "delete finds it too"


@pytest.mark.slow
def test_an_asynchronous_endpoint_answers_by_objects_and_scales_to_zero(local_aws, service, command):
    results = {"account_id": "123456789012", "region": "eu-west-1", "results": [{"data": ANSWER}]}
    url = f"{local_aws}/moto-api/static/sagemaker/async-endpoint-results"
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(results).encode(), method="POST"))
    register("queued")
    scaling = {"minimum": 0, "maximum": 3, "target": 5}
    changes = {
        "registration": {"group": "queued"},
        "aws": {**AWS, "deploy": {"endpoint": "queued", "asynchronous": {}, "scaling": scaling}},
    }
    command("approve", "1", "--why", "it suffices", **changes)
    code, _, err = command("deploy", "1", **changes)
    assert code == 0, err
    autoscaling = boto3.client("application-autoscaling")
    policies = autoscaling.describe_scaling_policies(ServiceNamespace="sagemaker", ResourceId=VARIANT.format("queued"))
    by_kind = {policy["PolicyType"]: policy for policy in policies["ScalingPolicies"]}
    tracking = by_kind["TargetTrackingScaling"]["TargetTrackingScalingPolicyConfiguration"]
    assert tracking["CustomizedMetricSpecification"]["MetricName"] == "ApproximateBacklogSizePerInstance"
    (alarm,) = boto3.client("cloudwatch").describe_alarms(AlarmNames=["queued-backlog"])["MetricAlarms"]
    assert alarm["AlarmActions"] == [by_kind["StepScaling"]["PolicyARN"]]
    assert alarm["MetricName"] == "HasBacklogWithoutCapacity"
    assert command("delete", "--yes", **changes)[0] == 0
    assert not [name for name in present()["alarms"] if name.startswith("queued")]


@pytest.mark.slow
def test_a_serverless_endpoint_scales_its_provisioned_concurrency_and_its_traffic_moves_at_once(service, command):
    for _ in range(2):
        register("small")
    deploy = {"endpoint": "small", "serverless": {}, "scaling": {"minimum": 2, "maximum": 5, "target": 0.7}}
    changes = {"registration": {"group": "small"}, "aws": {**AWS, "deploy": deploy}}
    for number in ("1", "2"):
        command("approve", number, "--why", "it suffices", **changes)
        code, _, err = command("deploy", number, **changes)
        assert code == 0, err
    (update,) = service.updates
    assert "DeploymentConfig" not in update
    assert "the traffic of a serverless endpoint moves at once" in refused(
        command("deploy", "1", "--canary", "10", **changes)
    )
    (target,) = boto3.client("application-autoscaling").describe_scalable_targets(
        ServiceNamespace="sagemaker", ResourceIds=[VARIANT.format("small")]
    )["ScalableTargets"]
    assert target["ScalableDimension"] == "sagemaker:variant:DesiredProvisionedConcurrency"
    client = boto3.client("sagemaker")
    config = client.describe_endpoint_config(EndpointConfigName=update["EndpointConfigName"])
    assert config["ProductionVariants"][0]["ServerlessConfig"]["ProvisionedConcurrency"] == 2
    assert command("delete", "--yes", **changes)[0] == 0


@pytest.mark.parametrize(
    ("kind", "scaling", "reason"),
    [
        ("real_time", {"minimum": 0, "maximum": 2, "target": 1}, "only an asynchronous endpoint can have no instances"),
        ("real_time", {"minimum": 3, "maximum": 2, "target": 1}, "minimum 3 is above maximum 2"),
        ("serverless", {"maximum": 9, "target": 0.5}, "scaling.maximum is above serverless.concurrency 5"),
        ("serverless", {"maximum": 2, "target": 70}, "is a share, at most 1"),
    ],
)
def test_a_scaling_that_the_kind_of_the_endpoint_does_not_have_is_refused(kind, scaling, reason):
    with pytest.raises(ValidationError, match=reason):
        configuration(aws={**AWS, "deploy": {kind: {}, "scaling": scaling}})


def test_a_step_of_linear_traffic_below_the_service_limit_is_refused():
    deploy = Deploy.model_validate({"real_time": {"instance_count": 20}})
    Traffic("LINEAR", 10).check(deploy)
    Traffic("CANARY", 5).check(deploy)
    with pytest.raises(ContractError, match="--linear 5: a step has at least 10 %"):
        Traffic("LINEAR", 5).check(deploy)


def test_a_guard_of_a_serverless_endpoint_is_refused():
    with pytest.raises(ValidationError, match="guard has no effect on a serverless endpoint"):
        configuration(aws={**AWS, "deploy": {"serverless": {}, "guard": {"errors": 2}}})


@pytest.mark.slow
def test_a_failed_execution_is_shown_with_cause_cost_and_logs(service, command):
    client, logs = boto3.client("sagemaker"), boto3.client("logs")
    assert command("upsert")[0] == command("start")[0] == 0
    client.create_training_job(
        TrainingJobName="trained",
        AlgorithmSpecification={"TrainingImage": "image", "TrainingInputMode": "File"},
        RoleArn=AWS["role"],
        OutputDataConfig={"S3OutputPath": "s3://my-bucket/"},
        ResourceConfig={"InstanceType": "ml.g5.xlarge", "InstanceCount": 2, "VolumeSizeInGB": 30},
        StoppingCondition={"MaxRuntimeInSeconds": 60},
    )
    job = client.describe_training_job(TrainingJobName="trained")["TrainingJobArn"]
    began = datetime(2026, 11, 30, 10, tzinfo=UTC)
    cause = "train.csv: has no column 'label', which label_name names and every row of the split needs\nAdd it."
    service.steps = [
        {
            "StepName": "PyTorchTraining",
            "StepStatus": "Failed",
            "StartTime": began,
            "EndTime": began + timedelta(hours=1),
            "FailureReason": cause,
            "Metadata": {"TrainingJob": {"Arn": job}},
        }
    ]
    out = command("status")[1]
    line, *rest = out.splitlines()[1:]
    dollars = 2 * hourly_price("ml.g5.xlarge")
    assert re.fullmatch(rf"PyTorchTraining +failed +3,600.0 s +\${dollars:.2f}", line), out
    assert " ".join(rest[:2]).split() == cause.splitlines()[0].split()
    group = "/aws/sagemaker/TrainingJobs"
    logs.create_log_group(logGroupName=group)
    logs.create_log_stream(logGroupName=group, logStreamName="trained/algo-1")
    event = {"timestamp": int(datetime.now(UTC).timestamp() * 1000), "message": "epoch 1 of 3"}
    logs.put_log_events(logGroupName=group, logStreamName="trained/algo-1", logEvents=[event])
    assert command("status", "--logs", "PyTorchTraining")[1].splitlines()[-1] == "epoch 1 of 3"
    assert "did you mean 'PyTorchTraining'" in refused(command("status", "--logs", "PyTorchTrain"))
    assert "has no such execution" in refused(command("status", "nothing"))
    assert command("status", "--wait")[0] == 0, "moto's executions succeed at once"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moto.sagemaker.models.FakePipelineExecution.__init__", _failed())
        assert command("start")[0] == 0
    assert command("status", "--wait")[0] == 1


def _failed():
    from moto.sagemaker.models import FakePipelineExecution

    initialize = FakePipelineExecution.__init__

    def begin(self, *arguments, **options):
        initialize(self, *arguments, **options)
        self.pipeline_execution_status = "Failed"

    return begin
