"""The configuration of a pipeline; config_file.py reads it, docs/pipeline.md lists its keys."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from contracts.numbers import LARGEST_NUMBER, Json, Number
from contracts.tuning import Tuning

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9](-*[A-Za-z0-9]){0,62}$")]
DIRECTORY_BUCKET = "--x-s3"  # end of the name of a bucket of S3 Express One Zone


def check_s3_folder(uri: str) -> str:
    """Return the URI; raise ValueError if it is a prefix that its bucket does not allow."""
    if uri.removeprefix("s3://").partition("/")[0].endswith(DIRECTORY_BUCKET) and not uri.endswith("/"):
        raise ValueError(f"a prefix in a directory bucket (*{DIRECTORY_BUCKET}) must end in /")
    return uri


S3Folder = Annotated[
    str,
    StringConstraints(pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?$", max_length=1024),
    AfterValidator(check_s3_folder),
]
InstanceType = Annotated[str, StringConstraints(pattern=r"^ml\.[a-z0-9-]+\.[a-z0-9-]+$")]
NetworkId = Annotated[str, StringConstraints(pattern=r"^[-0-9a-zA-Z]{1,32}$")]
_TAG = r"^[\p{L}\p{Z}\p{N}_.:/=+\-@]*$"
TagKey = Annotated[str, StringConstraints(pattern=_TAG, min_length=1, max_length=128)]
TagValue = Annotated[str, StringConstraints(pattern=_TAG, max_length=256)]
JsonPath = Annotated[str, StringConstraints(pattern=r"^\$", max_length=63)]
SnsTopic = Annotated[str, StringConstraints(pattern=r"^arn:aws[a-z-]*:sns:[a-z0-9-]*:[0-9]{12}:[a-zA-Z0-9_.-]+$")]
CardText = Annotated[str, StringConstraints(max_length=1024)]
Approval = Literal["PendingManualApproval", "Approved", "Rejected"]


class Section(BaseModel):
    """A part of the configuration; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


class Condition(Section):
    """The requirement that a model must meet to be registered."""

    metric: str = Field(
        default="test/auroc", pattern=r"^[^/]+/[^/]+$", description="The metric, split/metric, as in metrics.json."
    )
    minimum: Number | None = Field(default=None, description="The metric must be at least this.")
    maximum: Number | None = Field(
        default=None, description="Instead of minimum, if lower is better: the metric must be at most this."
    )
    beat: Literal["nothing", "approved", "newest"] = Field(
        default="nothing",
        description="The model must also be at least as good as a registered model of the group: the newest approved "
        "one, or the newest. If none is registered yet, the threshold alone decides.",
    )
    margin: float = Field(default=0.0, ge=0, le=1, description="With beat: the required improvement.")

    @model_validator(mode="after")
    def _one_threshold(self) -> Self:
        if (self.minimum is None) == (self.maximum is None):
            raise ValueError("give exactly one of minimum and maximum")
        lowest, highest = self._range
        if not lowest <= self.threshold <= highest:
            raise ValueError(f"{self.threshold:g} is not between {lowest:g} and {highest:g}, as {self.metric} is")
        if self.margin and self.beat == "nothing":
            raise ValueError("margin goes with beat: approved or newest")
        return self

    @property
    def _range(self) -> tuple[float, float]:
        if self.metric.endswith("/loss"):
            return 0.0, LARGEST_NUMBER
        return (-1.0 if self.metric.endswith("_difference") else 0.0), 1.0

    @property
    def threshold(self) -> float:
        threshold = self.minimum if self.minimum is not None else self.maximum
        assert threshold is not None
        return threshold

    @property
    def higher_is_better(self) -> bool:
        return self.minimum is not None

    @property
    def word(self) -> str:
        """The comparison, for messages."""
        return "at least" if self.higher_is_better else "at most"


