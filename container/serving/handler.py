"""Define the four functions that SageMaker's inference containers call; this project's server calls the same code.

Example:
    >>> model = model_fn(model_folder)
    >>> request = input_fn('{"chat": "very happy", "price": 30.0, "quantity": 2, "color": "green"}', "application/json")
    >>> body, content_type = output_fn(predict_fn(request, model), "application/json")
    >>> content_type
    'application/json'
    >>> sorted(json.loads(body)["predictions"][0])
    ['predicted_label', 'probabilities']
"""

import os
from functools import cache

from container.serving.answers import write_answer
from container.serving.media_types import response_type
from container.serving.model import Prediction, ServedModel
from container.serving.requests import HEADER, Request, read_request
from contracts.inference_script import Context
from contracts.serving import JSON, ServingSettings


@cache
def settings() -> ServingSettings:
    """Read the settings from the environment, once."""
    return ServingSettings.from_environment(os.environ)


def model_fn(model_dir: str) -> ServedModel:
    """Load the unpacked package.

    Args:
        model_dir: folder of the unpacked model.tar.gz.

    Raises:
        ContractError: a missing or damaged artifact, or an invalid setting.
    """
    return ServedModel.load(model_dir, settings())


def input_fn(request_body: bytes | str, content_type: str | None, context: Context | None = None) -> Request:
    """Read a request's body: CSV, JSON, JSON Lines or Parquet.

    Args:
        request_body: N records, as bytes or as text.
        content_type: the header Content-Type; None: JSON.
        context: of SageMaker's toolkit; its header X-Amzn-SageMaker-Custom-Attributes may ask for reasons.

    Raises:
        RequestError: 400, 403, 413 or 415.
    """
    body = request_body.encode() if isinstance(request_body, str) else bytes(request_body)
    attributes = None if context is None else context.get_request_header(0, HEADER)
    return read_request(body, content_type, settings(), attributes=attributes)


def predict_fn(data: Request, model: ServedModel) -> Prediction:
    """Return the class probabilities [N, K] and the decided class [N] of each record, and the reasons if asked for.

    Raises:
        RequestError: 400, a column or every record is missing, or a value of a numeric column is not a number.
    """
    return model.predict(data)


def output_fn(prediction: Prediction, accept: str | None = JSON) -> tuple[bytes, str]:
    """Return the response in the format that the client prefers, and its Content-Type.

    Args:
        accept: the header Accept.

    Raises:
        RequestError: 406, an unsupported format.
    """
    media_type = response_type(accept)
    return write_answer(prediction, media_type), media_type.name
