"""Check everything that is sent to SageMaker against botocore's model of the service.

botocore itself checks only types, minima and missing arguments.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import SchemaValidator, core_schema

from contracts.errors import ContractError, shown
from contracts.spelling import did_you_mean
from contracts.steps import BATCH_SCORE
from pipeline.aws.parameters import AwsPlan
from pipeline.aws.serving import TRANSFORM_MODEL
from pipeline.plan import LONGEST_VALUE, Plan

# The operation of each type of step, and the arguments that the service adds.
_OPERATIONS: dict[str, tuple[str, dict[str, str]]] = {
    "Processing": ("CreateProcessingJob", {"ProcessingJobName": "name"}),
    "Training": ("CreateTrainingJob", {"TrainingJobName": "name"}),
    "Tuning": ("CreateHyperParameterTuningJob", {"HyperParameterTuningJobName": "name"}),
    "RegisterModel": ("CreateModelPackage", {}),
    "Model": ("CreateModel", {"ModelName": "name"}),
    "Transform": ("CreateTransformJob", {"TransformJobName": "name"}),
    "EndpointConfig": ("CreateEndpointConfig", {"EndpointConfigName": "name"}),
    "Endpoint": ("CreateEndpoint", {}),
}
_TOKEN = {"ClientRequestToken": "0" * 32}  # botocore adds it
_DOCUMENTED = {"HyperParameterValue": LONGEST_VALUE}  # characters, where AWS's documentation allows fewer than botocore
_UNITS = {"string": "characters", "list": "items", "map": "entries"}
_NUMBERS = ("integer", "long", "float", "double")
_MODELS = {TRANSFORM_MODEL: BATCH_SCORE.name}  # the step whose settings a model has
_KEYS = {  # the configuration's key of an argument in which no parameter occurs
    "AsyncInferenceConfig": "aws.deploy.asynchronous",
    "Bucket": "aws.bucket",
    "CustomerMetadataProperties": "condition.metric",
    "DataCaptureConfig": "aws.deploy.real_time",
    "DataProcessing": "batch_score",
    "EndpointName": "aws.deploy.endpoint",
    "Environment": "settings.{step}.{name}",
    "HyperParameterTuningJobConfig": "tuning",
    **dict.fromkeys(("HyperParameters", "StaticHyperParameters"), "hyperparameters.{name}"),
    "InstanceGroups": "aws.training.instance_groups",
    **dict.fromkeys(("Image", "ImageUri", "TrainingImage"), "aws.image"),
    **dict.fromkeys(("KmsKeyId", "VolumeKmsKeyId"), "aws.kms_key"),
    "KeepAlivePeriodInSeconds": "aws.training.keep_alive_seconds",
    "StoppingCondition": "aws.steps.{step}.max_runtime_seconds",
    "MaxWaitTimeInSeconds": "aws.spot.max_wait_seconds",
    "ModelApprovalStatus": "registration.approval",
    "ModelCardContent": "registration",
    "ModelPackageGroupName": "registration.group",
    "MaximumRetryAttempts": "aws.retries.max_attempts",
    "ParameterRanges": "tuning.space",
    "PipelineName": "name",
    "ProductionVariants": "aws.deploy",
    "RoleArn": "aws.role",
    **dict.fromkeys(("ModelDataUrl", "S3OutputPath", "S3Uri", "SamplePayloadUrl"), "aws.prefix"),
    "SecurityGroupIds": "aws.security_groups",
    "Subnets": "aws.subnets",
    "SupportedRealtimeInferenceInstanceTypes": "registration.inference_instances",
    "SupportedTransformInstanceTypes": "registration.transform_instances",
    "Tags": "aws.tags",
    "TransformResources": "aws.steps.{step}",
    "VolumeSizeInGB": "aws.steps.{step}.volume_gb",
}
_FIX = "Correct it. If SageMaker accepts it since a recent date, update botocore."
_FIXES = {"SERVING_CSV_COLUMNS": "Use JSON Lines, whose records name their columns, or files with fewer columns."}


@dataclass(frozen=True)
class Value:
    """An argument, in which parameters have their values.

    Attributes:
        content: the argument; of a text with parts that only an execution knows, such as outputs, the other parts.
        complete: whether there are no such parts.
        parameter: the first parameter that occurs in it; empty: none.
    """

    content: Any
    complete: bool = True
    parameter: str = ""


@dataclass(frozen=True)
class Violation:
    """A value that the service refuses, and the names and positions that lead to it."""

    path: tuple[str, ...]
    value: Value
    problem: str


def check_limits(resolved: AwsPlan, definition: str, *, overrides: Mapping[str, Any], service: Any) -> None:
    """Raise ContractError for the first value that the service refuses; it names the configuration's key.

    Args:
        overrides: parameters given to an execution.
        service: botocore's model of SageMaker.
    """
    specs = resolved.specs
    parameters = {**{name: spec.default for name, spec in specs.items()}, **overrides}
    for step, operation, arguments in _requests(resolved, definition, parameters):
        for violation in violations(service.operation_model(operation).input_shape, arguments, parameters):
            parameter = violation.value.parameter
            key = specs[parameter].key if parameter else key_of(resolved.plan, step, violation.path)
            if parameter in overrides or not key:
                key = f"parameter {parameter}"
            raise ContractError(
                f"{key}: {shown(violation.value.content)} {violation.problem} "
                f"({operation}: {'.'.join(violation.path)})",
                next((_FIXES[part] for part in violation.path if part in _FIXES), _FIX),
            )


def violations(
    shape: Any, argument: Any, parameters: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[Violation]:
    """Yield everything in an argument that botocore's shape of it does not allow."""
    value = value_of(argument, parameters)
    problem = _problem(shape, value)
    if problem:
        yield Violation(path, value, problem)
    parts: list[tuple[str, Any, Any]] = []
    if shape.type_name == "structure":
        yield from (
            Violation((*path, name), Value(None), "is no value; the service requires one")
            for name in shape.required_members
            if name not in argument
        )
        for name, part in argument.items():
            if name in shape.members:
                parts.append((name, shape.members[name], part))
            else:
                lacks = f"is of an argument that botocore does not know{did_you_mean(name, shape.members)}"
                yield Violation((*path, name), value_of(part, parameters), lacks)
    elif shape.type_name == "map":
        parts = [(name, shape.key, name) for name in argument]
        parts += [(name, shape.value, part) for name, part in argument.items()]
    elif shape.type_name == "list":
        parts = [(str(position), shape.member, part) for position, part in enumerate(argument)]
    for name, part_shape, part in parts:
        yield from violations(part_shape, part, parameters, (*path, name))


