"""The configuration of a pipeline; config_file.py reads it, docs/pipeline_reference.md lists its keys."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from contracts.metrics import COMPARED, LOSSES
from contracts.serving import CSV, MOST_TRANSFORM_MIB, PAYLOAD_MIB, TRANSFORM_REQUESTS
from contracts.tuning import Tuning
from contracts.value_types import LARGEST_NUMBER, Json, MetricOfSplit, Number, Tags, TrackingName, TrackingUri
from pipeline.config_aws import Aws
from pipeline.config_types import (
    Approval,
    CardText,
    Image,
    JsonPath,
    Name,
    S3Folder,
    Schedule,
    Section,
    TimeZone,
    Topic,
)
from pipeline.json_path import reads_cells

_SHARED: tuple[str, ...] = ("metric", "trials", "max_hours", "parallel", "space")  # settings of both engines
# Quotas of the service that cannot be raised: https://docs.aws.amazon.com/sagemaker/latest/dg/automatic-model-tuning-limits.html
_TUNER_HOURS = 30 * 24
_MOST_TRIALS = {"Bayesian": 750, "Random": 10_000}
_MOST_PARALLEL = 100
_MOST_SETTINGS = 30


class Search(Tuning):
    """The search of hyperparameters before the training. docs/tuning.md describes the keys."""

    engine: Literal["container", "sagemaker"] = Field(
        default="container",
        description="Where trials run: container = all within the training job; sagemaker = each is a training job of "
        "SageMaker's tuner, and `run` searches as container does.",
    )
    strategy: Literal["Bayesian", "Random"] = Field(
        default="Bayesian", description="With engine sagemaker: how the tuner chooses trials."
    )

    @model_validator(mode="after")
    def _belongs_to_the_engine(self) -> Self:
        tuner = self.engine == "sagemaker"
        others = set(Tuning.model_fields).difference(_SHARED) if tuner else {"strategy"}
        wrong = sorted(others & self.model_fields_set)
        if wrong:
            raise ValueError(f"{', '.join(wrong)} cannot be set with engine: {self.engine}")
        if tuner:
            self._check_quotas()
        return self

    def _check_quotas(self) -> None:
        for name, value, most in (
            ("max_hours", self.max_hours or 0, _TUNER_HOURS),
            ("trials", self.trials, _MOST_TRIALS[self.strategy]),
            ("parallel", self.parallel or 1, _MOST_PARALLEL),
            ("the number of settings in space", len(self.space or {}), _MOST_SETTINGS),
        ):
            if value > most:
                job = f"a tuning job of SageMaker with strategy {self.strategy}"
                raise ValueError(f"{name} is {value:,}, but {job} has at most {most:,}")

    @property
    def by_tuner(self) -> bool:
        """Whether SageMaker's tuner runs the trials."""
        return self.engine == "sagemaker"

    def in_container(self) -> "Search":
        """Return the search as a training job runs it: the tuner takes the model of the best trial."""
        shared = self.model_dump(mode="json", exclude_unset=True, include=set(_SHARED))
        return Search(**shared) if self.by_tuner else self

    def hyperparameter(self) -> dict[str, Any]:
        """Return the hyperparameter `tuning` of the training job."""
        return self.model_dump(mode="json", exclude_unset=True, include=set(Tuning.model_fields))


