"""Write the graph of the steps and the reference of the configuration into docs/; `--check` only compares."""

import sys
from pathlib import Path
from typing import Any, get_args

from generated_parts import item, short_limits, update_page
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from contracts.steps import MODEL_METRICS
from pipeline.aws.permissions import PERMISSIONS
from pipeline.config import BatchScore, Condition, Mlflow, Monitor, PipelineConfig, Registration, Search
from pipeline.config_aws import (
    Asynchronous,
    Aws,
    Deploy,
    InstanceGroup,
    Machine,
    Notifications,
    RealTime,
    Retries,
    Serverless,
    Spot,
    Training,
    Triggers,
)
from pipeline.graph import AFTER_CONDITION, CONDITION, EDGES, FAIL, OPTIONAL, ORDER, outside_inputs

PICTURE = Path(__file__).with_name("pipeline.md")
LONG_FORM = 4  # words of a form that is described once
REFERENCE = Path(__file__).with_name("pipeline_reference.md")
ON_AWS = Path(__file__).with_name("pipeline_aws.md")
SECTIONS: dict[str, type[BaseModel]] = {
    "": PipelineConfig,
    "tuning": Search,
    "condition": Condition,
    "registration": Registration,
    "batch_score": BatchScore,
    "monitor": Monitor,
    "mlflow": Mlflow,
    "aws": Aws,
    "aws.steps.STEP": Machine,
    "aws.training": Training,
    "aws.training.instance_groups.GROUP": InstanceGroup,
    "aws.spot": Spot,
    "aws.deploy": Deploy,
    "aws.deploy.real_time": RealTime,
    "aws.deploy.serverless": Serverless,
    "aws.deploy.asynchronous": Asynchronous,
    "aws.triggers": Triggers,
    "aws.notifications": Notifications,
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
        assert not folder.required or step.name in OPTIONAL, "required inputs of steps that always run need solid lines"
        lines.append(f"  {name}[/{name}/] -.-> {step.name}")
    return "\n".join([*lines, "```"])


def permissions() -> str:
    """Return the table of the permissions."""
    rows: dict[str, dict[str, list[str]]] = {}
    for each in PERMISSIONS:
        who = f"{each.of}, with {each.when}" if each.when else each.of
        on = f"`{each.on}`" if each.on.startswith("BUCKET") else each.on
        service, _, names = each.actions.partition(":")
        key = f"{service}:{{}} on {on}" + (f", to {each.passed_to}" if each.passed_to else "")
        listed = rows.setdefault(who, {}).setdefault(key, [])
        listed += [name for name in names.split() if name not in listed]
    callers: dict[str, list[str]] = {}
    for who, needs in rows.items():
        callers.setdefault("; ".join(form.format(", ".join(names)) for form, names in needs.items()), []).append(who)
    table = [f"| {'; '.join(who)} | {needs} |" for needs, who in callers.items()]
    return "\n".join(["| who | permissions |", "| -- | -- |", *table])


def reference() -> str:
    """Return the keys of each section of the configuration; the form of a text is described at its first key."""
    forms: dict[str, str] = {}
    return "\n\n".join(_section(path, model, forms) for path, model in SECTIONS.items())


def _section(path: str, model: type[BaseModel], forms: dict[str, str]) -> str:
    assert model.__doc__
    about = " ".join(model.__doc__.split())
    rows = [_row(path, name, field, forms) for name, field in model.model_fields.items()]
    return "\n".join([f"### {path or 'The file'}", "", about, "", *rows])


def _row(path: str, name: str, field: FieldInfo, forms: dict[str, str]) -> str:
    choices = _choices(field.annotation)
    limits = short_limits(field)
    key = f"{path}.{name}" if path else name
    first = forms.setdefault(limits, key)
    if first != key and len(limits.split()) > LONG_FORM:
        limits = f" (form of `{first}`)"
    about = (field.description or "") + limits
    return item(name, _default(field), f"{', '.join(choices) + '. ' if choices else ''}{about}")


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
    outdated = update_page(PICTURE, {"picture": picture()}) + update_page(ON_AWS, {"permissions": permissions()})
    sys.exit(update_page(REFERENCE, {"configuration": reference()}) or outdated)
