"""The pipeline's steps: what each reads, writes and obeys; step programs and the pipeline's definition read this."""

from typing import Literal, Self

from pydantic import Field, model_validator

from contracts import artifacts
from contracts.step_contract import (
    Fractions,
    JsonObject,
    Names,
    StepArgument,
    StepContract,
    StepFolder,
    StepSettings,
)

TABLE_FILES = tuple(f"*.{suffix}{gz}" for suffix in ("csv", "tsv", "json", "jsonl", "parquet") for gz in ("", ".gz"))
PREDICTION_FILES = (*TABLE_FILES, "output.tar.gz")
ARCHIVED_MODEL = "model.tar.gz"
PAYLOAD_ARCHIVE = "payload.tar.gz"
PAYLOAD_CHECK = "payload_check.json"
SIGNATURE = "signature.json"
TABLE_METADATA = "metadata.json"
DATA_PROFILE = "data_profile.json"
DATA_PROFILE_TEXT = "data_profile.txt"
EVALUATION = "evaluation.json"
METRICS_REPORT = "metrics_report.json"
METRICS_SUMMARY = "metrics_summary.txt"
JOB_TYPES = ("training", "validation", "testing", "calibration")
TRAINING_SPLITS = ("train", "val", "test")

TableFormat = Literal["CSV", "TSV", "PARQUET"]
_CHANNEL_FILES = ("*.csv", "*.csv.gz", "*.tsv", "*.tsv.gz", "*.parquet")
_IN, _OUT = "processing/input", "processing/output"


def splits_of(job_type: str) -> tuple[str, ...]:
    """The splits that preprocessing writes, each into a folder of its name."""
    return TRAINING_SPLITS if job_type == "training" else (job_type,)


def processed_file(split: str, file_format: str, host: str | None = None) -> str:
    """Path of a split's table inside processed_data, e.g. train/train_processed_data.csv.

    Args:
        host: of several instances, which one writes it: their outputs end up in one place.
    """
    return f"{split}/{split}_processed_data{'' if host is None else f'-{host}'}.{file_format.lower()}"


class ProcessingSettings(StepSettings):
    """What every processing step has."""

    data_key: str | None = Field(
        None, description="Names the data under the inputs, for the step cache of the service alone."
    )


class DataLoadingSettings(ProcessingSettings):
    """Environment of DataLoading."""

    output_format: TableFormat = Field("CSV", description="Format of the table that is written.")
    generate_rows: int = Field(
        0, ge=0, description="Without an input: rows of the demo's table to generate. 0: the input is required."
    )
    seed: int = Field(7, ge=0, description="Seed of a generated table.")
    rows_per_file: int = Field(1_000_000, ge=1, description="Rows per part file.")


class TabularPreprocessingSettings(ProcessingSettings):
    """Environment of TabularPreprocessing."""

    label_field: str = Field(min_length=1, description="Column of the class label.")
    id_field: str | None = Field(
        None, description="Column of record ids; its hash decides the split. Default: a hash of the whole row."
    )
    group_field: str | None = Field(
        None, description="Rows with the same value here stay in one split: its hash decides instead of the id's."
    )
    output_format: TableFormat = Field("CSV", description="Format of the splits.")
    train_ratio: float = Field(0.7, gt=0, lt=1, description="Share of the rows that becomes train.")
    test_val_ratio: float = Field(0.5, gt=0, lt=1, description="Share of the rest that becomes test; the others val.")
    split_by: Literal["hash", "stratified", "time"] = Field(
        "hash",
        description="hash: by the id alone; stratified: by the id, with the same shares within each label; time: the "
        "oldest rows are train, the newest test.",
    )
    time_field: str | None = Field(
        None, description="With SPLIT_BY=time: the column of times, or of numbers that grow."
    )
    split_seed: int = Field(0, ge=0, lt=10**16, description="Another number is another split of the same rows.")
    label_map: JsonObject = Field(
        {}, description='Labels to rewrite, as JSON, e.g. {"Y": 1, "N": 0}; a label that is not listed is an error.'
    )
    unlabelled: Literal["error", "drop", "keep"] | None = Field(
        None, description="Rows without a label. Default: error for job_type training, keep for the others."
    )

    @property
    def whole_inputs(self) -> bool:
        """By label and by time all rows decide together."""
        return self.split_by != "hash"

    @model_validator(mode="after")
    def _time_field_goes_with_time(self) -> Self:
        if (self.split_by == "time") != (self.time_field is not None):
            raise ValueError("SPLIT_BY=time and TIME_FIELD go together")
        if self.split_by != "hash" and self.group_field is not None:
            raise ValueError(f"SPLIT_BY={self.split_by} and GROUP_FIELD exclude each other")
        return self


