"""Check a configuration, and derive each step's command line, environment and hyperparameters from it."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from contracts.errors import ContractError, shown
from contracts.hyperparameter_files import ALIASES, DROPPED, GivenSettings, cast_value, choose_settings
from contracts.hyperparameters import Hyperparameters
from contracts.monitored_metric import MonitoredMetric
from contracts.serving import BODIES, CSV, RecordSettings, ServingSettings
from contracts.spelling import did_you_mean
from contracts.step_contract import StepContract, StepSettings
from contracts.steps import (
    BATCH_SCORE,
    MODEL_METRICS,
    MONITOR,
    PAYLOAD,
    REGISTRATION,
    TABULAR_PREPROCESSING,
    TRACKING,
    DataLoadingSettings,
)
from contracts.tuning import Space
from contracts.tuning_space import encoders_of, metric_of, space_of
from contracts.value_types import Json, decimal_comma
from pipeline.checks import check_against_training, feature_columns
from pipeline.config import BatchScore, PipelineConfig
from pipeline.graph import AFTER_CONDITION, CONDITION, OPTIONAL, ORDER, outside_inputs, source

_SECONDS_TO_ANSWER = 5  # the server's timeout ends before the service's, so that the answer gives the cause
_ASYNCHRONOUS_SECONDS = 3_600


def serving_settings(config: PipelineConfig, contract: StepContract) -> dict[str, Json]:
    """Return the settings of the model that a step hosts or registers, without those at their default."""
    deploy = config.aws and config.aws.deploy
    if contract is BATCH_SCORE and config.batch_score is not None:
        batch = config.batch_score
        return {
            "serving_timeout_seconds": batch.timeout_seconds - _SECONDS_TO_ANSWER,
            "serving_csv_header": "absent",  # each line of a file is a record, also one with the columns' names
            **_admitted(batch),
        }
    if contract is REGISTRATION and deploy:
        if deploy.serverless is not None:
            return {"serving_max_bytes": 4 << 20}
        if deploy.asynchronous is not None:
            return {
                "serving_timeout_seconds": _ASYNCHRONOUS_SECONDS - _SECONDS_TO_ANSWER,
                "serving_max_bytes": 1 << 30,
                "serving_max_decoded_bytes": 4 << 30,
            }
    return {}  # the defaults are those of a real-time endpoint


def check_batch_settings(settings: ServingSettings, batch: BatchScore) -> None:
    """Raise ContractError for a setting of the server with which it would refuse what `batch` sends."""
    size, requests = batch.payloads or (0, 0)
    contradictions = {
        "serving_csv_header": settings.serving_csv_header == "present" and batch.content_type == CSV,
        "serving_timeout_seconds": settings.serving_timeout_seconds > batch.timeout_seconds,
        "serving_max_bytes": settings.serving_max_bytes < _admitted(batch).get("serving_max_bytes", 0),
        "serving_concurrency": settings.serving_concurrency < (batch.concurrency or 0),
    }
    of_batch = {
        "serving_csv_header": f"content_type {CSV}, of which no line is a header",
        "serving_timeout_seconds": f"timeout_seconds {batch.timeout_seconds}",
        "serving_max_bytes": f"max_payload_mb {size}, {requests} at a time",
        "serving_concurrency": f"concurrency {batch.concurrency}",
    }
    for name, contradicts in contradictions.items():
        if contradicts:
            place, value = f"settings.{BATCH_SCORE.name}.{name}", getattr(settings, name)
            raise ContractError(
                f"{place}: {value} contradicts batch_score: {of_batch[name]}",
                "Remove it: it follows from batch_score. Or change batch_score.",
            )


def _admitted(batch: BatchScore) -> dict[str, int]:
    """Return the setting with which the server accepts a payload, and all payloads that are sent at a time."""
    if batch.payloads is None:
        return {}  # the server answers GET /execution-parameters with payloads that it accepts
    size, requests = batch.payloads
    # A payload is of lines of the file; a filter writes them again, with more blanks.
    growth = 2 if batch.input_filter else 1
    return {"serving_max_bytes": growth * max(size, math.ceil(size * requests / BODIES)) << 20}


# What a job's environment or hyperparameters can contain; the rest is in a file. botocore's model of the service allows
# hyperparameters of 2,500 characters, AWS's documentation 256, and both refuse line breaks.
LONGEST_VALUE, MOST_VALUES = 256, 100

# Settings that repeat a value of another section, and cannot be set twice: the section and the name, by step and field.
_TRACKED = {f"mlflow_{name}": name for name in ("tracking_uri", "experiment", "run_name", "tags")}
_COLUMNS = {"label_field": ("hyperparameters", "label_name"), "id_field": ("hyperparameters", "id_name")}
_REPEATED = {
    TABULAR_PREPROCESSING.name: _COLUMNS,
    MODEL_METRICS.name: {
        **_COLUMNS,
        "decision_metric": ("condition", "metric"),
        "champion_margin": ("condition", "margin_standard_errors"),
    },
    TRACKING.name: {field: ("mlflow", name) for field, name in _TRACKED.items()},
    PAYLOAD.name: {name: (f"settings.{REGISTRATION.name}", name) for name in RecordSettings.model_fields},
}


@dataclass(frozen=True)
class StepPlan:
    """One step with everything that a run or a definition needs.

    Attributes:
        command: the arguments of `python -m container`; empty for a registration or a transform.
        environment: the step's environment variables.
        from_hyperparameters: the variables that repeat a hyperparameter, with its name.
        outside: folder or S3 URI of each external input, which no step writes, by logical name.
        in_file: the variables or, for training, the hyperparameters that the step reads from its input settings.
    """

    contract: StepContract
    command: tuple[str, ...]
    environment: Mapping[str, str]
    from_hyperparameters: Mapping[str, str]
    outside: Mapping[str, str]
    in_file: Mapping[str, str]

    @property
    def settings_file(self) -> str:
        """The content of the input settings."""
        return json.dumps(dict(self.in_file), indent=1, sort_keys=True)

    def sent(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return the variables or hyperparameters without those of the input settings."""
        return {name: value for name, value in values.items() if name not in self.in_file}


