"""A configuration for AWS with everything that follows from it, and the pipeline's parameters with their defaults."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

from contracts.fingerprint import Fingerprint
from contracts.steps import CHAMPION, MONITOR, NOT_LOOKED_UP, PYTORCH_TRAINING
from pipeline.config import PipelineConfig
from pipeline.config_aws import Aws, Machine
from pipeline.config_types import Approval
from pipeline.graph import SEVERAL_INSTANCES, upstream
from pipeline.plan import Plan, StepPlan

HYPERPARAMETER_PREFIX = "Hp_"
INPUT_PREFIX = "Input_"
INSTANCE_TYPE = "InstanceType"  # end of the name of a parameter
INSTANCE_COUNT = "InstanceCount"  # likewise
THRESHOLD = "Threshold"
APPROVAL = "ApprovalStatus"
CHECKPOINT_KEY = "CheckpointKey"
CAPTURES = "capture"  # the folder of the requests that the endpoint captures


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


def keyed_inputs(step: StepPlan) -> list[str]:
    """Return the outside inputs whose data may change below the same URI; that of a registered model does not."""
    return [name for name in step.outside if name != CHAMPION]


@dataclass(frozen=True)
class AwsPlan:
    """A configuration for AWS, checked as a whole."""

    config: PipelineConfig
    aws: Aws
    plan: Plan

    @property
    def home(self) -> str:
        """The S3 folder of everything that this pipeline writes."""
        return f"s3://{self.aws.bucket}/{self.aws.prefix}/{self.config.name}"

    @property
    def tags(self) -> list[dict[str, str]]:
        """The tags of the pipeline and of everything that it creates."""
        return [{"Key": key, "Value": value} for key, value in sorted(self.aws.tags.items())]

    @property
    def vpc(self) -> dict[str, list[str]]:
        """The VPC of jobs and models, as an argument of requests; empty: none."""
        aws = self.aws
        return {"Subnets": [*aws.subnets], "SecurityGroupIds": [*aws.security_groups]} if aws.subnets else {}

    def machine(self, step: str) -> Machine:
        """Return the configured or default machine of a step."""
        return self.aws.steps.get(step, Machine())

    @cached_property
    def specs(self) -> dict[str, ParameterSpec]:
        """Every parameter by name, in a fixed order."""
        return _specs(self)

    def checkpoint_key(self, overrides: Mapping[str, object]) -> str:
        """Return the part of the name of a training's checkpoint folder that is a digest of its settings and image.

        The folder is part of the step cache's key, so it must not change with each execution. A training refuses the
        checkpoints of another training, so the folder must change with settings, image and data, whose keys follow.

        Args:
            overrides: parameters given to an execution.
        """
        trained_from = [self.plan.step(contract) for contract in upstream(PYTORCH_TRAINING)]
        inputs = [name for step in trained_from for name in step.outside]
        search = self.config.tuning if self.plan.tuner else None
        parts = {
            "image": self.aws.image,
            "hyperparameters": dict(self.plan.hyperparameters),
            **({"tuning": search.model_dump(mode="json")} if search is not None else {}),
            "steps": {step.contract.name: [dict(step.environment), dict(step.outside)] for step in trained_from},
            "instances": {  # each writes files of its own, so their number decides the order of the rows
                name: str(overrides.get(instance_count_parameter(name), self.machine(name).instance_count))
                for name in (step.contract.name for step in trained_from if step.contract.kind == "processing")
            },
            "overrides": {
                # Other parameters, such as instance types, change no training: a job can resume with new values.
                name: str(value)
                for name, value in sorted(overrides.items())
                if name.startswith(HYPERPARAMETER_PREFIX) or name.removeprefix(INPUT_PREFIX) in inputs
            },
        }
        return Fingerprint.of(parts).digest(16)


def _specs(resolved: AwsPlan) -> dict[str, ParameterSpec]:
    aws, plan = resolved.aws, resolved.plan
    specs: dict[str, ParameterSpec] = {}

    def add(name: str, default: str | float, about: str, *, key: str = "", choices: tuple[str, ...] = ()) -> None:
        specs[name] = ParameterSpec(name, type(default), default, about, key, choices)

    for step in plan.steps:
        if step.contract.kind == "registration":
            continue
        name, machine = step.contract.name, resolved.machine(step.contract.name)
        section = f"aws.steps.{name}"
        if not (name == PYTORCH_TRAINING.name and aws.training.instance_groups):
            about = f"Instance type of {name}."
            add(instance_type_parameter(name), machine.instance_type, about, key=f"{section}.instance_type")
            if name in SEVERAL_INSTANCES and step.contract.kind != "transform":
                about = f"Instances of {name}."
                add(instance_count_parameter(name), machine.instance_count, about, key=f"{section}.instance_count")
        for logical, uri in step.outside.items():
            about = f"S3 URI: {step.contract.input(logical).about}"
            add(f"{INPUT_PREFIX}{logical}", uri, about, key=f"aws.inputs.{logical}")
        # The step cache compares only the URIs of inputs. Monitoring and a transform are not cached.
        if keyed_inputs(step) and step.contract is not MONITOR and step.contract.kind != "transform":
            about = f"Digest of the data under the inputs of {name}, which `start` computes."
            add(data_key_parameter(name), NOT_LOOKED_UP, about)
    if not plan.watches:
        _add_of_training(resolved, add)
    return specs


def _add_of_training(resolved: AwsPlan, add: Callable[..., None]) -> None:
    """Add the parameters of the condition, the registration and the training."""
    config, plan = resolved.config, resolved.plan
    condition = config.condition
    about = f"{condition.metric} must be {condition.word} this."
    add(THRESHOLD, float(condition.threshold), about, key="condition")
    if not config.deploys_itself:  # an execution deploys approved packages only
        about = "Approval status of a new package."
        add(APPROVAL, config.registration.approval, about, key="registration.approval", choices=get_args(Approval))
    about = "Folder of the checkpoints, one for each training, so that a job resumes only from its own checkpoints."
    add(CHECKPOINT_KEY, resolved.checkpoint_key({}), about)
    for name, value in plan.step(PYTORCH_TRAINING).sent(plan.hyperparameters).items():
        if value and name not in plan.from_sections:
            add(f"{HYPERPARAMETER_PREFIX}{name}", value, f"Hyperparameter {name}.", key=f"hyperparameters.{name}")


def sdk_parameters(specs: Mapping[str, ParameterSpec]) -> dict[str, Any]:
    """Return the parameters as objects of the SDK."""
    from sagemaker.core.workflow.parameters import ParameterFloat, ParameterInteger, ParameterString

    kinds: dict[type, Any] = {str: ParameterString, int: ParameterInteger, float: ParameterFloat}
    parameters: dict[str, Any] = {}
    for spec in specs.values():
        choices = {"enum_values": list(spec.choices)} if spec.choices else {}
        parameters[spec.name] = kinds[spec.kind](name=spec.name, default_value=spec.default, **choices)
    return parameters
