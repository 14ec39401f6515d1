"""Check the space of a search against the declarations of the hyperparameters, and define the default spaces."""

import functools
import itertools
import json
import math
import random
from collections.abc import Container, Iterator, Mapping
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from contracts.consistency import check_consistency
from contracts.declaration import describe_limits, plain_type, reason_of, type_name
from contracts.errors import ContractError, shown
from contracts.foreign_names import suggest
from contracts.hyperparameters import GROUPS, Hyperparameters
from contracts.model_classes import FROM_SCRATCH
from contracts.monitored_metric import MonitoredMetric
from contracts.presets import DataFacts, choices
from contracts.tuning import Range, Space, Tuning

TUNABLE_GROUPS = ("model", "encoder", "text", "table", "training")
# Trials with other classes are not comparable; final_seeds sets the seed; a preset chooses before the search begins.
_FIXED = ("num_classes is_binary multiclass_categories input_tab_dim fixed_tokenizer_length seed preset").split()
_COMBINATIONS = 200  # that are looked at

_PRETRAINED: Space = {
    "lr": Range(low=1e-5, high=1e-4, scale="log"),
    "head_lr": Range(low=1e-4, high=3e-3, scale="log"),
    "dropout": Range(low=0.0, high=0.3),
    "max_epochs": [1, 2, 3, 4],
}
_ADAPTED: Space = {**_PRETRAINED, "lr": Range(low=5e-5, high=1e-3, scale="log"), "lora_rank": [4, 8, 16]}
_RANDOM: Space = {
    "lr": Range(low=2e-4, high=5e-3, scale="log"),
    "weight_decay": Range(low=1e-3, high=0.1, scale="log"),
    "dropout": Range(low=0.0, high=0.4),
    "hidden_common_dim": [50, 100, 200],
}
_WORDS: Space = {
    "lr": Range(low=1e-4, high=1e-2, scale="log"),
    "dropout_keep": Range(low=0.4, high=0.9),
    "num_layers": [1, 2, 3],
}


def tunable() -> list[str]:
    """Return the names of the hyperparameters that a space may have."""
    names = [name for group in TUNABLE_GROUPS for name in GROUPS[group].model_fields]
    return [name for name in names if name not in (*_FIXED, *Hyperparameters.names_of("after"))]


def default_space(hp: Hyperparameters) -> Space:
    """Return the space for the model class and the kind of encoder of `hp`.

    It has no setting without an effect, and no value that contradicts the other settings of `hp`.
    """
    if hp.architecture.encoder in ("lstm", "cnn"):
        space = _WORDS
    elif all(field.tokenizer == FROM_SCRATCH for field in hp.text_fields):
        space = _RANDOM
    else:
        space = _ADAPTED if hp.lora_rank else _PRETRAINED
    if hp.head_lr is not None:  # then lr is the rate of the encoder or of the word embeddings only
        space = {"head_lr": space["lr"], **space}
    declarations = hp.declarations()
    needed = {"dropout_keep", "num_layers"}  # each has an effect for some values of the other
    found: Space = {}
    for name, values in space.items():
        if name in needed or not declarations[name].obstacle(hp, ()):
            possible = values if isinstance(values, Range) else [each for each in values if _fits(hp, {name: each})]
            if isinstance(possible, Range) or len(possible) > 1:
                found[name] = possible
    return found


def _fits(hp: Hyperparameters, changes: dict[str, Any]) -> bool:
    try:
        check_consistency(hp.model_copy(update=changes))
    except ContractError:
        return False
    return True


def space_of(hp: Hyperparameters) -> Space:
    """Return the space of the search that `hp.tuning` declares."""
    assert hp.tuning is not None
    space = hp.tuning.space or default_space(hp)
    return {
        name: values if isinstance(values, Range) else [_valid(name, value) for value in values]
        for name, values in space.items()
    }


