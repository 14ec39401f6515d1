"""Every number of a configuration is bounded, and no value ends validation with anything but a ContractError."""

import argparse
import re
import time
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from container.commands import _parser as container_parser
from container.job.hosts.control import ControlSettings
from container.planning.catalogue import Catalogue, Gpu, Instance, Prices
from contracts.declaration import number_limits
from contracts.errors import ContractError
from contracts.hyperparameter_files import cast_value, parse_hyperparameters
from contracts.hyperparameters import Hyperparameters
from contracts.metrics_settings import ModelMetricsSettings
from contracts.serving import ServingSettings
from contracts.steps import STEPS
from contracts.tuning import Range, Tuning
from pipeline.commands import _parser as pipeline_parser
from pipeline.config_types import Section
from testing.jobs import CONFIGURATION, REPOSITORY

SECTIONS = [*Section.__subclasses__(), Catalogue, Gpu, Instance, Prices, Range, Tuning]
SECTIONS = [kind for kind in SECTIONS if kind.__module__ != "pipeline.config_aws"]  # botocore's model has its limits
KINDS = (Hyperparameters, ServingSettings, ControlSettings, *SECTIONS, *(step.settings for step in STEPS))
FIELDS = [(kind, name) for kind in KINDS for name in kind.model_fields]
METRICS = {"ID_FIELD": "id", "LABEL_FIELD": "label"}


