import json
import subprocess
import sys

import pytest

from contracts.errors import ContractError
from contracts.foreign_names import _NONE, _OURS, HINTS
from contracts.hyperparameter_files import ALIASES, cast_value, load_hyperparameters, parse_hyperparameters
from contracts.hyperparameters import Hyperparameters
from contracts.paths import JobPaths
from contracts.unused_settings import unused_settings
from testing.jobs import CONFIGURATION, REPOSITORY, TWO_TEXTS


def parse(**overrides):
    values = {**CONFIGURATION, **overrides}
    return parse_hyperparameters({name: value for name, value in values.items() if value is not None})


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.fixture
def paths(tmp_path):
    return JobPaths(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("batch_size", "16", 16),
        ("lr", "2e-5", 2e-5),
        ("fp16", "True", True),
        ("run_scheduler", "false", False),
        ("tab_field_list", '["price", "quantity"]', ["price", "quantity"]),
        ("tab_field_list", "['price', 'quantity']", ["price", "quantity"]),
        ("class_weights", "[1, 2.5]", [1.0, 2.5]),
        ("class_weights", "None", None),
        ("class_weights", '"balanced"', "balanced"),
        ("class_weights", "balanced", "balanced"),
        ("tokenizer", '"from_scratch"', "from_scratch"),
        ("id_name", "123", "123"),
        ("encoder_config", "{'hidden_size': 64}", {"hidden_size": 64}),
        ("multiclass_categories", "[0, 1]", [0, 1]),
        ("nproc_per_node", "2", 2),
        ("optimizer", '"SGD"', "SGD"),
        ("run_scheduler", '"true"', True),
        ("class_weights", '"[1, 5]"', [1.0, 5.0]),
        ("head_lr", '"None"', None),
    ],
)
def test_a_string_becomes_the_type_of_its_hyperparameter(name, text, value):
    cast = cast_value(name, text)
    overrides = {"id_name": None, name: cast} if name != "id_name" else {name: cast}
    merged = {**CONFIGURATION, **{key: v for key, v in overrides.items() if v is not None or key == name}}
    assert getattr(parse_hyperparameters(merged), name) == value


@pytest.mark.parametrize(
    ("name", "value", "cause"),
    [
        ("class_weights", "{5, 1}", "class_weights: '{5, 1}' is invalid: a set has no order"),
        ("batch_size", True, "batch_size: True is invalid: true and false are no numbers"),
        ("head_lr", True, "head_lr: True is invalid: true and false are no numbers"),
    ],
)
def test_a_set_is_no_list_and_a_boolean_no_number(name, value, cause):
    with pytest.raises(ContractError) as error:
        parse_hyperparameters({**CONFIGURATION, name: cast_value(name, value)})
    assert error.value.cause.startswith(cause)


def test_the_job_s_file_wins_over_its_input_settings_and_they_over_the_file_shipped_with_the_code(paths):
    code, settings, job = paths.hyperparameter_files
    write(code, {**CONFIGURATION, "batch_size": 4, "lr": 0.5, "max_epochs": 7})
    write(settings, {"batch_size": "5", "lr": "0.25"})
    write(job, {"batch_size": "64", "sagemaker_region": '"x"', "_tuning_objective_metric": "val/auroc"})
    hp = load_hyperparameters(paths)
    assert (hp.batch_size, hp.lr, hp.max_epochs) == (64, 0.25, 7)


def test_chunk_truncate_is_accepted_for_chunk_trancate(paths):
    write(paths.hyperparameter_files[-1], {**CONFIGURATION, "chunk_truncate": "true"})
    assert load_hyperparameters(paths).chunk_trancate


@pytest.mark.parametrize(
    ("setting", "words"),
    [({"btach_size": 3}, "btach_size.*{file}.*'batch_size'"), ({"lr": "fast"}, "(?s)lr: 'fast'.*{file}.*float")],
)
def test_an_unknown_key_or_a_wrong_type_names_key_file_and_what_is_expected(paths, setting, words):
    write(paths.hyperparameter_files[-1], {**CONFIGURATION, **setting})
    with pytest.raises(ContractError, match=words.format(file=r"hyperparameters\.json")):
        load_hyperparameters(paths)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "class_weights",
            "auto",
            r"'auto' is invalid: it is not list\[float\] or balanced\nclass_weights is list\[float\] or ",
        ),
        ("class_weights", ["a"], r"it is not list\[float\] or balanced"),
        ("class_weights", [1, 0], "invalid: Input should be greater than or equal to 0.000001"),
        ("bf16", "maybe", r"'maybe' is invalid: it is not bool or auto\nbf16 is bool or auto: "),
        ("decision_threshold", 1.5, "Input should be less than 1"),
        ("optimizer", "sgd", r"\noptimizer is SGD or Adam or AdamW: "),
        ("head_lr", "fast", r"\nhead_lr is float \(above 0"),
    ],
)
def test_the_type_of_a_setting_is_named_as_on_the_reference_page(name, value, message):
    with pytest.raises(ContractError, match=message):
        parse(**{name: value})


