"""A hyperparameter declares what a change of it invalidates; one that says nothing invalidates everything."""

from pathlib import Path

import pytest

from container.job.preflight import check_before_preparing
from container.preprocessing.fingerprint import RESOLVED
from container.preprocessing.prepare import prepare_data
from container.training.identity import check_identity, identity
from contracts.declaration import declare
from contracts.errors import ContractError
from contracts.hyperparameter_files import load_hyperparameters
from contracts.hyperparameters import GROUPS, Hyperparameters
from contracts.unused_settings import unused_settings
from testing.jobs import CONFIGURATION, TWO_TEXTS, write_job

ROWS = {"train": "1", "val": "2", "test": "9"}


class Undeclared(Hyperparameters):
    """A field that says nothing of its scope, with a declaration and without one."""

    rounding: int = declare(0)
    lower_case: bool = False


class Declared(Hyperparameters):
    learns: int = declare(0, scope="train")
    reports: int = declare(0, scope="after")
    logs: int = declare(0, scope="run")


def configuration(kind=Hyperparameters, **values):
    given = {**CONFIGURATION, **values}
    return kind(**{name: value for name, value in given.items() if value is not None})


@pytest.mark.parametrize("change", [{"rounding": 2}, {"lower_case": True}])
def test_a_new_setting_that_says_nothing_has_the_data_prepared_anew(tmp_path, change):
    paths = write_job(tmp_path)
    values = load_hyperparameters(paths).model_dump()
    first = prepare_data(paths, Undeclared(**values))
    assert prepare_data(paths, Undeclared(**values)).reused
    changed = prepare_data(paths, Undeclared(**{**values, **change}))
    assert not changed.reused
    assert changed.folder != first.folder


def refuses_resume(kind, **change):
    before, after = (identity(configuration(kind, **more), "abc", ROWS) for more in ({}, change))
    try:
        check_identity(before.parts, after, folder=Path("c"))
    except ContractError as error:
        return error.cause.startswith(next(iter(change)))
    return False


@pytest.mark.parametrize("change", [{"rounding": 2}, {"lower_case": True}])
def test_a_new_setting_that_says_nothing_refuses_a_resume(change):
    assert refuses_resume(Undeclared, **change)


@pytest.mark.parametrize(("name", "refused"), [("learns", True), ("reports", False), ("logs", False)])
def test_a_resume_is_refused_after_a_change_in_training_alone(name, refused):
    assert refuses_resume(Declared, **{name: 1}) == refused


def test_training_settings_leave_the_prepared_data_as_they_are(tmp_path):
    paths = write_job(tmp_path)
    values = load_hyperparameters(paths).model_dump()
    prepare_data(paths, Declared(**values))
    assert prepare_data(paths, Declared(**{**values, "learns": 1, "reports": 1, "logs": 1})).reused


def test_every_setting_that_is_resolved_for_the_hash_of_the_data_has_the_scope_prepare():
    assert set(Hyperparameters.names_of("prepare")) >= RESOLVED


def test_every_setting_is_in_one_group():
    assert [name for group in GROUPS.values() for name in group.model_fields] == list(Hyperparameters.model_fields)


def test_every_setting_has_a_description_in_one_line():
    assert all(field.description and field.description.isprintable() for field in Hyperparameters.model_fields.values())


RISKS = ("smooth_factor", "smooth_rows", "count_threshold", "risk_table_folds")
FIT = {"smooth_factor": 0.1, "smooth_rows": 2.0, "count_threshold": 2, "risk_table_folds": 3}
CNN = {"model_class": "multimodal_cnn", "dropout": 0.3, "encoder_config": {}}
NO_TABLE = {"tab_field_list": [], "cat_field_list": []}
SCRATCH = {"tokenizer": "some/encoder", "primary_tokenizer": "from_scratch"}
LORA = {"tokenizer": "some/encoder", "encoder_config": {}, "reinit_layers": 0, "lora_rank": 2}
GIVEN = {"risk_tables": {"color": {"risk": {}, "default": 0.5}}}


