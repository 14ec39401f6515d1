"""Define the four functions that SageMaker's inference containers call; this project's server calls the same code."""

import os
from functools import cache

from container.serving.answers import write_answer
from container.serving.media_types import response_type
from container.serving.model import Prediction, ServedModel
from container.serving.requests import Request, read_request
from contracts.serving import JSON, ServingSettings


@cache
def settings() -> ServingSettings:
    """Read the settings from the environment, once."""
    return ServingSettings.from_environment(os.environ)


def model_fn(model_dir: str) -> ServedModel:
    """Load the unpacked package.

    Raises:
        ContractError: a missing or damaged artifact, or an invalid setting.
    """
    return ServedModel.load(model_dir, settings())


def input_fn(request_body: bytes | str, content_type: str | None) -> Request:
    """Read a request's body: CSV, JSON, JSON Lines or Parquet.

    Raises:
        RequestError: 400, 413 or 415.
    """
    body = request_body.encode() if isinstance(request_body, str) else bytes(request_body)
    return read_request(body, content_type, settings())


def predict_fn(data: Request, model: ServedModel) -> Prediction:
    """Return the class probabilities and the decided class of each record.

    Raises:
        RequestError: 400, a column or every record is missing, or a value of a numeric column is not a number.
    """
    return model.predict(data)


def output_fn(prediction: Prediction, accept: str | None = JSON) -> tuple[bytes, str]:
    """Return the response in the format that the client prefers, and its Content-Type.

    Raises:
        RequestError: 406, an unsupported format.
    """
    media_type = response_type(accept)
    return write_answer(prediction, media_type), media_type.name