def encoders_of(hp: Hyperparameters) -> list[str]:
    """Return the encoders of a job, with those of its search."""
    names = {text.tokenizer for text in hp.text_fields}
    for setting, values in space_of(hp).items() if hp.tuning else ():
        if setting.endswith("tokenizer") and not isinstance(values, Range):
            names |= {str(name) for name in values if name}
    return sorted(names)


def num_combinations(space: Space) -> float:
    """Return the number of combinations of a space; it is infinite with a range of a number that is not whole."""
    counts = []
    for name, values in space.items():
        if isinstance(values, Range):
            counts.append(values.high - values.low + 1 if is_whole(name) else math.inf)
        else:
            counts.append(len(values))
    return math.prod(counts)


def set_by_search(hp: Hyperparameters) -> dict[str, str]:
    """Return the settings that a search sets, each with the place of its values; nothing without a search."""
    if hp.tuning is None:
        return {}
    metric = {} if hp.tuning.metric is None else {"early_stop_metric": "tuning.metric"}
    place = "tuning.space" if hp.tuning.space else "its default space"
    return {**dict.fromkeys(space_of(hp), place), **metric}


def describe_space(space: Space) -> str:
    """Return the values of each setting of a space on one line."""
    described = []
    for name, values in space.items():
        if isinstance(values, Range):
            described.append(f"{name} {values.low:g} to {values.high:g} ({values.scale})")
        else:
            described.append(f"{name} {json.dumps(values)}")
    return ", ".join(described)


def metric_of(hp: Hyperparameters) -> MonitoredMetric:
    """Return the metric that compares the trials of a search."""
    assert hp.tuning is not None
    return MonitoredMetric.of(hp.tuning.metric or hp.early_stop_metric)


def most_epochs(hp: Hyperparameters, given: Container[str], facts: DataFacts | None) -> int:
    """Return max_epochs of the longest trial.

    Args:
        given: the settings that the user set; the preset of `hp` chooses the others for each trial.
        facts: of the training data, if they are known.
    """
    space = space_of(hp)
    if "max_epochs" in space:
        return int(max(_ends(space)["max_epochs"]))
    if "max_epochs" in given:
        return hp.max_epochs
    return max(_chosen_epochs(hp.model_copy(update=changes), facts) for changes in _combinations(_ends(space)))


def _chosen_epochs(trial: Hyperparameters, facts: DataFacts | None) -> int:
    wanted = [choice.value for choice in choices(trial, facts) if choice.setting == "max_epochs"]
    return wanted[-1] if wanted else trial.max_epochs


def most_validations(hp: Hyperparameters, given: Container[str], facts: DataFacts | None) -> int | None:
    """Return the number of validations of the longest trial; None if it depends on the batch size.

    The arguments are those of `most_epochs`.
    """
    if hp.val_check_interval > 1:  # a number of steps, whose part of an epoch depends on the batch size
        return None
    return math.ceil(most_epochs(hp, given, facts) / hp.val_check_interval)