@pytest.mark.parametrize("value", ["tok.x", "1tok", "tok\n", "tök", ""])
def test_a_name_of_an_input_is_refused_with_the_characters_that_it_may_have(value):
    words = "a name of ASCII letters, digits and underscores that does not begin with a digit"
    with pytest.raises(ContractError) as refused:
        parse(text_input_ids_key=value)
    assert refused.value.cause.endswith(f" is invalid: it is not {words}")
    assert f"text_input_ids_key is str ({words}): " in refused.value.fix


def test_a_pattern_in_an_optional_type_is_described_too():
    with pytest.raises(ContractError, match="'ftp://a' is invalid: it is not an http or https address") as refused:
        parse(mlflow_tracking_uri="ftp://a")
    assert "mlflow_tracking_uri is str (an http or https address" in refused.value.fix


def test_no_hyperparameter_file_at_all_is_an_error_that_names_both_places(paths):
    with pytest.raises(ContractError, match="code/hyperparams.*input/config"):
        load_hyperparameters(paths)


THREE_CLASSES = {"is_binary": False, "num_classes": 3, "multiclass_categories": [0, 1, 2]}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"num_classes": 3, "is_binary": True}, "num_classes: is 3, but is_binary"),
        ({"is_binary": False, "num_classes": 3, "multiclass_categories": [1, 2]}, "has 2 labels"),
        ({"multiclass_categories": [1, "1"]}, "names a label twice"),
        ({"class_weights": [1.0]}, "class_weights: has 1 weights"),
        ({"text_name": None}, "text_name: missing"),
        ({"primary_text_name": "events"}, "primary_text_name: set to 'events'"),
        ({"tab_field_list": ["label"]}, "already used as label_name"),
        ({"text_name": ["chat"]}, r"text_name: \['chat'\] is a list of 1"),
        ({"text_name": ["chat", "chat"]}, "text_name: column 'chat' is named twice"),
        ({"date_field_list": ["day", "day"]}, "date_field_list: column 'day' is named twice"),
        ({"date_field_list": ["price"]}, "date_field_list: column 'price' is already used as tab_field_list"),
        ({"weight_name": "price"}, "tab_field_list: column 'price' is already used as weight_name"),
        ({"weight_name": ""}, "weight_name: names no column\nName a column, or remove weight_name."),
        ({"date_field_list": ["day"], "cat_field_list": ["day_month"]}, "cat_field_list: .* the month of column 'day'"),
        ({"weight_name": "w", "group_name": "w"}, "group_name: column 'w' is already used as weight_name"),
        ({"text_name": ["chat", "label"]}, "text_name: column 'label' is already used as label_name"),
        (
            {"text_processing_steps": ["dialogue_chunker", "text_normalizer", "tokenizer"]},
            "has a step between dialogue_chunker and tokenizer",
        ),
        ({"id_name": "prob_class_0"}, "id_name: column 'prob_class_0' has the name of a column of probabilities"),
        ({"label_name": "prob_class_7"}, "label_name: column 'prob_class_7' has the name of a column of probabilities"),
        (
            {"text_input_ids_key": "tabular"},
            "text_input_ids_key: .* input 'tabular', the name of the input of the table",
        ),
        (
            {"text_attention_mask_key": "input_ids"},
            "text_attention_mask_key: .* 'input_ids', the name of the input of text_input_",
        ),
        ({"model_class": "multimodal_moe", "num_experts": 2, "experts_per_record": 3}, "there are 2 experts"),
        ({"model_class": "multimodal_cross_attn", "fusion_attention_heads": 3}, "does not divide the 16 features"),
        (
            {"model_class": "multimodal_gate_fusion", "tab_field_list": [], "cat_field_list": []},
            "combines text with table columns",
        ),
        ({"model_class": "multimodal_cnn", "kernel_size": [3, 0]}, "kernel_size: .* greater than or equal to 1"),
        ({"model_class": "multimodal_cnn", "kernel_size": [3, 3]}, "names a size twice"),
        ({"model_class": "multimodal_cnn", "num_layers": 3, "num_channels": [8]}, "num_layers: is 3"),
        ({"categorical_features_to_encode": ["size"]}, "is not in cat_field_list"),
        ({"input_tab_dim": 7}, "input_tab_dim: is 7"),
        (
            {"tab_field_list": ["price", "color_code"], "category_embedding_dim": 4},
            r"category_embedding_dim: is 4, .* the codes of column 'color' would have the name 'color_code', which is "
            r"the name of a column of tab_field_list\nRename one of the columns or classes, or change category_embedd",
        ),
        (
            {"tab_field_list": ["price", "price_missing"], "missing_indicators": True},
            "missing_indicators: is true, .* the indicator of column 'price' .* a column of tab_field_list",
        ),
        (
            {"tab_field_list": ["price"], "cat_field_list": ["price_missing"], "missing_indicators": True},
            "the indicator of column 'price' .* a column of cat_field_list",
        ),
        (
            {**THREE_CLASSES, "tab_field_list": ["color_1"]},
            r"multiclass_categories: is \[0, 1, 2\], .* the risk value of column 'color' for the class 1 would have "
            r"the name 'color_1', which is the name of a column of tab_field_list",
        ),
        (
            {**THREE_CLASSES, "multiclass_categories": ["b_c", "c", "d"], "cat_field_list": ["a", "a_b"]},
            "the risk value of column 'a_b' for the class 'c' .* the name of the risk value of column 'a' for .* 'b_c'",
        ),
        (
            {**THREE_CLASSES, "multiclass_categories": ["x", "y", "code"], "category_embedding_dim": 4},
            r"the codes of column 'color' .* the risk value of column 'color' for the class 'code'",
        ),
        ({"imputation_dict": {"size": 1.0}}, "is not in tab_field_list"),
        ({"risk_tables": {"size": {}}}, "is not in cat_field_list"),
        ({"text_processing_steps": ["tokenizer", "html_normalizer"]}, "does not end with 'tokenizer'"),
        ({"text_processing_steps": ["html_normalizer", "html_normalizer", "tokenizer"]}, "a step twice"),
        ({"fp16": True, "bf16": True}, "both fp16 and bf16"),
        ({"early_stop_metric": "val/aurok"}, "did you mean 'val/auroc'"),
        ({"model_class": "berd"}, "did you mean 'bert'"),
        (
            {"text_name": None, "primary_text_name": "a", "secondary_text_name": "b", "model_class": "multimodal_bert"},
            "reads text_name, but the job sets primary_text_name and secondary_text_name\n"
            "Choose .* of two: trimodal_bert",
        ),
        (
            {"model_class": "trimodal_bert"},
            "reads primary_text_name and secondary_text_name, but the job sets text_name",
        ),
        ({"model_class": "gpt"}, "bert, .*multimodal_bert, .*trimodal_bert"),
        ({"text_input_ids_key": "a" * 101}, "should have at most 100 characters"),
    ],
)
def test_a_contradiction_is_an_error_that_names_the_key(overrides, message):
    with pytest.raises(ContractError, match=message):
        parse(**overrides)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("learning-rate", "; did you mean 'lr'"),
        ("num_train_epochs", "; did you mean 'max_epochs'"),
        ("lR", "; did you mean 'lr'"),
        ("dp_size", "; did you mean 'dp_shard_size'"),
        ("num_workers", "; did you mean 'preprocess_workers'"),
        ("save_every", "; did you mean 'checkpoint_every_n_steps'"),
        ("init_lr", "; did you mean 'lr'"),
        ("threshold", "; did you mean 'decision_threshold'"),
        # Options of other trainers without a counterpart
        ("limit_all_gathers", "; FSDP2 has no such option"),
        ("cp_size", "; there is no context and no expert parallelism"),
        ("test_size", "; the channels train, val and test are the split"),
        ("lr_step_size", "; the rate decays linearly, see run_scheduler"),
        # Names that are not close to any
        ("world", r"\n"),
        ("price", r"\n"),
        ("visualizations", r"\n"),
    ],
)
def test_an_unknown_hyperparameter_is_explained_or_the_one_that_is_meant_suggested(key: str, reason: str) -> None:
    with pytest.raises(ContractError, match=f"^'?{key}'?: unknown hyperparameter{reason}"):
        parse_hyperparameters({key: 1})


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ([""], "''"),
        ([" "], "' '"),
        (["a\nb"], r"'a\\nb'"),
        (["lerning", "bacth_size"], "lerning: unknown .*; bacth_size: unknown .* 'batch_size'"),
    ],
)
def test_one_error_names_every_unknown_hyperparameter_in_quotes_if_it_is_no_name(keys, named):
    with pytest.raises(ContractError, match=f"^{named}"):
        parse(**dict.fromkeys(keys, 1))


