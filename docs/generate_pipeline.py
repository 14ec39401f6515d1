"""Write the graph of the steps and the configuration reference into docs/pipeline.md; `--check` only compares."""

import sys
from pathlib import Path
from typing import Any, get_args

from generated_parts import update_page
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from contracts.declaration import describe_limits
from contracts.steps import BATCH_SCORE, MODEL_METRICS
from pipeline.config import BatchScore, Condition, Mlflow, PipelineConfig, Registration
from pipeline.config_aws import (
    Asynchronous,
    Autoscaling,
    Aws,
    Channel,
    Deploy,
    InstanceGroup,
    Machine,
    RealTime,
    Retries,
    Serverless,
    Spot,
    Training,
)
from pipeline.graph import AFTER_CONDITION, CONDITION, EDGES, FAIL, ORDER, outside_inputs
from pipeline.search import Search, WarmStart

TARGET = Path(__file__).with_name("pipeline.md")
SECTIONS: dict[str, type[BaseModel]] = {
    "": PipelineConfig,
    "tuning": Search,
    "tuning.warm_start": WarmStart,
    "condition": Condition,
    "registration": Registration,
    "batch_score": BatchScore,
    "mlflow": Mlflow,
    "aws": Aws,
    "aws.steps.STEP": Machine,
    "aws.training": Training,
    "aws.training.channels.CHANNEL": Channel,
    "aws.training.instance_groups.GROUP": InstanceGroup,
    "aws.spot": Spot,
    "aws.deploy": Deploy,
    "aws.deploy.real_time": RealTime,
    "aws.deploy.real_time.autoscaling": Autoscaling,
    "aws.deploy.serverless": Serverless,
    "aws.deploy.asynchronous": Asynchronous,
    "aws.retries": Retries,
}


def picture() -> str:
    """Return the steps and the outputs that they pass on, as a Mermaid graph."""
    lines = ["```mermaid", "flowchart TD"]
    lines += [f"  {step.name}[{step.name}]" for step in ORDER]
    lines += [f"  {CONDITION}{{{CONDITION}}}", f"  {FAIL}([{FAIL}])"]
    carried: dict[tuple[str, str], list[str]] = {}
    for (step, _), origin in EDGES.items():
        outputs = carried.setdefault((origin.step.name, step), [])
        if origin.output not in outputs:
            outputs.append(origin.output)
    lines += [f"  {writer} -->|{', '.join(outputs)}| {reader}" for (writer, reader), outputs in carried.items()]
    lines.append(f"  {MODEL_METRICS.name} -->|the metric| {CONDITION}")
    lines.append(f"  {CONDITION} -->|holds| {AFTER_CONDITION[0].name}")
    lines.append(f"  {CONDITION} -->|does not hold| {FAIL}")
    for name, (step, folder) in outside_inputs().items():
        assert not folder.required or step is BATCH_SCORE, "required inputs of steps that always run need solid lines"
        lines.append(f"  {name}[/{name}/] -.-> {step.name}")
    return "\n".join([*lines, "```"])


def reference() -> str:
    """Return a table for each section of the configuration."""
    return "\n\n".join(_section(path, model) for path, model in SECTIONS.items())


def _section(path: str, model: type[BaseModel]) -> str:
    title = f"**{path}**" if path else "**The file**"
    rows = [_row(name, field) for name, field in model.model_fields.items()]
    return "\n".join([f"{title}: {_about(model)}", "", "| key | default | |", "| --- | --- | --- |", *rows])


def _about(model: type[BaseModel]) -> str:
    assert model.__doc__
    return " ".join(model.__doc__.split())


def _row(name: str, field: FieldInfo) -> str:
    about = (field.description or "").replace("|", "\\|") + describe_limits(field)
    choices = _choices(field.annotation)
    return f"| {name} | {_default(field)} | {', '.join(choices) + '. ' if choices else ''}{about} |"


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel):
        return "see below"
    if value in (None, (), {}, ""):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{', '.join(value)}`" if isinstance(value, tuple) else f"`{value}`"


def _choices(annotation: Any) -> tuple[str, ...]:
    return tuple(each for each in get_args(annotation) if isinstance(each, str))


if __name__ == "__main__":
    sys.exit(update_page(TARGET, {"picture": picture(), "configuration": reference()}))
