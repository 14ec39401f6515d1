"""The permissions of the commands and of the role: the policies of the stack, and the table of docs/pipeline_aws.md."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pipeline.aws.parameters import AwsPlan
from pipeline.aws.serving import OURS, endpoint_name
from pipeline.aws.session import partition_of
from pipeline.config import PipelineConfig
from pipeline.config_aws import Aws
from pipeline.config_types import bucket_of, in_directory_bucket

ROLE, SCHEDULE_ROLE = "the role", "the role of the schedule"
TRIGGERS, BUILDS = "the role of the triggers", "the role of the builds"
ROLES = (ROLE, SCHEDULE_ROLE, TRIGGERS, BUILDS)
PUSH, UPLOAD = "docker push", "aws s3 sync"  # who sends the image, and the inputs
_SAGEMAKER, _SCHEDULER = "sagemaker.amazonaws.com", "scheduler.amazonaws.com"
_DEPLOY, _SCALING, _ASYNCHRONOUS = "aws.deploy", "aws.deploy.scaling", "aws.deploy.asynchronous"
_TRIGGERS, _MONITOR, _BATCH, _BEAT, _TUNER = (
    "aws.triggers",
    "monitor",
    "batch_score",
    "condition.beat",
    "tuning.engine: sagemaker",
)
_SCALER = "sagemaker.application-autoscaling.amazonaws.com"
_SCALER_ROLE = f"aws-service-role/{_SCALER}/AWSServiceRoleForApplicationAutoScaling_SageMakerEndpoint"
_ITSELF = "aws.deploy and registration.approval: Approved"
_SUBNETS, _SERVER, _APP = "aws.subnets", "a tracking server on SageMaker", "an MLflow App"


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
    def config(self) -> PipelineConfig:
        return self.resolved.config

    @property
    def aws(self) -> Aws:
        return self.resolved.aws

    @property
    def build_project(self) -> str:
        """The name of the project of CodeBuild that runs the commands of the triggers."""
        return f"{self.config.name}-triggers"

    @property
    def number(self) -> str:
        return self.aws.role.split(":")[4]

    def arn(self, service: str, resource: str, *, anywhere: bool = False) -> str:
        """Return an ARN in the region and the account of the configuration; anywhere: without them."""
        region = self.aws.region
        place = ":" if anywhere else f"{region}:{self.number}"
        return f"arn:{partition_of(region)}:{service}:{place}:{resource}"

    def encrypted(self, name: str) -> dict[str, Any]:
        """Return the property that encrypts a resource, if the stack has the key and thereby its policy."""
        return {} if isinstance(self.key, str) else {name: self.key}

    def named(self, kind: str, *names: str) -> list[str]:
        """Return the ARNs of SageMaker's resources, which are in lower case in some of its answers."""
        return sorted({self.arn("sagemaker", f"{kind}/{each}") for name in names for each in (name, name.lower())})

    def s3(self, *uris: str) -> list[str]:
        """Return the ARNs of objects, or of a bucket."""
        return [self.arn("s3", uri.removeprefix("s3://"), anywhere=True) for uri in uris]


def _inputs(account: Account) -> list[str]:
    monitor = account.config.monitor
    monitored = [monitor.captured, monitor.labels] if monitor else []
    return [*account.aws.inputs.values(), *(uri for uri in monitored if uri)]


def _queue(account: Account, *fields: str) -> list[str]:
    """Return what the asynchronous endpoint names in its fields."""
    queue = account.aws.deploy and account.aws.deploy.asynchronous
    return [getattr(queue, name) for name in fields if getattr(queue, name, None)]


def _buckets(account: Account) -> list[str]:
    uris = [account.aws.bucket, *_inputs(account), *_queue(account, "output")]
    return account.s3(*sorted({bucket_of(uri) for uri in uris if not in_directory_bucket(uri)}))


def _repositories(account: Account) -> list[str]:
    images = [account.aws.image, account.config.mlflow and account.config.mlflow.image]
    return sorted({repository_arn(image) for image in images if image})


def repository_arn(image: str) -> str:
    """Return the ARN of the repository of an image, ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME@sha256:..."""
    host, _, name = image.partition("@")[0].partition("/")
    owner, _, _, region = host.split(".")[:4]
    return f"arn:{partition_of(region)}:ecr:{region}:{owner}:repository/{name}"


def _server(account: Account) -> list[str]:
    mlflow = account.config.mlflow
    return [mlflow.tracking_uri] if mlflow and mlflow.tracking_uri.startswith("arn:") else []


