"""Types of settings whose values have bounds or a form, and numbers as people write them."""

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field

from contracts.declaration import Pattern
from contracts.model_classes import ALIASES

LARGEST_NUMBER = 3.4028234663852886e38  # of float32, in which the model computes
LARGEST_INTEGER = 2**63 - 1  # of int64
_DEEPEST = 8  # levels of lists and objects in a value

NumberFormat = Literal["1,234.5", "1.234,5"]
NUMBER_FORMATS: tuple[NumberFormat, ...] = get_args(NumberFormat)
CategoryPart = Literal["domain", "top_level_domain", "first_byte", "first_2", "first_3"]
ISO = "2026-11-27"  # ISO 8601 in all its forms
EPOCHS: dict[str, float] = {"epoch seconds": 1.0, "epoch milliseconds": 1000.0}  # per second
# Of several that read all dates of a column, the first counts: 01/02/2026 has the month first, 01-02-2026 the day.
DATE_FORMATS = (
    ISO,
    *(
        "%Y/%m/%d|%Y.%m.%d|%d.%m.%Y|%m/%d/%Y|%d/%m/%Y|%d-%m-%Y|%m-%d-%Y|%d-%b-%Y|%d %b %Y|%b %d, %Y|"
        "%b %Y|%Y-%m|%d.%m.%y|%m/%d/%y|%d/%m/%y|%y/%m/%d|%d-%b-%y"
    ).split("|"),
    *EPOCHS,
)
UTC_SUFFIX = " UTC"  # of a format in which times without a zone are in UTC


def _check_date_format(written: str) -> str:
    if written.removesuffix(UTC_SUFFIX) not in DATE_FORMATS:
        raise ValueError(
            f"{written!r} is not one of {', '.join(DATE_FORMATS)}, with or without the ending {UTC_SUFFIX!r}"
        )
    return written


DateFormat = Annotated[str, AfterValidator(_check_date_format)]
Number = Annotated[float, Field(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]


def check_json(value: Any, *, levels: int = _DEEPEST) -> Any:
    """Return `value`; raise ValueError if it is not made of JSON's types, is too deep, or has a number out of range."""
    if isinstance(value, (dict, list)):
        if not levels:
            raise ValueError(f"it has more than {_DEEPEST} levels of lists and objects")
        for part in [*value, *value.values()] if isinstance(value, dict) else value:
            check_json(part, levels=levels - 1)
    elif isinstance(value, str):
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise ValueError("a text has a surrogate character, which no file can contain")
    elif value is not None and not isinstance(value, (int, float)):
        raise ValueError(f"a {type(value).__name__} is not a JSON value")
    elif isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        raise ValueError("a whole number does not fit into 64 bits")
    elif isinstance(value, float) and not abs(value) <= LARGEST_NUMBER:
        raise ValueError(f"a number is not between -{LARGEST_NUMBER:g} and {LARGEST_NUMBER:g}")
    return value


Json = Annotated[Any, AfterValidator(check_json)]


def decimal_comma(value: object) -> str:
    """Return the advice to write a decimal point if `value` is a number with a decimal comma, else ""."""
    found = re.fullmatch(r"\s*([+-]?\d+),(\d+)\s*", value) if isinstance(value, str) else None
    return f"Write {found[1]}.{found[2]}, with a decimal point. " if found else ""


ModelClassName = Annotated[str, AfterValidator(lambda name: ALIASES.get(name, name))]
Label = Annotated[int, Field(ge=-LARGEST_INTEGER, le=LARGEST_INTEGER)]
KernelSize = Annotated[int, Field(ge=1, le=1_024)]
Channels = Annotated[int, Field(ge=1, le=16_384)]
Threads = Annotated[int, Field(ge=1, le=1_024)]
Threshold = Annotated[float, Field(gt=0, lt=1)]
BatchSize = Annotated[int, Field(ge=1, le=1_000_000)]
Rows = Annotated[int, Field(ge=1, le=10**12)]
MeanTokens = Annotated[float, Field(ge=1, le=1_000_000)]
Hosts = Annotated[int, Field(ge=1, le=1_000)]
Dollars = Annotated[float, Field(gt=0, le=1_000_000_000)]
Hours = Annotated[float, Field(gt=0, le=10_000)]
Minutes = Annotated[float, Field(gt=0, le=1_000_000)]
Trials = Annotated[int, Field(ge=1, le=10_000)]
Reasons = Annotated[int, Field(ge=1, le=1_000_000)]
Port = Annotated[int, Field(ge=0, le=65_535)]
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
