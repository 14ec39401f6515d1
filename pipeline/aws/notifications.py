"""The EventBridge rules that publish messages about a pipeline, and their topic, for the stack."""

from collections.abc import Mapping
from typing import Any

from contracts.errors import ContractError
from pipeline.aws.permissions import Account
from pipeline.aws.serving import endpoint_name
from pipeline.aws.templates import policy, rule

_EXECUTION = "SageMaker Model Building Pipeline Execution Status Change"
PUBLISHER = "events.amazonaws.com"
_SECTIONS = {"deployed": "aws.deploy", "untriggered": "aws.triggers", "violated": "monitor"}  # that events need


def notifications(account: Account) -> dict[str, dict[str, Any]]:
    """Return the resources; none without aws.notifications.

    Raises:
        ContractError: an event of a section that the configuration does not have.
    """
    section = account.aws.notifications
    if section is None:
        return {}
    patterns = _patterns(account)
    for event in section.events or ():
        if event not in patterns:
            raise ContractError(
                f"aws.notifications.events: {event} needs a section that the configuration does not have",
                f"Use some of: {', '.join(patterns)}; or add {_SECTIONS[event]}.",
            )
    topic = section.topic or {"Ref": "Topic"}
    made = {} if section.topic else _topic(account, email=section.email)
    return made | {
        f"Notify{event.title()}": rule(
            f"{account.config.name}: {event}",
            pattern={"source": ["aws.sagemaker"], **patterns[event]},
            target={"Arn": topic},
        )
        for event in section.events or patterns
    }


def _patterns(account: Account) -> dict[str, Mapping[str, Any]]:
    """Return the pattern of each event that the configuration can have."""
    config, deploy = account.config, account.aws.deploy

    def failed(name: str) -> dict[str, Any]:
        arns = account.named("pipeline", name)
        detail = {"pipelineArn": arns, "currentPipelineExecutionStatus": ["Failed"]}
        return {"detail-type": [_EXECUTION], "detail": detail}

    waits = {"ModelPackageGroupName": [config.group], "ModelApprovalStatus": ["PendingManualApproval"]}
    patterns: dict[str, Mapping[str, Any]] = {
        "failed": failed(config.name),
        "approval": {"detail-type": ["SageMaker Model Package State Change"], "detail": waits},
    }
    if deploy is not None:
        served = {"EndpointName": [endpoint_name(config, deploy)], "EndpointStatus": ["IN_SERVICE", "InService"]}
        patterns["deployed"] = {"detail-type": ["SageMaker Endpoint State Change"], "detail": served}
    if account.aws.triggers is not None:
        ended = {"project-name": [account.build_project], "build-status": ["FAILED", "FAULT", "STOPPED", "TIMED_OUT"]}
        kind = {"source": ["aws.codebuild"], "detail-type": ["CodeBuild Build State Change"]}
        patterns["untriggered"] = {**kind, "detail": ended}
    if config.monitor is not None:
        patterns["violated"] = failed(f"{config.name}-monitor")
    return patterns


def _topic(account: Account, *, email: str | None) -> dict[str, dict[str, Any]]:
    subscriptions = {"Subscription": [{"Protocol": "email", "Endpoint": email}]} if email else {}
    # EventBridge supports no conditions in policies of SNS topics.
    allowed = {"Principal": {"Service": PUBLISHER}, "Action": "sns:Publish", "Resource": {"Ref": "Topic"}}
    name, encrypted = f"{account.config.name}-events", account.encrypted("KmsMasterKeyId")
    return {
        "Topic": {"Type": "AWS::SNS::Topic", "Properties": {"TopicName": name, **encrypted, **subscriptions}},
        "TopicPolicy": {
            "Type": "AWS::SNS::TopicPolicy",
            "Properties": {"Topics": [{"Ref": "Topic"}], "PolicyDocument": policy([{"Effect": "Allow", **allowed}])},
        },
    }