class Registration(Section):
    """The model package and its card."""

    group: Name | None = Field(default=None, description="Model package group. Default: the pipeline's name.")
    approval: Approval = Field(default="PendingManualApproval", description="Approval status of a new package.")
    creator: CardText = Field(default="", description="Model card: the creator of the model.")
    problem: CardText = Field(default="", description="Model card: the business problem it solves.")
    intended_uses: CardText = Field(default="", description="Model card: the intended uses.")
    risk_rating: Literal["High", "Medium", "Low", "Unknown"] = Field(default="Unknown", description="Model card: risk.")
    caveats: CardText = Field(default="", description="Model card: caveats and recommendations.")
    inference_instances: tuple[InstanceType, ...] = Field(
        default=("ml.m5.large", "ml.m5.xlarge", "ml.c5.xlarge"),
        min_length=1,
        description="Instance types for endpoints.",
    )
    transform_instances: tuple[InstanceType, ...] = Field(
        default=("ml.m5.xlarge",), min_length=1, description="Instance types for batch transform."
    )


class BatchScore(Section):
    """Score the records of the input batch_input with the new model, after its registration."""

    content_type: Literal["application/jsonlines", "text/csv"] = Field(
        default="application/jsonlines",
        description="Format of the records and of their scores. CSV needs lines without a header and without quoted "
        "line breaks.",
    )
    strategy: Literal["MultiRecord", "SingleRecord"] = Field(
        default="MultiRecord", description="Records in a request: as many as max_payload_mb allows, or one."
    )
    max_payload_mb: int | None = Field(
        default=None, ge=1, le=100, description="Size of a request, in MiB. Default: the server decides."
    )
    concurrency: int | None = Field(
        default=None,
        ge=1,
        le=100,
        description="Requests at a time, for each instance; times max_payload_mb at most 100. Default: the server "
        "decides.",
    )
    timeout_seconds: int = Field(default=600, ge=30, le=3_600, description="Time for the answer to a request.")
    input_filter: JsonPath | None = Field(
        default=None, description="JSONPath of the part of a record that is sent, e.g. $[1:] without the first column."
    )
    join_input: bool = Field(
        default=False, description="Add the scores to the record: as key SageMakerOutput, in CSV as further cells."
    )
    output_filter: JsonPath | None = Field(
        default=None, description="JSONPath of the part of the scored record that is written, e.g. $[0,-1]."
    )

    @model_validator(mode="after")
    def _within_the_service_limit(self) -> Self:
        if (self.max_payload_mb or 1) * (self.concurrency or 1) > 100:
            raise ValueError("max_payload_mb times concurrency must be at most 100")
        return self


class Machine(Section):
    """The instances of a step."""

    instance_type: InstanceType = Field(default="ml.m5.xlarge", description="Instance type.")
    instance_count: int = Field(
        default=1,
        ge=1,
        le=100,
        description="Instances; only TabularPreprocessing, PyTorchTraining and BatchScore can have several.",
    )
    volume_gb: int = Field(
        default=30, ge=1, le=16384, description="Size of the storage volume, in GiB; not for BatchScore."
    )
    max_runtime_seconds: int = Field(
        default=86_400,
        ge=60,
        le=2_419_200,
        description="Maximum duration; at most 5 days except for training; not for BatchScore.",
    )


class Spot(Section):
    """Managed spot training: cheaper, can be interrupted; the job resumes from its checkpoints."""

    enabled: bool = Field(default=False, description="Train on spot instances.")
    max_wait_seconds: int = Field(
        default=172_800,
        ge=60,
        le=2_419_200,
        description="Maximum waiting and running time; at least max_runtime_seconds.",
    )


class InstanceGroup(Section):
    """A group of equal instances of a training job."""

    instance_type: InstanceType = Field(description="Instance type.")
    instance_count: int = Field(default=1, ge=1, le=100, description="Instances.")