def test_a_name_of_another_trainer_is_unknown_and_its_counterpart_is_known() -> None:
    known = Hyperparameters.model_fields.keys() | ALIASES.keys()
    assert not known & HINTS.keys()
    assert {hint.split("'")[1] for hint in HINTS.values() if "did you mean" in hint} <= known
    listed = [name for names in (*_OURS.values(), *_NONE.values()) for name in names.split()]
    assert sorted(HINTS) == sorted(listed), "no name is listed twice"


@pytest.mark.parametrize(
    "settings",
    [
        {**THREE_CLASSES, "cat_field_list": ["color", "color_1"]},  # a category is no input with its column's name
        {"model_class": "bert", "tab_field_list": ["a", "a_missing"], "missing_indicators": True},
        {
            "cat_field_list": ["color", "size"],
            "categorical_features_to_encode": ["size"],
            "tab_field_list": ["color_code"],
            "category_embedding_dim": 4,
        },
    ],
)
def test_columns_that_name_no_input_twice_are_accepted(settings):
    parse(**settings)


@pytest.mark.parametrize(
    ("alias", "name"), [("bimodal", "multimodal_bert"), ("bimodal_bert", "multimodal_bert"), ("bert", "bert")]
)
def test_an_alias_stands_for_its_class(alias, name):
    assert parse(model_class=alias).model_class == name


