"""Presets: what they fill in, what they leave to the user, and that the page documents every rule."""

import json
import re
from pathlib import Path

import pytest

from contracts.artifacts import HYPERPARAMETERS
from contracts.errors import ContractError
from contracts.hyperparameter_files import GivenSettings, choose_settings, parse_hyperparameters, read_settings
from contracts.hyperparameters import Hyperparameters
from contracts.presets import ABOVE_DEFAULTS, ALWAYS, RULES, DataFacts
from contracts.tuning import Range
from contracts.tuning_space import default_space, most_epochs
from testing.jobs import ONE_LAYER, run_train, write_job

COLUMNS = {"id_name": "id", "label_name": "label", "text_name": "text", "tab_field_list": ["age"]}
TWO = {
    **{name: value for name, value in COLUMNS.items() if name != "text_name"},
    "primary_text_name": "chat",
    "secondary_text_name": "events",
    "model_class": "trimodal_bert",
}
MULTICLASS = {"is_binary": False, "num_classes": 3, "multiclass_categories": ["a", "b", "c"]}


def table_facts(rows, class_totals, val_class_totals, **changes):
    """The facts of a table without weights and groups, with `changes`."""
    labelled = sum(class_totals) + sum(val_class_totals)
    return DataFacts(rows, class_totals, val_class_totals, **{"labelled": labelled, "units": labelled, **changes})


FACTS = table_facts(rows=1_000, class_totals=(900, 80, 20), val_class_totals=(90, 8, 2))
LARGE = table_facts(rows=8_000, class_totals=(6_000, 2_000), val_class_totals=(600, 200))


def choose(facts=None, **values):
    given = {"model_class": "multimodal_bert", "preset": "recommended", **COLUMNS, **values}
    return choose_settings(GivenSettings(given, {}), facts)


def test_without_a_preset_nothing_is_chosen():
    given = {"model_class": "multimodal_bert", **COLUMNS}
    assert choose_settings(GivenSettings(given, {}), FACTS) == (parse_hyperparameters(given), [], {})


def test_a_preset_sets_what_the_user_did_not_set_and_says_why():
    hp, lines, _ = choose()
    assert (hp.head_lr, hp.pooling) == (1e-3, "mean")
    assert "preset recommended: head_lr=0.001, because an encoder is pretrained" in lines


def test_a_value_of_the_user_stays_and_the_log_names_the_value_of_the_preset():
    hp, lines, _ = choose(head_lr=5e-4)
    assert hp.head_lr == 5e-4
    assert any("head_lr=0.001" in line and "you set it to 0.0005" in line for line in lines)


def test_a_value_of_the_user_that_equals_the_default_stays():
    hp, *_ = choose(pooling="first")
    assert hp.pooling == "first"


def test_a_value_that_contradicts_the_settings_of_the_user_is_not_chosen():
    settings = {name: value for name, value in TWO.items() if name not in COLUMNS}
    given = {**TWO, "preset": "recommended", "primary_reinit_layers": 1, "secondary_reinit_layers": 2, **settings}
    hp, lines, _ = choose_settings(GivenSettings(given, {}))
    assert not hp.share_encoder
    assert any("share_encoder=true" in line and "because of your settings: share_encoder" in line for line in lines)


def test_indicators_are_chosen_unless_a_column_has_the_name_of_one():
    assert choose(tab_field_list=["price"]).hp.missing_indicators
    assert not choose(tab_field_list=["price", "price_missing"]).hp.missing_indicators


def test_a_setting_without_effect_is_not_chosen():
    hp, *_ = choose(tab_field_list=[])
    assert hp.numeric_embedding == "none"
    assert hp.layer_lr_decay == 0.85
    assert choose(model_class="lstm").hp.layer_lr_decay == 1


def test_best_trains_several_networks_unless_a_search_does():
    assert choose(LARGE, preset="best").hp.ensemble == 4
    assert choose(LARGE).hp.ensemble == 1
    hp, lines, _ = choose(LARGE, preset="best", tuning={"trials": 2})
    assert hp.ensemble == 1
    assert not any("ensemble" in line for line in lines)


