"""Name the hyperparameters that are set and have no effect in a job."""

from collections.abc import Collection

from contracts.consistency import used_columns
from contracts.declaration import Need
from contracts.hyperparameters import Hyperparameters
from contracts.spelling import did_you_mean

# Settings of a transformer that its word embeddings depend on; the heads must divide their size.
_OF_WORD_EMBEDDINGS = frozenset(
    """
    model_type vocab_size hidden_size dim embedding_size num_attention_heads n_heads initializer_range pad_token_id
    """.split()
)


def unused_settings(hp: Hyperparameters, features: Collection[str] = ()) -> list[str]:
    """Return a sentence for each hyperparameter that is set and has no effect in this job.

    Args:
        features: as in `check_parallelism`.
    """
    obstacles = {name: declaration.obstacle(hp, features) for name, declaration in hp.declarations().items()}
    return [
        *(_sentence(name, reason) for name, reason in obstacles.items() if reason and name in hp.model_fields_set),
        *_unlisted_columns(hp),
        *_categories_left_out(hp),
        *_encoder_settings_left_out(hp),
    ]


def unused_if_precomputed(hp: Hyperparameters, fit: Need) -> list[str]:
    """Return a sentence for each hyperparameter that is set and needs `fit`, a fit that precomputed values replace."""
    return [
        _sentence(name, "the values of every column are precomputed")
        for name, declaration in hp.declarations().items()
        if fit in declaration.needs and name in hp.model_fields_set
    ]


def _sentence(name: str, reason: str) -> str:
    return f"{name} is set and has no effect here: {reason}."


def _unlisted_columns(hp: Hyperparameters) -> list[str]:
    listed = hp.full_field_list
    return [
        f"full_field_list omits {column!r}, which {role} names; it is read anyway{did_you_mean(column, listed) or '.'}"
        for role, columns in used_columns(hp).items()
        for column in columns
        if listed is not None and column not in listed
    ]


def _categories_left_out(hp: Hyperparameters) -> list[str]:
    left_out = [name for name in hp.cat_field_list if name not in hp.encoded_categories]
    if not left_out or not hp.architecture.uses_table:
        return []
    return [f"cat_field_list: {left_out} do not enter the model: categorical_features_to_encode omits them."]


def _encoder_settings_left_out(hp: Hyperparameters) -> list[str]:
    left_out = sorted(hp.encoder_config.keys() - _OF_WORD_EMBEDDINGS)
    if not left_out or hp.architecture.encoder in ("transformer", "none"):
        return []
    return [f"encoder_config: {left_out} have no effect: {hp.architecture.name} reads only the word embeddings."]
