"""The permissions of the commands and of the role: the policies of the stack, and the table of docs/pipeline_aws.md."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pipeline.aws.parameters import AwsPlan
from pipeline.aws.serving import endpoint_name
from pipeline.aws.session import partition_of
from pipeline.config_types import bucket_of, in_directory_bucket

ROLE, SCHEDULE_ROLE = "the role", "the role of the schedule"
PUSH, UPLOAD = "docker push", "aws s3 sync"  # who sends the image, and the inputs
_SAGEMAKER, _SCHEDULER = "sagemaker.amazonaws.com", "scheduler.amazonaws.com"
_DEPLOY, _MONITOR, _BEAT = "aws.deploy", "monitor", "condition.beat"
_TUNER, _ASYNCHRONOUS = "tuning.engine: sagemaker", "aws.deploy.asynchronous"
_BATCH, _TAGS, _SUBNETS = "batch_score", "aws.tags", "aws.subnets"
_SCALING = "aws.deploy.scaling"
_SERVER, _APP = "a tracking server on SageMaker", "an MLflow App"


@dataclass(frozen=True)
class Account:
    """The account, in which a configuration runs.

    Attributes:
        key: the ARN of the key of the bucket, or the stack's reference to it.
        shared_with: accounts that deploy the registered versions.
    """

    resolved: AwsPlan
    key: Any
    shared_with: tuple[str, ...] = ()

    @property
    def number(self) -> str:
        return self.resolved.aws.role.split(":")[4]

    def arn(self, service: str, resource: str, *, anywhere: bool = False) -> str:
        """Return an ARN in the region and the account of the configuration; anywhere: without them."""
        region = self.resolved.aws.region
        place = ":" if anywhere else f"{region}:{self.number}"
        return f"arn:{partition_of(region)}:{service}:{place}:{resource}"

    def named(self, kind: str, *names: str) -> list[str]:
        """Return the ARNs of SageMaker's resources, which are in lower case in some of its answers."""
        return sorted({self.arn("sagemaker", f"{kind}/{each}") for name in names for each in (name, name.lower())})

    def s3(self, *uris: str) -> list[str]:
        """Return the ARNs of objects, or of a bucket."""
        return [self.arn("s3", uri.removeprefix("s3://"), anywhere=True) for uri in uris]


def _below(account: Account, folder: str = "*") -> list[str]:
    return account.s3(f"{account.resolved.aws.bucket}/{account.resolved.aws.prefix}/{folder}")


def _of_pipeline(account: Account, folder: str) -> list[str]:
    return _below(account, f"{account.resolved.config.name}/{folder}")


def _pipelines(account: Account) -> list[str]:
    config = account.resolved.config
    return account.named("pipeline", config.name, *([f"{config.name}-monitor"] if config.monitor else []))


def _inputs(account: Account) -> list[str]:
    config, aws = account.resolved.config, account.resolved.aws
    monitored = [config.monitor.captured, config.monitor.labels] if config.monitor else []
    return [*aws.inputs.values(), *(uri for uri in monitored if uri)]


def _answers(account: Account) -> list[str]:
    queue = account.resolved.aws.deploy and account.resolved.aws.deploy.asynchronous
    return [queue.output] if queue and queue.output else []


def _buckets(account: Account) -> list[str]:
    uris = [account.resolved.aws.bucket, *_inputs(account), *_answers(account)]
    return account.s3(*sorted({bucket_of(uri) for uri in uris if not in_directory_bucket(uri)}))


def _topics(account: Account) -> list[str]:
    queue = account.resolved.aws.deploy and account.resolved.aws.deploy.asynchronous
    return [topic for topic in ((queue.success_topic, queue.error_topic) if queue else ()) if topic]


def _repositories(account: Account) -> list[str]:
    images = [account.resolved.aws.image, account.resolved.config.mlflow and account.resolved.config.mlflow.image]
    return sorted({repository_arn(image) for image in images if image})


def repository_arn(image: str) -> str:
    """Return the ARN of the repository of an image, ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME@sha256:..."""
    host, _, name = image.partition("@")[0].partition("/")
    owner, _, _, region = host.split(".")[:4]
    return f"arn:{partition_of(region)}:ecr:{region}:{owner}:repository/{name}"