def test_overrides_per_field_reach_only_their_field():
    hp = parse(**TWO_TEXTS, primary_max_sen_len=8, secondary_reinit_layers=0, secondary_tokenizer="other")
    primary, secondary = hp.text_fields
    assert (primary.max_sen_len, secondary.max_sen_len) == (8, CONFIGURATION["max_sen_len"])
    assert (primary.reinit_layers, secondary.reinit_layers) == (2, 0)
    assert (primary.tokenizer, secondary.tokenizer) == ("from_scratch", "other")
    assert primary.input_ids_key == "primary_input_ids"


def test_a_pooler_that_is_not_there_keeps_no_two_texts_from_one_encoder():
    given = {**TWO_TEXTS, "tokenizer": "some/encoder", "encoder_config": {}, "share_encoder": True}
    with pytest.raises(ContractError, match="reinit_pooler"):
        parse(**given, primary_reinit_pooler=False)
    parse(**given, primary_reinit_pooler=False, pooling="mean")


def test_the_reference_page_is_current():
    command = [sys.executable, "docs/generate_hyperparameters.py", "--check"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_settings_of_a_transformer_that_a_word_encoder_does_not_read_are_named():
    sizes = {"hidden_size": 64, "num_hidden_layers": 4}
    said = "encoder_config: ['num_hidden_layers'] have no effect: lstm reads only the word embeddings."
    assert said in unused_settings(parse(model_class="lstm", encoder_config=sizes))
    assert not any("encoder_config" in each for each in unused_settings(parse(encoder_config=sizes)))


def test_a_column_that_full_field_list_leaves_out_is_named_and_read_all_the_same():
    hp = parse(full_field_list=["order_id", "chat", "label", "price", "quantity", "colour"])
    (sentence,) = [sentence for sentence in unused_settings(hp) if "full_field_list" in sentence]
    assert "'color', which cat_field_list names; it is read anyway; did you mean 'colour'?" in sentence


@pytest.mark.parametrize(
    ("given", "implied"),
    [
        ({"multiclass_categories": ["a", "b", "c"]}, {"num_classes": 3, "is_binary": False}),
        ({"multiclass_categories": ["a", "b"]}, {"num_classes": 2, "is_binary": True}),
        ({"num_classes": 3}, {"is_binary": False}),
        ({"preset": "recommended"}, {"model_class": "multimodal_bert"}),
    ],
)
def test_a_setting_that_follows_from_another_may_be_absent(given, implied):
    names = ("num_classes", "is_binary", "model_class") if "preset" in given else ("num_classes", "is_binary")
    values = {**{name: value for name, value in CONFIGURATION.items() if name not in names}, **given}
    hp = parse_hyperparameters(values)
    assert {name: getattr(hp, name) for name in implied} == implied


def test_a_column_of_a_text_keeps_the_blanks_of_its_name():
    assert cast_value("text_name", "Message ") == "Message "
