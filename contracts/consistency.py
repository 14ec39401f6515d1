"""Rules that tie hyperparameters to each other: contradictions are errors, settings without effect are named."""

import difflib

from contracts.errors import ContractError
from contracts.hyperparameters import FROM_SCRATCH, METRICS, Hyperparameters


def check_consistency(hp: Hyperparameters) -> None:
    """Raise ContractError for the first contradiction."""
    _check_classes(hp)
    _check_columns(hp)
    _check_text_steps(hp)
    _check_control(hp)


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
    if hp.class_weights is not None:
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
    used = {
        "id_name": [hp.id_name],
        "label_name": [hp.label_name],
        **{name: [getattr(hp, name)] for name in needed},
        "cat_field_list": hp.cat_field_list,
        "tab_field_list": hp.tab_field_list,
    }
    role_of: dict[str, str] = {}
    for role, columns in used.items():
        for column in columns:
            if column in role_of:
                raise ContractError(
                    f"{role}: column {column!r} is already used as {role_of[column]}",
                    "Give each column one role; a label or an id must not be a feature.",
                )
            role_of[column] = role
            if hp.full_field_list is not None and column not in hp.full_field_list:
                near = difflib.get_close_matches(column, hp.full_field_list, n=1)
                hint = f"; the nearest there is {near[0]!r}" if near else ""
                raise ContractError(
                    f"{role}: column {column!r} is not in full_field_list{hint}",
                    "Add it to full_field_list, or leave full_field_list out.",
                )
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
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.3)
        hint = f"; the nearest is {near[0]!r}" if near else ""
        raise ContractError(
            f"early_stop_metric: {hp.early_stop_metric!r} is not a metric of ours{hint}",
            f"Use one of {', '.join(known)}.",
        )


def unused_settings(hp: Hyperparameters) -> list[str]:
    """One sentence for each hyperparameter that was set and has no effect in this job."""
    active = {hp.architecture.name, hp.optimizer, hp.strategy}
    sentences = []
    for name, field in type(hp).model_fields.items():
        if name not in hp.model_fields_set:
            continue
        only = (field.json_schema_extra or {}).get("only", [])
        if only and not active & set(only):
            sentences.append(f"{name} is set and has no effect here: it belongs to {', '.join(only)}.")
    scratch = [field.role for field in hp.text_fields if field.tokenizer == FROM_SCRATCH]
    for name in ("reinit_pooler", "reinit_layers"):
        if len(scratch) == len(hp.text_fields) and name in hp.model_fields_set and getattr(hp, name):
            sentences.append(f"{name} is set and has no effect here: from_scratch weights are random already.")
    if "max_total_chunks" in hp.model_fields_set and not hp.chunk_trancate:
        sentences.append("max_total_chunks is set and has no effect here: chunk_trancate is false.")
    if "fixed_tokenizer_length" in hp.model_fields_set:
        sentences.append("fixed_tokenizer_length is set and has no effect: nothing is padded.")
    if not hp.architecture.uses_table:
        for name in ("tab_field_list", "cat_field_list"):
            if getattr(hp, name):
                sentences.append(f"{name} is set and has no effect here: {hp.model_class} reads text only.")
    if "lr_decay" in hp.model_fields_set and not hp.run_scheduler:
        sentences.append("lr_decay is set and has no effect here: run_scheduler is false.")
    return sentences