def named(**values):
    return [sentence.split()[0] for sentence in unused_settings(configuration(**values))]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({**TWO_TEXTS, "text_processing_steps": ["tokenizer"]}, ["text_processing_steps"]),
        ({"text_processing_steps": ["tokenizer"]}, []),
        ({**CNN, "tab_field_list": [], "cat_field_list": []}, ["dropout"]),
        (CNN, []),
        ({**FIT, **GIVEN}, list(RISKS)),
        ({**FIT, **GIVEN, "cat_field_list": ["color", "size"]}, []),
        ({"imputation_strategy": "mode", "imputation_dict": {"price": 1.0, "quantity": 1.0}}, ["imputation_strategy"]),
        ({"imputation_strategy": "mode", "imputation_dict": {"price": 1.0}}, []),
        ({"kernel_size": [3]}, ["kernel_size"]),
        ({"fixed_tokenizer_length": False, "max_total_chunks": 2}, ["max_total_chunks", "fixed_tokenizer_length"]),
        ({"model_class": "bert", **NO_TABLE, "hidden_common_dim": 64}, ["hidden_common_dim"]),
        (
            {**NO_TABLE, **FIT, "numeric_transform": "quantile", "imputation_strategy": "mode"},
            [*RISKS, "imputation_strategy", "numeric_transform"],
        ),
        (
            {"model_class": "lstm", **NO_TABLE, "num_layers": 1, "dropout": 0.2, "dropout_keep": 0.9},
            ["dropout", "dropout_keep", "encoder_config:"],
        ),
        (
            {**TWO_TEXTS, "primary_reinit_layers": 1, "secondary_reinit_pooler": True},
            ["secondary_reinit_pooler", "primary_reinit_layers"],
        ),
        (
            {**TWO_TEXTS, **SCRATCH, "reinit_layers": 1, "primary_reinit_layers": 1, "secondary_reinit_layers": 1},
            ["reinit_layers", "primary_reinit_layers"],
        ),
        ({"tokenizer": "some/encoder", "pooling": "mean", "reinit_pooler": False}, ["reinit_pooler"]),
        ({**TWO_TEXTS, "max_sen_len": 64, "primary_max_sen_len": 32, "secondary_max_sen_len": 16}, ["max_sen_len"]),
        ({"model_class": "multimodal_moe", "num_experts": 2, "expert_balance": 0.1}, ["expert_balance"]),
        ({"category_embedding_min_count": 2}, ["category_embedding_min_count"]),
        ({"numeric_embedding_dim": 8}, ["numeric_embedding_dim"]),
        ({"focal_gamma": 3.0}, ["focal_gamma"]),
        ({"focal_gamma": 3.0, "loss": "focal"}, []),
        ({"lora_alpha": 8.0}, ["lora_alpha"]),
        ({**LORA, "is_embeddings_trainable": False}, ["is_embeddings_trainable"]),
        ({"false_positive_cost": 2.0, "false_negative_cost": 2.0}, ["false_positive_cost", "false_negative_cost"]),
        ({"false_positive_cost": 2.0, "false_negative_cost": 2.0, "decision_threshold": "cost"}, []),
    ],
)
def test_a_setting_that_is_ignored_is_named(values, names):
    assert named(**values) == names


@pytest.mark.parametrize(("optimizer", "logged"), [("AdamW", True), ("SGD", False)])
def test_the_log_names_a_setting_whose_condition_does_not_hold(tmp_path, caplog, optimizer, logged):
    paths = write_job(tmp_path, overrides={"momentum": 0.5, "optimizer": optimizer})
    check_before_preparing(paths, load_hyperparameters(paths), hosts=1, per_host=1)
    assert ("momentum is set and has no effect here: optimizer is not SGD." in caplog.messages) == logged


def test_categories_that_do_not_enter_the_model_are_named():
    (sentence,) = unused_settings(
        configuration(cat_field_list=["color", "size"], categorical_features_to_encode=["color"])
    )
    assert "['size'] do not enter the model: categorical_features_to_encode omits them" in sentence
