"""Create or update the pipeline on AWS, and start it."""

import hashlib
import json
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pydantic import TypeAdapter, ValidationError

from contracts.errors import ContractError, shown
from contracts.json_text import parse_json
from contracts.spelling import did_you_mean
from contracts.steps import (
    ARCHIVED_MODEL,
    CHAMPION,
    DATA_LOADING,
    NO_CHAMPION,
    NOT_LOOKED_UP,
    PYTORCH_TRAINING,
    DataLoadingSettings,
)
from pipeline.aws.definition import checked_definition
from pipeline.aws.feasibility import check_account, check_bucket
from pipeline.aws.inputs import input_data
from pipeline.aws.jobs import has_volume, upload_settings, write_object
from pipeline.aws.operator import look_up
from pipeline.aws.parameters import (
    CHECKPOINT_KEY,
    HYPERPARAMETER_PREFIX,
    INPUT_PREFIX,
    INSTANCE_COUNT,
    INSTANCE_TYPE,
    THRESHOLD,
    AwsPlan,
    ParameterSpec,
    data_key_parameter,
    instance_count_parameter,
    keyed_inputs,
)
from pipeline.aws.permissions import Account
from pipeline.aws.resolve import aws_plan, marker_folder, monitor_plan, monitored_inputs
from pipeline.aws.session import aws_session
from pipeline.aws.triggers import archive, archive_uri
from pipeline.aws.versions import packages
from pipeline.checks import check_encoders_without_network
from pipeline.config import PipelineConfig
from pipeline.config_aws import Machine
from pipeline.config_types import S3Folder
from pipeline.estimate import print_estimate
from pipeline.plan import make_plan

_WRITTEN = "Written by python -m pipeline upsert"  # begins the description of a pipeline
CHAMPION_INPUT = f"{INPUT_PREFIX}{CHAMPION}"
_LONGEST_REQUEST = 100 << 10  # bytes of a definition; a longer one is sent as an object, as the SDK does


def upsert(config: PipelineConfig, *, replace: bool = False) -> str:
    """Create or update the pipeline, and return its ARN.

    Args:
        replace: whether it may replace a pipeline of this name that `upsert` did not write.

    Raises:
        ContractError: the configuration cannot run, or the pipeline of this name is another one.
    """
    resolved = aws_plan(config)
    plans = [resolved] if config.monitor is None else [resolved, monitor_plan(config)]
    definitions = [checked_definition(plan) for plan in plans]  # nothing is sent before this check
    aws, session = resolved.aws, aws_session(resolved.aws.region)
    sagemaker, s3 = session.client("sagemaker"), session.client("s3")
    for plan in plans:
        if (deployed := deployed_pipeline(plan, sagemaker)) is not None and not replace:
            _require_ours(plan.config, deployed, "Choose another name, or add --replace to replace that pipeline.")
    check_account(resolved, session.client("sts"))
    if not check_bucket("aws.bucket", aws.bucket, aws.region, s3):
        raise ContractError(f"aws.bucket: {aws.bucket} does not exist", "Create it in aws.region, or correct the name.")
    for name, uri in aws.inputs.items():
        check_bucket(f"aws.inputs.{name}", uri, aws.region, s3)
    if aws.deploy and aws.deploy.asynchronous and (answers := aws.deploy.asynchronous.output):
        check_bucket("aws.deploy.asynchronous.output", answers, aws.region, s3)
    check_estimate(resolved)
    if aws.experiments and (why := _why_no_experiments(resolved, session.client("iam"))):
        print(f"Executions are not recorded in SageMaker Experiments: {why}.", file=sys.stderr)
        definitions = [_without_experiments(text) for text in definitions]
    arns = [_write(plan, definition, sagemaker, s3) for plan, definition in zip(plans, definitions)]
    if aws.triggers is not None:
        write_object(aws, s3, uri=archive_uri(resolved), content=archive(resolved))
    return "\n".join(arns)


def _why_no_experiments(resolved: AwsPlan, iam: Any) -> str:
    """Return why executions cannot create experiments: the role must not, or it is not known; "" if they can."""
    role, action = resolved.aws.role, "sagemaker:CreateExperiment"
    experiment = Account(resolved, None).named("experiment", resolved.config.name)[0]
    request = {"PolicySourceArn": role, "ActionNames": [action], "ResourceArns": [experiment]}
    try:
        (answer,) = iam.simulate_principal_policy(**request)["EvaluationResults"]
    except iam.exceptions.ClientError as error:
        return f"the permissions of {role} are not known ({error.response['Error']['Code']})"
    return "" if answer["EvalDecision"] == "allowed" else f"{role} lacks {action}"


def _without_experiments(definition: str) -> str:
    return json.dumps({**json.loads(definition), "PipelineExperimentConfig": None})


