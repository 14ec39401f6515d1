"""What was set and has no effect in a job: a sentence for each, for the log."""

import difflib
from collections.abc import Collection

from contracts.consistency import used_columns
from contracts.hyperparameters import FROM_SCRATCH, Hyperparameters
from contracts.threshold_targets import COST


def unused_settings(hp: Hyperparameters, features: Collection[str] = ()) -> list[str]:
    """One sentence for each hyperparameter that was set and has no effect in this job.

    Args:
        features: as in `check_parallelism`.
    """
    active = {hp.architecture.name, hp.optimizer, hp.loss, hp.numeric_embedding, *features}
    if hp.sharding_strategy == "NO_SHARD" and "fsdp" in features:
        active.add("dp_shard")  # its effect is that this axis is not there
    sentences = []
    for name in type(hp).model_fields:
        if name not in hp.model_fields_set:
            continue
        only = _only(name)
        if only and not active & set(only):
            sentences.append(f"{name} is set and has no effect here: it belongs to {', '.join(only)}.")
    for role, columns in used_columns(hp).items():
        for column in columns:
            if hp.full_field_list is not None and column not in hp.full_field_list:
                near = difflib.get_close_matches(column, hp.full_field_list, n=1)
                hint = f" (the nearest there is {near[0]!r})" if near else ""
                sentences.append(
                    f"full_field_list leaves out {column!r}{hint}, which {role} names; it is read all the same."
                )
    scratch = [field.role for field in hp.text_fields if field.tokenizer == FROM_SCRATCH]
    for name in ("reinit_pooler", "reinit_layers"):
        if len(scratch) == len(hp.text_fields) and name in hp.model_fields_set and getattr(hp, name):
            sentences.append(f"{name} is set and has no effect here: from_scratch weights are random already.")
    for name in ("reinit_pooler", "primary_reinit_pooler", "secondary_reinit_pooler"):
        if hp.pooling == "mean" and name in hp.model_fields_set:
            sentences.append(f"{name} is set and has no effect here: pooling is mean, without a pooler.")
    if "max_total_chunks" in hp.model_fields_set and not hp.chunk_trancate:
        sentences.append("max_total_chunks is set and has no effect here: chunk_trancate is false.")
    if "fixed_tokenizer_length" in hp.model_fields_set:
        sentences.append("fixed_tokenizer_length is set and has no effect: nothing is padded.")
    if not hp.architecture.uses_table:
        for name in ("tab_field_list", "cat_field_list"):
            if getattr(hp, name):
                sentences.append(f"{name} is set and has no effect here: {hp.model_class} reads text only.")
    if "category_embedding_min_count" in hp.model_fields_set and not hp.category_embedding_dim:
        sentences.append("category_embedding_min_count is set and has no effect here: category_embedding_dim is 0.")
    for name in ("lora_alpha", "lora_target"):
        if name in hp.model_fields_set and not hp.lora_rank:
            sentences.append(f"{name} is set and has no effect here: lora_rank is 0.")
    for name in ("is_embeddings_trainable", "primary_is_embeddings_trainable", "secondary_is_embeddings_trainable"):
        if name in hp.model_fields_set and hp.lora_rank:
            sentences.append(f"{name} is set and has no effect here: lora_rank freezes the encoders.")
    if "lr_decay" in hp.model_fields_set and not hp.run_scheduler:
        sentences.append("lr_decay is set and has no effect here: run_scheduler is false.")
    if hp.decision_threshold != COST:
        for name in ("false_positive_cost", "false_negative_cost"):
            if name in hp.model_fields_set:
                sentences.append(f"{name} is set and has no effect here: decision_threshold is not cost.")
    if hp.strategy != "auto" and not features:
        sentences.append(f"strategy is set to {hp.strategy} and has no effect here: there is one process.")
    for name, has_effect, reason in (
        ("powersgd_rank", hp.gradient_compression == "powersgd", "gradient_compression is not powersgd"),
        ("fsdp_min_params", hp.fsdp_wrap == "size", "fsdp_wrap is not size"),
        ("fsdp_reduce_dtype", hp.bf16 or hp.fp16, "neither bf16 nor fp16 is set"),
    ):
        if name in hp.model_fields_set and active & set(_only(name)) and not has_effect:
            sentences.append(f"{name} is set and has no effect here: {reason}.")
    return sentences


def _only(name: str) -> list[str]:
    extra = Hyperparameters.model_fields[name].json_schema_extra
    return extra["only"] if isinstance(extra, dict) else []  # type: ignore[return-value]
