"""Declare the contracts of the pipeline's steps, which the step programs and the pipeline definition use."""

from dataclasses import replace
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from contracts import artifacts
from contracts.metrics_settings import ModelMetricsSettings
from contracts.paths import SETTINGS_FILE
from contracts.paths import SPLITS as TRAINING_SPLITS
from contracts.serving import MEDIA_TYPES, REQUEST_TYPES, RecordSettings, ServingSettings
from contracts.step_contract import (
    NOT_LOOKED_UP,
    JsonObject,
    Labels,
    Names,
    ProcessingSettings,
    StepArgument,
    StepContract,
    StepFolder,
    StepSettings,
    parsed,
)
from contracts.table_formats import CHANNEL_FILES, TABLE_FILES, OutputFormat
from contracts.value_types import Number, Tags, TrackingName, TrackingUri

ARCHIVED_MODEL = "model.tar.gz"
ARCHIVED_OUTPUT = "output.tar.gz"  # the service's archive of a training job's output/data
PREDICTION_FILES = (*TABLE_FILES, ARCHIVED_OUTPUT)
PREVIOUS = "previous_eval_output"
PAYLOAD_ARCHIVE, PAYLOAD_CHECK = "payload.tar.gz", "payload_check.json"
# In evaluation.json: what a registered version is described by, as texts.
VERSION, VERSION_FACTS = "version", ("metric_value", "metric_interval_95", "measured_on", "training_rows", "commit")
# The registered model that must be beaten: its package, or a file with one of these names in the place of a package.
CHAMPION, NO_CHAMPION = "champion", "no-champion"
SIGNATURE, TABLE_METADATA, DATA_PROFILE_TEXT = "signature.json", "metadata.json", "data_profile.txt"
EVALUATION, METRICS_REPORT, METRICS_SUMMARY = "evaluation.json", "metrics_report.json", "metrics_summary.txt"
MONITOR_REPORT, VIOLATIONS, MONITOR_HISTORY = "monitor_report.html", "violations.json", "history.jsonl"
JOB_TYPES = ("training", "validation", "testing", "calibration")

_IN, _OUT = "processing/input", "processing/output"


def splits_of(job_type: str) -> tuple[str, ...]:
    """Return the splits that preprocessing writes, each into a folder with its name."""
    return TRAINING_SPLITS if job_type == "training" else (job_type,)


def processed_file(split: str, file_format: str, host: str | None = None) -> str:
    """Return the path of a split's table in processed_data, e.g. train/train_processed_data.csv.

    Args:
        host: the instance that writes it, if there are several; their outputs are uploaded to the same place.
    """
    return f"{split}/{split}_processed_data{'' if host is None else f'-{host}'}.{file_format.lower()}"


TRACKED = "tracked.json"  # {"problem": why the results were not sent, or null}


class TrackingSettings(StepSettings):
    """Environment of Tracking: the hyperparameters of the same names, for a job that cannot send its results itself."""

    mlflow_tracking_uri: TrackingUri = Field(description="The MLflow server.")
    mlflow_experiment: TrackingName = Field("Default", description="Experiment of the run.")
    mlflow_run_name: TrackingName | None = Field(None, description="Name of the run. Default: MLflow chooses one.")
    mlflow_tags: Annotated[Tags, BeforeValidator(parsed)] = Field({}, description="Tags of the run.")


class DataLoadingSettings(ProcessingSettings):
    """Environment of DataLoading."""

    output_format: OutputFormat = Field("CSV", description="Format of the table that is written.")
    generate_rows: int = Field(
        0, ge=0, le=100_000_000, description="Rows to generate if there is no input. 0: the input is required."
    )
    seed: int = Field(7, ge=0, lt=2**63, description="Seed of a generated table.")
    rows_per_file: int = Field(1_000_000, ge=1, le=10**9, description="Rows per part file.")


