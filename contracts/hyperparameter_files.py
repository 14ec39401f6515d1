"""Read hyperparameters from the job's files: merge them, cast strings, and check them."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from contracts.consistency import check_consistency, check_data_settings
from contracts.declaration import describe_limits, plain_type, plain_types, reason_of, type_name
from contracts.errors import ContractError, shortened, shown
from contracts.foreign_names import suggest
from contracts.hyperparameters import GROUPS, Hyperparameters
from contracts.input_files import exists, read_object
from contracts.json_text import parse_json, parse_literal
from contracts.paths import JobPaths
from contracts.presets import ABOVE_DEFAULTS, Choice, DataFacts, choices, chosen_by_data
from contracts.tuning_space import check_tuning, set_by_search
from contracts.value_types import decimal_comma

ALIASES = {"chunk_truncate": "chunk_trancate"}
TRAINING_JOB = "TRAINING_JOB_NAME"  # the service sets this variable
TUNER_METRIC = "_tuning_objective_metric"  # SageMaker's tuner adds it to the hyperparameters of its training jobs
DROPPED = (TUNER_METRIC, "_comment", "_comments")
# Settings that no longer exist, with their defaults: a model's hyperparameters.json and checkpoints list every setting.
_FORMER = {
    "modality_dropout": 0.0,
    "numeric_embedding_frequencies": 16,
    "numeric_embedding_sigma": 0.1,
    "powersgd_rank": 1,
    "prediction_dtype": "float32",
}
_OBJECT = 'Write a JSON object in UTF-8, such as {"max_epochs": 3}.'


def without_former(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` without the settings of earlier versions that have their former default, also as a text."""
    return {
        name: value
        for name, value in values.items()
        if name not in _FORMER or value not in (_FORMER[name], str(_FORMER[name]))
    }


def with_own_checkpoints(paths: JobPaths, environment: Mapping[str, str]) -> JobPaths:
    """Return `paths`; for a training job of SageMaker's tuner, with a folder of checkpoints of its own.

    A tuner gives all its training jobs the same S3 folder for checkpoints, and SageMaker copies this folder into a job
    when it starts (docs.aws.amazon.com/sagemaker/latest/dg/model-checkpoints.html).
    """
    file = paths.hyperparameter_files[-1]
    is_trial = exists(file) and TUNER_METRIC in read_object(file, _OBJECT)
    return dataclasses.replace(paths, trial=environment.get(TRAINING_JOB, "")) if is_trial else paths


class GivenSettings(NamedTuple):
    """What the user set.

    Attributes:
        origin: the file that set each key.
        drawn: the keys that a trial of a search set.
    """

    values: dict[str, Any]
    origin: dict[str, Path]
    drawn: frozenset[str] = frozenset()

    def of_trial(self, changes: Mapping[str, Any]) -> "GivenSettings":
        """Return the settings of a trial of a search, for which the search drew `changes`."""
        origin = {name: path for name, path in self.origin.items() if name not in changes}
        return GivenSettings({**self.values, **changes}, origin, frozenset(changes))


def load_hyperparameters(paths: JobPaths) -> Hyperparameters:
    """Return the job's configuration: the defaults, then its preset, then the files.

    Args:
        paths: the layout of the job; `paths.hyperparameter_files` lists the files that are read.

    Raises:
        ContractError: a file is damaged, a key is unknown or missing, or a value is invalid or contradicts another one.

    Example:
        >>> paths = JobPaths.resolve(root)
        >>> paths.config.mkdir(parents=True)
        >>> given = {"id_name": "id", "label_name": "sold", "text_name": "review", "model_class": "bert", "lr": "1e-4"}
        >>> _ = (paths.config / "hyperparameters.json").write_text(json.dumps(given))
        >>> load_hyperparameters(paths).lr
        0.0001
    """
    return choose_settings(read_settings(paths)).hp