def value_of(argument: Any, parameters: Mapping[str, Any]) -> Value:
    """Return what an argument is in an execution with these parameters, as far as it is known."""
    kind, content = "", argument
    if isinstance(argument, dict) and len(argument) == 1:
        ((kind, content),) = argument.items()
    if kind == "Get" and content.startswith("Parameters."):
        name = content.removeprefix("Parameters.")
        return Value(parameters[name], parameter=name)
    if kind == "Std:Join":
        parts = [value_of(part, parameters) for part in content["Values"]]
        return Value(
            content["On"].join(str(part.content) for part in parts),
            complete=all(part.complete for part in parts),
            parameter=next((part.parameter for part in parts if part.parameter), ""),
        )
    return Value("", complete=False) if kind == "Get" or kind.startswith("Std:") else Value(argument)


def _problem(shape: Any, value: Value) -> str:
    """Return why a shape does not allow a value itself; "" if it does."""
    kind, limits, content = shape.type_name, shape.metadata, value.content
    if kind in _UNITS or (kind in _NUMBERS and value.complete):
        size = len(content) if kind in _UNITS else content
        what = f"has {size} {_UNITS[kind]}; the service" if kind in _UNITS else "is refused: the service"
        least, most = limits.get("min"), _DOCUMENTED.get(shape.name, limits.get("max"))
        if most is not None and size > most:
            return f"{what} accepts at most {most}"
        if least is not None and size < least and value.complete:
            return f"{what} requires at least {least}"
    if kind == "string" and value.complete:
        if shape.enum and content not in shape.enum:
            return f"is not a value that botocore knows{did_you_mean(content, shape.enum)}"
        if "pattern" in limits and not _matches(limits["pattern"], content):
            return f"does not match the service's pattern {limits['pattern']}"
    return ""


def _matches(pattern: str, text: str) -> bool:
    for of_java, ours in {r"\p{Print}": "[ -~]", r"\uD800\uDC00-\uDBFF\uDFFF": r"\U00010000-\U0010FFFF"}.items():
        pattern = pattern.replace(of_java, ours)
    if r"\p{" in pattern:  # a class of Unicode, which Python's re lacks
        return SchemaValidator(core_schema.str_schema(pattern=f"^(?:{pattern})$")).isinstance_python(text)
    return re.fullmatch(pattern, text) is not None


def _requests(
    resolved: AwsPlan, definition: str, parameters: Mapping[str, Any]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield step, operation and arguments of everything that is sent, now or by an execution."""
    name, role = resolved.config.name, resolved.aws.role
    create = {"PipelineName": name, "PipelineDefinition": definition, "RoleArn": role, "Tags": resolved.tags}
    location = {"Bucket": resolved.aws.bucket, "ObjectKey": "x"}  # of a long definition
    yield "", "CreatePipeline", {**create, "PipelineDefinitionS3Location": location, **_TOKEN}
    texts = {key: {"Std:Join": {"On": "", "Values": [{"Get": f"Parameters.{key}"}]}} for key in parameters}
    given = [{"Name": key, "Value": text} for key, text in texts.items()]
    yield "", "StartPipelineExecution", {"PipelineName": name, "PipelineParameters": given, **_TOKEN}
    for step in _steps(json.loads(definition)["Steps"]):
        operation, added = _OPERATIONS[step["Type"]]
        yield step["Name"], operation, {**step["Arguments"], **added}


def _steps(steps: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the steps that create something, also those of conditions."""
    for step in steps:
        if step["Type"] in _OPERATIONS:
            yield step
        yield from _steps([*step["Arguments"].get("IfSteps", []), *step["Arguments"].get("ElseSteps", [])])


def key_of(plan: Plan, step: str, path: tuple[str, ...]) -> str:
    """Return the configuration's key of an argument; for an argument that no key sets, its path."""
    step = _MODELS.get(step, step)
    for part, name in reversed([*zip(path, (*path[1:], ""), strict=True)]):
        repeated = next((each.from_hyperparameters for each in plan.steps if each.contract.name == step), {})
        if part == "Environment" and name in repeated:
            return f"hyperparameters.{repeated[name]}"
        if part in _KEYS:
            field = name.lower() if part == "Environment" else name
            return _KEYS[part].format(step=step, name=field).removesuffix(".")
    return ".".join(path)