class PyTorchTrainingSettings(StepSettings):
    """Environment of PyTorchTraining; everything else is a hyperparameter."""

    use_precomputed_imputation: bool = Field(False, description="Use model_artifacts_input/impute_dict.")
    use_precomputed_risk_tables: bool = Field(False, description="Use model_artifacts_input/risk_table_map.")


class ModelMetricsSettings(ProcessingSettings):
    """Environment of ModelMetricsComputation."""

    id_field: str = Field(min_length=1, description="Column of record ids.")
    label_field: str = Field(min_length=1, description="Column of the class label.")
    score_fields: Names = Field(
        (), description="Columns of class probabilities, in the order of the classes; one column: class 1's. "
        "Default: prob_class_0, prob_class_1, ...",
    )  # fmt: skip
    class_labels: Names = Field(
        (), description="The class labels in that order. Default: as the training job's metrics.json lists them, else "
        "the labels found, numbers by value, then texts alphabetically.",
    )  # fmt: skip
    decision_threshold: float | None = Field(
        None, gt=0, lt=1, description="Two classes: the probability from which on class 1 is decided. Default: that of "
        "the training job's metrics.json, else 0.5.",
    )  # fmt: skip
    amount_field: str | None = Field(
        None, description="Column of amounts, for dollar recall; of the predictions or of processed_data."
    )
    group_fields: Names = Field(
        (), description="Columns by whose values metrics are sliced; of the predictions or of processed_data."
    )
    min_group_rows: int = Field(30, ge=1, description="Groups with fewer labelled rows are pooled as 'others'.")
    flagged_shares: Fractions = Field(
        (0.01, 0.05, 0.1, 0.2), description="Shares of the records, highest score first, at which count and dollar "
        "recall are given.",
    )  # fmt: skip
    false_positive_rate: float = Field(
        0.1, gt=0, lt=1, description="Share of the negatives flagged at which count and dollar recall are also given."
    )
    previous_score_field: str | None = Field(
        None, description="Column with a previous model's score of class 1, to compare with; of the predictions or of "
        "processed_data. Or hand over previous_eval_output.",
    )  # fmt: skip
    decision_metric: str = Field(
        "test/auroc", pattern=r"^[^/]+/[^/]+$",
        description="The metric that evaluation.json repeats for the pipeline's condition: split/metric.",
    )  # fmt: skip
    generate_plots: bool = Field(True, description="Write plots.")


class PackageSettings(ProcessingSettings):
    """Environment of Package."""

    include_weights: bool = Field(
        False, description="Also pack model.pth and model_artifacts.pth, which serving does not need."
    )


class PayloadSettings(ProcessingSettings):
    """Environment of Payload."""

    content_types: Names = Field(("application/json", "text/csv"), description="One sample request of each.")
    default_numeric_value: float = Field(0.0, description="What numeric columns hold in a sample request.")
    default_text_value: str = Field("DEFAULT_TEXT", description="What text and categorical columns hold there.")
    field_defaults: JsonObject = Field({}, description='Values by column that go before those, e.g. {"price": 9.99}.')
    check_rows: int = Field(
        64, ge=1, description="Rows of processed_data that are sent in each content type and compared."
    )
    tolerance: float = Field(1e-4, gt=0, lt=1, description="Largest difference from the training job's probabilities.")


class RegistrationSettings(StepSettings):
    """Registration has no program, hence no environment."""


_MODEL_INPUT = StepFolder(
    "model_input", f"{_IN}/model", (ARCHIVED_MODEL, artifacts.MODEL_ONNX), "model.tar.gz, or the files of model/."
)
_PROCESSED_INPUT = StepFolder(
    "processed_data", f"{_IN}/data", TABLE_FILES,
    "The splits that the predictions are of: columns that the predictions lack.", required=False,
)  # fmt: skip