@dataclass(frozen=True)
class TunerPlan:
    """The search of SageMaker's tuner, which replaces the training.

    Attributes:
        metric: what the trials are compared by.
    """

    space: Space
    metric: MonitoredMetric

    @property
    def reserved(self) -> int:
        """The number of hyperparameters that the tuner adds to those that all trials have in common."""
        return len(self.space) + 1  # and the name of the metric


@dataclass(frozen=True)
class Plan:
    """The steps that are configured, in order.

    Attributes:
        hyperparameters: as strings, as SageMaker delivers them.
        from_sections: the hyperparameters that follow from other sections of the configuration.
        encoders: the hyperparameter `tokenizer` of each text.
        columns: those that the model reads.
    """

    steps: tuple[StepPlan, ...]
    hyperparameters: Mapping[str, str]
    from_sections: frozenset[str]
    encoders: tuple[str, ...]
    columns: tuple[str, ...]
    tuner: TunerPlan | None = None

    def step(self, contract: StepContract) -> StepPlan:
        return next(step for step in self.steps if step.contract is contract)

    @property
    def watches(self) -> bool:
        """Return whether the plan is that of the pipeline with the step Monitoring alone."""
        return [step.contract for step in self.steps] == [MONITOR]

    @property
    def before_condition(self) -> tuple[StepContract, ...]:
        """Return the steps that run whether the condition holds or not."""
        return tuple(step.contract for step in self.steps if step.contract not in AFTER_CONDITION)

    @property
    def after_condition(self) -> tuple[StepContract, ...]:
        """Return the steps that run if the condition holds."""
        return tuple(step.contract for step in self.steps if step.contract in AFTER_CONDITION)

    @property
    def shown(self) -> tuple[str, ...]:
        """Return the names of the steps and the condition, in order."""
        before, afterwards = ([step.name for step in part] for part in (self.before_condition, self.after_condition))
        return (*before, CONDITION, *afterwards)


def make_plan(
    config: PipelineConfig,
    outside: Mapping[str, str],
    *,
    section: str = "inputs",
    tuner: bool = False,
    hosts: int | None = None,
) -> Plan:
    """Check a configuration as a whole.

    Args:
        outside: local folder or S3 URI of each external input, which no step writes, by logical name.
        section: of the configuration that `outside` is from, for errors.
        tuner: whether SageMaker's tuner runs the search, if the configuration says so.
        hosts: instances that train; None = those of the configuration.

    Raises:
        ContractError: an unknown step, setting, input or hyperparameter; a missing one; a contradiction.
    """
    job = _resolve_job(config, tuner=tuner, hosts=hosts)
    steps = []
    for contract in _steps_that_are_on(config, outside, section):
        inputs = {name: uri for name, uri in outside.items() if outside_inputs()[name][0] is contract}
        settings = _resolve_settings(contract, config, job.hyperparameters)
        _check_step(contract, settings, config, hp=job.hp, outside=outside, inputs=inputs, section=section)
        steps.append(_build_step(contract, settings, job, inputs=inputs))
    return Plan(
        steps=tuple(steps),
        hyperparameters=texts(job.hyperparameters),
        from_sections=job.from_sections,
        encoders=tuple(encoders_of(job.hp)),
        columns=tuple(feature_columns(job.hp)),
        tuner=job.search,
    )


