"""Check the space of a search against the declarations of the hyperparameters, and define the default spaces."""

import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from contracts.consistency import check_consistency
from contracts.declaration import describe_limits, plain_type, type_name
from contracts.errors import ContractError, shown
from contracts.hyperparameters import Hyperparameters
from contracts.model_classes import FROM_SCRATCH
from contracts.spelling import did_you_mean
from contracts.tuning import Range, Space, Tuning

TUNABLE_GROUPS = ("model", "text", "table", "training")
# Trials with other classes are not comparable; final_seeds sets the seed.
_FIXED = ("num_classes", "is_binary", "multiclass_categories", "input_tab_dim", "fixed_tokenizer_length", "seed")
_COMBINATIONS = 200  # of which one must be valid

_PRETRAINED: Space = {
    "lr": Range(low=1e-5, high=1e-4, scale="log"),
    "head_lr": Range(low=1e-4, high=3e-3, scale="log"),
    "dropout": Range(low=0.0, high=0.3),
    "max_epochs": [1, 2, 3],
}
_ADAPTED: Space = {**_PRETRAINED, "lr": Range(low=5e-5, high=1e-3, scale="log"), "lora_rank": [4, 8, 16]}
_RANDOM: Space = {
    "lr": Range(low=2e-4, high=5e-3, scale="log"),
    "weight_decay": Range(low=1e-3, high=0.1, scale="log"),
    "dropout": Range(low=0.0, high=0.4),
    "hidden_common_dim": [50, 100, 200],
}
_WORDS: Space = {
    "lr": Range(low=2e-4, high=1e-2, scale="log"),
    "dropout_keep": Range(low=0.4, high=0.9),
    "num_layers": [1, 2, 3],
}


def tunable() -> list[str]:
    """Return the names of the hyperparameters that a space may have."""
    return [
        name
        for name, declaration in Hyperparameters.declarations().items()
        if declaration.group in TUNABLE_GROUPS and declaration.scope != "after" and name not in _FIXED
    ]


def default_space(hp: Hyperparameters) -> Space:
    """Return the space for the model class and the kind of encoder of `hp`, without settings that have no effect."""
    if hp.architecture.encoder != "transformer":
        space = _WORDS
    elif all(field.tokenizer == FROM_SCRATCH for field in hp.text_fields):
        space = _RANDOM
    else:
        space = _ADAPTED if hp.lora_rank else _PRETRAINED
    declarations = hp.declarations()
    needed = {"dropout_keep", "num_layers"}  # each has an effect for some values of the other
    return {name: each for name, each in space.items() if name in needed or not declarations[name].obstacle(hp, ())}


def space_of(hp: Hyperparameters) -> Space:
    """Return the space of the search that `hp.tuning` declares."""
    assert hp.tuning is not None
    return hp.tuning.space or default_space(hp)


def trial_settings(hp: Hyperparameters, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters of a trial: those of `hp` with `changes`, without the search."""
    assert hp.tuning is not None
    given = hp.model_dump(mode="json", exclude_unset=True, exclude={"tuning"})
    metric = {} if hp.tuning.metric is None else {"early_stop_metric": hp.tuning.metric}
    return {**given, **metric, **changes}


def check_tuning(hp: Hyperparameters) -> None:
    """Raise ContractError if a setting of the space or one of its values is invalid, or no combination is valid."""
    tuning = hp.tuning
    if tuning is None:
        return
    _check_metric(hp, tuning)
    for name, values in (tuning.space or {}).items():
        _check_name(name)
        for value in (values.low, values.high) if isinstance(values, Range) else values:
            _check_value(name, value)
        if isinstance(values, Range):
            _check_range(name, values)
    first: ContractError | None = None
    for changes in _combinations(space_of(hp)):
        try:
            check_consistency(Hyperparameters(**trial_settings(hp, changes)))
            return
        except (ContractError, ValidationError) as error:
            cause, fix = (error.cause, error.fix) if isinstance(error, ContractError) else (str(error), "")
            first = first or ContractError(
                f"tuning.space: no combination is valid, e.g. {shown(changes)}: {cause}", fix
            )
    assert first is not None
    raise first


def _check_metric(hp: Hyperparameters, tuning: Tuning) -> None:
    try:
        check_consistency(hp.model_copy(update={"early_stop_metric": tuning.metric or hp.early_stop_metric}))
    except ContractError as error:
        raise ContractError(error.cause.replace("early_stop_metric", "tuning.metric"), error.fix) from None


def _check_name(name: str) -> None:
    known = tunable()
    if name in known:
        return
    if name not in Hyperparameters.model_fields:
        raise ContractError(
            f"tuning.space: {name!r} is not a hyperparameter{did_you_mean(name, known)}",
            "Correct the name or remove it; docs/hyperparameters.md lists all of them.",
        )
    raise ContractError(
        f"tuning.space: {name} cannot be tuned: no trial depends on it, or trials would not be comparable",
        f"Remove it. A space may have settings of the groups {', '.join(TUNABLE_GROUPS)}; docs/tuning.md lists them.",
    )


def _check_value(name: str, value: Any) -> None:
    field = Hyperparameters.model_fields[name]
    try:
        TypeAdapter(Annotated[field.annotation, field]).validate_python(value)  # type: ignore[valid-type]
    except ValidationError as error:
        raise ContractError(
            f"tuning.space: {name}: {shown(value)} is invalid: {error.errors()[0]['msg']}",
            f"{name} is {type_name(plain_type(field.annotation))}{describe_limits(field)}: {field.description}",
        ) from None


def is_whole(name: str) -> bool:
    """Return whether the hyperparameter `name` is a whole number."""
    return plain_type(Hyperparameters.model_fields[name].annotation) in (int, int | None)


def _check_range(name: str, values: Range) -> None:
    if plain_type(Hyperparameters.model_fields[name].annotation) not in (int, float, int | None, float | None):
        raise ContractError(
            f"tuning.space: {name} has a range, but it is not a number", f"List its values: {name}: [...]."
        )
    if is_whole(name) and values.step is not None and values.step % 1:
        raise ContractError(
            f"tuning.space: {name}: step {values.step:g} is invalid: {name} is a whole number", "Use a whole step."
        )


def _combinations(space: Space) -> Iterator[dict[str, Any]]:
    """Yield every combination of the listed values and the ends of ranges, or a sample if there are many."""
    values = [[each.low, each.high] if isinstance(each, Range) else each for each in space.values()]
    every = itertools.product(*values)
    few = list(itertools.islice(every, _COMBINATIONS + 1))
    if len(few) > _COMBINATIONS:
        draw = random.Random(0)
        few = [tuple(draw.choice(each) for each in values) for _ in range(_COMBINATIONS)]
    for combination in few:
        yield dict(zip(space, combination))
