"""Check rules that relate several hyperparameters; a contradiction is an error."""

from collections.abc import Collection
from pathlib import PurePosixPath

from contracts.artifacts import ONNX_OUTPUT, ONNX_TABULAR, PROBABILITY_COLUMN, ROW_NUMBER
from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters
from contracts.metrics import METRICS
from contracts.model_classes import CROSS_ATTENTION_CLASSES, FROM_SCRATCH, POOLED_CLASSES, TWO_TEXT_CLASSES
from contracts.paths import SPLITS
from contracts.settings.data import ROW_COLUMNS
from contracts.settings.processes import ZERO_BUBBLE_SCHEDULES
from contracts.spelling import did_you_mean
from contracts.tabular_inputs import DATE_PARTS, check_tabular_inputs


def check_data_settings(hp: Hyperparameters) -> None:
    """Raise ContractError for the first contradiction of the data's settings, which no preset changes."""
    _check_classes(hp)
    _check_columns(hp)
    _check_filenames(hp)


def check_consistency(hp: Hyperparameters) -> None:
    """Raise ContractError for the first contradiction."""
    check_data_settings(hp)
    check_tabular_inputs(hp)
    _check_model(hp)
    _check_text_steps(hp)
    _check_onnx_names(hp)
    _check_control(hp)
    _check_members(hp)
    _check_sharding(hp)
    _check_outcome(hp)
    _check_modalities(hp)
    _check_lora(hp)
    _check_shared_encoder(hp)


def _check_filenames(hp: Hyperparameters) -> None:
    for split in SPLITS:
        name = getattr(hp, f"{split}_filename")
        path = PurePosixPath(name or split)
        if path.is_absolute() or ".." in path.parts:
            raise ContractError(
                f"{split}_filename: {name!r} leads out of the channel {split}",
                f"Give the name of a file in the channel {split}, relative to its folder.",
            )


def _check_shared_encoder(hp: Hyperparameters) -> None:
    if not hp.share_encoder or len(hp.text_fields) < 2:
        return
    first, second = hp.text_fields
    pools = hp.architecture.name in POOLED_CLASSES and hp.pooling == "first"
    for name in ("tokenizer", *(["reinit_pooler"] if pools else []), "reinit_layers", "is_embeddings_trainable"):
        values = getattr(first, name), getattr(second, name)
        if values[0] != values[1]:
            raise ContractError(
                f"share_encoder: is true, but {name} is {values[0]!r} for {first.name!r} and {values[1]!r} for "
                f"{second.name!r}, and both use one encoder",
                f"Give both texts the same {name}, or set share_encoder to false.",
            )
    if first.tokenizer == FROM_SCRATCH:
        names = dict.fromkeys(field.source("tokenizer", hp.model_fields_set) for field in hp.text_fields)
        raise ContractError(
            f"share_encoder: is true, but tokenizer {FROM_SCRATCH} builds a vocabulary for each text",
            f"Set {' and '.join(names)} to a pretrained encoder, or share_encoder to false.",
        )


def _check_lora(hp: Hyperparameters) -> None:
    if not hp.lora_rank:
        return
    if hp.architecture.encoder != "transformer":
        raise ContractError(
            f"lora_rank: is {hp.lora_rank}, but {hp.architecture.name} has no transformer to adapt",
            "Set lora_rank to 0, or choose a model_class with a transformer.",
        )
    for field in hp.text_fields:
        if field.tokenizer == FROM_SCRATCH:
            raise ContractError(
                f"lora_rank: is {hp.lora_rank}, but the encoder of {field.name!r} is {FROM_SCRATCH}: its weights are "
                "random, and LoRA does not train them",
                f"Set lora_rank to 0, or {field.source('tokenizer', hp.model_fields_set)} to a pretrained encoder.",
            )
        if field.reinit_layers:
            name = field.source("reinit_layers", hp.model_fields_set)
            raise ContractError(
                f"{name}: is {field.reinit_layers} for {field.name!r}, but with lora_rank {hp.lora_rank} "
                "the weights of the reinitialized layers are not trained",
                f"Set {name} to 0, or lora_rank to 0.",
            )


