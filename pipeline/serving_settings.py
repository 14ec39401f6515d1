"""Derive the served model's settings from the kind of hosting: what a request may contain, and how long it may take."""

import math

from contracts.errors import ContractError
from contracts.numbers import Json
from contracts.serving import BODIES, CSV, ServingSettings
from contracts.step_contract import StepContract
from contracts.steps import BATCH_SCORE, REGISTRATION
from pipeline.config import BatchScore, PipelineConfig

_SECONDS_TO_ANSWER = 5  # the server's timeout ends before the service's, so that the answer gives the cause
_ASYNCHRONOUS_SECONDS = 3_600


def serving_settings(config: PipelineConfig, contract: StepContract) -> dict[str, Json]:
    """Return the settings of the model that a step hosts or registers, without those at their default."""
    deploy = config.aws and config.aws.deploy
    if contract is BATCH_SCORE and config.batch_score is not None:
        batch = config.batch_score
        return {
            "serving_timeout_seconds": batch.timeout_seconds - _SECONDS_TO_ANSWER,
            "serving_csv_header": "absent",  # each line of a file is a record, also one with the columns' names
            **_admitted(batch),
        }
    if contract is REGISTRATION and deploy:
        if deploy.serverless is not None:
            return {"serving_max_bytes": 4 << 20}
        if deploy.asynchronous is not None:
            return {
                "serving_timeout_seconds": _ASYNCHRONOUS_SECONDS - _SECONDS_TO_ANSWER,
                "serving_max_bytes": 1 << 30,
                "serving_max_decoded_bytes": 4 << 30,
            }
    return {}  # the defaults are those of a real-time endpoint


def check_batch_settings(settings: ServingSettings, batch: BatchScore) -> None:
    """Raise ContractError for a setting of the server with which it would refuse what `batch` sends."""
    size, _ = batch.payloads or (0, 0)
    contradictions = {
        "serving_csv_header": settings.serving_csv_header == "present" and batch.content_type == CSV,
        "serving_timeout_seconds": settings.serving_timeout_seconds > batch.timeout_seconds,
        "serving_max_bytes": settings.serving_max_bytes < size << 20,
        "serving_concurrency": settings.serving_concurrency < (batch.concurrency or 0),
    }
    of_batch = {
        "serving_csv_header": f"content_type {CSV}, of which no line is a header",
        "serving_timeout_seconds": f"timeout_seconds {batch.timeout_seconds}",
        "serving_max_bytes": f"max_payload_mb {size}",
        "serving_concurrency": f"concurrency {batch.concurrency}",
    }
    for name, contradicts in contradictions.items():
        if contradicts:
            place, value = f"settings.{BATCH_SCORE.name}.{name}", getattr(settings, name)
            raise ContractError(
                f"{place}: {value} contradicts batch_score: {of_batch[name]}",
                "Remove it: it follows from batch_score. Or change batch_score.",
            )


def _admitted(batch: BatchScore) -> dict[str, Json]:
    """Return the setting with which the server accepts a payload, and all payloads that are sent at a time."""
    if batch.payloads is None:
        return {}  # the server answers GET /execution-parameters with payloads that it accepts
    size, requests = batch.payloads
    # A payload is of lines of the file; a filter writes them again, with more blanks.
    growth = 2 if batch.input_filter else 1
    return {"serving_max_bytes": growth * max(size, math.ceil(size * requests / BODIES)) << 20}