def _server(account: Account) -> list[str]:
    mlflow = account.resolved.config.mlflow
    return [mlflow.tracking_uri] if mlflow and mlflow.tracking_uri.startswith("arn:") else []


def _schedule_role(account: Account) -> list[str]:
    monitor = account.resolved.config.monitor
    return [(monitor and monitor.schedule_role) or account.resolved.aws.role]


def _endpoint_names(account: Account) -> list[str]:
    deploy = account.resolved.aws.deploy
    return [endpoint_name(account.resolved.config, deploy)] if deploy else []


def _endpoints(account: Account) -> list[str]:
    return [arn for name in _endpoint_names(account) for arn in account.named("endpoint", name, f"{name[:38]}*-trial")]


RESOURCES: dict[str, Callable[[Account], list[Any]]] = {
    "the pipeline": _pipelines,
    "the models of the group": lambda account: account.named("model-package", f"{account.resolved.config.group}/*"),
    "the group": lambda account: account.named("model-package-group", account.resolved.config.group),
    "the buckets": _buckets,
    "the objects of the inputs": lambda account: account.s3(
        *(f"{uri}*" for uri in _inputs(account) if not in_directory_bucket(uri))
    ),
    "the directory buckets": lambda account: [
        account.arn("s3express", f"bucket/{name}")
        for name in sorted({bucket_of(uri) for uri in _inputs(account) if in_directory_bucket(uri)})
    ],
    "BUCKET/PREFIX/*": _below,
    "BUCKET/PREFIX/NAME/settings/*": lambda account: _of_pipeline(account, "settings/*"),
    "BUCKET/PREFIX/NAME/definitions/*": lambda account: _of_pipeline(account, "definitions/*"),
    "BUCKET/PREFIX/NAME-monitor/*": lambda account: _below(account, f"{account.resolved.config.name}-monitor/*"),
    "the objects of the answers": lambda account: account.s3(*(f"{uri}*" for uri in _answers(account))),
    "the topics": _topics,
    "the key": lambda account: [account.key],
    "the role": lambda account: [account.resolved.aws.role],
    "the role of the schedule": _schedule_role,
    "the image's repository": _repositories,
    "the server": _server,
    "processing jobs": lambda account: account.named("processing-job", "*"),
    "training jobs": lambda account: account.named("training-job", "*"),
    "tuning jobs": lambda account: account.named("hyper-parameter-tuning-job", "*"),
    "transform jobs": lambda account: account.named("transform-job", "*"),
    "models": lambda account: account.named("model", "*"),
    "the endpoint": lambda account: account.named("endpoint", *_endpoint_names(account)),
    "the endpoint and its trials": _endpoints,
    "endpoint configurations": lambda account: account.named("endpoint-config", "*"),
    "the log groups below /aws/sagemaker/": lambda account: [account.arn("logs", "log-group:/aws/sagemaker/*")],
    "the alarms of the endpoint": lambda account: [
        account.arn("cloudwatch", f"alarm:{name}-*") for name in _endpoint_names(account)
    ],
    "the executions": lambda account: account.named("pipeline", f"{account.resolved.config.name}/execution/*"),
    "the schedule": lambda account: [
        account.arn("scheduler", f"schedule/default/{account.resolved.config.name}-monitor")
    ],
    "the alarm": lambda account: [account.arn("cloudwatch", f"alarm:{account.resolved.config.name}-monitor")],
    "all resources": lambda _: ["*"],
}


CONDITIONS: dict[str, Callable[[AwsPlan], Any]] = {
    "": lambda _: True,
    _DEPLOY: lambda resolved: resolved.aws.deploy,
    _ASYNCHRONOUS: lambda resolved: resolved.aws.deploy and resolved.aws.deploy.asynchronous,
    _SCALING: lambda resolved: resolved.aws.deploy and resolved.aws.deploy.scaling,
    _MONITOR: lambda resolved: resolved.config.monitor,
    _BEAT: lambda resolved: resolved.config.condition.beat != "nothing",
    _TUNER: lambda resolved: resolved.plan.tuner,
    _BATCH: lambda resolved: resolved.config.batch_score,
    f"{_BATCH} or {_DEPLOY}": lambda resolved: resolved.config.batch_score or resolved.aws.deploy,
    _TAGS: lambda resolved: resolved.aws.tags,
    _SUBNETS: lambda resolved: resolved.aws.subnets,
    _SERVER: lambda resolved: any(":mlflow-tracking-server/" in arn for arn in _server(Account(resolved, None))),
    _APP: lambda resolved: any(":mlflow-app/" in arn for arn in _server(Account(resolved, None))),
}


