"""The pipeline's parameters. Each execution may set them; the configuration has their defaults."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from contracts.steps import PYTORCH_TRAINING
from pipeline.condition import unreachable
from pipeline.config import PipelineConfig
from pipeline.config_aws import Machine
from pipeline.config_types import Approval
from pipeline.graph import SEVERAL_INSTANCES
from pipeline.plan import Plan

HYPERPARAMETER_PREFIX = "Hp_"
INPUT_PREFIX = "Input_"
INSTANCE_TYPE = "InstanceType"  # end of the name of a parameter
INSTANCE_COUNT = "InstanceCount"  # likewise
THRESHOLD = "Threshold"
TO_BEAT = "ToBeat"
APPROVAL = "ApprovalStatus"
CHECKPOINT_KEY = "CheckpointKey"


@dataclass(frozen=True)
class ParameterSpec:
    """A pipeline parameter, without the SDK.

    Attributes:
        kind: str, int or float.
        about: one line, for error messages.
        key: the configuration's key of the default; empty: computed.
        choices: allowed values; empty: any.
    """

    name: str
    kind: type
    default: str | int | float
    about: str
    key: str = ""
    choices: tuple[str, ...] = ()


def instance_type_parameter(step: str) -> str:
    """Return the name of the parameter with a step's instance type."""
    return f"{step}{INSTANCE_TYPE}"


def instance_count_parameter(step: str) -> str:
    """Return the name of the parameter with a step's number of instances."""
    return f"{step}{INSTANCE_COUNT}"


def data_key_parameter(step: str) -> str:
    """Return the name of the parameter with the digest of the data that a step reads from outside the pipeline."""
    return f"{step}DataKey"


def parameter_specs(config: PipelineConfig, plan: Plan, *, checkpoint_key: str) -> dict[str, ParameterSpec]:
    """Return every parameter by name, in a fixed order."""
    assert config.aws is not None
    specs: dict[str, ParameterSpec] = {}

    def add(name: str, default: str | float, about: str, *, key: str = "", choices: tuple[str, ...] = ()) -> None:
        specs[name] = ParameterSpec(name, type(default), default, about, key, choices)

    for step in plan.steps:
        if step.contract.kind == "registration":
            continue
        name, machine = step.contract.name, machine_of(config, step.contract.name)
        section = f"aws.steps.{name}"
        if not (name == PYTORCH_TRAINING.name and config.aws.training.instance_groups):
            about = f"Instance type of {name}."
            add(instance_type_parameter(name), machine.instance_type, about, key=f"{section}.instance_type")
            if name in SEVERAL_INSTANCES and step.contract.kind != "transform":
                about = f"Instances of {name}."
                add(instance_count_parameter(name), machine.instance_count, about, key=f"{section}.instance_count")
        for logical, uri in step.outside.items():
            about = f"S3 URI: {step.contract.input(logical).about}"
            add(f"{INPUT_PREFIX}{logical}", uri, about, key=f"aws.inputs.{logical}")
        # The step cache compares only the URIs of inputs. A training has its checkpoint folder for the same purpose.
        if step.outside and (step.contract.kind == "processing" or (plan.tuner and step.contract.kind == "training")):
            about = f"Digest of the data under the inputs of {name}, which `start` computes."
            add(data_key_parameter(name), "not-looked-up", about)
    condition = config.condition
    about = f"{condition.metric} must be {condition.word} this."
    add(THRESHOLD, float(condition.threshold), about, key="condition")
    if condition.beat != "nothing":
        about = f"And {condition.word} this: the {condition.beat} registered model's, which `start` looks up."
        add(TO_BEAT, unreachable(condition), about)  # an execution that does not set it registers nothing
    if config.aws.deploy is None:  # an execution deploys approved packages only
        about = "Approval status of a new package."
        add(APPROVAL, config.registration.approval, about, key="registration.approval", choices=get_args(Approval))
    about = "Folder of the checkpoints, one for each training, so that a job resumes only from its own checkpoints."
    add(CHECKPOINT_KEY, checkpoint_key, about)
    for name, value in plan.step(PYTORCH_TRAINING).sent(plan.hyperparameters).items():
        if value and name not in plan.from_sections:
            add(f"{HYPERPARAMETER_PREFIX}{name}", value, f"Hyperparameter {name}.", key=f"hyperparameters.{name}")
    return specs


def machine_of(config: PipelineConfig, step: str) -> Machine:
    """Return the configured or default machine of a step."""
    assert config.aws is not None
    return config.aws.steps.get(step, Machine())


def sdk_parameters(specs: Mapping[str, ParameterSpec]) -> dict[str, Any]:
    """Return the parameters as objects of the SDK."""
    from sagemaker.core.workflow.parameters import ParameterFloat, ParameterInteger, ParameterString

    kinds: dict[type, Any] = {str: ParameterString, int: ParameterInteger, float: ParameterFloat}
    parameters: dict[str, Any] = {}
    for spec in specs.values():
        choices = {"enum_values": list(spec.choices)} if spec.choices else {}
        parameters[spec.name] = kinds[spec.kind](name=spec.name, default_value=spec.default, **choices)
    return parameters