class Training(Section):
    """The training job: its channels, instance groups and warm pool."""

    input_mode: Literal["File", "FastFile"] = Field(
        default="File", description="File: download the channels first; FastFile: read them from S3 on demand."
    )
    sharded: tuple[Literal["train", "val", "test"], ...] = Field(
        default=(), description="Channels whose objects are divided over the instances (ShardedByS3Key)."
    )
    instance_groups: dict[Name, InstanceGroup] = Field(
        default={}, max_length=5, description="Instances by group, instead of those of aws.steps.PyTorchTraining."
    )
    training_group: str | None = Field(
        default=None, description="The group that trains and receives the channels; the other hosts exit with code 0."
    )
    keep_alive_seconds: int = Field(
        default=0, ge=0, le=3_600, description="Keep the instances for the next training (warm pool); they are billed."
    )
    tensorboard: bool = Field(default=False, description="Upload TensorBoard's files while the job runs.")

    @model_validator(mode="after")
    def _group_is_listed(self) -> Self:
        if bool(self.instance_groups) != (self.training_group is not None):
            raise ValueError("instance_groups and training_group go together")
        if self.training_group is not None and self.training_group not in self.instance_groups:
            raise ValueError(f"training_group {self.training_group!r} is not one of the instance_groups")
        if self.sharded and len(self.instance_groups) > 1:
            raise ValueError("sharded channels and several instance_groups exclude each other")
        if self.keep_alive_seconds and self.instance_groups:
            raise ValueError("keep_alive_seconds and instance_groups exclude each other: SageMaker keeps no such pool")
        return self


class Retries(Section):
    """Retries after missing capacity, limits, throttling and service faults; never after an error of the job."""

    max_attempts: int = Field(default=3, ge=1, le=20, description="Attempts.")
    interval_seconds: int = Field(default=30, ge=1, le=43_200, description="Pause before the second attempt.")
    backoff_rate: float = Field(default=2.0, ge=1, le=20, description="Growth of the pause.")


class Autoscaling(Section):
    """Change the number of an endpoint's instances with its load; `python -m pipeline autoscale` switches it on."""

    min_instances: int = Field(default=1, ge=1, le=1_000, description="Least instances.")
    max_instances: int = Field(ge=1, le=1_000, description="Most instances.")
    invocations_per_instance: int = Field(
        ge=1, le=1_000_000, description="Target: requests per minute and instance, on average."
    )

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.min_instances > self.max_instances:
            raise ValueError("min_instances is greater than max_instances")
        return self


class Hosts(Section):
    """The instances of an endpoint."""

    instance_type: InstanceType = Field(default="ml.m5.xlarge", description="Instance type.")
    instance_count: int = Field(default=1, ge=1, le=1_000, description="Instances of a new endpoint.")


class RealTime(Hosts):
    """An endpoint on instances that always run: answers within 60 s."""

    capture_percent: int = Field(
        default=0, ge=0, le=100, description="Share of the requests and answers that are saved in S3; 0: none."
    )
    autoscaling: Autoscaling | None = Field(default=None, description="Change the number of instances with the load.")


class Serverless(Section):
    """An endpoint without instances: billed by request, with a cold start, without network isolation."""

    memory_mb: Literal[1024, 2048, 3072, 4096, 5120, 6144] = Field(default=4096, description="Memory, in MiB.")
    concurrency: int = Field(default=5, ge=1, le=200, description="Requests at a time.")


class Asynchronous(Hosts):
    """An endpoint with a queue: requests and answers are objects in S3, up to 1 GB and one hour."""

    output: S3Folder | None = Field(default=None, description="Folder of the answers. Default: below prefix.")
    concurrency: int | None = Field(
        default=None, ge=1, le=1_000, description="Requests at a time, for each instance. Default: the service decides."
    )
    success_topic: SnsTopic | None = Field(default=None, description="ARN of an SNS topic for answers.")
    error_topic: SnsTopic | None = Field(default=None, description="ARN of an SNS topic for errors.")


class Deploy(Section):
    """Create or update an endpoint with the new model, if its approval status is Approved."""

    endpoint: Name | None = Field(default=None, description="Name of the endpoint. Default: the pipeline's name.")
    real_time: RealTime | None = Field(default=None, description="Give one of the three kinds.")
    serverless: Serverless | None = Field(default=None, description="Give one of the three kinds.")
    asynchronous: Asynchronous | None = Field(default=None, description="Give one of the three kinds.")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if sum(kind is not None for kind in (self.real_time, self.serverless, self.asynchronous)) != 1:
            raise ValueError("give exactly one of real_time, serverless and asynchronous")
        return self


