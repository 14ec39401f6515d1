"""Names what was set and has no effect in a job: a sentence for each, for the log."""

from collections.abc import Collection

from contracts.consistency import used_columns
from contracts.declaration import Need
from contracts.hyperparameters import Hyperparameters
from contracts.spelling import did_you_mean


def unused_settings(hp: Hyperparameters, features: Collection[str] = ()) -> list[str]:
    """Return a sentence for each hyperparameter that was set and has no effect in this job.

    Args:
        features: as in `check_parallelism`.
    """
    obstacles = {name: found.obstacle(hp, features) for name, found in hp.declarations().items()}
    return [
        *(_sentence(name, why) for name, why in obstacles.items() if why and name in hp.model_fields_set),
        *_unlisted_columns(hp),
        *_categories_left_out(hp),
    ]


def unused_if_precomputed(hp: Hyperparameters, fit: Need) -> list[str]:
    """Return a sentence for each hyperparameter that was set and needs `fit`, a fit that precomputed values replace."""
    return [
        _sentence(name, "the values of every column are precomputed")
        for name, declaration in hp.declarations().items()
        if fit in declaration.needs and name in hp.model_fields_set
    ]


def _sentence(name: str, reason: str) -> str:
    return f"{name} is set and has no effect here: {reason}."


def _unlisted_columns(hp: Hyperparameters) -> list[str]:
    sentences: list[str] = []
    listed = hp.full_field_list
    if listed is None:
        return sentences
    for role, columns in used_columns(hp).items():
        for column in columns:
            if column not in listed:
                hint = did_you_mean(column, listed) or "."
                sentences.append(f"full_field_list leaves out {column!r}, which {role} names; it is read anyway{hint}")
    return sentences


def _categories_left_out(hp: Hyperparameters) -> list[str]:
    left_out = [name for name in hp.cat_field_list if name not in hp.encoded_categories]
    if not left_out or not hp.architecture.uses_table:
        return []
    return [f"cat_field_list: {left_out} do not enter the model: categorical_features_to_encode leaves them out."]