def test_the_older_name_of_the_defaults_is_accepted():
    assert choose(preset="documents").hp.preset == "defaults"


def test_best_trains_one_network_on_several_hosts_and_says_why():
    hp, lines, _ = choose_settings(
        GivenSettings({"model_class": "multimodal_bert", "preset": "best", **COLUMNS}, {}), LARGE, hosts=2
    )
    assert (hp.ensemble, hp.companion) == (1, True)
    assert any("ensemble=4" in line and "the job has 2 hosts" in line for line in lines)


def test_a_value_of_the_user_is_shown_as_it_is_used():
    _, lines, _ = choose(companion="false")
    assert any(line.endswith("not chosen, because you set it to false") for line in lines)


def test_the_log_says_which_settings_a_search_takes_from_its_space():
    _, lines, _ = choose(tuning={"space": {"lr": [1e-3, 2e-3]}, "metric": "val/loss"})
    assert (
        "preset recommended: lr=0.0001, because an encoder is pretrained; the search takes it from tuning.space"
        in lines
    )
    assert any('early_stop_metric="val/auroc"' in line and "takes it from tuning.metric" in line for line in lines)
    assert "preset recommended: head_lr=0.001, because an encoder is pretrained" in lines


@pytest.mark.parametrize(
    "space",
    [
        {"numeric_embedding_bins": [8, 16]},
        {"lora_rank": [4, 8], "numeric_embedding_dim": [4, 8]},  # lora_rank needs reinit_layers 0
    ],
)
def test_a_space_may_need_what_the_preset_chooses(space):
    hp, lines, _ = choose(tuning={"space": space})
    assert (hp.numeric_embedding, hp.reinit_layers) == ("piecewise_linear", 0)
    assert any("numeric_embedding=" in line and "not chosen" not in line for line in lines)
    with pytest.raises(ContractError, match=r"tuning\.space"):
        choose(preset="defaults", tuning={"space": space})


def test_settings_of_the_user_may_need_what_the_preset_chooses():
    assert choose(lora_rank=4).hp.reinit_layers == 0
    with pytest.raises(ContractError, match="reinit_layers: is 1"):
        choose(lora_rank=4, reinit_layers=1)


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"primary_reinit_layers": 1, "reinit_layers": 0, "lora_rank": 4}, "primary_reinit_layers: is 1"),
        ({"share_encoder": True, "primary_tokenizer": "from_scratch", "secondary_tokenizer": "from_scratch"}, "share"),
    ],
)
def test_an_error_names_the_override_of_a_text(settings, cause):
    with pytest.raises(ContractError, match=cause) as error:
        parse_hyperparameters({**TWO, **settings})
    assert "primary_" in error.value.fix


@pytest.mark.parametrize("settings", [{"model_class": "lstm", "head_lr": 1e-3}, {"model_class": "lstm"}])
def test_the_default_space_has_the_rate_of_most_weights(settings):
    space = default_space(choose(tuning={}, preset="defaults", **settings).hp)
    assert ("head_lr" in space) == ("head_lr" in settings)


def test_a_missing_column_is_named_whatever_the_preset():
    with pytest.raises(ContractError, match="text_name: missing"):
        choose(text_name=None)


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 8}, {"tokenizer": "from_scratch"}, {"model_class": "lstm"}])
def test_the_default_space_contains_every_value_that_a_preset_chooses(settings):
    chosen = choose(tuning={}, **settings).hp
    epochs = {choose(table_facts(rows, (rows, rows), (9, 9)), **settings).hp.max_epochs for rows in (1, 5_000, 20_000)}
    for name, values in default_space(chosen).items():
        if any(rule.setting == name and rule.case.holds(chosen) for rule in RULES):
            for value in epochs if name == "max_epochs" else [getattr(chosen, name)]:
                assert values.low <= value <= values.high if isinstance(values, Range) else value in values