def _endpoint_names(account: Account) -> list[str]:
    deploy = account.aws.deploy
    return [endpoint_name(account.config, deploy)] if deploy else []


def _endpoints(account: Account) -> list[str]:
    return [arn for name in _endpoint_names(account) for arn in account.named("endpoint", name, f"{name[:38]}*-trial")]


RESOURCES: dict[str, Callable[[Account], list[Any]]] = {
    "the pipeline": lambda account: account.named(
        "pipeline", account.config.name, *([f"{account.config.name}-monitor"] if account.config.monitor else [])
    ),
    "the experiments": lambda account: [
        *account.named("experiment", account.config.name, f"{account.config.name}-monitor"),
        *account.named("experiment-trial", "*"),
        *account.named("experiment-trial-component", "*"),
    ],
    "the models of the group": lambda account: account.named("model-package", f"{account.config.group}/*"),
    "the group": lambda account: account.named("model-package-group", account.config.group),
    "the buckets": _buckets,
    "the objects of the inputs": lambda account: account.s3(
        *(f"{uri}*" for uri in _inputs(account) if not in_directory_bucket(uri))
    ),
    "the directory buckets": lambda account: [
        account.arn("s3express", f"bucket/{name}")
        for name in sorted({bucket_of(uri) for uri in _inputs(account) if in_directory_bucket(uri)})
    ],
    "the objects of the answers": lambda account: account.s3(*(f"{uri}*" for uri in _queue(account, "output"))),
    "the topics": lambda account: _queue(account, "success_topic", "error_topic"),
    "the key": lambda account: [account.key],
    "the role": lambda account: [account.aws.role],
    "the role of the schedule": lambda account: [
        (account.config.monitor and account.config.monitor.schedule_role) or account.aws.role
    ],
    "the service's role of the scaling": lambda account: [
        f"{account.aws.role.partition(':role/')[0]}:role/{_SCALER_ROLE}"
    ],
    "the image's repository": _repositories,
    "the server": _server,
    "the endpoint": lambda account: account.named("endpoint", *_endpoint_names(account)),
    "the endpoint and its trials": _endpoints,
    "the log groups below /aws/sagemaker/": lambda account: [account.arn("logs", "log-group:/aws/sagemaker/*")],
    "the alarms of the endpoint": lambda account: [
        account.arn("cloudwatch", f"alarm:{name}-*") for name in _endpoint_names(account)
    ],
    "the executions": lambda account: account.named("pipeline", f"{account.config.name}/execution/*"),
    "the schedule": lambda account: [account.arn("scheduler", f"schedule/default/{account.config.name}-monitor")],
    "the alarm": lambda account: [account.arn("cloudwatch", f"alarm:{account.config.name}-monitor")],
    "the build project": lambda account: [account.arn("codebuild", f"project/{account.build_project}")],
    "the log of the builds": lambda account: [
        account.arn("logs", f"log-group:/aws/codebuild/{account.build_project}:*")
    ],
    "all resources": lambda _: ["*"],
}
_KINDS = {  # resources of SageMaker whose names nobody knows before
    "processing jobs": "processing-job",
    "training jobs": "training-job",
    "tuning jobs": "hyper-parameter-tuning-job",
    "transform jobs": "transform-job",
    "models": "model",
    "endpoint configurations": "endpoint-config",
}
_TAGGED = " with our tag"  # resources that the commands created for the endpoint, and delete
_SERVICE_KEYS = {"iam:PassRole": "iam:PassedToService", "iam:CreateServiceLinkedRole": "iam:AWSServiceName"}
CONDITIONS: dict[str, Callable[[AwsPlan], Any]] = {  # that are not a section of the configuration
    _ITSELF: lambda resolved: resolved.config.deploys_itself,
    _BEAT: lambda resolved: resolved.config.condition.beat != "nothing",
    _TUNER: lambda resolved: resolved.plan.tuner,
    _SERVER: lambda resolved: any(":mlflow-tracking-server/" in arn for arn in _server(Account(resolved, None))),
    _APP: lambda resolved: any(":mlflow-app/" in arn for arn in _server(Account(resolved, None))),
}
# The service decrypts the parts of an upload, when they become an object.
_OF_KEY = {"s3:GetObject": "kms:Decrypt", "s3:PutObject": "kms:Decrypt GenerateDataKey"}