def numbers_of(parser):
    """Return the flag, and the function that reads it, of each argument of a command line."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield from ((f"{name} {flag}", read) for flag, read in numbers_of(command))
        else:
            yield "".join(action.option_strings), getattr(action.type, "keywords", {}).get("parse", action.type)


@pytest.mark.parametrize("parser", [container_parser(), pipeline_parser()], ids=["container", "pipeline"])
def test_every_number_of_a_command_has_a_lower_and_an_upper_bound(parser):
    for flag, read in numbers_of(parser):
        assert read not in (int, float), flag
        if isinstance(read, partial):
            (limits,) = number_limits(read.keywords["kind"])
            assert {"ge", "gt"} & set(limits) and {"le", "lt"} & set(limits), flag  # noqa: PT018 - one fact


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "--tokens", "36000000"], "--tokens: '36000000' is not a number (at least 1, at most 1000000)"),
        (["plan", "--hosts", "1_0"], "--hosts: '1_0' is not a whole number (at least 1, at most 1000)"),
        (["plan", "--budget", "nan"], "--budget: 'nan' is not a number (above 0, at most 1000000000)"),
        (["tune", "--trials", "0"], "--trials: '0' is not a whole number (at least 1, at most 10000)"),
        (["serve", "--port", "65536"], "--port: '65536' is not a whole number (at least 0, at most 65535)"),
        (["predict", "--top", "1e3"], "--top: '1e3' is not a whole number (at least 1, at most 1000000)"),
    ],
)
def test_a_number_out_of_its_bounds_is_refused_before_the_command_starts(arguments, words, capsys):
    with pytest.raises(SystemExit):
        container_parser().parse_args(arguments)
    assert words in capsys.readouterr().err


def deep(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


HOSTILE = [
    10**30, -(10**30), 10**5000, 0, -1, 1e300, -1e300, float("nan"), float("inf"), True, None, b"x", object(),
    "", " ", "\ud800", "\0", "x" * 100_000, "nan", "1e999", "0,2", "9" * 5000, "[" * 5000, "(" * 300, "{'a':" * 200,
    [], {}, [[1]], [None], [10**30], [1e300], ["a", "a"], {1: 2}, {"a": {"b": [1]}}, {"price": 1e300},
    {"color": {"risk": {"red": 1e300}, "default_risk": 1}}, {"vocab_size": 10**30}, {"vocab_size": "\ud800"},
    deep(2000),
    {"hidden_size": deep(2000)},
]  # fmt: skip
DEEP, DEEP_OBJECT = len(HOSTILE) - 2, len(HOSTILE) - 1


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=[f"{kind.__name__}.{name}" for kind, name in FIELDS])
def test_every_number_of_a_setting_has_a_lower_and_an_upper_bound(kind, name):
    field = kind.model_fields[name]
    for limits in number_limits(field.annotation, field.metadata):
        assert {"ge", "gt"} & set(limits), "no lower bound"
        assert {"le", "lt"} & set(limits), "no upper bound"


def test_the_page_of_hyperparameters_shows_both_bounds_of_every_number():
    page = (REPOSITORY / "docs/hyperparameters.md").read_text()
    items = [row for row in page.splitlines() if row.startswith("- `")]
    rows = {name: row for row in items for name in re.findall(r"`(\w+)`", row.partition(" (")[0])}
    numeric = [name for name, each in Hyperparameters.model_fields.items() if number_limits(each.annotation)]
    for values_of_data in ("multiclass_categories", "imputation_dict"):
        numeric.remove(values_of_data)
    assert len(numeric) > 60
    for name in numeric:
        assert re.search(r"\(((at least|above) [^()]*, (at most|below) [^()]*|\S+ to \S+)\)", rows[name]), name


def refusal(name, value):
    try:
        parse_hyperparameters({**CONFIGURATION, name: cast_value(name, value)})
    except ContractError as error:
        return error
    return None


@settings(max_examples=300)
@given(st.sampled_from(list(Hyperparameters.model_fields)), st.integers(0, len(HOSTILE) - 1))
@example("encoder_config", HOSTILE.index("[" * 5000))
@example("explain", DEEP)
@example("lr", HOSTILE.index(10**5000))
@example("encoder_config", DEEP_OBJECT)
def test_any_value_of_a_hyperparameter_is_valid_or_refused_at_once_with_its_name_and_a_fix(name, index):
    start = time.process_time()
    error = refusal(name, HOSTILE[index])
    assert time.process_time() - start < 1
    assert error is None or (name in error.cause.splitlines()[0] and error.fix)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"FLAGGED_SHARES": "0,2"}, "greater than 0\nWrite 0.2, with a decimal point"),
        ({"FLAGGED_SHARES": "2"}, "less than or equal to 1"),
        ({"FALSE_POSITIVE_RATE": "0,2"}, "Write 0.2, with a decimal point"),
        ({"FLAGGED_SHARES": "[" * 5000}, "nested too deeply"),
        ({"DECISION_METRIC": "test/foo"}, "'foo' is not a metric"),
        ({"DECISION_METRIC": "test/dollar_recall_at_0.1"}, "did you mean 'count_recall_at_0.1'"),
    ],
)
def test_a_setting_of_the_metrics_out_of_its_range_is_refused(environment, words):
    with pytest.raises(ContractError) as raised:
        ModelMetricsSettings.from_environment({**METRICS, **environment})
    assert words in str(raised.value)
    assert next(iter(environment)) in raised.value.cause


@pytest.mark.parametrize("port", ["many", "0", "70000"])
def test_a_port_that_no_host_can_listen_on_is_refused(port):
    with pytest.raises(ContractError, match=f"environment variable CONTROL_PORT: '{port}' is invalid"):
        ControlSettings.from_environment({"CONTROL_PORT": port})


def test_a_metric_that_other_settings_produce_may_decide():
    environment = {**METRICS, "FLAGGED_SHARES": "0.3", "AMOUNT_FIELD": "price"}
    for name in ("loss", "brier_score", "dollar_recall_at_0.3", "count_recall_at_fpr_0.1", "auroc_difference"):
        assert ModelMetricsSettings.from_environment({**environment, "DECISION_METRIC": f"test/{name}"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"text_input_ids_key": "probabilities"}, "the name of the output"),
        ({"imputation_dict": {"price": 1e300}}, r"imputation_dict: {'price': 1e+300} is invalid"),
        ({"risk_tables": {"color": {"risk": {"red": 1e300}}}}, "a number is not between"),
        ({"risk_table_folds": 10**6}, "risk_table_folds: 1000000 is invalid"),
        ({"numeric_embedding_bins": 10**9}, "less than or equal to 1024"),
    ],
)
def test_names_that_collide_and_numbers_that_are_too_large_are_refused(changes, words):
    with pytest.raises(ContractError) as raised:
        parse_hyperparameters({**CONFIGURATION, **changes})
    assert words in raised.value.cause