@pytest.mark.parametrize(
    ("settings", "space", "rows", "epochs"),
    [
        ({}, {}, 1_000, 4),
        ({"tokenizer": "from_scratch"}, {}, 1_000, 6),
        ({}, {"tokenizer": ["pretrained", "from_scratch"]}, 1_000, 6),
        ({}, {"tokenizer": ["pretrained", "from_scratch"]}, 6_000, 3),
        ({"max_epochs": 5, "tokenizer": "from_scratch"}, {}, 1_000, 5),
        ({"max_epochs": 9}, {"max_epochs": [1, 7, 2]}, 1_000, 7),
        ({"preset": "defaults"}, {}, 1_000, 10),
    ],
)
def test_the_longest_trial_has_the_epochs_that_the_preset_chooses_in_it(settings, space, rows, epochs):
    tuning = {"space": {"lr": {"low": 1e-4, "high": 1e-2}, **space}}
    given = {"model_class": "multimodal_bert", "preset": "recommended", **COLUMNS, **settings, "tuning": tuning}
    hp = choose_settings(GivenSettings(given, {})).hp
    assert most_epochs(hp, given, table_facts(rows, (rows // 2, rows // 2), (9, 9))) == epochs


def test_random_encoders_are_small_and_get_a_higher_rate():
    hp, *_ = choose(tokenizer="from_scratch")
    assert (hp.lr, hp.encoder_config["hidden_size"]) == (2e-3, 64)
    assert choose().hp.lr == 1e-4


@pytest.mark.parametrize(("rows", "epochs"), [(4_999, 4), (5_000, 3), (19_999, 3), (20_000, 2)])
def test_the_number_of_epochs_follows_from_the_rows(rows, epochs):
    assert choose(table_facts(rows, (rows // 2, rows // 2), (9, 9))).hp.max_epochs == epochs


@pytest.mark.parametrize(
    ("tokenizer", "rows", "expected"),
    [("from_scratch", 1_499, (6, 8)), ("from_scratch", 1_500, (4, 32)), ("pretrained", 1_499, (4, 8))],
)
def test_training_takes_more_steps_where_rows_are_few(tokenizer, rows, expected):
    facts = table_facts(rows, (rows // 2, rows // 2), (9, 9))
    hp = choose(facts, tokenizer=tokenizer, choose_on="val").hp
    assert (hp.max_epochs, hp.batch_size) == expected
    assert choose(facts, tokenizer=tokenizer).hp.max_epochs == (3 if tokenizer == "from_scratch" else 2)


def test_a_pipeline_keeps_the_batch_that_its_microbatches_divide():
    assert choose(FACTS, pp_size=4, num_microbatches=16).hp.batch_size == 32


def test_the_log_compares_the_users_number_of_epochs_with_one_value_only():
    facts = table_facts(900, (450, 450), (9, 9))
    before, after = (choose(known, max_epochs=7).lines for known in (None, facts))
    assert not any("max_epochs" in line for line in before)
    assert [line for line in after if "max_epochs" in line] == [
        "preset recommended: max_epochs=2, because train and val have 918 labelled rows; "
        "not chosen, because you set it to 7"
    ]


def test_rare_classes_weigh_more_by_the_square_root_of_their_share():
    hp, lines, _ = choose(FACTS, **MULTICLASS)
    assert hp.class_weights == pytest.approx([0.609, 2.041, 4.082], abs=1e-3)
    assert any("the rarest class has 2.00% of train" in line for line in lines)
    assert choose(table_facts(900, (300, 300, 300), (9, 9, 9)), **MULTICLASS).hp.class_weights is None


def test_the_rules_count_total_weights_where_records_have_weights():
    split = {"rows": 120, "classes": {"a": 50, "b": 60, "c": 10}, "class_weights": {"a": 50.0, "b": 60.0, "c": 100.0}}
    only_a = {**split, "class_weights": {"a": 9.0, "b": 0.0, "c": 0.0}}
    hp, *_ = choose(DataFacts.read({"splits": {"train": split, "val": only_a}}), **MULTICLASS, weight_name="weight")
    assert (hp.class_weights, hp.calibration) == (None, "none")


def test_a_class_without_rows_needs_no_weight():
    assert choose(table_facts(900, (900, 0, 0), (9, 0, 0)), **MULTICLASS).hp.class_weights is None
    weights = choose(table_facts(1_000, (900, 100, 0), (9, 1, 0)), **MULTICLASS).hp.class_weights
    assert weights == pytest.approx([0.745, 2.236, 1.0], abs=1e-3)


def test_two_classes_by_name_are_treated_as_two_classes():
    two = {**MULTICLASS, "num_classes": 2, "multiclass_categories": ["a", "b"]}
    hp, *_ = choose(table_facts(1_000, (980, 20), (90, 2)), **two)
    assert (hp.class_weights, hp.early_stop_metric) == (None, "val/auroc")


def test_probabilities_are_calibrated_if_val_has_two_classes():
    assert choose(table_facts(100, (50, 25, 25), (10, 5, 0)), **MULTICLASS).hp.calibration == "temperature"
    assert choose(table_facts(100, (50, 50), (20, 0))).hp.calibration == "none"


@pytest.mark.parametrize("rows", [40, 1_999])
def test_every_row_of_a_small_table_decides_out_of_fold(rows):
    hp = choose(table_facts(rows, (rows - 9, 5), (2, 2))).hp
    assert (hp.choose_on, hp.cross_fit, hp.num_members) == ("out_of_fold", 5, 5)


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({}, LARGE),
        ({"ensemble": 3}, FACTS),
        ({"ensemble": 1}, FACTS),
        ({"choose_on": "val"}, FACTS),
        ({"draft": True}, FACTS),
        ({"tuning": {"trials": 2}}, FACTS),
        ({"preset": "defaults"}, FACTS),
    ],
)
def test_val_decides_about_a_large_table_and_about_networks_of_which_the_user_decides(settings, facts):
    hp = choose(facts, **MULTICLASS, **settings).hp
    assert (hp.cross_fit, hp.choose_on) == (0, "val")


def test_a_setting_with_which_no_network_leaves_out_a_row_is_named():
    for settings, hosts, cause in (({"cross_fit": 0}, 1, "cross_fit is 0"), ({}, 2, "the job has 2 hosts")):
        given = GivenSettings({"preset": "recommended", **COLUMNS, **MULTICLASS, **settings}, {})
        hp, lines, _ = choose_settings(given, FACTS, hosts=hosts)
        assert (hp.cross_fit, hp.choose_on) == (0, "val")
        assert hp.max_epochs == choose(FACTS, **MULTICLASS, choose_on="val").hp.max_epochs != 2
        assert any("not chosen, because" in line and cause in line for line in lines)


@pytest.mark.parametrize(("groups", "folds"), [(9, 5), (3, 3), (1, 0)])
def test_a_table_of_few_groups_has_as_many_folds_and_one_of_one_group_none(groups, folds):
    hp, lines, _ = choose(table_facts(900, (450, 450), (50, 50), units=groups), group_name="customer")
    assert (hp.cross_fit, hp.pools_val) == (folds, folds > 0)
    reason = f"train and val have 1000 labelled rows{'' if groups > 5 else f' in {groups} group' + 's' * (groups > 1)}"
    assert f"preset recommended: cross_fit={folds}, because {reason}" in lines


def test_the_groups_of_train_and_val_are_counted_once():
    split = {"rows": 50, "classes": {"a": 25, "b": 25}, "groups": 7}
    summary = {"splits": {"train": split, "val": {**split, "groups": 4, "groups_of_train": 3}}}
    assert DataFacts.read(summary).units == 8
    without = {"splits": {name: {**split, "groups": 0} for name in ("train", "val")}}
    assert DataFacts.read(without).units == 100


@pytest.mark.parametrize(
    ("of_train", "of_val", "wanted"),
    [((819, 181), (9, 9), "auto_f1"), ((800, 200), (9, 9), "auto_accuracy"), ((800, 200), (9, 0), "0.5")],
)
def test_the_threshold_of_a_small_table_is_that_of_f1_where_class_1_is_rare(of_train, of_val, wanted):
    assert str(choose(table_facts(1_000, of_train, of_val)).hp.decision_threshold) == wanted
    assert choose(LARGE).hp.decision_threshold == 0.5


def test_facts_of_the_data_change_no_setting_that_invalidates_prepared_data():
    scopes = {choose().hp.declarations()[rule.setting].scope for rule in RULES if rule.needs_data}
    assert "prepare" not in scopes


def test_the_chosen_configuration_is_the_same_when_it_is_read_again():
    hp, *_ = choose(FACTS, pooling="first", **MULTICLASS)
    assert parse_hyperparameters(hp.model_dump(mode="json")) == hp


def shown(rule):
    """The cell of the page with the value of a rule."""
    if rule.setting == "encoder_config":
        return f"one layer of width {rule.value['hidden_size']} with dropout {rule.value['hidden_dropout_prob']}"
    if not rule.needs_data:
        return rule.value if isinstance(rule.value, str) else json.dumps(rule.value)
    if rule.setting == "max_epochs" and rule.case is ALWAYS:
        few, some, many = (rule.value(table_facts(rows, (), ()))[0] for rows in (4_999, 19_999, 20_000))
        return f"{few} below 5,000 training rows, {some} below 20,000, else {many}"
    if rule.setting == "class_weights":  # a test above has the values
        return 'the square roots of the "balanced" weights'
    if rule.setting == "ensemble":
        return rule.value(LARGE)[0]
    if rule.setting == "decision_threshold":
        return "auto_f1 where class 1 has less than 20 % of train, else auto_accuracy"
    return rule.value(FACTS)[0]


def as_number(cell):
    try:
        return float(cell)
    except ValueError:
        return cell


def test_the_page_has_a_row_for_every_rule_with_its_value():
    page = (Path(__file__).parents[2] / "docs" / "presets.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+?)(?: \(\[.*?\]\(.*?\)\))? \|[^|]+\|[^|]*\|$", page, re.MULTILINE)
    found = [(name, as_number(cell)) for name, cell in rows]
    assert found == [(rule.setting, as_number(shown(rule))) for rule in RULES]
    assert all(set(rule.presets) <= set(ABOVE_DEFAULTS) for rule in RULES)


@pytest.mark.slow
def test_a_job_trains_with_the_settings_of_its_preset_and_records_them(tmp_path):
    changed = {"preset": "recommended", "encoder_config": ONE_LAYER, "max_epochs": None, "lr": None, "choose_on": "val"}
    paths = write_job(tmp_path, overrides=changed)
    log = run_train(paths)
    assert "preset recommended: lr=0.002, because every encoder starts from scratch" in log
    recorded = json.loads((paths.model / HYPERPARAMETERS).read_text())
    assert (recorded["preset"], recorded["lr"], recorded["max_epochs"]) == ("recommended", 2e-3, 6)
    assert "for up to 6 epochs" in log


@pytest.mark.parametrize("settings", [{}, {"preset": "recommended"}, {"preset": "best", "tuning": {}}])
def test_settings_are_resolved_in_at_most_three_configurations(tmp_path, monkeypatch, settings):
    made = []
    original = Hyperparameters.__init__

    def counted(self, **values):
        made.append(values)
        original(self, **values)

    given = read_settings(write_job(tmp_path, overrides=settings))
    monkeypatch.setattr(Hyperparameters, "__init__", counted)
    choose_settings(given, table_facts(1, (1, 1), (1, 1)))
    assert len(made) <= 3