class Aws(Section):
    """The pipeline on AWS; `run` does not need this section."""

    region: str = Field(pattern=r"^[a-z]{2}(-[a-z]+)+-\d$", description="Region.")
    role: str = Field(
        pattern=r"^arn:aws[a-z-]*:iam::[0-9]{12}:role/[a-zA-Z0-9+=,.@/_-]+$",
        max_length=2048,
        description="ARN of the role that jobs assume.",
    )
    image: str = Field(
        pattern=r"^[^\s@]+@sha256:[0-9a-f]{64}$",
        max_length=255,
        description="The image by digest: REPOSITORY@sha256:..., so that the step cache recognizes a new image.",
    )
    bucket: str = Field(
        pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$",
        description="Bucket for all outputs; not a directory bucket.",
    )
    prefix: str = Field(
        default="pipelines",
        pattern=r"^[A-Za-z0-9!_.*'()-]+(/[A-Za-z0-9!_.*'()-]+)*$",
        max_length=512,
        description="Key prefix in the bucket.",
    )
    inputs: dict[str, S3Folder] = Field(default={}, description="S3 URIs of the external inputs, by logical name.")
    steps: dict[str, Machine] = Field(default={}, description="Instances by step name. Default: one ml.m5.xlarge.")
    training: Training = Field(default=Training(), description="The training job.")
    spot: Spot = Field(default=Spot(), description="Spot training.")
    deploy: Deploy | None = Field(default=None, description="Host the new model on an endpoint. Default: no endpoint.")
    retries: Retries = Field(default=Retries(), description="Retries of each step.")
    cache_expires: str | None = Field(
        default="P30D",
        pattern=r"^P([0-9]+D|([0-9]+D)?T([0-9]+H|([0-9]+H)?[0-9]+M))$",
        description="Age after which a cached step runs again; null: no step cache.",
    )
    kms_key: str | None = Field(
        default=None,
        pattern=r"^[a-zA-Z0-9:/_-]+$",
        max_length=2048,
        description="KMS key of volumes and outputs. Default: AWS managed keys.",
    )
    subnets: tuple[NetworkId, ...] = Field(default=(), max_length=16, description="VPC subnets; with security_groups.")
    security_groups: tuple[NetworkId, ...] = Field(
        default=(), max_length=5, description="VPC security groups; with subnets."
    )
    network_isolation: bool = Field(
        default=True,
        description="Jobs and hosted models have no network except between a job's hosts.",
    )
    encrypt_traffic: bool = Field(default=False, description="Encrypt traffic between a job's hosts.")
    tags: dict[TagKey, TagValue] = Field(default={}, max_length=50, description="Tags of the pipeline and of its jobs.")

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if bool(self.subnets) != bool(self.security_groups):
            raise ValueError("subnets and security_groups go together")
        if self.spot.enabled and self.training.keep_alive_seconds:
            raise ValueError("training.keep_alive_seconds and spot.enabled exclude each other: SageMaker keeps no pool")
        if self.bucket.endswith(DIRECTORY_BUCKET):
            raise ValueError(f"bucket {self.bucket!r} is a directory bucket; only inputs can be in one")
        return self


class Search(Tuning):
    """The search of hyperparameters before the training. docs/tuning.md describes the other keys."""

    engine: Literal["container"] = Field(
        default="container", description="Where trials run: container = all within the training job."
    )


class PipelineConfig(Section):
    """A pipeline."""

    name: Name = Field(description="Name of the pipeline.")
    inputs: dict[str, str] = Field(
        default={},
        description="Local folders (or one file) of the external inputs, by logical name, relative to this file.",
    )
    hyperparameters_file: str | None = Field(
        default=None, description="A JSON file of hyperparameters, relative to this file, e.g. one of hyperparams/."
    )
    hyperparameters: dict[str, Json] = Field(
        default={}, description="Hyperparameters; they override those of hyperparameters_file."
    )
    tuning: Search | None = Field(
        default=None, description="Search for the best hyperparameters before the training (docs/tuning.md)."
    )
    settings: dict[str, dict[str, Json]] = Field(
        default={}, description="Settings by step name, as in the tables below."
    )
    condition: Condition = Field(description="The requirement for registration.")
    registration: Registration = Field(default=Registration(), description="The model package and its card.")
    batch_score: BatchScore | None = Field(
        default=None, description="Score records with the new model. Default: no such step."
    )
    aws: Aws | None = Field(default=None, description="The pipeline on AWS.")

    @property
    def group(self) -> str:
        """The model package group."""
        return self.registration.group or self.name