def _write(resolved: AwsPlan, definition: str, sagemaker: Any, s3: Any) -> str:
    upload_settings(resolved, s3)
    for name in (NO_CHAMPION, NOT_LOOKED_UP) if CHAMPION_INPUT in resolved.specs else ():
        write_object(resolved.aws, s3, uri=f"{marker_folder(resolved, name)}{name}", content=b"\n")
    request = {
        "PipelineName": resolved.config.name,
        "RoleArn": resolved.aws.role,
        "PipelineDescription": _described(resolved.config),
        **_definition_argument(resolved, definition, s3),
    }
    tags = {"Tags": resolved.tags} if resolved.aws.tags else {}
    if deployed_pipeline(resolved, sagemaker) is None:
        return sagemaker.create_pipeline(**request, **tags)["PipelineArn"]
    arn = sagemaker.update_pipeline(**request)["PipelineArn"]
    if tags:
        sagemaker.add_tags(ResourceArn=arn, **tags)
    return arn


def check_estimate(resolved: AwsPlan) -> None:
    """Print the estimate of the training; raise ContractError if it takes longer than its limit."""
    aws, name = resolved.aws, PYTORCH_TRAINING.name
    generated = DataLoadingSettings.from_environment(resolved.plan.step(DATA_LOADING).environment).generate_rows
    hours = print_estimate(aws, resolved.plan, rows=aws.training.rows or generated or None)
    limit = resolved.machine(name).max_runtime_seconds
    if hours is not None and hours * 3600 > limit:
        assumed = (
            "" if aws.training.rows or generated else "; if your table has fewer than 100,000, set aws.training.rows"
        )
        raise ContractError(
            f"aws.steps.{name}.max_runtime_seconds: is {limit}, but the training takes about {hours * 3600:,.0f} s, "
            "after which SageMaker would have stopped it",
            f"Increase it, or use faster instances{assumed}.",
        )


def _definition_argument(resolved: AwsPlan, definition: str, s3: Any) -> dict[str, Any]:
    """Return the argument with the definition; upload a long one, and return its location."""
    content = definition.encode()
    if len(content) < _LONGEST_REQUEST:
        return {"PipelineDefinition": definition}
    uri = f"{resolved.home}/definitions/{hashlib.sha256(content).hexdigest()[:16]}.json"
    bucket, key = write_object(resolved.aws, s3, uri=uri, content=content)
    return {"PipelineDefinitionS3Location": {"Bucket": bucket, "ObjectKey": key}}


def start(config: PipelineConfig, overrides: Mapping[str, str]) -> str:
    """Start an execution of the pipeline on AWS, and return its ARN.

    Args:
        overrides: values of parameters, as text.

    Raises:
        ContractError: an unknown parameter, an invalid value, an input without objects, or the pipeline does not exist.
    """
    resolved = aws_plan(config)
    aws, plan, specs = resolved.aws, resolved.plan, resolved.specs
    values = parse_overrides(resolved, overrides)
    if values:
        checked_definition(resolved, values)
        _check_storage(resolved, values)
    session = aws_session(aws.region)
    client, s3 = session.client("sagemaker"), session.client("s3")
    _require_upserted(resolved, client)
    if CHAMPION_INPUT in specs and CHAMPION_INPUT not in values:
        values[CHAMPION_INPUT] = champion(config, client) or marker_folder(resolved, NO_CHAMPION)
    data = input_data(aws, values, s3)
    for step in plan.steps:
        if (parameter := data_key_parameter(step.contract.name)) in specs:
            tags = sorted(each for name in keyed_inputs(step) for each in data[name])
            values.setdefault(parameter, hashlib.sha256("\n".join(tags).encode()).hexdigest()[:16])
    changed = {name: value for name, value in values.items() if _read(value) != _read(specs[name].default)}
    values.setdefault(CHECKPOINT_KEY, resolved.checkpoint_key(changed))
    response = client.start_pipeline_execution(
        PipelineName=config.name,
        PipelineParameters=[{"Name": name, "Value": str(value)} for name, value in sorted(values.items())],
    )
    return response["PipelineExecutionArn"]


def _read(value: str | float) -> Any:
    """Return the value of a parameter, as which 2e-3 and 0.002 are equal."""
    with suppress(ValueError):
        return parse_json(str(value))
    return value


def _described(config: PipelineConfig) -> str:
    """Return the description of the pipeline: a digest of the configuration, by which `start` notices an edit."""
    settings = config.model_dump(mode="json", exclude_defaults=True, exclude={"inputs", "hyperparameters_file"})
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    return f"{_WRITTEN} from the configuration with the digest {digest}."