def read_settings(
    paths: JobPaths, *, tuning: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None
) -> GivenSettings:
    """Return what each file of `paths.hyperparameter_files` sets; a later file takes precedence.

    Args:
        tuning: settings of the search that override those of the files.
        options: settings of the command line, whatever the files set.

    Raises:
        ContractError: no file exists, a file is not a JSON object, or a key or value is invalid.
    """
    merged: dict[str, Any] = {}
    origin: dict[str, Path] = {}
    unknown: dict[str, Path | None] = {}
    files = [path for path in paths.hyperparameter_files if exists(path)]
    if not files:
        raise ContractError(
            f"hyperparameters: neither {' nor '.join(map(str, paths.hyperparameter_files))} exists",
            "Write one of them; docs/hyperparameters.md lists the keys.",
        )
    for path in files:
        for key, value in without_former(read_object(path, _OBJECT)).items():
            if key.startswith("sagemaker_") or key in DROPPED:
                continue
            name = ALIASES.get(key, key)
            if name not in Hyperparameters.model_fields:
                unknown[key] = path
                continue
            if origin.get(name) == path:
                raise ContractError(f"{name}: is set twice in {path}, also as {key}", "Set it once.")
            merged[name] = cast_value(name, value, path)
            origin[name] = path
    _refuse_unknown(unknown)
    if tuning is not None:
        search = merged.get("tuning") or {}
        merged["tuning"] = {**search, **tuning} if isinstance(search, dict) else search
    return GivenSettings({**merged, **(options or {})}, origin)


class ChosenSettings(NamedTuple):
    """The job's configuration.

    Attributes:
        lines: for the log: what the preset chose, and what the user's settings replaced.
        chosen: the value of each setting that the preset chose, as JSON, and the reason.
    """

    hp: Hyperparameters
    lines: list[str]
    chosen: dict[str, tuple[str, str]]


def choose_settings(
    given: GivenSettings,
    facts: DataFacts | None = None,
    *,
    hosts: int = 1,
    check: Callable[[Hyperparameters], object] = lambda _: None,
) -> ChosenSettings:
    """Return the configuration of `given`, with the values of its preset for everything that `given` does not set.

    Args:
        facts: of the training data, when they are known; some rules of the preset need them.
        hosts: number of hosts that train.
        check: raises ContractError for a configuration that cannot run here. It gets `given` without the preset, and
            then with each value that the preset wants: a value that it refuses is not chosen.

    Raises:
        ContractError: `given` is invalid or cannot run on these hosts, or `check` refuses it.
    """
    hp, values = _valid(given, hosts=hosts)
    check(hp)

    def build(values: dict[str, Any]) -> Hyperparameters:
        built = _parse_for_hosts(values, given, hosts=hosts)
        check(built)
        return built

    lines = []
    of_preset: dict[str, tuple[str, str]] = {}
    if "model_class" not in given.values:
        lines.append(f"preset {hp.preset}: model_class={hp.model_class}, because of the number of texts")
        of_preset["model_class"] = (json.dumps(hp.model_class), "the number of texts")
    searched = set_by_search(hp)
    for known in (None, facts) if facts else (None,):
        wanted = {choice.setting: choice for choice in choices(hp, known, given=given.values)}
        free = {name: choice.value for name, choice in wanted.items() if name not in given.values}
        refused: dict[str, str] = {}
        try:
            chosen = build({**values, **free}) if free else hp
            values |= free
        except ContractError:
            on_val = {choice.setting: choice for choice in choices(hp, known, given={*given.values, "choose_on"})}
            chosen = _one_by_one(hp, values, free, build, wanted=wanted, on_val=on_val, refused=refused)
        for name, choice in wanted.items():
            about = f"preset {hp.preset}: {name}={json.dumps(choice.value)}, because {choice.reason}"
            if name in refused:
                lines.append(f"{about}; not chosen, because of your settings: {refused[name]}")
            elif name in free:
                of_preset[name] = (json.dumps(choice.value), choice.reason)
                lines.append(f"{about}; the search takes it from {searched[name]}" if name in searched else about)
            elif name not in given.drawn and choice.is_final and getattr(hp, name) != choice.value:
                lines.append(f"{about}; not chosen, because you set it to {_as_json(hp, name)}")
        hp = chosen
    if not given.drawn and (facts or not {"ensemble", "cross_fit"} & chosen_by_data(hp)):
        _check_networks(hp)
    return ChosenSettings(hp, lines, of_preset)


def _one_by_one(
    hp: Hyperparameters,
    values: dict[str, Any],
    names: Collection[str],
    build: Callable[[dict[str, Any]], Hyperparameters],
    *,
    wanted: dict[str, Choice],
    on_val: Mapping[str, Choice],
    refused: dict[str, str],
) -> Hyperparameters:
    """Return `hp` with those choices that `build` accepts, and add them to `values`, the causes of others to `refused`.

    Args:
        on_val: the choices that replace those in `wanted` if choose_on is refused: one network needs other epochs.
    """
    for name in sorted(names, key=lambda name: name not in ("cross_fit", "choose_on")):
        if "choose_on" in refused:
            wanted[name] = on_val.get(name, wanted[name])
        try:
            hp = build({**values, name: wanted[name].value})
            values[name] = wanted[name].value
        except ContractError as error:
            refused[name] = error.cause
    return hp


