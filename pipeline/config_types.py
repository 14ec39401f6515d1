"""Types that several sections of a pipeline's configuration share."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints

from pipeline.json_path import compile_path

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9](-*[A-Za-z0-9]){0,62}$")]
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


S3Folder = Annotated[
    str,
    StringConstraints(pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?$", max_length=1024),
    AfterValidator(check_s3_folder),
]
InstanceType = Annotated[str, StringConstraints(pattern=r"^ml\.[a-z0-9-]+\.[a-z0-9-]+$")]
Image = Annotated[str, StringConstraints(pattern=r"^[^\s@]+@sha256:[0-9a-f]{64}$", max_length=255)]
NetworkId = Annotated[str, StringConstraints(pattern=r"^[-0-9a-zA-Z]{1,32}$")]
_TAG = r"^[\p{L}\p{Z}\p{N}_.:/=+\-@]*$"
TagKey = Annotated[str, StringConstraints(pattern=_TAG, min_length=1, max_length=128), AfterValidator(check_tag_key)]
TagValue = Annotated[str, StringConstraints(pattern=_TAG, max_length=256)]
JsonPath = Annotated[str, StringConstraints(pattern=r"^\$", max_length=63), AfterValidator(check_json_path)]
SnsTopic = Annotated[str, StringConstraints(pattern=r"^arn:aws[a-z-]*:sns:[a-z0-9-]*:[0-9]{12}:[a-zA-Z0-9_.-]+$")]
CardText = Annotated[str, StringConstraints(max_length=1024)]
Approval = Literal["PendingManualApproval", "Approved", "Rejected"]


class Section(BaseModel):
    """A part of the configuration; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())