def _check_modalities(hp: Hyperparameters) -> None:
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
    labels, weights = hp.multiclass_categories, hp.class_weights
    if hp.is_binary and hp.num_classes != 2:
        raise ContractError(
            f"num_classes: is {hp.num_classes}, but is_binary is true, which means 2 classes",
            "Set num_classes to 2, or is_binary to false and list multiclass_categories.",
        )
    if labels is not None and len(labels) != hp.num_classes:
        raise ContractError(
            f"multiclass_categories: has {len(labels)} labels {labels}, but num_classes is {hp.num_classes}",
            "Set num_classes to the number of labels.",
        )
    if labels is not None and len(set(map(str, labels))) != len(labels):
        raise ContractError(f"multiclass_categories: {labels} names a label twice", "List each class label once.")
    if isinstance(weights, list) and len(weights) != hp.num_classes:
        raise ContractError(
            f"class_weights: has {len(weights)} weights {weights}, but num_classes is {hp.num_classes}",
            "Give one weight per class, in the order of the class ids.",
        )


_ONE_TEXT, _TWO_TEXTS = ("text_name",), ("primary_text_name", "secondary_text_name")


def used_columns(hp: Hyperparameters) -> dict[str, list[str]]:
    """Return the columns that a job reads, by the hyperparameter that names them."""
    return {
        **{name: [getattr(hp, name)] for name in ROW_COLUMNS if getattr(hp, name)},
        **{field.source("text_name", hp.model_fields_set): list(field.columns) for field in hp.text_fields},
        "cat_field_list": hp.cat_field_list,
        "tab_field_list": hp.tab_field_list,
        "date_field_list": hp.date_field_list,
    }


def _check_columns(hp: Hyperparameters) -> None:
    needed = ((), _ONE_TEXT, _TWO_TEXTS)[hp.architecture.num_texts]
    expectation = f"but model_class {hp.model_class!r} reads {' and '.join(needed) or 'no text'}"
    named = [name for name in (*_ONE_TEXT, *_TWO_TEXTS) if getattr(hp, name) is not None]
    if named and needed and not set(named) & set(needed):
        others = "one text, such as multimodal_bert" if needed == _TWO_TEXTS else f"two: {', '.join(TWO_TEXT_CLASSES)}"
        joined = "" if needed == _TWO_TEXTS else ", a column or a list of columns to join"
        raise ContractError(
            f"model_class: {hp.model_class!r} reads {' and '.join(needed)}, but the job sets {' and '.join(named)}",
            f"Choose a model_class of {others}. Or set {' and '.join(needed)}{joined} instead.",
        )
    for name in (*_ONE_TEXT, *_TWO_TEXTS):
        value = getattr(hp, name)
        if name in needed and value is None:
            raise ContractError(f"{name}: missing, {expectation}", f"Set {name} to the name of the text column.")
        if isinstance(value, list) and len(value) < 2:
            raise ContractError(f"{name}: {value} is a list of {len(value)}", "Name a column, or at least two to join.")
        if name not in needed and value is not None:
            raise ContractError(
                f"{name}: set to {value!r}, {expectation}", f"Remove {name}, or choose a model_class that reads it."
            )
    for name, columns, known in (
        ("categorical_features_to_encode", hp.categorical_features_to_encode, "cat_field_list"),
        ("imputation_dict", hp.imputation_dict, "tab_field_list"),
        ("number_format", set(hp.number_format) - {hp.weight_name}, "tab_field_list"),
        ("date_format", hp.date_format, "date_field_list"),
        ("risk_tables", hp.risk_tables, "cat_field_list"),
        ("category_part", hp.category_part, "cat_field_list"),
    ):
        unlisted = sorted(set(columns or ()) - set(getattr(hp, known)))
        if unlisted:
            raise ContractError(
                f"{name}: {unlisted} is not in {known} {getattr(hp, known)}",
                f"Add the column to {known}, or remove it from {name}.",
            )
    _check_single_names(hp)
    role_of: dict[str, str] = {}
    for role, columns in used_columns(hp).items():
        for column in columns:
            if column in role_of:
                used = "named twice" if role_of[column] == role else f"already used as {role_of[column]}"
                raise ContractError(
                    f"{role}: column {column!r} is {used}",
                    "Give each column one role; a label or an id must not be a feature.",
                )
            role_of[column] = role
    numbers = len(hp.tab_field_list) + len(DATE_PARTS) * len(hp.date_field_list)
    inputs = numbers + len(hp.encoded_categories) * (1 if hp.is_binary else hp.num_classes)
    if hp.input_tab_dim not in (None, numbers, inputs):
        raise ContractError(
            f"input_tab_dim: is {hp.input_tab_dim}, but the table has {numbers} numeric columns "
            f"and {inputs} inputs with the risk values",
            "Remove input_tab_dim: it is computed.",
        )