@dataclass(frozen=True)
class _Job:
    """The settings of the training job.

    Attributes:
        hyperparameters: without comments and aliases, and without those that the tuner chooses.
        hp: the configuration of a job with them, before the tuner chooses any.
    """

    hyperparameters: Mapping[str, Any]
    hp: Hyperparameters
    from_sections: frozenset[str]
    search: TunerPlan | None


def _resolve_job(config: PipelineConfig, *, tuner: bool, hosts: int | None) -> _Job:
    """Merge the sections that set hyperparameters, and check them as the training job does."""
    by_tuner = config.tuning is not None and config.tuning.by_tuner
    from_sections = {**_search(config), **_tracking(config)}
    if by_tuner:
        hosts = 1  # each trial is a job of its own
    elif hosts is None:
        hosts = 1 if config.aws is None else config.aws.training_hosts
    hyperparameters, hp = _checked_hyperparameters({**config.hyperparameters, **from_sections}, hosts=hosts)
    search = None
    if tuner and by_tuner:
        del hyperparameters["tuning"]  # a trial is an ordinary job, for which a preset may choose an ensemble
        search = TunerPlan(space_of(hp), metric_of(hp))
        hyperparameters = {name: value for name, value in hyperparameters.items() if name not in search.space}
        hyperparameters["early_stop_metric"] = from_sections["early_stop_metric"] = search.metric.name
    return _Job(hyperparameters, hp, frozenset(from_sections), search)


def _steps_that_are_on(config: PipelineConfig, outside: Mapping[str, str], section: str) -> list[StepContract]:
    """Return the steps of this configuration; raise ContractError for a setting or input of no step, or of another."""
    _require_known("settings", config.settings, (step.name for step in ORDER), "step")
    _require_known(section, outside, outside_inputs(), "external input")
    optional = {name: getattr(config, needed) is not None for name, needed in OPTIONAL.items()}
    optional[TRACKING.name] = config.tracked_by_step
    given = {f"settings.{name}": name for name in config.settings}
    given |= {f"{section}.{name}": outside_inputs()[name][0].name for name in outside}
    given |= {f"aws.steps.{name}": name for name in (config.aws.steps if config.aws else ())}
    for place, step in given.items():
        if not optional.get(step, True):
            missing = getattr(config, OPTIONAL[step]) is None
            add = f"Add the section {OPTIONAL[step]}" if missing else "Set mlflow.sent_by to step"
            raise ContractError(f"{place}: is for the step {step}, which is off", f"{add}, or remove it.")
    return [contract for contract in ORDER if optional.get(contract.name, True)]


def _resolve_settings(
    contract: StepContract, config: PipelineConfig, hyperparameters: Mapping[str, Any]
) -> StepSettings:
    """Merge the sections that set a step's settings, and check each value."""
    place = f"settings.{contract.name}"
    values = {**serving_settings(config, contract), **config.settings.get(contract.name, {})}
    _require_known(place, values, contract.settings.model_fields, "setting")
    sections = {
        "hyperparameters": hyperparameters,
        "condition": config.condition.model_dump(),
        "mlflow": config.mlflow.model_dump() if config.mlflow else {},
        f"settings.{REGISTRATION.name}": {
            **ServingSettings().model_dump(),
            **config.settings.get(REGISTRATION.name, {}),
        },
    }
    for field, (section, name) in _REPEATED.get(contract.name, {}).items():
        if field in values:
            raise ContractError(f"{place}.{field}: repeats {section}.{name}", f"Remove it, and set {section}.{name}.")
        values[field] = sections[section][name]
    try:
        return contract.settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        value = f"{shown(first['input'])} is invalid: " if first["loc"] and first["type"] != "missing" else ""
        raise ContractError(
            f"{_key(contract, '.'.join(map(str, first['loc'])))}: {value}{first['msg'].removeprefix('Value error, ')}",
            f"{decimal_comma(first['input'])}Correct it; docs/pipeline_reference.md lists the settings.",
        ) from None


def _check_step(
    contract: StepContract,
    settings: StepSettings,
    config: PipelineConfig,
    *,
    hp: Hyperparameters,
    outside: Mapping[str, str],
    inputs: Mapping[str, str],
    section: str,
) -> None:
    """Raise ContractError for settings and inputs of a step that contradict each other or another section."""
    environment = settings.to_environment()
    for field in settings.model_fields_set:
        if not environment.get(field.upper(), "set").strip():  # the step would take an empty variable as not set
            raise ContractError(f"{_key(contract, field)}: is empty", "Give it a text, or remove it.")
    check_against_training(contract, settings, hp, outside)
    if isinstance(settings, ServingSettings) and contract is BATCH_SCORE and config.batch_score is not None:
        check_batch_settings(settings, config.batch_score)
    for folder in contract.inputs:
        if folder.required and source(contract, folder) is None and folder.name not in inputs:
            raise ContractError(f"{section}.{folder.name}: is missing", f"Provide it: {folder.about}")
    if isinstance(settings, DataLoadingSettings) and ("input_data" in inputs) == bool(settings.generate_rows):
        raise ContractError(
            f"{section}.input_data: is set, and settings.DataLoading.generate_rows is set too"
            if inputs
            else f"{section}.input_data: is missing, and settings.DataLoading.generate_rows is not set",
            f"Set {section}.input_data to your table's folder, or generate_rows to a number of demo rows.",
        )


