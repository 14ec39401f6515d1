"""Rules that tie hyperparameters to each other: contradictions are errors."""

from collections.abc import Collection

from contracts.errors import ContractError
from contracts.hyperparameters import BALANCED, FROM_SCRATCH, METRICS, ZERO_BUBBLE_SCHEDULES, Hyperparameters
from contracts.model_classes import CROSS_ATTENTION_CLASSES, POOLED_CLASSES
from contracts.spelling import did_you_mean


def check_consistency(hp: Hyperparameters) -> None:
    """Raise ContractError for the first contradiction."""
    _check_classes(hp)
    _check_columns(hp)
    _check_model(hp)
    _check_text_steps(hp)
    _check_control(hp)
    _check_sharding(hp)
    _check_outcome(hp)
    _check_modalities(hp)
    _check_lora(hp)
    _check_shared_encoder(hp)


def _check_shared_encoder(hp: Hyperparameters) -> None:
    if not hp.share_encoder or len(hp.text_fields) < 2:
        return
    first, *others = hp.text_fields
    pools = hp.architecture.name in POOLED_CLASSES and hp.pooling == "first"
    for name in ("tokenizer", *(["reinit_pooler"] if pools else []), "reinit_layers", "is_embeddings_trainable"):
        for other in others:
            ours, theirs = getattr(first, name), getattr(other, name)
            if ours != theirs:
                raise ContractError(
                    f"share_encoder: is true, but {name} is {ours!r} for {first.column!r} and {theirs!r} for "
                    f"{other.column!r}, which are to go through one encoder",
                    f"Give both texts one {name}, or set share_encoder to false.",
                )
    if first.tokenizer == FROM_SCRATCH:
        raise ContractError(
            f"share_encoder: is true, but tokenizer is {FROM_SCRATCH}, which makes a vocabulary for each text",
            "Set tokenizer to a pretrained encoder, or share_encoder to false.",
        )


def _check_lora(hp: Hyperparameters) -> None:
    if not hp.lora_rank:
        return
    if hp.architecture.encoder != "transformer":
        raise ContractError(
            f"lora_rank: is {hp.lora_rank}, but {hp.architecture.name} reads words and has no layers to adapt",
            "Set lora_rank to 0, or choose a model_class with a transformer.",
        )
    for field in hp.text_fields:
        if field.tokenizer == FROM_SCRATCH:
            raise ContractError(
                f"lora_rank: is {hp.lora_rank}, but the encoder of {field.column!r} is {FROM_SCRATCH}: its random "
                "weights would stay as they are, but for a low-rank change",
                "Set lora_rank to 0, or tokenizer to a pretrained encoder.",
            )
        if field.reinit_layers:
            raise ContractError(
                f"reinit_layers: is {field.reinit_layers} for {field.column!r}, but with lora_rank {hp.lora_rank} the "
                "reinitialized layers would stay random, but for a low-rank change",
                "Set reinit_layers to 0, or lora_rank to 0.",
            )


def _check_modalities(hp: Hyperparameters) -> None:
    count = len(hp.text_fields) + hp.has_table
    if hp.modality_dropout and count < 2:
        raise ContractError(
            f"modality_dropout: is {hp.modality_dropout}, but the model reads one text and no table column: there is "
            "nothing it could do without",
            "Set modality_dropout to 0, or choose a model_class that reads more and name its columns.",
        )
    if hp.category_embedding_dim and not (hp.has_table and hp.encoded_categories):
        raise ContractError(
            f"category_embedding_dim: is {hp.category_embedding_dim}, but no category enters the model",
            "Set category_embedding_dim to 0, or choose a model_class that reads the table and name cat_field_list.",
        )
    if hp.numeric_embedding != "none" and not hp.has_table:
        raise ContractError(
            f"numeric_embedding: is {hp.numeric_embedding!r}, but no number or category enters the model",
            "Set numeric_embedding to none, or choose a model_class that reads the table and name its columns.",
        )


