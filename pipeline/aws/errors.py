"""Convert errors of AWS and of its client to errors that name a place and a fix."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from contracts.errors import ContractError, one_line
from pipeline.aws.session import not_installed

_CREDENTIALS = (
    "Check the AWS credentials: run aws configure or aws sso login, or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY."
)
_PERMISSION = "Grant {action} to the caller; docs/pipeline_aws.md, Permissions, lists what each command needs."
_ACTION = re.compile(r"not authorized to perform: ([\w-]+:\w+)")
_NETWORK = "Check the network, the proxy settings and aws.region, and run the command again."
ANOTHER_REGION = "Name a bucket in aws.region, or correct aws.region."
_AGAIN = "Wait a minute, and run the command again."
_QUOTA = "Delete what is no longer needed, or request a larger quota in the console of Service Quotas."
_OTHER = "Correct what the message names; docs/pipeline_reference.md describes the keys."
_MISSING = ("NoSuchBucket", "NoSuchKey")
# In names of botocore's exceptions; the last three are about profiles that assume roles, and roles of an instance.
_OF_CREDENTIALS = re.compile("Credential|Profile|Token|SSO|Login|MFA|InvalidConfig|InfiniteLoop|MetadataRetrieval")
_FIXES = {  # by code of a response
    **dict.fromkeys(("AccessDenied", "AccessDeniedException", "AllAccessDisabled"), _PERMISSION),
    **dict.fromkeys(
        (
            "ExpiredToken ExpiredTokenException IncompleteSignature InvalidAccessKeyId InvalidClientTokenId "
            "InvalidSignatureException InvalidToken MissingAuthenticationToken RequestExpired RequestTimeTooSkewed "
            "SignatureDoesNotMatch UnrecognizedClientException"
        ).split(),
        _CREDENTIALS,
    ),
    **dict.fromkeys(("AuthorizationHeaderMalformed", "PermanentRedirect"), ANOTHER_REGION),
    "ResourceLimitExceeded": _QUOTA,
    **dict.fromkeys(
        (
            "ConflictException InternalError InternalFailure ServiceUnavailable SlowDown Throttling ThrottlingException"
        ).split(),
        _AGAIN,
    ),
}


@contextmanager
def aws_errors(place: str, *, missing: str = _OTHER) -> Iterator[None]:
    """Raise ContractError for an error of AWS, or of its client, within the context.

    Args:
        place: the resource and the configuration's key of it, with which the cause begins.
        missing: the fix if the resource does not exist.
    """
    try:
        from botocore import exceptions, parsers
    except ImportError as error:
        raise not_installed(error) from None
    try:
        yield
    except exceptions.ClientError as error:
        response = error.response.get("Error", {})
        code, message = response.get("Code", "unknown"), one_line(response.get("Message", ""))
        fix, action = missing if code in _MISSING else _FIXES.get(code, _OTHER), _ACTION.search(message)
        raise ContractError(
            f"{place}: {error.operation_name} failed with {code}: {message}",
            fix.replace("{action}", action[1] if action else f"the permission for {error.operation_name}"),
        ) from None
    except (exceptions.ConnectionError, exceptions.HTTPClientError, parsers.ResponseParserError) as error:
        raise ContractError(f"{place}: {one_line(str(error))}", _NETWORK) from None
    except exceptions.BotoCoreError as error:
        fix = _CREDENTIALS if _OF_CREDENTIALS.search(type(error).__name__) else _OTHER
        raise ContractError(f"{place}: {one_line(str(error))}", fix) from None
