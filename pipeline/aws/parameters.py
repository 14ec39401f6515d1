"""The pipeline's parameters, which each execution may set; the configuration gives their defaults."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.config import Machine, PipelineConfig
from pipeline.graph import SEVERAL_INSTANCES
from pipeline.plan import Plan

LONGEST_PARAMETER = 1024  # characters of a parameter's value; the service's limit
HYPERPARAMETER_PREFIX = "Hp_"
INPUT_PREFIX = "Input_"
THRESHOLD = "Threshold"
TO_BEAT = "ToBeat"
APPROVAL = "ApprovalStatus"
CHECKPOINT_KEY = "CheckpointKey"
DATA_KEY = "DataKey"


@dataclass(frozen=True)
class ParameterSpec:
    """A pipeline parameter, without the SDK.

    Attributes:
        kind: str, int or float.
        about: one line.
        choices: the values that it may have; empty: any.
    """

    name: str
    kind: type
    default: str | int | float
    about: str
    choices: tuple[str, ...] = ()


def instance_type_parameter(step: str) -> str:
    """Return the name of the parameter with a step's instance type."""
    return f"{step}InstanceType"


def instance_count_parameter(step: str) -> str:
    """Return the name of the parameter with a step's number of instances."""
    return f"{step}InstanceCount"


def parameter_specs(config: PipelineConfig, plan: Plan, *, checkpoint_key: str) -> dict[str, ParameterSpec]:
    """Return every parameter by name, in a fixed order."""
    assert config.aws is not None
    specs: list[ParameterSpec] = []
    for step in plan.steps:
        if step.contract.kind == "registration":
            continue
        name, machine = step.contract.name, machine_of(config, step.contract.name)
        specs.append(
            ParameterSpec(instance_type_parameter(name), str, machine.instance_type, f"Instance type of {name}.")
        )
        if name in SEVERAL_INSTANCES:
            specs.append(
                ParameterSpec(instance_count_parameter(name), int, machine.instance_count, f"Instances of {name}.")
            )
        specs.extend(
            ParameterSpec(f"{INPUT_PREFIX}{logical}", str, place, f"S3 URI: {step.contract.input(logical).about}")
            for logical, place in step.outside.items()
        )
    better = "at least" if config.condition.higher_is_better else "at most"
    specs.append(
        ParameterSpec(THRESHOLD, float, config.condition.threshold, f"{config.condition.metric} must be {better} this.")
    )
    if config.condition.beat != "nothing":
        about = f"And {better} this: the {config.condition.beat} registered model's, which `start` looks up."
        specs.append(ParameterSpec(TO_BEAT, float, config.condition.threshold, about))
    statuses = ("PendingManualApproval", "Approved", "Rejected")
    specs.append(
        ParameterSpec(APPROVAL, str, config.registration.approval, "Approval status of a new package.", statuses)
    )
    about = "Folder of the checkpoints: one for each training, so that a job finds its own and no other's."
    specs.append(ParameterSpec(CHECKPOINT_KEY, str, checkpoint_key, about))
    about = "What lies under the inputs from outside, which `start` looks up: other data is no hit of the step cache."
    specs.append(ParameterSpec(DATA_KEY, str, "not-looked-up", about))
    specs.extend(
        ParameterSpec(f"{HYPERPARAMETER_PREFIX}{name}", str, value, f"Hyperparameter {name}.")
        for name, value in plan.hyperparameters.items()
        if 0 < len(value) <= LONGEST_PARAMETER
    )
    return {spec.name: spec for spec in specs}


def machine_of(config: PipelineConfig, step: str) -> Machine:
    """Return the configured or default machine of a step."""
    assert config.aws is not None
    return config.aws.steps.get(step, Machine())


def sdk_parameters(specs: Mapping[str, ParameterSpec]) -> dict[str, Any]:
    """Return the parameters as objects of the SDK."""
    from sagemaker.core.workflow.parameters import ParameterFloat, ParameterInteger, ParameterString

    kinds: dict[type, Any] = {str: ParameterString, int: ParameterInteger, float: ParameterFloat}
    made: dict[str, Any] = {}
    for spec in specs.values():
        choices = {"enum_values": list(spec.choices)} if spec.choices else {}
        made[spec.name] = kinds[spec.kind](name=spec.name, default_value=spec.default, **choices)
    return made