class TabularPreprocessingSettings(ProcessingSettings):
    """Environment of TabularPreprocessing."""

    label_field: str = Field(min_length=1, description="Column of the class label.")
    id_field: str | None = Field(
        None, description="Column of record ids, whose hash decides the split. Default: a hash of the whole row."
    )
    group_field: str | None = Field(
        None, description="Column whose hash decides the split instead, so that rows with the same value stay together."
    )
    output_format: OutputFormat = Field("CSV", description="Format of the splits.")
    train_ratio: float = Field(0.7, gt=0, lt=1, description="Share of the rows that becomes train.")
    test_val_ratio: float = Field(0.5, gt=0, lt=1, description="Share of test among the rows of test and val.")
    split_by: Literal["hash", "stratified", "time"] = Field(
        "hash",
        description="hash: by the id; stratified: by the id, with the same shares within each label; time: the oldest "
        "rows are train, the newest rows are test; with GROUP_FIELD, the newest groups.",
    )
    time_field: str | None = Field(None, description="Column of times or increasing numbers, for SPLIT_BY=time.")
    split_seed: int = Field(0, ge=0, lt=10**16, description="Seed of the split.")
    label_map: Labels = Field({}, description='New label of each label, e.g. {"Y": 1, "N": 0}. Others are errors.')
    unlabelled: Literal["error", "drop", "keep"] | None = Field(
        None, description="Handling of rows without a label. Default: error for job_type training, keep for the others."
    )

    @property
    def whole_inputs(self) -> bool:
        """Return whether the split of a row depends on other rows."""
        return self.split_by != "hash"

    @model_validator(mode="after")
    def _time_field_goes_with_time(self) -> Self:
        if (self.split_by == "time") != (self.time_field is not None):
            raise ValueError("SPLIT_BY=time and TIME_FIELD go together")
        if self.split_by == "stratified" and self.group_field is not None:
            raise ValueError("SPLIT_BY=stratified and GROUP_FIELD exclude each other")
        return self


class PyTorchTrainingSettings(StepSettings):
    """Environment of PyTorchTraining; its other settings are hyperparameters."""

    use_precomputed_imputation: bool = Field(False, description="Use model_artifacts_input/impute_dict.")
    use_precomputed_risk_tables: bool = Field(False, description="Use model_artifacts_input/risk_table_map.")


class PackageSettings(ProcessingSettings):
    """Environment of Package."""

    include_weights: bool = Field(False, description="Also pack model.pth and model_artifacts.pth, unused by serving.")


class PayloadSettings(RecordSettings, ProcessingSettings):
    """Environment of Payload."""

    content_types: Names = Field(
        ("application/json", "text/csv"), min_length=1, description="Content types of the sample requests."
    )
    default_numeric_value: Number = Field(0.0, description="Value of numeric columns in a sample request.")
    default_text_value: str = Field("DEFAULT_TEXT", description="Value of text and categorical columns.")
    field_defaults: JsonObject = Field({}, description='Values by column that take precedence, e.g. {"price": 9.99}.')
    check_rows: int = Field(
        64,
        ge=1,
        le=1_000_000,
        description="Rows of processed_data that are sent in each content type, but for those "
        "with more than SERVING_MAX_TOKENS tokens, which a server refuses.",
    )
    tolerance: float = Field(
        1e-4,
        gt=0,
        lt=1,
        description="Maximum difference from the training job's probabilities. Default with OpenVINO: 0.02.",
    )

    @field_validator("content_types")
    @classmethod
    def _served(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name not in MEDIA_TYPES:
                raise ValueError(f"{name!r} is not served; name one or more of {', '.join(REQUEST_TYPES)}")
        return value


class MonitorSettings(ProcessingSettings):
    """Environment of Monitoring."""

    fail_on_violation: bool = Field(False, description="End with exit code 2 if something is out of bounds.")
    alpha: float = Field(
        0.01, gt=0, lt=1, description="Probability of a false alarm of a run, over all of its comparisons."
    )
    max_distance: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Largest change of a distribution: the distance of Kolmogorov-Smirnov, the share of records in "
        "other categories, or of a text classifier the AUROC minus 0.5.",
    )
    max_psi: float = Field(0.2, ge=0, le=100, description="Largest population stability index.")
    max_share: float = Field(
        0.01, ge=0, le=1, description="Largest change of the share of missing, unreadable and unknown values."
    )
    max_metric_drop: float = Field(0.02, ge=0, le=1, description="Largest drop of AUROC and accuracy.")
    sample_rows: int = Field(
        2000, ge=50, le=100_000, description="Records, chosen by a hash, of which texts and scores are computed."
    )
    compare_words: bool = Field(True, description="Train a classifier that tells new texts from old ones.")
    id_field: str | None = Field(None, description="Column of ids of the labels. Default: that of the training data.")
    label_field: str | None = Field(None, description="Column of the labels. Default: that of the training data.")
    endpoint_name: str | None = Field(None, description="Read captures below a folder of this name only.")
    window_hours: float | None = Field(
        None, gt=0, le=1_000_000, description="Read captured requests of the last hours only."
    )
    cloudwatch_pipeline: str | None = Field(
        None, description="Print the run's metrics for CloudWatch, with this value of the dimension Pipeline."
    )