DATA_LOADING = StepContract(
    name="DataLoading",
    kind="processing",
    command="load-data",
    about="A user's table in, or a generated one; part files in one format, column names and metadata out.",
    inputs=(StepFolder("input_data", f"{_IN}/data", TABLE_FILES, "The user's table.", required=False),),
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
    about="Part files in; train, val and test, or one split of the job type's name, out.",
    inputs=(
        StepFolder("DATA", f"{_IN}/data", TABLE_FILES, "Part files of one format, gzipped or not.", sharded=True),
        StepFolder(
            "SIGNATURE", f"{_IN}/signature", ("*",), "Column names, for files without a header line.",
            required=False,
        ),
    ),
    outputs=(
        StepFolder(
            "processed_data", _OUT, ("data_profile*.json", "data_profile*.txt", "*/*_processed_data*"),
            "A folder per split, and the profile of the data; of several instances each writes files of its own.",
        ),
    ),
    settings=TabularPreprocessingSettings,
    arguments=(
        StepArgument(
            "job_type", JOB_TYPES, "training",
            "training splits into train, val and test; the others write one split of that name",
        ),
    ),
)  # fmt: skip
PYTORCH_TRAINING = StepContract(
    name="PyTorchTraining",
    kind="training",
    command="train",
    about="Train, evaluate and export.",
    inputs=(
        *(
            StepFolder(split, f"input/data/{split}", _CHANNEL_FILES, f"The {split} split.")
            for split in TRAINING_SPLITS
        ),
        StepFolder(
            "model_artifacts_input", "input/data/model_artifacts_input", ("*",), "Artifacts fitted elsewhere.",
            required=False,
        ),
        StepFolder("pretrained", "input/data/pretrained", ("*",), "Pretrained encoders.", required=False),
        StepFolder(
            "hyperparameters", "code/hyperparams", ("hyperparameters.json",),
            "The configuration; the job's own hyperparameters go before it.", required=False,
        ),
    ),
    outputs=(
        StepFolder("model_output", "model", artifacts.REQUIRED_MODEL_FILES, "The model's artifacts."),
        StepFolder(
            "evaluation_output", "output/data",
            (*artifacts.REQUIRED_EVALUATION_FILES, "val_predictions.*", "test_predictions.*"),
            "Predictions, metrics and the report.",
        ),
    ),
    settings=PyTorchTrainingSettings,
)  # fmt: skip
MODEL_METRICS = StepContract(
    name="ModelMetricsComputation",
    kind="processing",
    command="metrics",
    about="Predictions in; metrics, a summary for people, plots and what the pipeline decides by out.",
    inputs=(
        StepFolder("eval_output", f"{_IN}/eval_data", PREDICTION_FILES, "{val,test}_predictions of the training job."),
        _PROCESSED_INPUT,
        StepFolder(
            "previous_eval_output", f"{_IN}/previous_eval_data", PREDICTION_FILES,
            "{val,test}_predictions of a previous model for the same records.", required=False,
        ),
    ),
    outputs=(
        StepFolder(
            "metrics_output", f"{_OUT}/metrics",
            (artifacts.METRICS, METRICS_REPORT, METRICS_SUMMARY, EVALUATION),
            "All metrics; the report with slices, curves and comparison; the summary; what is decided by.",
        ),
        StepFolder(
            "plots_output", f"{_OUT}/plots", ("*.png",), "Curves, calibration, recall and slices.", required=False
        ),
    ),
    settings=ModelMetricsSettings,
)  # fmt: skip
PACKAGE = StepContract(
    name="Package",
    kind="processing",
    command="package",
    about="A model in, a model.tar.gz that SageMaker can host out: artifacts, and code/ with inference.py.",
    inputs=(
        _MODEL_INPUT,
        StepFolder(
            "inference_scripts_input", f"{_IN}/script", ("*.py",), "Files for code/; inference.py replaces ours.",
            required=False,
        ),
        StepFolder(
            "calibration_model", f"{_IN}/calibration", ("calibration.json",),
            "A monotone map of class 1's probability: {\"scores\": [...], \"probabilities\": [...]}.", required=False,
        ),
    ),
    outputs=(StepFolder("packaged_model", _OUT, (ARCHIVED_MODEL,), "The package."),),
    settings=PackageSettings,
)  # fmt: skip
PAYLOAD = StepContract(
    name="Payload",
    kind="processing",
    command="payload",
    about="The package in; sample requests out, after they were sent to it and the answers checked.",
    inputs=(
        StepFolder("model_input", f"{_IN}/model", (ARCHIVED_MODEL,), "The package."),
        _PROCESSED_INPUT,
        StepFolder(
            "eval_output", f"{_IN}/eval_data", PREDICTION_FILES,
            "The training job's predictions, to compare the answers with.", required=False,
        ),
    ),
    outputs=(
        StepFolder("payload_sample", _OUT, (PAYLOAD_ARCHIVE, PAYLOAD_CHECK), "The requests, and what was checked."),
    ),
    settings=PayloadSettings,
)  # fmt: skip
REGISTRATION = StepContract(
    name="Registration",
    kind="registration",
    command=None,
    about="A model package in the registry, with its metrics, sample requests and model card.",
    inputs=(
        StepFolder("packaged_model", "registration/model", (ARCHIVED_MODEL,), "The package."),
        StepFolder("payload_sample", "registration/payload", (PAYLOAD_ARCHIVE,), "Sample requests."),
        StepFolder("metrics_output", "registration/metrics", (EVALUATION, artifacts.METRICS), "The model's metrics."),
    ),
    outputs=(),
    settings=RegistrationSettings,
)

STEPS = (
    DATA_LOADING,
    TABULAR_PREPROCESSING,
    PYTORCH_TRAINING,
    MODEL_METRICS,
    PACKAGE,
    PAYLOAD,
    REGISTRATION,
)
PROCESSING_STEPS = {step.command: step for step in STEPS if step.kind == "processing" and step.command is not None}