def _check_classes(hp: Hyperparameters) -> None:
    categories = hp.multiclass_categories
    if hp.is_binary and hp.num_classes != 2:
        raise ContractError(
            f"num_classes: is {hp.num_classes}, but is_binary is true, which means 2 classes",
            "Set num_classes to 2, or is_binary to false and list multiclass_categories.",
        )
    if not hp.is_binary and not categories:
        raise ContractError(
            "multiclass_categories: missing, but is_binary is false",
            f"List the {hp.num_classes} class labels in the order of their ids.",
        )
    if categories is not None:
        if len(categories) != hp.num_classes:
            raise ContractError(
                f"multiclass_categories: has {len(categories)} labels {categories}, "
                f"but num_classes is {hp.num_classes}",
                "Make num_classes the number of labels.",
            )
        if len({str(label) for label in categories}) != len(categories):
            raise ContractError(
                f"multiclass_categories: {categories} names a label twice", "List each class label once."
            )
    if hp.class_weights not in (None, BALANCED):
        if len(hp.class_weights) != hp.num_classes:
            raise ContractError(
                f"class_weights: has {len(hp.class_weights)} weights {hp.class_weights}, "
                f"but num_classes is {hp.num_classes}",
                "Give one weight per class, in the order of the class ids.",
            )
        if min(hp.class_weights) <= 0:
            raise ContractError(
                f"class_weights: {hp.class_weights} has a weight that is not positive", "Use weights above 0."
            )
        if min(hp.class_weights) < 1e-6 or max(hp.class_weights) > 1e6:
            raise ContractError(
                f"class_weights: {hp.class_weights} has a weight beyond what float32 sums exactly",
                "Only the ratios matter: use weights between 0.000001 and 1000000.",
            )


def _check_columns(hp: Hyperparameters) -> None:
    architecture = hp.architecture
    needed = ("text_name",) if architecture.num_texts == 1 else ("primary_text_name", "secondary_text_name")
    other = ("primary_text_name", "secondary_text_name") if architecture.num_texts == 1 else ("text_name",)
    for name in needed:
        if getattr(hp, name) is None:
            raise ContractError(
                f"{name}: missing, but model_class {hp.model_class!r} reads {' and '.join(needed)}",
                f"Set {name} to the name of the text column.",
            )
    for name in other:
        if getattr(hp, name) is not None:
            raise ContractError(
                f"{name}: set to {getattr(hp, name)!r}, "
                f"but model_class {hp.model_class!r} reads {' and '.join(needed)}",
                f"Remove {name}, or choose a model_class that reads it.",
            )
    unlisted = set(hp.categorical_features_to_encode or []) - set(hp.cat_field_list)
    if unlisted:
        raise ContractError(
            f"categorical_features_to_encode: {sorted(unlisted)} is not in cat_field_list {hp.cat_field_list}",
            "Add the column to cat_field_list, or take it out of categorical_features_to_encode.",
        )
    role_of: dict[str, str] = {}
    for role, columns in used_columns(hp).items():
        for column in columns:
            if column in role_of:
                raise ContractError(
                    f"{role}: column {column!r} is already used as {role_of[column]}",
                    "Give each column one role; a label or an id must not be a feature.",
                )
            role_of[column] = role
    tabular = len(hp.tab_field_list) + len(hp.encoded_categories) * (1 if hp.is_binary else hp.num_classes)
    if hp.input_tab_dim is not None and hp.input_tab_dim not in (len(hp.tab_field_list), tabular):
        raise ContractError(
            f"input_tab_dim: is {hp.input_tab_dim}, but the table has {len(hp.tab_field_list)} numeric columns "
            f"and {tabular} tabular inputs with the risk values",
            "Leave input_tab_dim out: it is computed.",
        )
    given = set(hp.imputation_dict or {}) - set(hp.tab_field_list)
    if given:
        raise ContractError(f"imputation_dict: {sorted(given)} is not in tab_field_list", "Name numeric columns only.")
    given = set(hp.risk_tables or {}) - set(hp.cat_field_list)
    if given:
        raise ContractError(f"risk_tables: {sorted(given)} is not in cat_field_list", "Name categorical columns only.")


def used_columns(hp: Hyperparameters) -> dict[str, list[str]]:
    """The columns that a job reads, by the hyperparameter that names them."""
    texts = ("text_name",) if hp.architecture.num_texts == 1 else ("primary_text_name", "secondary_text_name")
    return {
        **{name: [getattr(hp, name)] for name in ("id_name", "label_name", *texts)},
        "cat_field_list": hp.cat_field_list,
        "tab_field_list": hp.tab_field_list,
    }