def _key(contract: StepContract, field: str) -> str:
    """Return the place of a step's setting in the configuration, for errors."""
    origin = _REPEATED.get(contract.name, {}).get(field)
    return ".".join(origin) if origin else f"settings.{contract.name}.{field}".removesuffix(".")


def _build_step(contract: StepContract, settings: StepSettings, job: _Job, *, inputs: Mapping[str, str]) -> StepPlan:
    environment = settings.to_environment()
    in_file: dict[str, str] = {}  # a registered or hosted model has no inputs
    if any(folder.name == "settings" for folder in contract.inputs):
        if contract.kind == "training":
            reserved = job.search.reserved if job.search is not None else 0
            in_file = _not_sent(texts(job.hyperparameters), reserved=reserved)
        else:
            in_file = _not_sent(environment)
    return StepPlan(
        contract,
        command=(contract.command,) if contract.command else (),
        environment=environment,
        from_hyperparameters={
            field.upper(): name
            for field, (section, name) in _REPEATED.get(contract.name, {}).items()
            if section == "hyperparameters"
        },
        outside=inputs,
        in_file=in_file,
    )


def _not_sent(values: Mapping[str, str], *, reserved: int = 0) -> dict[str, str]:
    """Return the values that are too long for a job, have several lines, or are too many beside `reserved` others."""
    fitting = [
        name for name, text in values.items() if len(text) <= LONGEST_VALUE and len(f"{text}.".splitlines()) == 1
    ]
    return {name: text for name, text in values.items() if name not in fitting[: MOST_VALUES - reserved]}


def _checked_hyperparameters(given: Mapping[str, Any], *, hosts: int) -> tuple[dict[str, Any], Hyperparameters]:
    """Return the hyperparameters without comments and aliases, and the configuration of a job with them."""
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key in DROPPED or key.startswith("sagemaker_"):
            continue
        name = ALIASES.get(key, key)
        values[name] = cast_value(name, value) if name in Hyperparameters.model_fields else value
    hp = choose_settings(GivenSettings(values, {}), hosts=hosts).hp
    if hp.id_name is None:
        raise ContractError(
            "hyperparameters.id_name: missing; the steps of a pipeline identify records by it",
            f"Add it. {str(Hyperparameters.model_fields['id_name'].description).partition('.')[0]}.",
        )
    return values, hp  # a null is sent too: the user's choice, which a preset must not replace


def _search(config: PipelineConfig) -> dict[str, Any]:
    """Return the hyperparameter that makes the training job search."""
    if config.tuning is None:
        return {}
    if "tuning" in config.hyperparameters:
        raise ContractError("tuning: is set, and hyperparameters.tuning is set too", "Set one of them.")
    return {"tuning": config.tuning.in_container().hyperparameter()}


def _tracking(config: PipelineConfig) -> dict[str, Any]:
    """Return the hyperparameters with which the training job sends its results itself."""
    if config.mlflow is None:
        return {}
    for name, key in _TRACKED.items():
        if name in config.hyperparameters:
            raise ContractError(f"hyperparameters.{name}: repeats mlflow.{key}", f"Remove it, and set mlflow.{key}.")
    if config.tracked_by_step:
        return {}
    if config.mlflow.image is not None:
        why = "mlflow.sent_by is job" if config.mlflow.sent_by else "aws.network_isolation is false"
        raise ContractError(
            f"mlflow.image: is set, but no step uses it: the training job sends the results itself, because {why}",
            "Remove mlflow.image (aws.image must contain MLflow), or set mlflow.sent_by to step.",
        )
    given = config.mlflow.model_dump(exclude_unset=True)
    return {name: given[key] for name, key in _TRACKED.items() if key in given}


def texts(values: Mapping[str, Any], *, default: Callable[[Any], Any] | None = None) -> dict[str, str]:
    """Return hyperparameters as SageMaker delivers them; `default` is that of json.dumps."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=default)
        for name, value in values.items()
    }


def _require_known(section: str, given: Iterable[str], known: Iterable[str], kind: str) -> None:
    names = list(known)
    for key in given:
        if key not in names:
            raise ContractError(
                f"{section}.{key}: unknown {kind}{did_you_mean(key, names)}", f"Use one of: {', '.join(names)}."
            )