class Condition(Section):
    """The requirement that a model must meet to be registered."""

    metric: MetricOfSplit = Field(default="test/auroc", description="The metric, split/metric, as in metrics.json.")
    minimum: Number | None = Field(default=None, description="The metric must be at least this.")
    maximum: Number | None = Field(
        default=None, description="Instead of minimum, if lower is better: the metric must be at most this."
    )
    beat: Literal["nothing", "approved", "newest"] = Field(
        default="nothing",
        description="The model must also be at least as good as a registered model of the group, which scores the same "
        "records: the newest approved one, or the newest. If none is registered yet, the threshold alone decides.",
    )
    margin_standard_errors: float = Field(
        default=0.0,
        ge=-5,
        le=5,
        description="With beat: the required improvement, in standard errors of the difference on the same records. "
        "Below 0: how much worse the model may be.",
    )

    @model_validator(mode="after")
    def _one_threshold(self) -> Self:
        if (self.minimum is None) == (self.maximum is None):
            raise ValueError("give exactly one of minimum and maximum")
        self.check_limit(self.threshold)
        if (self.metric.partition("/")[2] in LOSSES) == self.higher_is_better:
            better, right = ("lower", "maximum") if self.higher_is_better else ("higher", "minimum")
            raise ValueError(f"{self.metric} is better if it is {better}: give {right} instead")
        if self.margin_standard_errors and self.beat == "nothing":
            raise ValueError("margin_standard_errors goes with beat: approved or newest")
        if self.margin_standard_errors and self.metric.partition("/")[2] not in COMPARED:
            raise ValueError(f"margin_standard_errors: {self.metric} has no standard error; use {', '.join(COMPARED)}")
        return self

    def check_limit(self, limit: float) -> None:
        """Raise ValueError for a limit that the metric cannot have as its value."""
        lowest, highest = (0.0, LARGEST_NUMBER) if self.metric.endswith("/loss") else (0.0, 1.0)
        if self.metric.endswith("_difference"):
            lowest = -1.0
        if self.metric.endswith("/brier_score"):  # of more than two classes
            highest = 2.0
        if not lowest <= limit <= highest:
            raise ValueError(f"{limit:g} is not between {lowest:g} and {highest:g}, as {self.metric} is")

    @property
    def threshold(self) -> float:
        threshold = self.minimum if self.minimum is not None else self.maximum
        assert threshold is not None
        return threshold

    @property
    def threshold_key(self) -> str:
        """The key of the threshold."""
        return f"condition.{'minimum' if self.higher_is_better else 'maximum'}"

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
    encoder_license: CardText = Field(
        default="", description="Model card: the license of the pretrained encoder, such as Apache-2.0."
    )
    caveats: CardText = Field(default="", description="Model card: caveats and recommendations.")
    inference_instances: tuple[str, ...] = Field(
        default=("ml.m5.large", "ml.m5.xlarge", "ml.c5.xlarge"),
        min_length=1,
        description="Instance types for endpoints.",
    )
    transform_instances: tuple[str, ...] = Field(
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
        default=None,
        ge=1,
        le=100,
        description=f"Size of a request, in MiB. Default: the server decides; with concurrency, {PAYLOAD_MIB} or less.",
    )
    concurrency: int | None = Field(
        default=None,
        ge=1,
        le=100,
        description="Requests at a time, for each instance; times max_payload_mb at most "
        f"{MOST_TRANSFORM_MIB}. Default: the server decides; with max_payload_mb, {TRANSFORM_REQUESTS} or less.",
    )
    timeout_seconds: int = Field(default=600, ge=30, le=3_600, description="Time for the answer to a request.")
    input_filter: JsonPath | None = Field(
        default=None, description="JSONPath of the part of a record that is sent, e.g. $[1:] without the first column."
    )
    join_input: bool = Field(
        default=False, description="Add the scores to the record: as key SageMakerOutput, in CSV as further cells."
    )
    output_filter: JsonPath | None = Field(
        default=None,
        description="JSONPath of the part of the scored record that is written, e.g. $[0,-1]: the first and the last "
        "cell. The last one is a probability, or the error with SERVING_INVALID_RECORDS=report.",
    )

    @model_validator(mode="after")
    def _cells_of_csv(self) -> Self:
        for name, path in (("input_filter", self.input_filter), ("output_filter", self.output_filter)):
            if path and self.content_type == CSV and not reads_cells(path):
                raise ValueError(f"{name}: {path!r} names a key, but CSV has only positions, such as $[0,-1] or $[1:]")
        return self

    @model_validator(mode="after")
    def _within_the_service_limit(self) -> Self:
        if (self.max_payload_mb or 1) * (self.concurrency or 1) > MOST_TRANSFORM_MIB:
            raise ValueError(f"max_payload_mb times concurrency must be at most {MOST_TRANSFORM_MIB}")
        return self

    @property
    def payloads(self) -> tuple[int, int] | None:
        """Return the size of a request in MiB and the requests at a time; None if the server decides."""
        if self.max_payload_mb is None and self.concurrency is None:
            return None
        size = self.max_payload_mb or min(PAYLOAD_MIB, MOST_TRANSFORM_MIB // (self.concurrency or 1))
        return size, self.concurrency or min(TRANSFORM_REQUESTS, MOST_TRANSFORM_MIB // size)


class Mlflow(Section):
    """Send the results of the training to an MLflow tracking server (docs/tracking.md)."""

    tracking_uri: TrackingUri = Field(description="The MLflow server.")
    experiment: TrackingName = Field(default="Default", description="Experiment of the run.")
    run_name: TrackingName | None = Field(
        default=None, description="Name of the run. Default: the name of the SageMaker training job."
    )
    tags: Tags = Field(default={}, description="Tags of the run.")
    sent_by: Literal["job", "step"] | None = Field(
        default=None,
        description="The training job sends them, or the step Tracking. Default: the job if aws.network_isolation is "
        "false, else the step.",
    )
    image: Image | None = Field(
        default=None,
        description="Image of the step on AWS, by digest; it must contain MLflow. Default: aws.image. An error if the "
        "training job sends the results.",
    )


class Monitor(Section):
    """Watch the deployed model (docs/monitor.md): the step Monitoring; on AWS, in the pipeline NAME-monitor."""

    schedule: Schedule = Field(
        default="rate(7 days)", description="When it runs on AWS: an expression of EventBridge Scheduler."
    )
    time_zone: TimeZone = Field(default="UTC", description="Time zone of the schedule.")
    captured: S3Folder | None = Field(
        default=None, description="Folder of the captured requests on AWS. Default: that of aws.deploy.real_time."
    )
    labels: S3Folder | None = Field(default=None, description="Folder of labels that arrive later, on AWS.")
    alarm_topic: Topic | None = Field(
        default=None,
        description="SNS topic for an alarm when a run fails, or something is out of bounds. Default: no alarm.",
    )
    schedule_role: str | None = Field(
        default=None, description="ARN of the role with which the schedule starts the pipeline. Default: aws.role."
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
    settings: dict[str, dict[str, Json]] = Field(default={}, description="Settings by step name, as under Contracts.")
    condition: Condition = Field(description="The requirement for registration.")
    registration: Registration = Field(default=Registration(), description="The model package and its card.")
    batch_score: BatchScore | None = Field(
        default=None, description="Score records with the new model. Default: no such step."
    )
    monitor: Monitor | None = Field(default=None, description="Watch the deployed model. Default: no such step.")
    mlflow: Mlflow | None = Field(default=None, description="Send the results to an MLflow server. Default: none.")
    aws: Aws | None = Field(default=None, description="The pipeline on AWS.")

    @model_validator(mode="after")
    def _deploys_once(self) -> Self:
        if self.deploys_itself and self.aws and self.aws.triggers and self.aws.triggers.approved:
            raise ValueError("aws.triggers.approved and registration.approval: Approved would both deploy a version")
        return self

    @property
    def group(self) -> str:
        """The model package group."""
        return self.registration.group or self.name

    @property
    def deploys_itself(self) -> bool:
        """Return whether an execution creates or updates the endpoint, after the registration."""
        return self.aws is not None and self.aws.deploy is not None and self.registration.approval == "Approved"

    @property
    def tracked_by_step(self) -> bool:
        """Return whether the step Tracking sends the results of the training."""
        by_job = self.aws is not None and not self.aws.network_isolation
        return self.mlflow is not None and (self.mlflow.sent_by or ("job" if by_job else "step")) == "step"