@dataclass(frozen=True)
class Permission:
    """Actions that somebody needs.

    Attributes:
        of: a command, whose caller needs them, or a role.
        actions: of one service: "s3:GetObject PutObject".
        on: the resources, as RESOURCES and _KINDS name them, or objects below BUCKET/PREFIX/.
        when: the section of the configuration with which they are needed, or one of CONDITIONS; empty: always.
        passed_to: the service that assumes the role.
    """

    of: str
    actions: str
    on: str
    when: str = ""
    passed_to: str = ""

    @property
    def names(self) -> set[str]:
        """The actions, each with its service."""
        service, _, actions = self.actions.partition(":")
        return {f"{service}:{action}" for action in actions.split()}

    def is_needed(self, resolved: AwsPlan) -> bool:
        """Return whether the configuration has the section."""
        if self.when in CONDITIONS:
            return bool(CONDITIONS[self.when](resolved))
        return not self.when or bool(_section(resolved.config, self.when))


def resources_of(account: Account, on: str) -> list[Any]:
    """Return the ARNs of resources; none where the configuration has no such resource."""
    if (kind := on.removesuffix(_TAGGED)) in _KINDS:
        return account.named(_KINDS[kind], "*")
    if on in RESOURCES:
        return RESOURCES[on](account)
    aws = account.aws
    names = {"BUCKET": aws.bucket, "PREFIX": aws.prefix, "NAME": account.config.name}
    return account.s3(re.sub("[A-Z]+", lambda part: names[part[0]], on))


def _section(config: PipelineConfig, path: str) -> Any:
    return reduce(lambda part, name: part and getattr(part, name), path.split("."), config)


