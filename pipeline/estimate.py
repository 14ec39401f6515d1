"""Print what the training of a pipeline needs and costs on its instances, by `python -m container plan`."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from contracts.steps import PYTORCH_TRAINING
from pipeline.config_aws import Aws, Machine
from pipeline.plan import Plan

_CATALOGUE = Path(__file__).parents[1] / "container" / "planning" / "catalogue.json"
_ROWS = 100_000  # if the configuration does not say the table's
_TOKENS = 512
_TIMEOUT = 300.0  # seconds


def print_estimate(aws: Aws, plan: Plan, *, rows: int | None = None) -> float | None:
    """Print memory, time and cost of the training on stderr, and return its hours.

    None: plan gives no time for its instance type, or the estimate fails, which must not stop a pipeline.
    """
    rows = rows or _ROWS
    instance, settings = training_instance(aws), plan.hyperparameters
    if instance not in json.loads(_CATALOGUE.read_text("utf-8"))["instances"]:
        return None
    tokens = int(float(settings.get("max_sen_len", _TOKENS)))
    with tempfile.TemporaryDirectory(prefix="estimate-") as folder:
        Path(folder, "given.json").write_text(json.dumps(dict(settings)), encoding="utf-8")
        options = {"root": folder, "hyperparameters": Path(folder, "given.json"), "rows": rows, "tokens": tokens}
        options |= {"instance": instance, "hosts": aws.training_hosts}
        command = [sys.executable, "-m", "container", "plan", *(f"--{name}={value}" for name, value in options.items())]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
            answer = json.loads(Path(folder, "plan.json").read_text("utf-8")) if ended.returncode == 0 else None
        except (subprocess.TimeoutExpired, OSError, ValueError):
            answer = None
    if answer is None:
        return None
    print(described(answer, instance=instance, tokens=tokens, rows=rows), file=sys.stderr, flush=True)
    return answer["recommended"] and answer["recommended"]["hours"]


def hourly_price(instance_type: str) -> float | None:
    """Return dollars per hour on demand, of the catalogue of `plan`; None where it lacks the type."""
    instance = json.loads(_CATALOGUE.read_text("utf-8"))["instances"].get(instance_type)
    return instance and instance["ec2_dollars"] * instance["markup"]


def training_instance(aws: Aws) -> str:
    """Return the type of the instances that train."""
    group = aws.training.training_group
    machines = aws.training.instance_groups if group else aws.steps
    machine = machines.get(group or PYTORCH_TRAINING.name, Machine())
    return machine.instance_type


def described(found: dict[str, Any], *, instance: str, tokens: int, rows: int = _ROWS) -> str:
    """Return the sentence about a plan.json."""
    taken = found["recommended"]
    if taken is None:
        needed = min((option["memory_gib"]["total"] for option in found["options"]), default=0.0)
        return (
            f"warning: the training will probably not fit on {instance}: a process needs about {needed:.1f} GiB. "
            "`python -m container plan` says what would fit."
        )
    cost, machines = taken["cost"], f"{taken['hosts']} x {instance}"
    if taken["hours"] is None:
        takes = f"fits on {machines}, for ${cost['per_hour']} per hour"
    else:
        takes = f"takes about {taken['hours']:.2f} hours on {machines} and costs ${cost['on_demand']:.2f}"
    return (
        f"estimate: with {rows:,} rows of {tokens} tokens, the training {takes} (prices of {cost['date']}, "
        f"{cost['region']}), with {json.dumps(taken['settings'])}. For your rows: `python -m container plan "
        f"--hyperparameters FILE --rows N --tokens {tokens} --instance {instance} --hosts {taken['hosts']}`"
    )
