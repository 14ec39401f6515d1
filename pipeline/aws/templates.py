"""The resources of the stack that several modules declare: policies, roles, rules of EventBridge, what stays."""

from collections.abc import Mapping
from typing import Any


def policy(statement: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the document of a policy."""
    return {"Version": "2012-10-17", "Statement": statement}


def role(*services: str, statements: list[dict[str, Any]], **properties: Any) -> dict[str, Any]:
    """Return a role that services assume for this account, for the stack."""
    trusted = {
        "Effect": "Allow",
        "Principal": {"Service": list(services)},
        "Action": "sts:AssumeRole",
        "Condition": {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}},
    }
    granted = [{"PolicyName": "jobs", "PolicyDocument": policy(statements)}]
    return {
        "Type": "AWS::IAM::Role",
        "Properties": {**properties, "AssumeRolePolicyDocument": policy([trusted]), "Policies": granted},
    }


def rule(about: str, *, pattern: Mapping[str, Any], target: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rule of EventBridge with one target, for the stack."""
    described = {"Description": about, "EventPattern": {**pattern}}
    return {"Type": "AWS::Events::Rule", "Properties": {**described, "Targets": [{"Id": "target", **target}]}}


def kept(kind: str, **properties: Any) -> dict[str, Any]:
    """Return a resource that stays when the stack is deleted: it has data."""
    stays = {"DeletionPolicy": "Retain", "UpdateReplacePolicy": "Retain"}
    return {"Type": f"AWS::{kind}", **stays, "Properties": properties}