def trial_settings(hp: Hyperparameters, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters of a trial: those of `hp` with `changes`, for one network, without the search."""
    assert hp.tuning is not None
    given = hp.model_dump(mode="json", exclude_unset=True, exclude={"tuning", "ensemble_model"})
    metric = {} if hp.tuning.metric is None else {"early_stop_metric": hp.tuning.metric}
    return {**given, **metric, **changes}


def check_tuning(hp: Hyperparameters) -> None:
    """Raise ContractError if a setting of the space has no effect, or one of its values is invalid by itself.

    A combination that is invalid is a pruned trial.
    """
    tuning = hp.tuning
    if tuning is None:
        return
    _check_metric(hp, tuning)
    if metric_of(hp).minimizes and "class_weights" in (tuning.space or {}):
        raise ContractError(
            "tuning.space: class_weights change val/loss, the search's metric: its trials would not be comparable",
            "Set tuning.metric to another metric, for example val/auroc, or remove class_weights from the space.",
        )
    if not hp.load_ckpt:
        raise ContractError(
            "load_ckpt: is false, but a search compares trials by their best validation, not by their last weights",
            "Remove load_ckpt, or set it to true.",
        )
    for name, values in (tuning.space or {}).items():
        _check_name(name)
        if isinstance(values, Range):
            _check_range(name, values)
        else:
            _check_choices(name, values)
    _check_effects(hp, space_of(hp))


def _check_metric(hp: Hyperparameters, tuning: Tuning) -> None:
    try:
        check_consistency(hp if tuning.metric is None else hp.model_copy(update={"early_stop_metric": tuning.metric}))
    except ContractError as error:
        raise ContractError(error.cause.replace("early_stop_metric", "tuning.metric"), error.fix) from None


def _check_name(name: str) -> None:
    known = tunable()
    if name in known:
        return
    if name not in Hyperparameters.model_fields:
        raise ContractError(
            f"tuning.space: {name!r} is not a hyperparameter{suggest(name, known)}",
            "Correct the name or remove it; docs/hyperparameters.md lists all of them.",
        )
    raise ContractError(
        f"tuning.space: {name} cannot be tuned: no trial depends on it, or trials would not be comparable",
        f"Remove it. A space may have settings of the groups {', '.join(TUNABLE_GROUPS)}; docs/tuning.md lists them.",
    )


def _valid(name: str, value: Any) -> Any:
    """Return a value of a setting as the setting's type, e.g. 0.1 for "0.1"; raise ContractError if it is invalid."""
    field = Hyperparameters.model_fields[name]
    try:
        return _adapter(name).dump_python(_adapter(name).validate_python(value), mode="json")
    except ValidationError as error:
        raise ContractError(
            f"tuning.space: {name}: {shown(value)} is invalid: {reason_of(error.errors(), field.annotation)}",
            f"{name} is {type_name(plain_type(field.annotation))}{describe_limits(field)}: {field.description}",
        ) from None


@functools.cache
def _adapter(name: str) -> TypeAdapter[Any]:
    field = Hyperparameters.model_fields[name]
    return TypeAdapter(Annotated[field.annotation, field])  # type: ignore[valid-type]


def _check_choices(name: str, values: list[Any]) -> None:
    seen: set[str] = set()
    for value in values:
        text = json.dumps(_valid(name, value))
        if text in seen:
            raise ContractError(f"tuning.space: {name}: {shown(value)} is listed twice", "List each value once.")
        seen.add(text)


def is_whole(name: str) -> bool:
    """Return whether the hyperparameter `name` is a whole number."""
    return plain_type(Hyperparameters.model_fields[name].annotation) in (int, int | None)


def _check_range(name: str, values: Range) -> None:
    for end in (values.low, values.high):
        _valid(name, end)
    if plain_type(Hyperparameters.model_fields[name].annotation) not in (int, float, int | None, float | None):
        raise ContractError(
            f"tuning.space: {name} has a range, but it is not a number", f"List its values: {name}: [...]."
        )


def _check_effects(hp: Hyperparameters, space: Space) -> None:
    """Raise ContractError for a setting of the space that has no effect in any trial."""
    trials = [hp.model_copy(update=changes) for changes in _combinations(_ends(space))]
    for name in space:
        reasons = [Hyperparameters.declarations()[name].obstacle(trial, ()) for trial in trials]
        if None not in reasons:
            raise ContractError(
                f"tuning.space: {name} has no effect in any combination: {reasons[0]}",
                f"Remove {name} from the space, or change the settings that it depends on.",
            )


def _ends(space: Space) -> dict[str, list[Any]]:
    """Return the values of each list, and both ends of each range."""
    return {name: [each.low, each.high] if isinstance(each, Range) else each for name, each in space.items()}


def _combinations(values: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Yield every combination, or a sample if there are many."""
    if math.prod(map(len, values.values())) <= _COMBINATIONS:
        yield from (dict(zip(values, each, strict=True)) for each in itertools.product(*values.values()))
        return
    draw = random.Random(0)
    for _ in range(_COMBINATIONS):
        yield {name: draw.choice(each) for name, each in values.items()}
