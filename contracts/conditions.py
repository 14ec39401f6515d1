"""Define the conditions under which a hyperparameter has an effect; contracts/settings/ refers to them."""

from collections.abc import Callable
from typing import Any

from contracts.declaration import Need
from contracts.model_classes import FROM_SCRATCH
from contracts.threshold_targets import COST


def _when(holds: Callable[[Any], object], *, otherwise: str) -> Need:
    """Return a condition on hyperparameters alone."""
    return Need(lambda hp, _features: bool(holds(hp)), otherwise)


def chosen(name: str, *values: str) -> Need:
    """Return the condition that the hyperparameter `name` has one of `values`."""
    return _when(lambda hp: getattr(hp, name) in values, otherwise=f"{name} is not {' or '.join(values)}")


def not_overridden(name: str) -> Need:
    """Return the condition that at least one text does not override the hyperparameter `name`."""

    def holds(hp: Any) -> bool:
        return any(getattr(hp, f"{field.role}_{name}", None) is None for field in hp.text_fields)

    return _when(holds, otherwise="every text overrides it, or there is none")


def pretrained(name: str) -> Need:
    """Return the condition that `name`, which reinitializes weights, applies to a pretrained encoder."""

    def holds(hp: Any) -> bool:
        texts = [text for text in hp.text_fields if name.startswith(text.role)] or hp.text_fields
        return not getattr(hp, name) or any(text.tokenizer != FROM_SCRATCH for text in texts)

    return _when(holds, otherwise=f"the weights of a {FROM_SCRATCH} encoder are already random")


TRACKED = _when(lambda hp: hp.mlflow_tracking_uri is not None, otherwise="mlflow_tracking_uri is not set")

NOT_DRAFT = _when(lambda hp: not hp.draft, otherwise="draft is true")

PROCESSES = Need(lambda _hp, features: bool(features), "there is one process")
# NO_SHARD has an effect if fsdp runs without a shard axis.
SHARDS = Need(
    lambda hp, features: ("fsdp" if hp.sharding_strategy == "NO_SHARD" else "dp_shard") in features,
    "nothing is sharded",
)
ACCUMULATES = _when(
    lambda hp: hp.accumulate_grad_batches > 1 or hp.max_tokens_per_batch,
    otherwise="accumulate_grad_batches is 1 and max_tokens_per_batch is 0",
)
AUTOCAST = _when(lambda hp: hp.bf16 or hp.fp16, otherwise="bf16 and fp16 are false")

ONE_TEXT = _when(
    lambda hp: hp.architecture.num_texts == 1,
    otherwise="two texts have primary_text_processing_steps and secondary_text_processing_steps",
)
TEXTS = _when(lambda hp: hp.architecture.num_texts > 0, otherwise="the model class reads no text")
TRUNCATES = _when(lambda hp: hp.chunk_trancate, otherwise="chunk_trancate is false")
NEVER_PADS = _when(lambda _hp: False, otherwise="batches are packed, without padding")

POOLER = _when(lambda hp: hp.pooling == "first", otherwise="pooling is mean")
LORA = _when(lambda hp: hp.lora_rank > 0, otherwise="lora_rank is 0")
TRAINS_ENCODERS = _when(lambda hp: hp.lora_rank == 0, otherwise="lora_rank freezes the encoders")
PROJECTS = _when(
    lambda hp: hp.architecture.name != "bert",
    otherwise="bert projects nothing to a common width",
)
DROPS = _when(
    lambda hp: hp.architecture.encoder == "transformer" or hp.has_table,
    otherwise="lstm and multimodal_cnn use it in the tabular branch, and there is no table",
)
DROPS_BETWEEN_LAYERS = _when(
    lambda hp: hp.architecture.name != "lstm" or hp.num_layers > 1,
    otherwise="lstm uses it between recurrent layers, and num_layers is 1",
)
SELECTS_EXPERTS = _when(
    lambda hp: hp.experts_per_record != hp.num_experts,
    otherwise="experts_per_record is num_experts",
)

READS_TABLE = _when(lambda hp: hp.architecture.uses_table, otherwise="the model class reads text only")
TABLE = _when(lambda hp: hp.has_table, otherwise="no number or category enters the model")
NUMBERS = _when(
    lambda hp: hp.architecture.uses_table and (hp.tab_field_list or hp.date_field_list),
    otherwise="no number enters the model",
)
NUMBERS_OR_WEIGHT = _when(
    lambda hp: hp.weight_name or NUMBERS.holds(hp, ()),
    otherwise="no number enters the model, and there is no weight_name",
)
CATEGORIES = _when(
    lambda hp: hp.architecture.uses_table and hp.encoded_categories, otherwise="no category enters the model"
)
FITS_IMPUTATION = _when(
    lambda hp: hp.date_field_list or set(hp.tab_field_list) - set(hp.imputation_dict or ()),
    otherwise="imputation_dict has every numeric column",
)
FITS_RISKS = _when(
    lambda hp: set(hp.encoded_categories) - set(hp.risk_tables or ()),
    otherwise="risk_tables has every category of the model",
)
EMBEDS_CATEGORIES = _when(lambda hp: hp.category_embedding_dim > 0, otherwise="category_embedding_dim is 0")

DECAYS = _when(lambda hp: hp.run_scheduler, otherwise="run_scheduler is false")
COSTS = _when(lambda hp: hp.decision_threshold == COST, otherwise="decision_threshold is not cost")