_MODEL_INPUT = StepFolder(
    "model_input", f"{_IN}/model", (ARCHIVED_MODEL, artifacts.MODEL_ONNX), "model.tar.gz, or the files of model/."
)
_PROCESSED_INPUT = StepFolder(
    "processed_data",
    f"{_IN}/data",
    TABLE_FILES,
    "The splits of the predictions, for columns that the predictions lack.",
    required=False,
)
_SETTINGS_INPUT = StepFolder(
    "settings",
    f"{_IN}/settings",
    (SETTINGS_FILE,),
    "Variables that the job's environment cannot contain, as an object of texts; the environment takes precedence.",
    required=False,
)

DATA_LOADING = StepContract(
    name="DataLoading",
    kind="processing",
    command="load-data",
    about="Convert the user's table, or a generated one, to part files in one format, column names and metadata.",
    inputs=(
        StepFolder("input_data", f"{_IN}/data", TABLE_FILES, "The user's table.", required=False),
        _SETTINGS_INPUT,
    ),
    outputs=(
        StepFolder("DATA", f"{_OUT}/data", ("part-*",), "The table as part files."),
        StepFolder("SIGNATURE", f"{_OUT}/signature", (SIGNATURE,), "The column names, in order, as a JSON list."),
        StepFolder("METADATA", f"{_OUT}/metadata", (TABLE_METADATA,), "Rows, files and types."),
    ),
    settings=DataLoadingSettings,
)
TABULAR_PREPROCESSING = StepContract(
    name="TabularPreprocessing",
    kind="processing",
    command="preprocess",
    about="Split part files into train, val and test, or write one split named after the job type.",
    inputs=(
        StepFolder("DATA", f"{_IN}/data", TABLE_FILES, "Part files of one format, gzipped or not.", sharded=True),
        StepFolder("SIGNATURE", f"{_IN}/signature", ("*",), "Column names of files without a header.", required=False),
        _SETTINGS_INPUT,
    ),
    outputs=(
        StepFolder(
            "processed_data",
            _OUT,
            ("data_profile*.json", "data_profile*.txt", "*/*_processed_data*"),
            "A folder per split, and the profile of the data. Each of several instances writes separate files.",
        ),
    ),
    settings=TabularPreprocessingSettings,
    arguments=(StepArgument("job_type", JOB_TYPES, "training", "training writes three splits; the others write one"),),
)
PYTORCH_TRAINING = StepContract(
    name="PyTorchTraining",
    kind="training",
    command="train",
    about="Train, evaluate and export.",
    inputs=(
        *(StepFolder(split, f"input/data/{split}", CHANNEL_FILES, f"The {split} split.") for split in TRAINING_SPLITS),
        StepFolder(
            "model_artifacts_input",
            "input/data/model_artifacts_input",
            ("*",),
            "Precomputed artifacts.",
            required=False,
        ),
        StepFolder("pretrained", "input/data/pretrained", ("*",), "Pretrained encoders.", required=False),
        StepFolder(
            "initial_model",
            "input/data/initial_model",
            (ARCHIVED_MODEL, artifacts.MODEL_STATE),
            "An earlier model, from whose weights the training starts.",
            required=False,
        ),
        StepFolder(
            "hyperparameters",
            "code/hyperparams",
            ("hyperparameters.json",),
            "The configuration; the job's hyperparameters take precedence.",
            required=False,
        ),
        StepFolder(
            "settings",
            "input/data/settings",
            (SETTINGS_FILE,),
            "Hyperparameters that the job's own cannot contain; the job's hyperparameters take precedence.",
            required=False,
        ),
    ),
    outputs=(
        StepFolder("model_output", "model", artifacts.REQUIRED_MODEL_FILES, "The model's artifacts."),
        StepFolder(
            "evaluation_output",
            "output/data",
            (*artifacts.REQUIRED_EVALUATION_FILES, "val_predictions.*", "test_predictions.*"),
            "Predictions, metrics and the report.",
        ),
    ),
    settings=PyTorchTrainingSettings,
)
MODEL_METRICS = StepContract(
    name="ModelMetricsComputation",
    kind="processing",
    command="metrics",
    about="Compute metrics of the predictions, a summary, plots, and the metric of the pipeline's condition.",
    inputs=(
        StepFolder("eval_output", f"{_IN}/eval_data", PREDICTION_FILES, "{val,test}_predictions of the training job."),
        _PROCESSED_INPUT,
        StepFolder(
            PREVIOUS,
            f"{_IN}/previous_eval_data",
            PREDICTION_FILES,
            "{val,test}_predictions of a previous model for the same records.",
            required=False,
        ),
        StepFolder(
            CHAMPION,
            f"{_IN}/champion",
            (ARCHIVED_MODEL, NO_CHAMPION, NOT_LOOKED_UP),
            "The registered model that must be beaten, which scores the same records.",
            required=False,
        ),
        _SETTINGS_INPUT,
    ),
    outputs=(
        StepFolder(
            "metrics_output",
            f"{_OUT}/metrics",
            (artifacts.METRICS, METRICS_REPORT, METRICS_SUMMARY, EVALUATION),
            "All metrics; the report with slices, curves and comparison; the summary; the metric of the condition.",
        ),
        StepFolder("plots_output", f"{_OUT}/plots", ("*.png",), "Plots of the metrics and slices.", required=False),
    ),
    settings=ModelMetricsSettings,
)
TRACKING = StepContract(
    name="Tracking",
    kind="processing",
    command="send-results",
    about="Send the training job's results to an MLflow server. Runs if the configuration has mlflow.",
    inputs=(
        _MODEL_INPUT,
        StepFolder("eval_output", f"{_IN}/eval_data", (ARCHIVED_OUTPUT, artifacts.METRICS), "The job's evaluation."),
        _SETTINGS_INPUT,
    ),
    outputs=(StepFolder("tracked", f"{_OUT}/tracked", (TRACKED,), "Whether the server has the results."),),
    settings=TrackingSettings,
)
PACKAGE = StepContract(
    name="Package",
    kind="processing",
    command="package",
    about="Write a model.tar.gz that SageMaker can host: the model's artifacts, and code/ with inference.py.",
    inputs=(
        _MODEL_INPUT,
        StepFolder(
            "inference_scripts_input",
            f"{_IN}/script",
            ("*.py",),
            "Python files for code/, and what they read; an inference.py replaces the default one.",
            required=False,
        ),
        StepFolder(
            "calibration_model",
            f"{_IN}/calibration",
            ("calibration.json",),
            'A monotone map of class 1\'s probability: {"scores": [...], "probabilities": [...]}.',
            required=False,
        ),
        _SETTINGS_INPUT,
    ),
    outputs=(StepFolder("packaged_model", _OUT, (ARCHIVED_MODEL,), "The package."),),
    settings=PackageSettings,
)
PAYLOAD = StepContract(
    name="Payload",
    kind="processing",
    command="payload",
    about="Write sample requests for the package, send them to it, and check the responses.",
    inputs=(
        StepFolder("model_input", f"{_IN}/model", (ARCHIVED_MODEL,), "The package."),
        replace(
            _PROCESSED_INPUT,
            files=CHANNEL_FILES,
            about="The splits; the first CHECK_ROWS rows of test, or val, go to the package.",
        ),
        StepFolder(
            "eval_output",
            f"{_IN}/eval_data",
            (*CHANNEL_FILES, ARCHIVED_OUTPUT),
            "The training job's predictions, to compare the responses with.",
            required=False,
        ),
        _SETTINGS_INPUT,
    ),
    outputs=(StepFolder("payload_sample", _OUT, (PAYLOAD_ARCHIVE, PAYLOAD_CHECK), "The requests and check results."),),
    settings=PayloadSettings,
)
MONITOR = StepContract(
    name="Monitoring",
    kind="processing",
    command="monitor",
    about="Compare the records that a deployed model received with those that it was trained on. Runs if the "
    "configuration has monitor; on AWS, in a pipeline of its own.",
    inputs=(
        _MODEL_INPUT,
        StepFolder("records", f"{_IN}/data", ("*",), "Raw records in any format of training, or captured requests."),
        StepFolder("labels", f"{_IN}/labels", TABLE_FILES, "Labels that arrived later, by id.", required=False),
        StepFolder(
            "history",
            f"{_IN}/history",
            (MONITOR_HISTORY,),
            "Earlier runs. Default: those in the output.",
            required=False,
        ),
        _SETTINGS_INPUT,
    ),
    outputs=(
        StepFolder(
            "monitoring",
            f"{_OUT}/monitor",
            (MONITOR_REPORT, VIOLATIONS, artifacts.METRICS),
            f"The report, what is out of bounds, and all comparisons; {MONITOR_HISTORY} grows with each run.",
        ),
    ),
    settings=MonitorSettings,
)
REGISTRATION = StepContract(
    name="Registration",
    kind="registration",
    command=None,
    about="Register the package in the model registry, with its metrics, sample requests and model card.",
    inputs=(
        StepFolder("packaged_model", "registration/model", (ARCHIVED_MODEL,), "The package."),
        StepFolder("payload_sample", "registration/payload", (PAYLOAD_ARCHIVE,), "Sample requests."),
        StepFolder("metrics_output", "registration/metrics", (EVALUATION, artifacts.METRICS), "The model's metrics."),
    ),
    outputs=(),
    settings=ServingSettings,
)
BATCH_SCORE = StepContract(
    name="BatchScore",
    kind="transform",
    command=None,
    about="Score files of records with the package: a batch transform. Runs if the configuration has batch_score.",
    inputs=(
        StepFolder("packaged_model", "batch/model", (ARCHIVED_MODEL,), "The package."),
        StepFolder("batch_input", "batch/input", ("*",), "Files with one record per line."),
    ),
    outputs=(
        StepFolder("scores", "batch/output", ("*.out",), "For each input file, NAME.out with one line per record."),
    ),
    settings=ServingSettings,
)

STEPS = (
    DATA_LOADING,
    TABULAR_PREPROCESSING,
    PYTORCH_TRAINING,
    TRACKING,
    MODEL_METRICS,
    PACKAGE,
    PAYLOAD,
    REGISTRATION,
    BATCH_SCORE,
    MONITOR,
)
PROCESSING_STEPS = {step.command: step for step in STEPS if step.kind == "processing" and step.command is not None}
