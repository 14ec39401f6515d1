"""Types that several sections of a pipeline's configuration share."""

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, StringConstraints

from contracts.declaration import Pattern, StrictModel
from pipeline.json_path import compile_path

Name = Annotated[
    str,
    StringConstraints(max_length=63),
    Pattern(
        "[A-Za-z0-9](-*[A-Za-z0-9])*",
        "a name of ASCII letters, digits and hyphens, with a letter or digit at both ends",
    ),
]
_DIRECTORY_BUCKET = "--x-s3"  # end of the name of a bucket of S3 Express One Zone


def in_directory_bucket(uri: str) -> bool:
    """Return whether an S3 URI is in a bucket of S3 Express One Zone."""
    return uri.removeprefix("s3://").partition("/")[0].endswith(_DIRECTORY_BUCKET)


def check_s3_folder(uri: str) -> str:
    """Return the URI; raise ValueError if it is a prefix that its bucket does not allow."""
    if in_directory_bucket(uri) and not uri.endswith("/"):
        raise ValueError(f"a prefix in a directory bucket (*{_DIRECTORY_BUCKET}) must end in /")
    return uri


def check_tag_key(key: str) -> str:
    """Return the key; raise ValueError if AWS reserves it."""
    if key.lower().startswith("aws:"):
        raise ValueError(f"the key {key!r} begins with aws:, which AWS reserves for its own tags")
    return key


def check_json_path(path: str) -> str:
    """Return the path; raise ValueError if it has a part that filters do not have."""
    compile_path(path)
    return path


Bucket = Annotated[
    str,
    Pattern("[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", "a bucket's name, of 3 to 63 letters a to z, digits, dots and hyphens"),
]
S3Folder = Annotated[
    str,
    StringConstraints(max_length=1024),
    Pattern(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?", "an S3 URI, such as s3://bucket/folder/"),
    AfterValidator(check_s3_folder),
]
KeyPrefix = Annotated[
    str,
    StringConstraints(max_length=512),
    Pattern(
        r"[A-Za-z0-9!_.*'()-]+(/[A-Za-z0-9!_.*'()-]+)*",
        "a key prefix: names of ASCII letters, digits and !_.*'()-, divided by single slashes",
    ),
]
Region = Annotated[str, Pattern("[a-z]{2,}(-[a-z]+)+-[0-9]", "a region, such as eu-west-1")]
Role = Annotated[
    str,
    StringConstraints(max_length=2048),
    Pattern(
        r"arn:aws[a-z-]*:iam::[0-9]{12}:role/[a-zA-Z0-9+=,.@/_-]+",
        "the ARN of a role, such as arn:aws:iam::111122223333:role/trainer",
    ),
]
KmsKey = Annotated[
    str,
    StringConstraints(max_length=2048),
    Pattern("[a-zA-Z0-9:/_-]+", "the ID, the alias or the ARN of a KMS key"),
]
CacheAge = Annotated[
    str,
    Pattern(
        "P([0-9]+D|([0-9]+D)?T([0-9]+H|([0-9]+H)?[0-9]+M))",
        "a duration in days, hours and minutes, such as P30D, PT12H or P1DT6H30M",
    ),
]
InstanceType = Annotated[str, Pattern(r"ml\.[a-z0-9-]+\.[a-z0-9-]+", "an instance type, such as ml.m5.xlarge")]
Image = Annotated[
    str,
    StringConstraints(max_length=255),
    Pattern(r"[^\s@]+@sha256:[0-9a-f]{64}", "an image with its digest: REPOSITORY@sha256: and 64 hexadecimal digits"),
]
NetworkId = Annotated[str, Pattern("[-0-9a-zA-Z]{1,32}", "an ID of up to 32 letters, digits and hyphens")]
_SPACES = r"\u0020\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"  # Unicode's separators
_TAG = Pattern(rf"[\w.:/=+\-@{_SPACES}]*", "a text of letters, digits, spaces and _.:/=+-@")
TagKey = Annotated[str, StringConstraints(min_length=1, max_length=128), _TAG, AfterValidator(check_tag_key)]
TagValue = Annotated[str, StringConstraints(max_length=256), _TAG]
JsonPath = Annotated[
    str,
    StringConstraints(max_length=63),
    Pattern(r"\$.*", "a path that begins with $"),
    AfterValidator(check_json_path),
]
SnsTopic = Annotated[
    str, Pattern(r"arn:aws[a-z-]*:sns:[a-z0-9-]*:[0-9]{12}:[a-zA-Z0-9_.-]+", "the ARN of an SNS topic")
]
CardText = Annotated[str, StringConstraints(max_length=1024)]
Approval = Literal["PendingManualApproval", "Approved", "Rejected"]


class Section(StrictModel):
    """A part of the configuration; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())