OPERATING = ("status", "versions", "compare", "approve", "reject", "deploy", "rollback", "delete")
_SERVED = "versions, deploy, rollback, delete"
_JOBS, _READ = "Create{0} Describe{0} Stop{0} AddTags", "DescribeModelPackage ListModelPackages"
_PACKAGES, _ENDPOINT, _CONFIGS = "the models of the group", "the endpoint and its trials", "endpoint configurations"
_ANY, _LOGS = "all resources", "the log groups below /aws/sagemaker/"
# Who; the actions; on what; with what in the configuration; to which service iam:PassRole passes.
_TABLE: tuple[tuple[str, ...], ...] = (
    (", ".join((*OPERATING, "upsert")), "sts:GetCallerIdentity", _ANY),
    ("status", "sagemaker:DescribePipeline ListPipelineExecutions", "the pipeline"),
    ("status", "sagemaker:DescribePipelineExecution ListPipelineExecutionSteps", "the executions"),
    ("status", "sagemaker:DescribeProcessingJob", "processing jobs"),
    ("status", "sagemaker:DescribeTrainingJob", "training jobs"),
    ("status", "sagemaker:DescribeTransformJob", "transform jobs", _BATCH),
    ("status", "logs:DescribeLogStreams GetLogEvents", _LOGS),
    ("versions, compare, approve, reject, deploy, rollback", f"sagemaker:{_READ}", _PACKAGES),
    ("approve, reject", "sagemaker:UpdateModelPackage", _PACKAGES),
    ("compare", "s3:GetObject", "BUCKET/PREFIX/*"),
    (_SERVED, "sagemaker:DescribeEndpoint", _ENDPOINT, _DEPLOY),
    (_SERVED, "sagemaker:DescribeEndpointConfig", _CONFIGS, _DEPLOY),
    (_SERVED, "sagemaker:DescribeModel", "models", _DEPLOY),
    ("deploy, rollback", "sagemaker:ListTags UpdateEndpoint", _ENDPOINT, _DEPLOY),
    ("deploy, rollback", "sagemaker:UpdateEndpoint", _CONFIGS, _DEPLOY),
    ("deploy", "sagemaker:AddTags CreateEndpoint DeleteEndpoint InvokeEndpoint", _ENDPOINT, _DEPLOY),
    ("deploy", "sagemaker:InvokeEndpointAsync", _ENDPOINT, _ASYNCHRONOUS),
    ("deploy", "sagemaker:AddTags CreateEndpoint CreateEndpointConfig", _CONFIGS, _DEPLOY),
    ("deploy", "sagemaker:AddTags CreateModel", "models", _DEPLOY),
    ("deploy", "s3:GetObject", "BUCKET/PREFIX/*", _DEPLOY),
    ("deploy", "s3:PutObject", "BUCKET/PREFIX/*", _ASYNCHRONOUS),
    ("deploy", "iam:PassRole", "the role", _DEPLOY, _SAGEMAKER),
    ("deploy, delete", "cloudwatch:DescribeAlarms", _ANY, _DEPLOY),
    ("deploy", "cloudwatch:PutMetricAlarm", "the alarms of the endpoint", _DEPLOY),
    ("deploy, schedule", "cloudwatch:PutMetricAlarm", "the alarm", _MONITOR),
    ("rollback", "sagemaker:ListTags", _CONFIGS, _DEPLOY),
    ("delete", "sagemaker:DeleteEndpoint ListTags", _ENDPOINT, _DEPLOY),
    ("delete", "sagemaker:ListTags", _CONFIGS, _DEPLOY),
    ("delete", "sagemaker:ListTags", "models", _DEPLOY),
    ("deploy, delete", "sagemaker:DeleteEndpointConfig", f"{_CONFIGS}{_TAGGED}", _DEPLOY),
    ("delete", "sagemaker:DeleteModel", f"models{_TAGGED}", _DEPLOY),
    ("delete", "sagemaker:DescribeEndpoint ListEndpointConfigs ListEndpoints ListModels", _ANY, _DEPLOY),
    ("delete", "scheduler:DeleteSchedule GetSchedule", "the schedule", _MONITOR),
    ("delete", "cloudwatch:DeleteAlarms", "the alarm", _MONITOR),
    ("delete", "cloudwatch:DeleteAlarms", "the alarms of the endpoint", _DEPLOY),
    ("deploy, rollback, delete", "application-autoscaling:DescribeScalableTargets", _ANY, _DEPLOY),
    ("deploy, rollback, delete", "application-autoscaling:DeregisterScalableTarget", _ANY, _SCALING),
    ("deploy, rollback", "application-autoscaling:PutScalingPolicy RegisterScalableTarget", _ANY, _SCALING),
    ("deploy, rollback", "iam:CreateServiceLinkedRole", "the service's role of the scaling", _SCALING, _SCALER),
    ("upsert", "sagemaker:CreatePipeline UpdatePipeline DescribePipeline", "the pipeline"),
    ("upsert", "sagemaker:AddTags", "the pipeline", "aws.tags"),
    ("upsert, start", "s3:ListBucket", "the buckets"),
    ("upsert", "iam:PassRole", "the role", "", _SAGEMAKER),
    ("upsert", "iam:SimulatePrincipalPolicy", "the role", "aws.experiments"),
    ("upsert", "s3:PutObject", "BUCKET/PREFIX/NAME/settings/*"),
    ("upsert", "s3:GetObject PutObject", "BUCKET/PREFIX/NAME/definitions/*"),
    ("start", "sagemaker:DescribePipeline StartPipelineExecution", "the pipeline"),
    ("start", "s3express:CreateSession", "the directory buckets"),
    ("start", f"sagemaker:{_READ}", _PACKAGES, _BEAT),
    ("schedule", "sagemaker:DescribePipeline", "the pipeline", _MONITOR),
    ("schedule", f"sagemaker:{_READ}", _PACKAGES, _MONITOR),
    ("schedule", "s3:GetObject PutObject", "BUCKET/PREFIX/NAME-monitor/*", _MONITOR),
    ("schedule", "scheduler:CreateSchedule UpdateSchedule", "the schedule", _MONITOR),
    ("schedule", "iam:PassRole", "the role of the schedule", _MONITOR, _SCHEDULER),
    (f"{PUSH}, {ROLE}", "ecr:GetAuthorizationToken", _ANY),
    (f"{PUSH}, {ROLE}", "ecr:BatchCheckLayerAvailability BatchGetImage", "the image's repository"),
    (PUSH, "ecr:CompleteLayerUpload InitiateLayerUpload PutImage UploadLayerPart", "the image's repository"),
    (ROLE, "ecr:GetDownloadUrlForLayer", "the image's repository"),
    (f"{UPLOAD}, {ROLE}", "s3:ListBucket", "the buckets"),
    (UPLOAD, "s3:AbortMultipartUpload PutObject", "the objects of the inputs"),
    (ROLE, f"sagemaker:{_JOBS.format('ProcessingJob')}", "processing jobs"),
    (ROLE, f"sagemaker:{_JOBS.format('TrainingJob')}", "training jobs"),
    (ROLE, f"sagemaker:{_JOBS.format('HyperParameterTuningJob')}", "tuning jobs", _TUNER),
    (ROLE, "sagemaker:ListTrainingJobsForHyperParameterTuningJob", "tuning jobs", _TUNER),
    (ROLE, "sagemaker:AssociateTrialComponent CreateExperiment CreateTrial", "the experiments", "aws.experiments"),
    (ROLE, "sagemaker:DescribeExperiment DescribeTrial", "the experiments", "aws.experiments"),
    (ROLE, "sagemaker:CreateModelPackage DescribeModelPackage", _PACKAGES),
    (ROLE, "sagemaker:CreateModelPackageGroup DescribeModelPackageGroup AddTags", "the group"),
    (ROLE, "sagemaker:CreateModel DescribeModel AddTags", "models", _BATCH),
    (ROLE, "sagemaker:CreateModel DescribeModel AddTags", "models", _ITSELF),
    (ROLE, f"sagemaker:{_JOBS.format('TransformJob')}", "transform jobs", _BATCH),
    (ROLE, "sagemaker:CreateEndpointConfig DescribeEndpointConfig AddTags", _CONFIGS, _ITSELF),
    (ROLE, "sagemaker:CreateEndpoint UpdateEndpoint", _CONFIGS, _ITSELF),
    (ROLE, "sagemaker:CreateEndpoint UpdateEndpoint DescribeEndpoint AddTags", "the endpoint", _ITSELF),
    (ROLE, "cloudwatch:DescribeAlarms", _ANY, _ITSELF),
    (ROLE, "iam:PassRole", "the role", "", _SAGEMAKER),
    (ROLE, "s3:GetObject", "the objects of the inputs"),
    (ROLE, "s3express:CreateSession", "the directory buckets"),
    (ROLE, "s3:AbortMultipartUpload GetObject PutObject", "BUCKET/PREFIX/*"),
    (ROLE, "s3:AbortMultipartUpload PutObject", "the objects of the answers", _ASYNCHRONOUS),
    (ROLE, "sns:Publish", "the topics", _ASYNCHRONOUS),
    (ROLE, "kms:CreateGrant DescribeKey Encrypt", "the key"),
    (ROLE, "sagemaker-mlflow:CreateExperiment CreateRun GetExperimentByName GetMetricHistory", "the server", _SERVER),
    (ROLE, "sagemaker-mlflow:GetRun ListArtifacts LogBatch SearchRuns SetTag UpdateRun", "the server", _SERVER),
    (ROLE, "sagemaker:CallMlflowAppApi", "the server", _APP),
    (ROLE, "logs:CreateLogGroup CreateLogStream DescribeLogStreams PutLogEvents", _LOGS),
    (ROLE, "cloudwatch:PutMetricData", _ANY),
    (ROLE, "ec2:CreateNetworkInterface CreateNetworkInterfacePermission", _ANY, _SUBNETS),
    (ROLE, "ec2:DeleteNetworkInterface DeleteNetworkInterfacePermission DescribeNetworkInterfaces", _ANY, _SUBNETS),
    (ROLE, "ec2:DescribeDhcpOptions DescribeSecurityGroups DescribeSubnets DescribeVpcs", _ANY, _SUBNETS),
    (SCHEDULE_ROLE, "sagemaker:StartPipelineExecution", "the pipeline", _MONITOR),
    (TRIGGERS, "codebuild:StartBuild", "the build project", _TRIGGERS),
    (BUILDS, "logs:CreateLogStream PutLogEvents", "the log of the builds", _TRIGGERS),
    (BUILDS, "s3:GetObject GetObjectVersion", "BUCKET/PREFIX/NAME/settings/*", _TRIGGERS),
)


