"""What was set and has no effect in a job: a sentence for each, for the log."""

import difflib
from collections.abc import Collection, Iterator

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
    named = set()  # one reason is enough for a setting that has several
    for name, has_effect, reason in (
        ("powersgd_rank", hp.gradient_compression == "powersgd", "gradient_compression is not powersgd"),
        ("fsdp_min_params", hp.fsdp_wrap == "size", "fsdp_wrap is not size"),
        ("fsdp_reduce_dtype", hp.bf16 or hp.fp16, "neither bf16 nor fp16 is set"),
        *_of_the_encoders(hp),
        *_of_the_table(hp),
        *_of_the_class(hp),
    ):
        only = set(_only(name))
        if name in hp.model_fields_set and (active & only or not only) and not has_effect and name not in named:
            named.add(name)
            sentences.append(f"{name} is set and has no effect here: {reason}.")
    return sentences


Effect = tuple[str, bool, str]  # hyperparameter, whether it has one, why not


def _of_the_encoders(hp: Hyperparameters) -> Iterator[Effect]:
    roles = [field.role for field in hp.text_fields]
    scratch = {field.role for field in hp.text_fields if field.tokenizer == FROM_SCRATCH}
    for name in ("reinit_pooler", "reinit_layers"):
        pools = name == "reinit_layers" or hp.pooling == "first"
        for setting, of in ((name, set(roles)), *((f"{role}_{name}", {role}) for role in roles if role != "text")):
            if not pools:
                yield setting, False, "pooling is mean, without a pooler"
            elif of <= scratch and getattr(hp, setting):
                yield setting, False, "from_scratch weights are random already"
    if len(roles) > 1:
        for name in ("tokenizer", "max_sen_len", "reinit_pooler", "reinit_layers", "is_embeddings_trainable"):
            overridden = all(getattr(hp, f"{role}_{name}") is not None for role in roles)
            yield name, not overridden, "both texts have their own"


def _of_the_table(hp: Hyperparameters) -> Iterator[Effect]:
    reads = hp.architecture.uses_table
    numbers, categories = reads and bool(hp.tab_field_list), reads and bool(hp.encoded_categories)
    for name in ("imputation_strategy", "imputation_dict"):
        yield name, numbers, "no number enters the model"
    for name in ("smooth_factor", "count_threshold", "risk_table_folds"):
        yield name, categories, "no category enters the model"
    yield "numeric_transform", numbers or categories, "no number or category enters the model"


def _of_the_class(hp: Hyperparameters) -> Iterator[Effect]:
    name = hp.architecture.name
    yield "hidden_common_dim", name != "bert", "bert has one text and no table, whose widths would have to be one"
    if name == "lstm":
        yield "dropout", hp.has_table, "lstm has it in its tabular branch, and there is no table"
        yield "dropout_keep", hp.num_layers > 1, "lstm has it between recurrent layers, and num_layers is 1"
    even = hp.experts_per_record == hp.num_experts
    yield "expert_balance", not even, "experts_per_record is num_experts, so all get every record"


def _only(name: str) -> list[str]:
    extra = Hyperparameters.model_fields[name].json_schema_extra
    return extra["only"] if isinstance(extra, dict) else []  # type: ignore[return-value]
