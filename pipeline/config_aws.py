"""The section `aws` of a pipeline's configuration; docs/pipeline_reference.md lists its keys."""

from typing import Literal, Self

from pydantic import Field, model_validator

from contracts.steps import PYTORCH_TRAINING
from contracts.value_types import Rows
from pipeline.config_types import (
    CacheAge,
    Email,
    Image,
    KeyPrefix,
    Name,
    S3Folder,
    Schedule,
    Section,
    TagKey,
    TimeZone,
    Topic,
    in_directory_bucket,
)

# The service's quotas of a job's duration in s, which botocore's model lacks.
LONGEST_TRAINING = 2_419_200
LONGEST_PROCESSING = 432_000


class Machine(Section):
    """The instances of a step."""

    instance_type: str = Field(default="ml.m5.xlarge", description="Instance type.")
    instance_count: int = Field(
        default=1,
        ge=1,
        description="Instances; only TabularPreprocessing, PyTorchTraining and BatchScore can have several.",
    )
    volume_gb: int = Field(default=30, ge=1, description="Size of the storage volume, in GiB; not for BatchScore.")
    max_runtime_seconds: int = Field(
        default=86_400,
        ge=60,
        le=LONGEST_TRAINING,
        description=f"Maximum duration; at most {LONGEST_PROCESSING:,} (5 days) except for training; not for "
        "BatchScore.",
    )


_SPOT_WAIT = 172_800  # seconds


class Spot(Section):
    """Managed spot training: cheaper, can be interrupted; the job resumes from its checkpoints."""

    enabled: bool = Field(default=False, description="Train on spot instances.")
    max_wait_seconds: int = Field(
        default=_SPOT_WAIT,
        ge=60,
        le=LONGEST_TRAINING,
        description="Maximum waiting and running time; at least max_runtime_seconds.",
    )

    @model_validator(mode="after")
    def _waits_if_enabled(self) -> Self:
        if not self.enabled and self.max_wait_seconds != _SPOT_WAIT:
            raise ValueError("max_wait_seconds has no effect without enabled: true")
        return self


class InstanceGroup(Section):
    """A group of equal instances of a training job."""

    instance_type: str = Field(description="Instance type, such as ml.m5.xlarge.")
    instance_count: int = Field(default=1, ge=1, description="Instances.")


class Training(Section):
    """The training job: its input mode, instance groups and warm pool."""

    input_mode: Literal["File", "FastFile"] = Field(
        default="File", description="File: download the channels first; FastFile: read them from S3 on demand."
    )
    instance_groups: dict[Name, InstanceGroup] = Field(
        default={}, description="Instances by group, instead of those of aws.steps.PyTorchTraining."
    )
    training_group: str | None = Field(
        default=None, description="The group that trains and receives the channels; the other hosts exit with code 0."
    )
    keep_alive_seconds: int = Field(
        default=0, ge=0, description="Keep the instances for the next training (warm pool); they are billed."
    )
    rows: Rows | None = Field(
        default=None,
        description="Rows of the table, for the estimate of the training's duration. Default: "
        "DataLoading.generate_rows, or 100,000.",
    )
    tensorboard: bool = Field(default=False, description="Upload TensorBoard's files while the job runs.")

    @model_validator(mode="after")
    def _group_is_listed(self) -> Self:
        if bool(self.instance_groups) != (self.training_group is not None):
            raise ValueError("instance_groups and training_group go together")
        if self.training_group is not None and self.training_group not in self.instance_groups:
            raise ValueError(f"training_group {self.training_group!r} is not one of the instance_groups")
        if self.keep_alive_seconds and self.instance_groups:
            raise ValueError("keep_alive_seconds and instance_groups exclude each other: SageMaker keeps no such pool")
        return self


class Retries(Section):
    """Retries after missing capacity, limits, throttling and service faults; never after an error of the job."""

    max_attempts: int = Field(default=3, ge=1, le=20, description="Attempts.")
    interval_seconds: int = Field(default=30, ge=1, le=43_200, description="Pause before the second attempt.")
    backoff_rate: float = Field(default=2.0, ge=1, le=20, description="Growth of the pause.")


class EndpointInstances(Section):
    """The instances of an endpoint."""

    instance_type: str = Field(default="ml.m5.xlarge", description="Instance type.")
    instance_count: int = Field(default=1, ge=1, description="Instances of a new endpoint.")


class RealTime(EndpointInstances):
    """An endpoint on instances that always run: answers within 60 s."""

    capture_percent: int = Field(
        default=0, description="Share of the requests and answers that are saved in S3; 0: none."
    )


class Serverless(Section):
    """An endpoint without instances: billed by request, with a cold start, without network isolation."""

    memory_mb: Literal[1024, 2048, 3072, 4096, 5120, 6144] = Field(default=4096, description="Memory, in MiB.")
    concurrency: int = Field(default=5, description="Requests at a time.")