def _check_model(hp: Hyperparameters) -> None:
    """What a model class asks of its sizes, and of the table."""
    architecture = hp.architecture
    if architecture.table == "needed" and not (hp.tab_field_list or hp.encoded_categories):
        raise ContractError(
            f"model_class: {hp.model_class!r} weighs text against a table, but tab_field_list and cat_field_list name "
            "no column that enters the model",
            "Name numeric or categorical columns, or choose bert.",
        )
    if architecture.name in CROSS_ATTENTION_CLASSES and hp.hidden_common_dim % hp.fusion_attention_heads:
        width = hp.hidden_common_dim
        fitting = [heads for heads in range(1, min(width, 16) + 1) if width % heads == 0]
        raise ContractError(
            f"fusion_attention_heads: {hp.fusion_attention_heads} heads do not share the {width} features of "
            "hidden_common_dim evenly",
            f"Set fusion_attention_heads to one of {fitting}, or change hidden_common_dim.",
        )
    if architecture.name == "multimodal_moe" and hp.experts_per_record > hp.num_experts:
        raise ContractError(
            f"experts_per_record: is {hp.experts_per_record}, but there are {hp.num_experts} experts (num_experts)",
            f"Set experts_per_record to at most {hp.num_experts}.",
        )
    if architecture.encoder == "cnn":
        _check_convolutions(hp)


def _check_convolutions(hp: Hyperparameters) -> None:
    for name in ("kernel_size", "num_channels"):
        smallest = min(getattr(hp, name))
        if smallest < 1:
            raise ContractError(f"{name}: {getattr(hp, name)} has {smallest}", "Use numbers of at least 1.")
    if len(set(hp.kernel_size)) != len(hp.kernel_size):
        raise ContractError(f"kernel_size: {hp.kernel_size} names a size twice", "Name each size once.")
    if len(hp.num_channels) != hp.num_layers:
        raise ContractError(
            f"num_layers: is {hp.num_layers}, but num_channels {hp.num_channels} names {len(hp.num_channels)} layers",
            "Give num_channels one number per layer, or leave num_layers out.",
        )


def _check_text_steps(hp: Hyperparameters) -> None:
    for name in ("text_processing_steps", "primary_text_processing_steps", "secondary_text_processing_steps"):
        steps = getattr(hp, name)
        if steps is None:
            continue
        if not steps or steps[-1] != "tokenizer" or steps.count("tokenizer") != 1:
            raise ContractError(f"{name}: {steps} does not end with 'tokenizer'", "Put tokenizer last, once.")
        if len(set(steps)) != len(steps):
            raise ContractError(f"{name}: {steps} names a step twice", "Name each step once.")


def _check_control(hp: Hyperparameters) -> None:
    if hp.fp16 and hp.bf16:
        raise ContractError("fp16: both fp16 and bf16 are true", "Choose one of them.")
    name = hp.early_stop_metric.replace("val_", "val/", 1) if "/" not in hp.early_stop_metric else hp.early_stop_metric
    known = ["val/loss", *(f"val/{metric}" for metric in METRICS)]
    if name not in known:
        raise ContractError(
            f"early_stop_metric: {hp.early_stop_metric!r} is unknown{did_you_mean(name, known)}",
            f"Use one of {', '.join(known)}.",
        )


def _check_sharding(hp: Hyperparameters) -> None:
    if hp.sharding_strategy != "NO_SHARD":
        return
    if hp.strategy == "hsdp" or hp.dp_shard_size != 1:
        named = "strategy" if hp.strategy == "hsdp" else "dp_shard_size"
        raise ContractError(
            f"sharding_strategy: is NO_SHARD, which makes replicas, but {named} is {getattr(hp, named)!r}",
            "Set strategy to ddp, or to fsdp without dp_shard_size; or sharding_strategy to FULL_SHARD.",
        )


def _check_outcome(hp: Hyperparameters) -> None:
    if len(set(hp.onnx_variants)) != len(hp.onnx_variants):
        raise ContractError(f"onnx_variants: {hp.onnx_variants} names a variant twice", "Name each variant once.")
    if hp.num_classes > 2:
        for name, fix in (
            ("target_prior", "Remove it: the share of one class says nothing about the other ones."),
            ("decision_threshold", "Remove it: the most probable class is decided."),
        ):
            if getattr(hp, name) != Hyperparameters.model_fields[name].default:
                raise ContractError(
                    f"{name}: is {getattr(hp, name)!r}, but it is for two classes and num_classes is {hp.num_classes}",
                    fix,
                )


