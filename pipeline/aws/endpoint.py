"""Deploy a registered version to the endpoint of the configuration, go back to the one before, and delete it."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from contracts.errors import ContractError
from pipeline.aws.guard import Traffic, deployment_config, own_alarms, put_alarms, states
from pipeline.aws.monitor import delete_schedule
from pipeline.aws.operator import Operator
from pipeline.aws.scaling import backlog_alarm, deregister_scaling, register_scaling
from pipeline.aws.serving import OURS, SHADOW, endpoint_config_request, endpoint_name, endpoint_tags, model_request
from pipeline.aws.trial import TRIAL, ask_trial
from pipeline.aws.versions import find_package, version_of
from pipeline.aws.waiting import BUSY, wait_for_endpoint

PREVIOUS = "text-table-trainer:previous"  # the key of a tag of a configuration: the configuration before it
_LONGEST_PREFIX = 38  # of 63 characters, with -vNUMBER-DIGEST-trial


def deploy(operator: Operator, number: int, *, traffic: Traffic, adopt: bool) -> None:
    """Create or update the endpoint with a version, if it answers the sample requests as it was registered.

    Args:
        adopt: whether it may update an endpoint that this project did not create.

    Raises:
        ContractError: the version is not approved, the endpoint is foreign or busy, an alarm is missing, an answer
            differs, or an alarm stopped the update.
    """
    section, name = operator.deploy, endpoint_name(operator.config, operator.deploy)
    package = find_package(operator, number)
    version_of(package).require_approved()
    traffic.check(section)
    model, alone = _requests(operator, package, number)
    config, endpoint = alone, _described(operator)
    if endpoint is not None:
        _require_ours(operator, endpoint, adopt=adopt)
    if traffic.kind == "SHADOW":
        config = _in_shadow(operator, endpoint, alone, percent=traffic.percent)
    target = config["EndpointConfigName"]
    if endpoint is not None:
        busy = _is_busy_with(endpoint, target)
        if busy or endpoint["EndpointConfigName"] == target:
            alarms = own_alarms(name, section) if busy else []
            _finish(operator, target, [alarm["AlarmName"] for alarm in alarms], number=number)
            return
    alarms = put_alarms(operator)
    guarded = deployment_config(section, traffic, alarms)
    _create(operator, "create_model", model)
    ask_trial(operator, package, alone, version=number)
    _create(operator, "create_endpoint_config", config)
    if endpoint is None:
        request = {
            "EndpointName": name,
            "EndpointConfigName": target,
            "Tags": endpoint_tags(operator.resolved, section),
        }
        operator.change(f"create the endpoint {name} with version {number}", "sagemaker", "create_endpoint", **request)
    else:
        _tag(operator, endpoint, target, adopt=adopt)
        to = f"to copy {traffic.percent} % of its requests to" if traffic.kind == "SHADOW" else "to"
        _update(operator, endpoint, target, what=f"update {name} {to} version {number}", guarded=guarded)
    _finish(operator, target, alarms if endpoint else [], number=number)


def rollback(operator: Operator) -> None:
    """Update the endpoint to the configuration before the present one, which is kept.

    Raises:
        ContractError: there is no endpoint of ours, it is busy, or there is no earlier version that is approved.
    """
    endpoint, name = _described(operator), endpoint_name(operator.config, operator.deploy)
    if endpoint is None:
        raise ContractError(f"endpoint {name}: does not exist", "Deploy a version: python -m pipeline deploy NUMBER")
    _require_ours(operator, endpoint, adopt=False)
    present = operator.look_up("describe_endpoint_config", EndpointConfigName=endpoint["EndpointConfigName"]) or {}
    before = operator.tags(present["EndpointConfigArn"]).get(PREVIOUS) if present else None
    if before is None or operator.look_up("describe_endpoint_config", EndpointConfigName=before) is None:
        why = f"its configuration {before} was deleted" if before else "none is known"
        cause = f"endpoint {name}: has no earlier version: {why}"
        raise ContractError(cause, "Deploy a version: python -m pipeline deploy NUMBER")
    number = served_version(operator, before)
    if number is not None:
        version_of(find_package(operator, number)).require_approved()
    if not _is_busy_with(endpoint, before):
        _update(operator, endpoint, before, what=f"take {name} back to version {number}", guarded={})
    _finish(operator, before, [], number=number)


def delete(operator: Operator) -> None:
    """Delete the endpoint with its alarms, scaling and monitor, and configurations and models of its own."""
    section, name = operator.deploy, endpoint_name(operator.config, operator.deploy)
    endpoint = _described(operator)
    if endpoint is not None:
        _require_ours(operator, endpoint, adopt=False)
        _is_busy_with(endpoint, None)
        deregister_scaling(operator)
        operator.change(f"delete the endpoint {name}", "sagemaker", "delete_endpoint", EndpointName=name)
    alarms = [*(alarm["AlarmName"] for alarm in own_alarms(name, section)), backlog_alarm(name)]
    if operator.config.monitor is not None:
        alarms.append(delete_schedule(operator))
    if present := sorted(states(operator, alarms)):
        operator.change(f"delete the alarms {', '.join(present)}", "cloudwatch", "delete_alarms", AlarmNames=present)
    _delete_unused(operator, name)


def served_version(operator: Operator, config: str | None = None) -> int | None:
    """Return the version of a configuration, or of the endpoint; None where there is none of the registry."""
    if config is None:
        endpoint = _described(operator)
        if endpoint is None:
            return None
        config = endpoint["EndpointConfigName"]
    described = operator.look_up("describe_endpoint_config", EndpointConfigName=str(config))
    if described is None:
        return None
    name = described["ProductionVariants"][0]["ModelName"]
    model = operator.look_up("describe_model", ModelName=name) or {}
    container = model.get("PrimaryContainer") or next(iter(model.get("Containers", [])), {})
    number = container.get("ModelPackageName", "").rpartition("/")[2]
    return int(number) if number.isdecimal() else None


def _requests(operator: Operator, package: Mapping[str, Any], number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of CreateModel and CreateEndpointConfig; the same ones have the same names."""
    resolved, section = operator.resolved, operator.deploy
    model = model_request(resolved, section, package["ModelPackageArn"])
    content = json.dumps([model, endpoint_config_request(resolved, section, name="", model="")], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    name = f"{_prefix(endpoint_name(operator.config, section))}{number}-{digest}"
    return {**model, "ModelName": name}, endpoint_config_request(resolved, section, name=name, model=name)


def _prefix(name: str) -> str:
    """Return the beginning of the names of an endpoint's configurations, models and trials."""
    return f"{name[:_LONGEST_PREFIX].rstrip('-')}-v"


def _in_shadow(
    operator: Operator, endpoint: Mapping[str, Any] | None, alone: Mapping[str, Any], *, percent: int
) -> dict[str, Any]:
    """Return the arguments of CreateEndpointConfig with a version beside the one in service, whose requests it gets."""
    (variant,), name = alone["ProductionVariants"], alone["EndpointConfigName"]
    if endpoint is None:
        raise ContractError("--shadow: no version is in service", "Deploy one first, without --shadow.")
    present = operator.look_up("describe_endpoint_config", EndpointConfigName=endpoint["EndpointConfigName"]) or {}
    served = present["ProductionVariants"][0]["ModelName"]
    if served == variant["ModelName"]:
        raise ContractError("--shadow: this version is in service itself", "Name another version.")
    # The ratio of the weights is the share of the requests that are copied.
    shadow = {**variant, "VariantName": SHADOW, "InitialVariantWeight": percent / 100}
    digest = hashlib.sha256(f"{served} {percent}".encode()).hexdigest()[:6]
    return {
        **alone,
        "EndpointConfigName": f"{name}-{digest}",
        "ProductionVariants": [{**variant, "ModelName": served}],
        "ShadowProductionVariants": [shadow],
    }


def _described(operator: Operator) -> dict[str, Any] | None:
    name = endpoint_name(operator.config, operator.deploy)
    return operator.look_up("describe_endpoint", EndpointName=name)


def _require_ours(operator: Operator, endpoint: Mapping[str, Any], *, adopt: bool) -> None:
    if not adopt and operator.tags(endpoint["EndpointArn"]).get(OURS) != endpoint["EndpointName"]:
        raise ContractError(
            f"endpoint {endpoint['EndpointName']}: was not created by this project: it has no tag {OURS}",
            "Set another name in aws.deploy.endpoint, or take it over: python -m pipeline deploy NUMBER --adopt",
        )


def _is_busy_with(endpoint: Mapping[str, Any], target: str | None) -> bool:
    """Return whether an update to `target` runs, such as that of an interrupted command.

    Raises:
        ContractError: another update runs, or the endpoint is broken.
    """
    name, status = endpoint["EndpointName"], endpoint["EndpointStatus"]
    to = endpoint.get("PendingDeploymentSummary", {}).get("EndpointConfigName")
    if status in BUSY and (target is None or to != target):
        doing = f" to {to}" if to else ""
        raise ContractError(f"endpoint {name}: is {status}{doing}", "Wait until it is InService.")
    if status not in (*BUSY, "InService") and target is not None:
        cause = f"endpoint {name}: is {status}: {endpoint.get('FailureReason', 'without a reason')}"
        raise ContractError(cause, "Delete it: python -m pipeline delete. Then deploy again.")
    return status in BUSY


def _create(operator: Operator, operation: str, request: Mapping[str, Any]) -> None:
    """Create a model or an endpoint configuration, unless an earlier command did."""
    key = {"create_model": "ModelName", "create_endpoint_config": "EndpointConfigName"}[operation]
    if operator.look_up(operation.replace("create", "describe"), **{key: request[key]}) is None:
        what = f"{operation.replace('_', ' the ', 1).replace('_', ' ')} {request[key]}"
        operator.change(what, "sagemaker", operation, **request)


def _tag(operator: Operator, endpoint: Mapping[str, Any], target: str, *, adopt: bool) -> None:
    """Name the present configuration in the next one, for a rollback; make an adopted endpoint ours."""
    config = operator.look_up("describe_endpoint_config", EndpointConfigName=target)
    arn, present = (config or {}).get("EndpointConfigArn", endpoint["EndpointArn"]), endpoint["EndpointConfigName"]
    before = [{"Key": PREVIOUS, "Value": present}]
    operator.change(f"remember {present} for a rollback", "sagemaker", "add_tags", ResourceArn=arn, Tags=before)
    if adopt:
        ours = [{"Key": OURS, "Value": endpoint["EndpointName"]}]
        what, arn = f"adopt the endpoint {endpoint['EndpointName']}", endpoint["EndpointArn"]
        operator.change(what, "sagemaker", "add_tags", ResourceArn=arn, Tags=ours)


def _update(
    operator: Operator, endpoint: Mapping[str, Any], target: str, *, what: str, guarded: Mapping[str, Any]
) -> None:
    """Send the update; the scaling waits for its end. An endpoint that has scaled out keeps its instances."""
    instances, (variant,) = operator.deploy.instances, endpoint["ProductionVariants"]
    grown = instances is not None and variant.get("DesiredInstanceCount", 0) > instances.instance_count
    request = {"EndpointName": endpoint["EndpointName"], "EndpointConfigName": target}
    deregister_scaling(operator)
    try:
        operator.change(
            what,
            "sagemaker",
            "update_endpoint",
            **request,
            **({"RetainAllVariantProperties": True} if grown and operator.deploy.scaling else {}),
            **({"DeploymentConfig": guarded} if guarded else {}),
        )
    except BaseException:
        register_scaling(operator)
        raise


def _finish(operator: Operator, target: str, alarms: Sequence[str], *, number: int | None) -> None:
    """Wait for the end of an update, and register the scaling again.

    Raises:
        ContractError: the service went back to the earlier version.
    """
    name, fired = endpoint_name(operator.config, operator.deploy), dict[str, str]()

    def look() -> None:
        for alarm, (state, reason) in states(operator, alarms).items() if alarms else ():
            if state == "ALARM":
                fired.setdefault(alarm, reason)

    if operator.dry_run:
        register_scaling(operator)
        return
    endpoint = wait_for_endpoint(operator, name, look=look)
    register_scaling(operator)
    if endpoint["EndpointConfigName"] != target:
        served = served_version(operator)
        reasons = [f"the alarm {alarm} fired: {reason}" for alarm, reason in fired.items()]
        cause = "; ".join(reasons) or endpoint.get("FailureReason", "the service gave no reason")
        raise ContractError(
            f"version {number}: was taken back, and {name} has version {served}: {cause}",
            f"Look at its log: /aws/sagemaker/Endpoints/{name}. Correct the model, or aws.deploy.guard.",
        )
    served = served_version(operator)
    print(f"{name} has version {served}" + (f", and version {number} in its shadow." if served != number else "."))


def _delete_unused(operator: Operator, name: str) -> None:
    """Delete trials, configurations and models of ours for an endpoint, except those that another endpoint has."""
    listed = [config["EndpointConfigName"] for config in _listed(operator, "list_endpoint_configs", "EndpointConfigs")]
    configs = {
        config: operator.look_up("describe_endpoint_config", EndpointConfigName=config) or {} for config in listed
    }
    used = set()
    for other in _listed(operator, "list_endpoints", "Endpoints"):
        endpoint = other["EndpointName"]
        is_trial = endpoint.startswith(_prefix(name)) and endpoint.endswith(TRIAL)
        if is_trial and operator.tags(other["EndpointArn"]).get(OURS) == name:
            operator.change(f"delete the endpoint {endpoint}", "sagemaker", "delete_endpoint", EndpointName=endpoint)
        elif endpoint != name:
            described = operator.look_up("describe_endpoint", EndpointName=endpoint) or {}
            used.add(described.get("EndpointConfigName"))
    ours = [
        config
        for config, described in configs.items()
        if described and config not in used and operator.tags(described["EndpointConfigArn"]).get(OURS) == name
    ]
    for config in ours:
        what = f"delete the endpoint config {config}"
        operator.change(what, "sagemaker", "delete_endpoint_config", EndpointConfigName=config)
    kept = {model for config, described in configs.items() if config not in ours for model in _models(described)}
    named = {model["ModelName"] for model in _listed(operator, "list_models", "Models", NameContains=_prefix(name))}
    for model in sorted((named | {model for config in ours for model in _models(configs[config])}) - kept):
        described = operator.look_up("describe_model", ModelName=model)
        if described is not None and operator.tags(described["ModelArn"]).get(OURS) == name:
            operator.change(f"delete the model {model}", "sagemaker", "delete_model", ModelName=model)


def _listed(operator: Operator, operation: str, key: str, **request: str) -> Iterator[dict[str, Any]]:
    for page in operator.client("sagemaker").get_paginator(operation).paginate(**request):
        yield from page[key]


def _models(config: Mapping[str, Any]) -> list[str]:
    variants = [*config.get("ProductionVariants", []), *config.get("ShadowProductionVariants", [])]
    return [variant["ModelName"] for variant in variants if "ModelName" in variant]