@dataclass(frozen=True)
class Permission:
    """Actions that somebody needs.

    Attributes:
        of: a command, whose caller needs them, or a role.
        actions: of one service: "s3:GetObject PutObject".
        on: the resources, as RESOURCES names them.
        when: the part of the configuration with which they are needed; empty: always.
        passed_to: the service to which iam:PassRole passes a role.
    """

    of: str
    actions: str
    on: str
    when: str = ""
    passed_to: str = ""

    @property
    def names(self) -> list[str]:
        """The actions, each with its service."""
        service, _, actions = self.actions.partition(":")
        return [f"{service}:{action}" for action in actions.split()]


_JOBS = "Create{0} Describe{0} Stop{0} AddTags"

OPERATING = ("status", "versions", "compare", "approve", "reject", "deploy", "rollback", "delete")


def _each(commands: str, actions: str, on: str, when: str = "") -> tuple[Permission, ...]:
    """Return the same permission of several commands."""
    return tuple(Permission(command, actions, on, when) for command in commands.split())


PERMISSIONS = (
    *_each(" ".join(OPERATING), "sts:GetCallerIdentity", "all resources"),
    Permission("status", "sagemaker:DescribePipeline ListPipelineExecutions", "the pipeline"),
    Permission("status", "sagemaker:DescribePipelineExecution ListPipelineExecutionSteps", "the executions"),
    Permission("status", "sagemaker:DescribeProcessingJob", "processing jobs"),
    Permission("status", "sagemaker:DescribeTrainingJob", "training jobs"),
    Permission("status", "sagemaker:DescribeTransformJob", "transform jobs", _BATCH),
    Permission("status", "logs:DescribeLogStreams GetLogEvents", "the log groups below /aws/sagemaker/"),
    *_each(
        "versions compare approve reject deploy rollback",
        "sagemaker:DescribeModelPackage ListModelPackages",
        "the models of the group",
    ),
    *_each("approve reject", "sagemaker:UpdateModelPackage", "the models of the group"),
    Permission("compare", "s3:GetObject", "BUCKET/PREFIX/*"),
    Permission("compare", "kms:Decrypt", "the key"),
    *_each("versions deploy rollback delete", "sagemaker:DescribeEndpoint", "the endpoint and its trials", _DEPLOY),
    *_each("versions deploy rollback delete", "sagemaker:DescribeEndpointConfig", "endpoint configurations", _DEPLOY),
    *_each("versions deploy rollback delete", "sagemaker:DescribeModel", "models", _DEPLOY),
    *_each("deploy rollback", "sagemaker:ListTags UpdateEndpoint", "the endpoint and its trials", _DEPLOY),
    *_each("deploy rollback", "sagemaker:UpdateEndpoint", "endpoint configurations", _DEPLOY),
    Permission(
        "deploy",
        "sagemaker:AddTags CreateEndpoint DeleteEndpoint InvokeEndpoint",
        "the endpoint and its trials",
        _DEPLOY,
    ),
    Permission("deploy", "sagemaker:InvokeEndpointAsync", "the endpoint and its trials", _ASYNCHRONOUS),
    Permission(
        "deploy",
        "sagemaker:AddTags CreateEndpoint CreateEndpointConfig DeleteEndpointConfig",
        "endpoint configurations",
        _DEPLOY,
    ),
    Permission("deploy", "sagemaker:AddTags CreateModel", "models", _DEPLOY),
    Permission("deploy", "s3:GetObject", "BUCKET/PREFIX/*", _DEPLOY),
    Permission("deploy", "s3:PutObject", "BUCKET/PREFIX/*", _ASYNCHRONOUS),
    Permission("deploy", "kms:Decrypt", "the key", _DEPLOY),
    Permission("deploy", "kms:GenerateDataKey", "the key", _ASYNCHRONOUS),
    Permission("deploy", "iam:PassRole", "the role", _DEPLOY, passed_to=_SAGEMAKER),
    *_each("deploy delete", "cloudwatch:DescribeAlarms", "all resources", _DEPLOY),
    Permission("deploy", "cloudwatch:PutMetricAlarm", "the alarms of the endpoint", _DEPLOY),
    Permission("deploy", "cloudwatch:PutMetricAlarm", "the alarm", _MONITOR),
    Permission("rollback", "sagemaker:ListTags", "endpoint configurations", _DEPLOY),
    Permission("delete", "sagemaker:DeleteEndpoint ListTags", "the endpoint and its trials", _DEPLOY),
    Permission("delete", "sagemaker:DeleteEndpointConfig ListTags", "endpoint configurations", _DEPLOY),
    Permission("delete", "sagemaker:DeleteModel ListTags", "models", _DEPLOY),
    Permission("delete", "sagemaker:DescribeEndpoint ListEndpointConfigs ListEndpoints", "all resources", _DEPLOY),
    Permission("delete", "cloudwatch:DeleteAlarms", "the alarms of the endpoint", _DEPLOY),
    *_each("deploy rollback delete", "application-autoscaling:DescribeScalableTargets", "all resources", _DEPLOY),
    *_each("deploy rollback delete", "application-autoscaling:DeregisterScalableTarget", "all resources", _SCALING),
    *_each(
        "deploy rollback",
        "application-autoscaling:PutScalingPolicy RegisterScalableTarget",
        "all resources",
        _SCALING,
    ),
    Permission("upsert", "sagemaker:CreatePipeline UpdatePipeline DescribePipeline", "the pipeline"),
    Permission("upsert", "sagemaker:AddTags", "the pipeline", _TAGS),
    Permission("upsert", "sts:GetCallerIdentity", "all resources"),
    Permission("upsert", "s3:ListBucket", "the buckets"),
    Permission("upsert", "iam:PassRole", "the role", passed_to=_SAGEMAKER),
    Permission("upsert", "s3:PutObject", "BUCKET/PREFIX/NAME/settings/*"),
    Permission("upsert", "s3:GetObject PutObject", "BUCKET/PREFIX/NAME/definitions/*"),
    Permission("upsert", "kms:Decrypt GenerateDataKey", "the key"),
    Permission("start", "sagemaker:DescribePipeline StartPipelineExecution", "the pipeline"),
    Permission("start", "s3:ListBucket", "the buckets"),
    Permission("start", "s3express:CreateSession", "the directory buckets"),
    Permission("start", "sagemaker:DescribeModelPackage ListModelPackages", "the models of the group", _BEAT),
    Permission("schedule", "sagemaker:DescribePipeline", "the pipeline", _MONITOR),
    Permission("schedule", "sagemaker:DescribeModelPackage ListModelPackages", "the models of the group", _MONITOR),
    Permission("schedule", "s3:GetObject PutObject", "BUCKET/PREFIX/NAME-monitor/*", _MONITOR),
    Permission("schedule", "kms:Decrypt GenerateDataKey", "the key", _MONITOR),
    Permission("schedule", "scheduler:CreateSchedule UpdateSchedule", "the schedule", _MONITOR),
    Permission("schedule", "cloudwatch:PutMetricAlarm", "the alarm", _MONITOR),
    Permission("schedule", "iam:PassRole", "the role of the schedule", _MONITOR, passed_to=_SCHEDULER),
    Permission("put-metrics", "s3:GetObject", "BUCKET/PREFIX/NAME-monitor/*", _MONITOR),
    Permission("put-metrics", "kms:Decrypt", "the key", _MONITOR),
    Permission("put-metrics", "cloudwatch:PutMetricData", "all resources", _MONITOR),
    Permission(PUSH, "ecr:GetAuthorizationToken", "all resources"),
    Permission(
        PUSH,
        "ecr:BatchCheckLayerAvailability BatchGetImage CompleteLayerUpload InitiateLayerUpload PutImage "
        "UploadLayerPart",
        "the image's repository",
    ),
    Permission(UPLOAD, "s3:ListBucket", "the buckets"),
    Permission(UPLOAD, "s3:AbortMultipartUpload PutObject", "the objects of the inputs"),
    Permission(UPLOAD, "kms:Decrypt GenerateDataKey", "the key"),
    Permission(ROLE, f"sagemaker:{_JOBS.format('ProcessingJob')}", "processing jobs"),
    Permission(ROLE, f"sagemaker:{_JOBS.format('TrainingJob')}", "training jobs"),
    Permission(
        ROLE,
        f"sagemaker:{_JOBS.format('HyperParameterTuningJob')} ListTrainingJobsForHyperParameterTuningJob",
        "tuning jobs",
        _TUNER,
    ),
    Permission(ROLE, "sagemaker:CreateModelPackage DescribeModelPackage", "the models of the group"),
    Permission(ROLE, "sagemaker:CreateModelPackageGroup DescribeModelPackageGroup AddTags", "the group"),
    Permission(ROLE, "sagemaker:CreateModel DescribeModel AddTags", "models", f"{_BATCH} or {_DEPLOY}"),
    Permission(ROLE, f"sagemaker:{_JOBS.format('TransformJob')}", "transform jobs", _BATCH),
    Permission(
        ROLE,
        "sagemaker:CreateEndpointConfig DescribeEndpointConfig AddTags",
        "endpoint configurations",
        _DEPLOY,
    ),
    Permission(ROLE, "sagemaker:CreateEndpoint UpdateEndpoint", "endpoint configurations", _DEPLOY),
    Permission(ROLE, "sagemaker:CreateEndpoint UpdateEndpoint DescribeEndpoint AddTags", "the endpoint", _DEPLOY),
    Permission(ROLE, "cloudwatch:DescribeAlarms", "all resources", _DEPLOY),
    Permission(ROLE, "iam:PassRole", "the role", passed_to=_SAGEMAKER),
    Permission(ROLE, "s3:ListBucket", "the buckets"),
    Permission(ROLE, "s3:GetObject", "the objects of the inputs"),
    Permission(ROLE, "s3express:CreateSession", "the directory buckets"),
    Permission(ROLE, "s3:AbortMultipartUpload GetObject PutObject", "BUCKET/PREFIX/*"),
    Permission(ROLE, "s3:AbortMultipartUpload PutObject", "the objects of the answers", _ASYNCHRONOUS),
    Permission(ROLE, "sns:Publish", "the topics", _ASYNCHRONOUS),
    Permission(ROLE, "kms:CreateGrant Decrypt DescribeKey Encrypt GenerateDataKey", "the key"),
    Permission(
        ROLE,
        "sagemaker-mlflow:CreateExperiment CreateRun GetExperimentByName GetMetricHistory GetRun ListArtifacts "
        "LogBatch SearchRuns SetTag UpdateRun",
        "the server",
        _SERVER,
    ),
    Permission(ROLE, "sagemaker:CallMlflowAppApi", "the server", _APP),
    Permission(ROLE, "ecr:GetAuthorizationToken", "all resources"),
    Permission(ROLE, "ecr:BatchCheckLayerAvailability BatchGetImage GetDownloadUrlForLayer", "the image's repository"),
    Permission(
        ROLE,
        "logs:CreateLogGroup CreateLogStream DescribeLogStreams PutLogEvents",
        "the log groups below /aws/sagemaker/",
    ),
    Permission(ROLE, "cloudwatch:PutMetricData", "all resources"),
    Permission(
        ROLE,
        "ec2:CreateNetworkInterface CreateNetworkInterfacePermission DeleteNetworkInterface "
        "DeleteNetworkInterfacePermission DescribeDhcpOptions DescribeNetworkInterfaces DescribeSecurityGroups "
        "DescribeSubnets DescribeVpcs",
        "all resources",
        _SUBNETS,
    ),
    Permission(SCHEDULE_ROLE, "sagemaker:StartPipelineExecution", "the pipeline", _MONITOR),
)


def statements(account: Account, of: Iterable[str]) -> list[dict[str, Any]]:
    """Return the statements of an IAM policy with the permissions of commands or roles, without those not needed."""
    merged: dict[tuple[str, str], set[str]] = {}
    for permission in PERMISSIONS:
        if permission.of in of and CONDITIONS[permission.when](account.resolved):
            merged.setdefault((permission.on, permission.passed_to), set()).update(permission.names)
    return [
        {
            "Effect": "Allow",
            "Action": sorted(actions),
            "Resource": resources if len(resources) > 1 else resources[0],
            **({"Condition": {"StringEquals": {"iam:PassedToService": passed_to}}} if passed_to else {}),
        }
        for (on, passed_to), actions in merged.items()
        if (resources := RESOURCES[on](account))
    ]