def _as_json(hp: Hyperparameters, name: str) -> str:
    return json.dumps(hp.model_dump(mode="json", include={name})[name])


def _check_networks(hp: Hyperparameters) -> None:
    """Raise ContractError for an ensemble_model of one network."""
    networks = hp.tuning.final_seeds if hp.tuning is not None else hp.num_members
    if hp.ensemble_model != "average" and networks == 1:
        raise ContractError(
            f"ensemble_model: is {hp.ensemble_model}, but the job trains one network",
            "Set final_seeds to 2 or more in tuning, or remove ensemble_model. With tuning.engine sagemaker, which has "
            "no final_seeds, run another job with the best settings (model/hyperparameters.json) and ensemble."
            if hp.tuning is not None
            else "Set ensemble or cross_fit to the number of networks, or remove ensemble_model.",
        )


def _valid(given: GivenSettings, *, hosts: int) -> tuple[Hyperparameters, dict[str, Any]]:
    """Return `given` as a configuration, and its values; if it needs values of its preset, with one of them, or all."""
    try:
        return _parse_for_hosts(given.values, given, hosts=hosts), dict(given.values)
    except ContractError as error:
        refusal = error
    hp = _typed(given.values, given.origin)
    check_data_settings(hp)
    found = {choice.setting: choice.value for choice in choices(hp)}
    wanted = {name: value for name, value in found.items() if name not in given.values}
    for some in (*({name: value} for name, value in wanted.items()), wanted):
        values = {**given.values, **some}
        with contextlib.suppress(ContractError):
            return _parse_for_hosts(values, given, hosts=hosts), values
    raise refusal


def _parse_for_hosts(values: dict[str, Any], given: GivenSettings, *, hosts: int) -> Hyperparameters:
    hp = _typed(values, given.origin)
    check_consistency(hp)
    if not given.drawn:  # the space is valid with the job's settings; those of one trial may exclude some of its values
        check_tuning(hp)
    _check_hosts(hp, hosts)
    return hp


def _check_hosts(hp: Hyperparameters, hosts: int) -> None:
    """Raise ContractError if `hp` needs one host, and the job has several."""
    if hosts == 1:
        return
    if hp.tuning is not None:
        name, cause = "tuning", f"the job has {hosts} hosts, but a search runs on one"
    elif hp.num_members > 1:
        name = "cross_fit" if hp.cross_fit else "ensemble"
        networks = "but the networks of an ensemble train on one"
        cause = f"is {hp.num_members}, and the job has {hosts} hosts, {networks}"
    else:
        return
    raise ContractError(f"{name}: {cause}", f"Use one instance, e.g. with more GPUs, or remove {name}.")


def parse_hyperparameters(values: dict[str, Any], origin: dict[str, Path] | None = None) -> Hyperparameters:
    """Return the validated `values`; messages name the file of a key, which `origin` gives."""
    hp = _typed(without_former(values), origin)
    check_consistency(hp)
    check_tuning(hp)
    return hp


def _typed(values: dict[str, Any], origin: dict[str, Path] | None) -> Hyperparameters:
    """Return the `values`, each of which is valid alone, with those that follow from them."""
    _refuse_unknown({key: (origin or {}).get(key) for key in values if key not in Hyperparameters.model_fields})
    try:
        return Hyperparameters(**{**_implied(values), **values})
    except ValidationError as error:
        problems = error.errors()
        missing = [str(each["loc"][0]) for each in problems if each["type"] == "missing" and len(each["loc"]) == 1]
        if missing:
            valid = len(missing) == error.error_count()
            raise _missing(missing, origin or {}, others=len(values), valid=valid) from None
        key = str(problems[0]["loc"][0])
        of_key = [each for each in problems if each["loc"][0] == key]
        reason = reason_of(of_key, Hyperparameters.model_fields[key].annotation)
        raise _invalid(key, values[key], reason, (origin or {}).get(key)) from None


