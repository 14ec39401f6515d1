"""Define the types of hyperparameters whose elements have bounds."""

from typing import Annotated

from pydantic import AfterValidator, Field

from contracts.declaration import Pattern
from contracts.model_classes import ALIASES
from contracts.numbers import LARGEST_INTEGER

ModelClassName = Annotated[str, AfterValidator(lambda name: ALIASES.get(name, name))]
Label = Annotated[int, Field(ge=-LARGEST_INTEGER, le=LARGEST_INTEGER)]
KernelSize = Annotated[int, Field(ge=1, le=1_024)]
Channels = Annotated[int, Field(ge=1, le=16_384)]
Threshold = Annotated[float, Field(gt=0, lt=1)]
ClassWeight = Annotated[float, Field(ge=1e-6, le=1e6)]  # only ratios matter; in this range, float32 sums are exact
_TAG_KEY = Pattern(r"[\w./: ][\w./: -]*", "letters, digits, blanks and _ . / : -, of which - is not the first")
TagKey = Annotated[str, Field(max_length=250), _TAG_KEY]  # MLflow's characters; the first is none of an option
TagValue = Annotated[str, Field(max_length=5_000)]
_TRACKING_URI = Pattern(
    r"https?://[^/?#@\s]+(/[^?#@\s]*)?|arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:[0-9]{12}:mlflow-(tracking-server|app)/[A-Za-z0-9-]+",
    "an http or https address without a name, password, query or fragment, or the ARN of a SageMaker "
    "tracking server or MLflow app",
)
TrackingUri = Annotated[str, Field(max_length=250), _TRACKING_URI]
_ONNX_NAME = Pattern(  # ONNX requires identifiers of C
    "[A-Za-z_][A-Za-z0-9_]*", "a name of ASCII letters, digits and underscores that does not begin with a digit"
)
OnnxName = Annotated[str, Field(max_length=100), _ONNX_NAME]
MetricOfSplit = Annotated[str, Pattern("[^/]+/[^/]+", "a split and a metric, e.g. test/auroc")]
TrackingName = Annotated[str, Field(min_length=1, max_length=250)]
Tags = Annotated[dict[TagKey, TagValue], Field(max_length=50)]
