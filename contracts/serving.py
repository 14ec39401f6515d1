"""What the served model answers: paths, media types, limits."""

from typing import Literal

from pydantic import Field

from contracts.step_contract import StepSettings

PORT = 8080
PORT_VARIABLE = "SAGEMAKER_BIND_TO_PORT"  # set where several containers share an endpoint
CSV, JSON, JSON_LINES, PARQUET = "text/csv", "application/json", "application/jsonlines", "application/x-parquet"
# Other names of the same formats.
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

CODE_FOLDER = "code"
ENTRY_POINT = "inference.py"
CALIBRATION = "calibration.json"  # of the package: a map of class 1's probability, fitted after training


class ServingSettings(StepSettings):
    """Environment variables of the served model, in its own image and in any other."""

    serving_max_bytes: int = Field(
        default=25 << 20, ge=1, description="Largest request, in bytes; a larger one is refused."
    )
    serving_max_records: int = Field(default=10_000, ge=1, description="Most records in one request.")
    serving_max_decoded_bytes: int = Field(
        default=256 << 20, ge=1, description="Largest Parquet request once it is decompressed, in bytes."
    )
    serving_batch_size: int = Field(
        default=32, ge=1, description="Most records computed at once, of however many requests."
    )
    serving_onnx_variant: Literal["fused", "int8"] | None = Field(
        default=None, description="Serve model.fused.onnx or model.int8.onnx, where the job kept it."
    )
    serving_threads: int | None = Field(
        default=None, ge=1, description="Threads of ONNX Runtime. Default: one per core."
    )
    serving_concurrency: int = Field(
        default=256, ge=1, description="Most requests worked on at once; of more, the rest wait. A thread each."
    )
    serving_timeout_seconds: float = Field(
        default=55.0, gt=0, description="A request that waits longer is answered 503; the service gives up after 60 s."
    )
    serving_grace_seconds: float = Field(
        default=25.0, ge=0, description="After SIGTERM, the time for requests under way; the service kills after 30 s."
    )
