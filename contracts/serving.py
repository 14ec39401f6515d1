"""Define the served model's media types and settings."""

from typing import Literal

from pydantic import Field

from contracts.step_contract import Names, StepSettings

PORT, HOST = 8080, "0.0.0.0"
VARIABLE_PREFIX = "SERVING_"  # of each setting of the server
PORT_VARIABLE = "SAGEMAKER_BIND_TO_PORT"  # set where several containers share an endpoint
CSV, JSON, JSON_LINES, PARQUET = "text/csv", "application/json", "application/jsonlines", "application/x-parquet"
# Accepted media types, with the name that the format has here.
MEDIA_TYPES = {
    CSV: CSV,
    "application/csv": CSV,
    JSON: JSON,
    JSON_LINES: JSON_LINES,
    "application/x-jsonlines": JSON_LINES,
    "application/jsonl": JSON_LINES,
    "application/x-ndjson": JSON_LINES,
    PARQUET: PARQUET,
    "application/vnd.apache.parquet": PARQUET,
    "application/parquet": PARQUET,
}
REQUEST_TYPES = (CSV, JSON, JSON_LINES, PARQUET)
RESPONSE_TYPES = (JSON, CSV, JSON_LINES)

BODIES = 4  # requests of SERVING_MAX_BYTES that may be in progress
# A batch transform: the service's limit of MaxPayloadInMB x MaxConcurrentTransforms, its default of the former, and
# enough requests to keep a model busy.
MOST_TRANSFORM_MIB, PAYLOAD_MIB, TRANSFORM_REQUESTS = 100, 6, 8

# The order of the columns of CSV without a header: the setting that names them, and the attribute of the fitted rules.
INPUT_ORDER = {
    "texts": "text_columns",
    "tab_field_list": "raw_numbers",
    "date_field_list": "dates",
    "cat_field_list": "categorical_columns",
}

CODE_FOLDER = "code"
ENTRY_POINT = "inference.py"
CALIBRATION = "calibration.json"  # in the package: a calibration of class 1's probability, fitted after training


class RecordSettings(StepSettings):
    """The records of a request and the graph: the part of the settings with which the step Payload checks the model."""

    serving_max_tokens: int = Field(
        default=16_384,
        ge=1,
        le=10**9,
        description="Maximum number of tokens of a record, and of a run of the model, including padding.",
    )
    serving_csv_header: Literal["detect", "present", "absent"] = Field(
        default="detect", description="Header line of CSV, if the Content-Type does not say. detect: by its names."
    )
    serving_csv_columns: Names | None = Field(
        default=None,
        description="Columns of CSV without a header, in order. Default: those of the model, in the order "
        f"{', '.join(INPUT_ORDER)}.",
    )
    serving_onnx_variant: Literal["fused", "int8"] | None = Field(
        default=None, description="Serve model.fused.onnx or model.int8.onnx, if the job kept it."
    )
    serving_backend: Literal["onnx", "openvino"] = Field(
        default="onnx",
        description="onnx: ONNX Runtime. openvino: bfloat16, where the processor has it; needs the extra openvino.",
    )


class ServingSettings(RecordSettings):
    """Environment variables of the served model, in the project's image and in others."""

    serving_max_bytes: int = Field(
        default=25 << 20, ge=1, le=1 << 40, description="Maximum size of a request, in bytes."
    )
    serving_max_decoded_bytes: int = Field(
        default=256 << 20, ge=1, le=1 << 40, description="Maximum size of a decompressed Parquet request, in bytes."
    )
    serving_batch_size: int = Field(
        default=32, ge=1, le=1_000_000, description="Maximum number of records in a batch, from one or more requests."
    )
    serving_invalid_records: Literal["refuse", "report"] = Field(
        default="refuse",
        description="A request with an invalid record: refuse it, or report an error for each invalid record.",
    )
    serving_explain: Literal["off", "column", "text"] = Field(
        default="column",
        description="Reasons that clients may ask for. column: of columns; text: of messages, sentences and words too.",
    )
    serving_script: Literal["run", "forbid"] = Field(
        default="run",
        description="An inference.py that is a package's own: run it with all permissions of the server, or refuse it.",
    )
    serving_threads: int | None = Field(
        default=None,
        ge=1,
        le=1_024,
        description="Threads of the model, at most one per core. Default: one per core.",
    )
    serving_concurrency: int = Field(
        default=240,  # a hard limit of 1,024 descriptors suffices
        ge=1,
        le=10_000,
        description="Maximum number of requests in progress, one thread each; others get status 503.",
    )
    serving_timeout_seconds: float = Field(
        default=55.0,
        gt=0,
        le=3_600,
        description="Maximum time for a request to arrive (then status 408), and to be computed (then 503).",
    )
    serving_grace_seconds: float = Field(
        default=25.0, ge=0, le=3_600, description="Time for active requests after SIGTERM; SageMaker kills after 30 s."
    )
    serving_metrics: bool = Field(default=False, description="Answer GET /metrics with Prometheus text.")
    serving_strict_columns: bool = Field(
        default=False, description="Refuse a request of which no record has one of the model's columns."
    )
    serving_capture: str | None = Field(
        default=None,
        min_length=1,
        description="Folder for the requests and answers, in the format of SageMaker's data capture.",
    )
    serving_capture_percentage: float = Field(
        default=100.0, ge=0, le=100, description="Share of the requests that are captured."
    )
    serving_capture_max_bytes: int = Field(
        default=1 << 30,
        ge=1 << 20,
        le=1 << 50,
        description="Maximum size of the folder of captured requests, in bytes; the oldest files are removed.",
    )
    sagemaker_default_invocations_accept: str = Field(
        default=JSON, description="Format of a response, if the client sends no Accept or `*/*`."
    )