def _require_upserted(resolved: AwsPlan, client: Any) -> None:
    """Raise ContractError unless the pipeline exists and `upsert` wrote it from this configuration.

    After an edit without `upsert`, the execution would have the earlier steps, and the later values that `start` sends.
    """
    config, specs = resolved.config, resolved.specs
    deployed = deployed_pipeline(resolved, client)
    if deployed is None:
        raise ContractError(
            f"pipeline {config.name!r}: does not exist in {resolved.aws.region}", "Create it: python -m pipeline upsert"
        )
    if deployed.get("PipelineDescription") == _described(config):
        return
    _require_ours(
        config, deployed, "Choose another name, or replace that pipeline: python -m pipeline upsert --replace"
    )
    parameters = json.loads(deployed["PipelineDefinition"])["Parameters"]
    found = {each["Name"]: each.get("DefaultValue") for each in parameters if each["Name"] != CHECKPOINT_KEY}
    changed = sorted(name for name in found if name in specs and specs[name].default != found[name])
    example = f": {changed[0]} is {shown(found[changed[0]])}, now {shown(specs[changed[0]].default)}" if changed else ""
    raise ContractError(
        f"pipeline {config.name!r}: was written from another configuration{example}",
        "Update it: python -m pipeline upsert",
    )


def deployed_pipeline(resolved: AwsPlan, client: Any) -> dict[str, Any] | None:
    """Return the description of the pipeline on AWS; None where there is none."""
    return look_up(client, "describe_pipeline", PipelineName=resolved.config.name)


def _require_ours(config: PipelineConfig, deployed: Mapping[str, Any], fix: str) -> None:
    if not deployed.get("PipelineDescription", "").startswith(_WRITTEN):
        raise ContractError(f"pipeline {config.name!r}: was not written by python -m pipeline upsert", fix)


def parse_overrides(resolved: AwsPlan, overrides: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of parameters, parsed and checked like the configuration's values."""
    config, aws, specs = resolved.config, resolved.aws, resolved.specs
    values: dict[str, Any] = {}
    for name, text in overrides.items():
        spec = specs.get(name)
        if spec is None:
            raise ContractError(
                f"parameter {name}: unknown{did_you_mean(name, specs)}", f"Use one of: {', '.join(specs)}."
            )
        try:
            values[name] = spec.kind(text if spec.kind is str else text.replace("_", "no digit"))  # int("2_0") is 20
        except ValueError:
            raise ContractError(f"parameter {name}: {text!r} is not of type {spec.kind.__name__}", spec.about) from None
        if spec.choices and text not in spec.choices:
            raise ContractError(f"parameter {name}: {text!r} is invalid", f"Use one of: {', '.join(spec.choices)}.")
        try:
            _check_value(config, spec, values[name])
        except ValueError as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            raise ContractError(f"parameter {name}: {shown(text)} is invalid: {reason}", spec.about) from None
    hyperparameters = {
        name.removeprefix(HYPERPARAMETER_PREFIX): value
        for name, value in values.items()
        if name.startswith(HYPERPARAMETER_PREFIX)
    }
    hosts = values.get(instance_count_parameter(PYTORCH_TRAINING.name), aws.training_hosts)
    changed = config.model_copy(update={"hyperparameters": {**config.hyperparameters, **hyperparameters}})
    plan = make_plan(changed, {**aws.inputs, **monitored_inputs(config)}, section="aws.inputs", hosts=hosts)
    if aws.network_isolation:
        check_encoders_without_network(plan.encoders, aws.inputs)
    return values


def _check_value(config: PipelineConfig, spec: ParameterSpec, value: Any) -> None:
    """Raise ValueError for a value that the parameter cannot have."""
    if spec.name.startswith(INPUT_PREFIX):
        TypeAdapter(S3Folder).validate_python(value)
    if spec.name.endswith(INSTANCE_COUNT):
        Machine(instance_count=value)
    if spec.name == THRESHOLD:
        config.condition.check_limit(value)
    if not spec.key and spec.kind is str and not re.fullmatch("[A-Za-z0-9-]+", value):
        raise ValueError("it may contain only letters, digits and hyphens")


def _check_storage(resolved: AwsPlan, values: Mapping[str, Any]) -> None:
    """Raise ContractError for an instance type whose storage differs from the default's.

    The definition has a KMS key of volumes or not; SageMaker refuses one with local storage.
    """
    for name, chosen in values.items():
        default = resolved.specs[name].default
        if name.endswith(INSTANCE_TYPE) and resolved.aws.kms_key and has_volume(chosen) != has_volume(str(default)):
            with_storage, without = (default, chosen) if has_volume(chosen) else (chosen, default)
            raise ContractError(
                f"parameter {name}: {chosen} cannot replace {default}: {with_storage} has local storage, with which "
                f"SageMaker refuses aws.kms_key, and {without} has a volume",
                "Change the instance type in the configuration, and run upsert.",
            )


def champion(config: PipelineConfig, sagemaker: Any) -> str | None:
    """Return the S3 folder of the package of the model to beat; print a line and return None where there is none."""
    only = {"ModelApprovalStatus": "Approved"} if config.condition.beat == "approved" else {}
    for arn, package in packages(sagemaker, config.group, only):
        uri = package["InferenceSpecification"]["Containers"][0]["ModelDataUrl"]
        print(f"To beat: {arn}, which scores the same records.", file=sys.stderr)
        return uri.removesuffix(ARCHIVED_MODEL)
    print(f"No {config.condition.beat} model to beat in {config.group}: the threshold alone decides.", file=sys.stderr)
    return None