def _check_single_names(hp: Hyperparameters) -> None:
    for name in (*ROW_COLUMNS, *_ONE_TEXT, *_TWO_TEXTS):
        if getattr(hp, name) == "":
            raise ContractError(f"{name}: names no column", f"Name a column, or remove {name}.")
    for name in ("id_name", "label_name"):
        if PROBABILITY_COLUMN.fullmatch(getattr(hp, name) or ROW_NUMBER):
            raise ContractError(
                f"{name}: column {getattr(hp, name)!r} has the name of a column of probabilities in the predictions",
                f"Rename the column in the data, and set {name} to its new name.",
            )
    if hp.label_name == (hp.id_name or ROW_NUMBER):
        raise ContractError(
            f"label_name: column {hp.label_name!r} has the name of the ids in the predictions",
            "Rename the column in the data, or set id_name to a column of ids.",
        )


def _check_model(hp: Hyperparameters) -> None:
    architecture, width = hp.architecture, hp.hidden_common_dim
    if architecture.table == "needed" and not hp.has_table:
        raise ContractError(
            f"model_class: {hp.model_class!r} combines text with table columns, but no column of tab_field_list, "
            "date_field_list and cat_field_list enters the model",
            "Name columns of numbers, dates or categories, or choose bert.",
        )
    if architecture.name in CROSS_ATTENTION_CLASSES and width % hp.fusion_attention_heads:
        fitting = [heads for heads in range(1, min(width, 16) + 1) if width % heads == 0]
        raise ContractError(
            f"fusion_attention_heads: {hp.fusion_attention_heads} does not divide the {width} features of "
            "hidden_common_dim",
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
    if len(set(hp.kernel_size)) != len(hp.kernel_size):
        raise ContractError(f"kernel_size: {hp.kernel_size} names a size twice", "Name each size once.")
    if len(hp.num_channels) != hp.num_layers:
        raise ContractError(
            f"num_layers: is {hp.num_layers}, but num_channels {hp.num_channels} names {len(hp.num_channels)} layers",
            "Give num_channels one number per layer, or remove num_layers.",
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
        if "dialogue_chunker" in steps[:-2]:
            raise ContractError(
                f"{name}: {steps} has a step between dialogue_chunker and tokenizer, but chunks have no text",
                "Move dialogue_chunker to the place before tokenizer.",
            )


def _check_onnx_names(hp: Hyperparameters) -> None:
    taken = {ONNX_TABULAR: "the input of the table's values", ONNX_OUTPUT: "the output"}
    for field in hp.text_fields:
        for key, name in (
            ("text_input_ids_key", field.input_ids_key),
            ("text_attention_mask_key", field.attention_mask_key),
        ):
            if name in taken:
                raise ContractError(
                    f"{key}: {getattr(hp, key)!r} names an input {name!r}, the name of {taken[name]} of model.onnx",
                    f"Choose another {key}, e.g. {Hyperparameters.model_fields[key].default}.",
                )
            taken[name] = f"the input of {key}"


def _check_control(hp: Hyperparameters) -> None:
    if hp.fp16 and hp.bf16 is True:
        raise ContractError("fp16: both fp16 and bf16 are true", "Choose one of them.")
    name = hp.monitored_metric.name
    known = ["val/loss", *(f"val/{metric}" for metric in METRICS)]
    if name not in known:
        raise ContractError(
            f"early_stop_metric: {hp.early_stop_metric!r} is unknown{did_you_mean(name, known)}",
            f"Use one of {', '.join(known)}.",
        )


def _check_members(hp: Hyperparameters) -> None:
    if hp.cross_fit == 1:
        raise ContractError(
            "cross_fit: is 1, but a network that leaves out the only fold has no row to train on",
            "Set cross_fit to 2 or more, e.g. 5, or to 0.",
        )
    if hp.cross_fit and hp.ensemble > 1:
        raise ContractError(
            f"ensemble: is {hp.ensemble}, but cross_fit is {hp.cross_fit}, and each sets the number of networks",
            "Remove one of them.",
        )
    if hp.pools_val and not hp.cross_fit:
        raise ContractError(
            "choose_on: is out_of_fold, but cross_fit is 0, so no network leaves out a row that it trains on otherwise",
            "Set cross_fit to the number of folds, e.g. 5, or choose_on to val.",
        )
    if hp.tuning is not None and hp.num_members > 1:
        name = "cross_fit" if hp.cross_fit else "ensemble"
        raise ContractError(
            f"{name}: is {hp.num_members}, but tuning is set: the search decides which networks become the model",
            "Remove cross_fit. Then run another job with the best settings (model/hyperparameters.json) and cross_fit."
            if hp.cross_fit
            else f"Remove ensemble, and set final_seeds to {hp.ensemble} in tuning. With tuning.engine sagemaker, "
            "which has no final_seeds, run another job with the best settings (model/hyperparameters.json), and set "
            "ensemble there.",
        )


def _check_sharding(hp: Hyperparameters) -> None:
    if hp.sharding_strategy == "NO_SHARD" and (hp.strategy == "hsdp" or hp.dp_shard_size != 1):
        name = "strategy" if hp.strategy == "hsdp" else "dp_shard_size"
        raise ContractError(
            f"sharding_strategy: is NO_SHARD, which makes replicas, but {name} is {getattr(hp, name)!r}",
            "Set strategy to ddp, or to fsdp without dp_shard_size; or sharding_strategy to FULL_SHARD.",
        )


def _check_outcome(hp: Hyperparameters) -> None:
    if len(set(hp.onnx_variants)) != len(hp.onnx_variants):
        raise ContractError(f"onnx_variants: {hp.onnx_variants} names a variant twice", "Name each variant once.")
    for name, reason in (
        ("target_prior", "the share of one class does not give the shares of the others"),
        ("decision_threshold", "the model predicts the most probable class"),
    ):
        if hp.num_classes > 2 and getattr(hp, name) != Hyperparameters.model_fields[name].default:
            raise ContractError(
                f"{name}: is {getattr(hp, name)!r}, but it is for two classes and num_classes is {hp.num_classes}",
                f"Remove {name}: {reason}.",
            )


_MICROBATCHES_PER_RANK = 4


def check_parallelism(hp: Hyperparameters, features: Collection[str], *, pipeline_ranks: int) -> None:
    """Raise ContractError for the first setting that contradicts the parallel layout.

    Args:
        features: what the job uses: mesh axes (pp, dp_replicate, dp_shard, branch, tp), and ddp or fsdp.
        pipeline_ranks: size of the pp axis.
    """
    layout = f"this job uses {', '.join(sorted(features)) or 'one process'}"
    if hp.gradient_compression != "none" and features and "ddp" not in features:
        raise ContractError(
            f"gradient_compression: is {hp.gradient_compression!r}, which works only with ddp (replicas); {layout}",
            "Set gradient_compression to none, or strategy to ddp. Under fsdp, fsdp_reduce_dtype=bfloat16 halves the "
            "communication.",
        )
    if hp.cpu_offload and "fsdp" not in features:
        raise ContractError(
            f"cpu_offload: is true, but nothing is sharded; {layout}",
            "Set strategy to fsdp and run several processes, or cpu_offload to false.",
        )
    if hp.sequence_parallel and "tp" not in features:
        raise ContractError(
            f"sequence_parallel: is true, but there is no tp axis; {layout}",
            "Set tp_size to 2 or more, or sequence_parallel to false.",
        )
    dividing = sorted({"pp", "branch"}.intersection(features))
    if hp.share_encoder and len(hp.text_fields) > 1 and dividing:
        raise ContractError(
            f"share_encoder: is true, but {dividing[0]} puts the two texts on different ranks; {layout}",
            "Set share_encoder to false, or divide the model with dp_shard_size (fsdp) or tp_size.",
        )
    if hp.lora_rank and "tp" in features:
        raise ContractError(
            f"lora_rank: is {hp.lora_rank}, but tp slices the layers that LoRA adapts; {layout}",
            "Remove tp_size, set strategy to auto and divide the model with dp_shard_size (fsdp) or pp_size; or set "
            "lora_rank to 0.",
        )
    if "pp" in features:
        _check_microbatches(hp, pipeline_ranks)
        _check_zero_bubble(hp)


def microbatches_of(hp: Hyperparameters, ranks: int) -> int:
    """Return the number of microbatches of a pass over `ranks` pipeline ranks; 1 without a pipeline.

    More microbatches wait less, and smaller ones compute less efficiently: the default is up to 4 per rank.
    """
    if ranks == 1:
        return 1
    if hp.num_microbatches is not None:
        return hp.num_microbatches
    possible = _possible_microbatches(hp, ranks)
    enough = [count for count in possible if count >= ranks] or possible[-1:]
    return max((count for count in enough if count <= _MICROBATCHES_PER_RANK * ranks), default=enough[0])


def _possible_microbatches(hp: Hyperparameters, ranks: int) -> list[int]:
    divisors = (number for number in range(1, hp.batch_size + 1) if hp.batch_size % number == 0)
    return [number for number in divisors if microbatches_fit(hp.pp_schedule, number, ranks)]


def _check_microbatches(hp: Hyperparameters, ranks: int) -> None:
    count = hp.num_microbatches
    possible = _possible_microbatches(hp, ranks)
    if count in possible or (count is None and possible):
        return
    if count is None:
        raise ContractError(
            f"batch_size: {hp.batch_size} records cannot fill a pipeline of {ranks} ranks under {hp.pp_schedule}",
            f"Set batch_size to {ranks} or more, or pp_schedule to GPipe.",
        )
    reasons = []
    if hp.batch_size % count:
        reasons.append(f"cannot divide batch_size {hp.batch_size} evenly")
    if not microbatches_fit(hp.pp_schedule, count, ranks):
        reasons.append(
            f"are too few for {ranks} ranks under 1F1B (pp_size)"
            if hp.pp_schedule == "1F1B"
            else f"cannot form {count // ranks} equal rounds over {ranks} ranks under {hp.pp_schedule} (pp_size)"
        )
    raise ContractError(
        f"num_microbatches: {count} microbatches {' and '.join(reasons)}",
        f"Set num_microbatches to one of {possible}, or change batch_size."
        if possible
        else f"Set batch_size to {ranks} or more, or pp_schedule to GPipe.",
    )


def microbatches_fit(schedule: str, count: int, ranks: int) -> bool:
    """Return whether a schedule of torch.distributed.pipelining can run `count` microbatches over `ranks` ranks."""
    if schedule == "1F1B":
        return count >= ranks
    return not schedule.startswith("Interleaved") or count % max(1, count // ranks) == 0


def _check_zero_bubble(hp: Hyperparameters) -> None:
    if hp.pp_schedule not in ZERO_BUBBLE_SCHEDULES:
        return
    for name, reason in (
        ("compile", "compiled layers cannot be divided into them"),
        ("activation_checkpointing", "each would recompute the layers, nine times per microbatch instead of once"),
    ):
        if getattr(hp, name) not in (0, "auto"):
            raise ContractError(
                f"{name}: is {getattr(hp, name)}, but {hp.pp_schedule} runs the backward pass in two parts: {reason}",
                f"Remove {name}, or set pp_schedule to 1F1B or Interleaved1F1B.",
            )