def check_parallelism(hp: Hyperparameters, features: Collection[str], *, pipeline_ranks: int) -> None:
    """Raise ContractError for the first setting that contradicts the way the work is shared out.

    Args:
        features: what is at work: mesh axes (pp, dp_replicate, dp_shard, branch, tp), and ddp or fsdp.
        pipeline_ranks: size of the pp axis.
    """
    at_work = ", ".join(sorted(features)) or "one process alone"
    if hp.gradient_compression != "none" and features and "ddp" not in features:
        raise ContractError(
            f"gradient_compression: is {hp.gradient_compression!r}, which pure replicas (ddp) have; "
            f"here work: {at_work}",
            "Set gradient_compression to none (under fsdp, fsdp_reduce_dtype=bfloat16 halves what travels), "
            "or strategy to ddp.",
        )
    if hp.cpu_offload and "fsdp" not in features:
        raise ContractError(
            f"cpu_offload: is true, but nothing is sharded whose shards could be kept outside; here work: {at_work}",
            "Set strategy to fsdp and run several processes, or cpu_offload to false.",
        )
    if hp.sequence_parallel and "tp" not in features:
        raise ContractError(
            f"sequence_parallel: is true, but there is no tp axis to share sequences out over; here work: {at_work}",
            "Set tp_size to 2 or more, or sequence_parallel to false.",
        )
    shared_out = {"pp", "branch"}.intersection(features)
    if hp.share_encoder and len(hp.text_fields) > 1 and shared_out:
        axis = sorted(shared_out)[0]
        raise ContractError(
            f"share_encoder: is true, but {axis} puts the two texts on different ranks; here work: {at_work}",
            "Set share_encoder to false, or share the model out with dp_shard_size (fsdp) or tp_size.",
        )
    if hp.lora_rank and "tp" in features:
        raise ContractError(
            f"lora_rank: is {hp.lora_rank}, but tp cuts the very layers that it would add to; here work: {at_work}",
            "Set tp_size to 1 and share the model out with dp_shard_size (fsdp) or pp_size, or lora_rank to 0.",
        )
    if "pp" in features:
        _check_microbatches(hp, pipeline_ranks)
        _check_zero_bubble(hp)


def _check_microbatches(hp: Hyperparameters, ranks: int) -> None:
    count = hp.num_microbatches
    even = [number for number in range(1, hp.batch_size + 1) if hp.batch_size % number == 0]
    possible = [number for number in even if microbatches_fit(hp.pp_schedule, number, ranks)]
    if count in possible:
        return
    needs = []
    if count not in even:
        needs.append(f"do not share the {hp.batch_size} records of a pass (batch_size) evenly")
    if not microbatches_fit(hp.pp_schedule, count, ranks):
        needs.append(
            f"are too few for {ranks} ranks under 1F1B (pp_size)"
            if hp.pp_schedule == "1F1B"
            else f"make no {count // ranks} even rounds over {ranks} ranks under {hp.pp_schedule} (pp_size)"
        )
    raise ContractError(
        f"num_microbatches: {count} microbatches {' and '.join(needs)}",
        f"Set num_microbatches to one of {possible}, or change batch_size."
        if possible
        else f"Set batch_size to {ranks} or more, or pp_schedule to GPipe.",
    )


def microbatches_fit(schedule: str, count: int, ranks: int) -> bool:
    """Whether a schedule of torch.distributed.pipelining can run `count` microbatches over `ranks` ranks."""
    if schedule == "1F1B":
        return count >= ranks
    if schedule in ("Interleaved1F1B", "InterleavedZeroBubble"):
        return count % max(1, count // ranks) == 0
    return True


def _check_zero_bubble(hp: Hyperparameters) -> None:
    if hp.compile and hp.pp_schedule in ZERO_BUBBLE_SCHEDULES:
        raise ContractError(
            f"compile: is true, but {hp.pp_schedule} runs the backward pass in two parts, "
            "into which compiled layers cannot be divided",
            "Set compile to false, or pp_schedule to 1F1B or Interleaved1F1B.",
        )
    if hp.activation_checkpointing and hp.pp_schedule in ZERO_BUBBLE_SCHEDULES:
        raise ContractError(
            f"activation_checkpointing: is {hp.activation_checkpointing}, but {hp.pp_schedule} runs the backward pass "
            "in parts, and each would compute the layers again: nine times per microbatch instead of once",
            "Set activation_checkpointing to 0, or pp_schedule to 1F1B or Interleaved1F1B.",
        )