class Asynchronous(EndpointInstances):
    """An endpoint with a queue: requests and answers are objects in S3, up to 1 GB and one hour."""

    output: S3Folder | None = Field(
        default=None, description="Folder of the answers, not in a directory bucket. Default: below prefix."
    )
    concurrency: int | None = Field(
        default=None, description="Requests at a time, for each instance. Default: the service decides."
    )
    success_topic: str | None = Field(default=None, description="ARN of an SNS topic for answers.")
    error_topic: str | None = Field(default=None, description="ARN of an SNS topic for errors.")

    @model_validator(mode="after")
    def _output_is_in_a_general_purpose_bucket(self) -> Self:
        if self.output is not None and in_directory_bucket(self.output):
            raise ValueError(f"output {self.output!r} is in a directory bucket; only inputs can be in one")
        return self


class Scaling(Section):
    """Automatic scaling of the endpoint, which `deploy` registers."""

    minimum: int = Field(
        default=1,
        ge=0,
        le=10_000,
        description="Fewest instances; of a serverless endpoint, provisioned concurrency. 0 only for asynchronous.",
    )
    maximum: int = Field(ge=1, le=10_000, description="Most of them.")
    target: float = Field(
        gt=0,
        le=1e6,
        description="Requests per minute and instance; asynchronous: requests in the queue per instance; serverless: "
        "the used share of the provisioned concurrency, such as 0.7.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.minimum > self.maximum:
            raise ValueError(f"minimum {self.minimum} is above maximum {self.maximum}")
        return self


class Guard(Section):
    """How `deploy` watches an update; not for serverless endpoints, whose traffic moves at once."""

    errors: int = Field(
        default=1, ge=1, le=1_000_000, description="Responses with a 5xx status in a minute that stop the update."
    )
    latency_ms: float | None = Field(
        default=None,
        gt=0,
        le=3_600_000,
        description="99th percentile of the model's latency in a minute above which the update stops. Default: 1,000; "
        "asynchronous: no limit.",
    )
    alarms: tuple[str, ...] = Field(
        default=(), max_length=7, description="Names of further alarms of CloudWatch, which must exist."
    )
    wait_seconds: int = Field(
        default=300, ge=60, le=3_600, description="Time for which each part of the traffic is watched."
    )


class Deploy(Section):
    """The endpoint. `deploy` creates or updates it; with registration.approval Approved, each execution does."""

    endpoint: Name | None = Field(default=None, description="Name of the endpoint. Default: the pipeline's name.")
    real_time: RealTime | None = Field(default=None, description="Give one of the three kinds.")
    serverless: Serverless | None = Field(default=None, description="Give one of the three kinds.")
    asynchronous: Asynchronous | None = Field(default=None, description="Give one of the three kinds.")
    scaling: Scaling | None = Field(default=None, description="Automatic scaling. Default: none.")
    guard: Guard = Field(default=Guard(), description="What stops an update.")

    @property
    def instances(self) -> EndpointInstances | None:
        """Return the instances; None for a serverless endpoint."""
        return self.real_time or self.asynchronous

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if sum(kind is not None for kind in (self.real_time, self.serverless, self.asynchronous)) != 1:
            raise ValueError("give exactly one of real_time, serverless and asynchronous")
        if self.serverless is not None and "guard" in self.model_fields_set:
            raise ValueError("guard has no effect on a serverless endpoint, whose traffic moves at once")
        return self

    @model_validator(mode="after")
    def _can_scale(self) -> Self:
        if self.scaling is None:
            return self
        if self.scaling.minimum == 0 and self.asynchronous is None:
            raise ValueError("scaling.minimum is 0, but only an asynchronous endpoint can have no instances")
        if self.serverless is not None and self.scaling.maximum > self.serverless.concurrency:
            raise ValueError(f"scaling.maximum is above serverless.concurrency {self.serverless.concurrency}")
        if self.serverless is not None and self.scaling.target > 1:
            raise ValueError("scaling.target of a serverless endpoint is a share, at most 1")
        return self


Event = Literal["failed", "approval", "deployed", "violated", "untriggered"]


class Notifications(Section):
    """Messages about the pipeline on an SNS topic, by EventBridge rules of the stack (docs/aws.md)."""

    events: tuple[Event, ...] | None = Field(
        default=None,
        min_length=1,
        description="failed: an execution; approval: a version waits for it; deployed: the endpoint is in service; "
        "violated: a run of the monitor failed; untriggered: a command of aws.triggers failed. Default: those of the "
        "sections that there are.",
    )
    topic: Topic | None = Field(
        default=None,
        description="SNS topic to which events.amazonaws.com may publish. Default: the stack creates one.",
    )
    email: Email | None = Field(default=None, description="Address that the stack's topic sends messages to.")

    @model_validator(mode="after")
    def _email_is_of_the_stacks_topic(self) -> Self:
        if self.topic is not None and self.email is not None:
            raise ValueError("email is for the topic of the stack: subscribe it to topic yourself")
        return self


class Triggers(Section):
    """What starts executions and deployments without a person, by rules of the stack (docs/operate.md)."""

    new_data: str | None = Field(
        default=None,
        min_length=1,
        description="Name, or end of the name, of an object that completes new data below aws.inputs.input_data, such "
        "as _SUCCESS: each one starts an execution.",
    )
    schedule: Schedule | None = Field(
        default=None,
        description="When executions start: an expression of EventBridge Scheduler, such as cron(0 6 ? * MON *).",
    )
    time_zone: TimeZone = Field(default="UTC", description="Time zone of the schedule.")
    approved: bool = Field(default=False, description="Deploy each version that is approved.")


class Aws(Section):
    """The pipeline on AWS; `run` does not need this section."""

    region: str = Field(description="Region, such as eu-west-1.")
    role: str = Field(description="ARN of the role that jobs assume, such as arn:aws:iam::111122223333:role/trainer.")
    image: Image = Field(
        description="The image by digest: REPOSITORY@sha256:..., so that the step cache recognizes a new image."
    )
    accelerator: Literal["cpu", "cuda"] = Field(
        default="cpu", description="ACCELERATOR with which the image was built; instance types with a GPU need cuda."
    )
    bucket: str = Field(description="Bucket for all outputs; not a directory bucket.")
    prefix: KeyPrefix = Field(default="pipelines", description="Key prefix in the bucket.")
    inputs: dict[str, S3Folder] = Field(default={}, description="S3 URIs of the external inputs, by logical name.")
    steps: dict[str, Machine] = Field(default={}, description="Instances by step name. Default: one ml.m5.xlarge.")
    training: Training = Field(default=Training(), description="The training job.")
    spot: Spot = Field(default=Spot(), description="Spot training.")
    deploy: Deploy | None = Field(default=None, description="Host the new model on an endpoint. Default: no endpoint.")
    triggers: Triggers | None = Field(default=None, description="Start without a person. Default: none.")
    notifications: Notifications | None = Field(default=None, description="Messages on an SNS topic. Default: none.")
    experiments: bool = Field(
        default=True,
        description="Record the executions in SageMaker Experiments; `upsert` leaves it out if the role must not.",
    )
    retries: Retries = Field(default=Retries(), description="Retries of each step.")
    cache_expires: CacheAge | None = Field(
        default="P30D",
        description="Age after which a cached step runs again; null: no step cache.",
    )
    kms_key: str | None = Field(
        default=None,
        description="ID, alias or ARN of the KMS key of outputs, and of volumes on instance types without local "
        "storage. Default: AWS managed keys.",
    )
    subnets: tuple[str, ...] = Field(default=(), description="VPC subnets; with security_groups.")
    security_groups: tuple[str, ...] = Field(default=(), description="VPC security groups; with subnets.")
    network_isolation: bool = Field(
        default=True,
        description="Jobs and hosted models have no network except between a job's hosts.",
    )
    encrypt_traffic: bool = Field(default=False, description="Encrypt traffic between a job's hosts.")
    tags: dict[TagKey, str] = Field(
        default={},
        description="Tags of the pipeline and of its jobs. One that is removed later stays on the pipeline.",
    )

    @property
    def training_hosts(self) -> int:
        """Return the number of instances that train."""
        if self.training.training_group is not None:
            return self.training.instance_groups[self.training.training_group].instance_count
        return self.steps.get(PYTORCH_TRAINING.name, Machine()).instance_count

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if bool(self.subnets) != bool(self.security_groups):
            raise ValueError("subnets and security_groups go together")
        if self.spot.enabled and self.training.keep_alive_seconds:
            raise ValueError("training.keep_alive_seconds and spot.enabled exclude each other: SageMaker keeps no pool")
        if in_directory_bucket(f"s3://{self.bucket}"):
            raise ValueError(f"bucket {self.bucket!r} is a directory bucket; only inputs can be in one")
        return self

    @model_validator(mode="after")
    def _can_be_triggered(self) -> Self:
        if self.triggers is None:
            return self
        table = self.inputs.get("input_data")
        if self.triggers.new_data is not None and (table is None or in_directory_bucket(table)):
            raise ValueError("triggers.new_data needs inputs.input_data, in a bucket that is not a directory bucket")
        if self.triggers.approved and self.deploy is None:
            raise ValueError("triggers.approved needs deploy: it deploys the version")
        return self
