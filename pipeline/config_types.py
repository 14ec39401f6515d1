"""Types that several sections of a pipeline's configuration share.

Patterns and limits of SageMaker are not repeated here: aws/limits.py takes them from botocore's model.
"""

import re
from typing import Annotated, Literal
from zoneinfo import available_timezones

from pydantic import AfterValidator, StringConstraints

from contracts.declaration import Pattern, StrictModel
from contracts.spelling import did_you_mean
from pipeline.json_path import compile_path

Name = Annotated[
    str,
    Pattern(
        "[A-Za-z0-9](-*[A-Za-z0-9])*",
        "a name of ASCII letters, digits and hyphens, with a letter or digit at both ends",
    ),
]
_SIMPLE = re.compile(
    "rate\\([1-9][0-9]* (minute|hour|day)s?\\)|at\\([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\)"
)
_CRON = (  # what a field of cron(...) can be: minutes, hours, day of the month, month, day of the week, year
    "[0-5]?[0-9]",
    "[01]?[0-9]|2[0-3]",
    "0?[1-9]|[12][0-9]|3[01]|LW?|[0-9]{1,2}W",
    "0?[1-9]|1[0-2]|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC",
    "[1-7]?L|[1-7](#[1-5])?|SUN|MON|TUE|WED|THU|FRI|SAT",
    "19[7-9][0-9]|2[01][0-9]{2}",
)
_DIRECTORY_BUCKET = "--x-s3"  # end of the name of a bucket of S3 Express One Zone


def bucket_of(uri: str) -> str:
    """Return the bucket of an S3 URI, or of a name of a bucket."""
    return uri.removeprefix("s3://").partition("/")[0]


def in_directory_bucket(uri: str) -> bool:
    """Return whether an S3 URI is in a bucket of S3 Express One Zone."""
    return bucket_of(uri).endswith(_DIRECTORY_BUCKET)


def check_s3_folder(uri: str) -> str:
    """Return the URI; raise ValueError if it is a prefix that its bucket does not allow."""
    if in_directory_bucket(uri) and not uri.endswith("/"):
        raise ValueError(f"a prefix in a directory bucket (*{_DIRECTORY_BUCKET}) must end in /")
    return uri


def check_tag_key(key: str) -> str:
    """Return the key; raise ValueError if AWS reserves it."""
    for reserved, owner in {"aws:": "AWS", "text-table-trainer:": "the pipeline"}.items():
        if key.lower().startswith(reserved):
            raise ValueError(f"the key {key!r} begins with {reserved}, which {owner} reserves for its own tags")
    return key


def check_json_path(path: str) -> str:
    """Return the path; raise ValueError if it has a part that filters do not have."""
    compile_path(path)
    return path


def check_time_zone(name: str) -> str:
    """Return the name; raise ValueError if there is no such time zone. A machine without a list accepts all."""
    if (zones := available_timezones()) and name not in zones:
        raise ValueError(f"there is no time zone {name!r}{did_you_mean(name, zones)}")
    return name


def check_schedule(text: str) -> str:
    """Return the expression; raise ValueError if EventBridge Scheduler does not know it."""
    cron = re.fullmatch(r"cron\((.*)\)", text)
    fields = cron[1].split() if cron else []
    days = [fields[2], fields[4]] if len(fields) == len(_CRON) else []
    parts = (rf"(\*|({value})(-({value}))?)(/[0-9]+)?" for value in _CRON)
    known = (each == "?" or re.fullmatch(f"{part}(,{part})*", each) for each, part in zip(fields, parts))
    if not _SIMPLE.fullmatch(text) and not (fields.count("?") == days.count("?") == 1 and all(known)):
        raise ValueError(
            "it is not rate(7 days), at(2027-01-31T06:00:00) or cron(0 6 ? * MON *): minutes, hours, day of the "
            "month, month, day of the week and year, with ? for one of the two days"
        )
    return text


S3Folder = Annotated[
    str,
    Pattern(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?", "an S3 URI, such as s3://bucket/folder/"),
    AfterValidator(check_s3_folder),
]
KeyPrefix = Annotated[
    str,
    Pattern(
        r"[A-Za-z0-9!_.*'()-]+(/[A-Za-z0-9!_.*'()-]+)*",
        "a key prefix: names of ASCII letters, digits and !_.*'()-, divided by single slashes",
    ),
]
CacheAge = Annotated[
    str,
    Pattern(
        "P([0-9]+D|([0-9]+D)?T([0-9]+H|([0-9]+H)?[0-9]+M))",
        "a duration in days, hours and minutes, such as P30D, PT12H or P1DT6H30M",
    ),
]
Schedule = Annotated[str, AfterValidator(check_schedule)]
TimeZone = Annotated[str, AfterValidator(check_time_zone)]
Topic = Annotated[
    str,
    Pattern(
        r"arn:[a-z-]+:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]+(\.fifo)?",
        "an ARN such as arn:aws:sns:eu-west-1:111122223333:models",
    ),
]
Email = Annotated[str, Pattern(r"[^\s@]+@[^\s@.]+(\.[^\s@.]+)+", "an address such as team@example.com")]
Image = Annotated[
    str,
    Pattern(r"[^\s@]+@sha256:[0-9a-f]{64}", "an image with its digest: REPOSITORY@sha256: and 64 hexadecimal digits"),
]
TagKey = Annotated[str, AfterValidator(check_tag_key)]
JsonPath = Annotated[str, Pattern(r"\$.*", "a path that begins with $"), AfterValidator(check_json_path)]
CardText = Annotated[str, StringConstraints(max_length=1024)]
Approval = Literal["PendingManualApproval", "Approved", "Rejected"]


class Section(StrictModel):
    """A part of the configuration."""