def _permissions() -> Iterator[Permission]:
    """Yield the permissions of the table, and those on the key of the objects, which depend on them."""
    for of, actions, on, *rest in _TABLE:
        for one in of.split(", "):
            yield (permission := Permission(one, actions, on, *rest))
            if of_key := [key for action, key in _OF_KEY.items() if action in permission.names]:
                yield Permission(one, of_key[-1], "the key", permission.when)


PERMISSIONS = tuple(_permissions())


def statements(account: Account, of: Iterable[str]) -> list[dict[str, Any]]:
    """Return the statements of an IAM policy with the permissions of commands or roles, without those not needed."""
    merged: dict[tuple[str, str], set[str]] = {}
    for permission in PERMISSIONS:
        if permission.of in of and permission.is_needed(account.resolved):
            merged.setdefault((permission.on, permission.passed_to), set()).update(permission.names)
    return [
        {
            "Effect": "Allow",
            "Action": sorted(actions),
            "Resource": resources if len(resources) > 1 else resources[0],
            **({"Condition": {"StringEquals": equal}} if (equal := _equal(account, on, actions, passed_to)) else {}),
        }
        for (on, passed_to), actions in merged.items()
        if (resources := resources_of(account, on))
    ]


def _equal(account: Account, on: str, actions: set[str], passed_to: str) -> dict[str, str]:
    """Return the condition keys of a statement, with their values."""
    if on.endswith(_TAGGED):
        return {f"aws:ResourceTag/{OURS}": name for name in _endpoint_names(account)}
    return {key: passed_to for action, key in _SERVICE_KEYS.items() if passed_to and action in actions}