def _implied(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model class that a preset chooses for one text or two, and the number of classes of a given list."""
    two_texts = values.get("primary_text_name") is not None
    implied: dict[str, Any] = {}
    if values.get("preset") in ABOVE_DEFAULTS:
        implied["model_class"] = "trimodal_bert" if two_texts else "multimodal_bert"
    if isinstance(labels := values.get("multiclass_categories"), list):
        implied["num_classes"] = max(len(labels), 2)
    classes = values.get("num_classes", implied.get("num_classes", 2))
    return {**implied, "is_binary": (classes.strip() if isinstance(classes, str) else classes) in (2, "2")}


def describe_hyperparameters(hp: Hyperparameters) -> list[str]:
    """Return log lines of the settings that differ from their default, a line for each group, and count the others."""
    values = hp.model_dump(mode="json", include=hp.model_fields_set)
    lines = []
    for group, declared in GROUPS.items():
        chosen = [name for name in declared.model_fields if name in values]
        settings = (f"{name}={shortened(json.dumps(values[name], ensure_ascii=False))}" for name in chosen)
        if chosen:
            lines.append(f"hyperparameters ({group}): {' '.join(settings)}")
    defaults = len(type(hp).model_fields) - len(values)
    return [
        *lines,
        f"hyperparameters: {defaults} others have their default (docs/hyperparameters.md)",
    ]


def cast_value(name: str, value: Any, path: Path | None = None) -> Any:
    """Return a string, as SageMaker passes all values, in a form that the setting accepts; return others unchanged.

    Raises:
        ContractError: JSON with a key that occurs twice, or beyond the limits of contracts/json_text.py.
    """
    field = Hyperparameters.model_fields[name]
    try:
        return _cast(value, plain_types(plain_type(field.annotation))) if isinstance(value, str) else value
    except json.JSONDecodeError:
        return value  # the type's check names the setting
    except ValueError as error:
        raise _invalid(name, value, str(error), path) from None


def _cast(value: str, kinds: set[Any]) -> Any:
    text = value.strip()
    quoted = text[:1] == text[-1:] == '"'
    if quoted:  # some SDK versions put JSON quotes around strings
        with contextlib.suppress(json.JSONDecodeError):  # a list without brackets: "a", "b"
            value = str(parse_json(text))
            text = value.strip()
    if type(None) in kinds and not (quoted and str in kinds) and text.lower() in ("", "none", "null"):
        return None
    if kinds & {list, dict} or any(isinstance(kind, type) and issubclass(kind, BaseModel) for kind in kinds):
        try:
            parsed = parse_literal(text)
            return value if str in kinds and isinstance(parsed, int | float) else parsed  # a column of the name 7
        except json.JSONDecodeError:
            # A column, whose blanks count; a word that the setting may also be; or an error of the type's check.
            return value if str in kinds else text
    if bool in kinds and str not in kinds:
        return text.lower() if text.lower() in ("true", "false") else text
    return value if str in kinds else text


def _invalid(name: str, value: Any, reason: str, path: Path | None) -> ContractError:
    field = Hyperparameters.model_fields[name]
    kind = type_name(plain_type(field.annotation))
    return ContractError(
        f"{name}: {shown(value)} is invalid: {reason}{f' (in {path})' if path else ''}",
        f"{decimal_comma(value)}{name} is {kind}{describe_limits(field)}: {field.description}",
    )


def _missing(names: list[str], origin: Mapping[str, Path], *, others: int, valid: bool) -> ContractError:
    files = ", ".join(sorted(set(map(str, origin.values()))))
    cause = f"{', '.join(names)}: missing{f' in {files}' if files else ''}"
    if valid:
        cause += f"; nothing else is missing, and the values of the other {others} settings are valid"
    about = " ".join(f"{name}: {Hyperparameters.model_fields[name].description}" for name in names)
    return ContractError(cause, f"Add {' and '.join(names)}. {about}")


def _refuse_unknown(keys: Mapping[str, Path | None]) -> None:
    """Raise ContractError with every key, if there are any; their files are the values."""
    if keys:
        raise ContractError(
            "; ".join(_describe_unknown(key, path) for key, path in keys.items()),
            "Correct each name or remove it; docs/hyperparameters.md lists all of them.",
        )


def _describe_unknown(key: str, path: Path | None) -> str:
    removed = f"; it was removed, and has only its former default {_FORMER.get(key)!r}"
    hint = removed if key in _FORMER else suggest(key, [*Hyperparameters.model_fields, *ALIASES])
    return f"{key if key.isidentifier() else shown(key)}: unknown hyperparameter{f' in {path}' if path else ''}{hint}"
