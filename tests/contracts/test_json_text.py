"""JSON that is ambiguous or beyond a limit is refused with its cause, in files and in settings."""

import json
import threading

import pytest

from container.tables.part_files import read_signature
from contracts.errors import ContractError
from contracts.hyperparameter_files import cast_value, load_hyperparameters
from contracts.input_files import read_json
from contracts.json_text import InterruptibleDecoder, parse_json
from contracts.paths import JobPaths
from contracts.steps import TabularPreprocessingSettings
from pipeline.config_file import load_config

DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000
REFUSED = [
    ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' occurs more than once"),
    (DEEP, "nested too deeply"),
    ("[" * 150 + "]" * 150, "nested more than 100 levels deep"),
    ('{"a": ' + "1" * 5000 + "}", r"the integer 1{40}\.\.\. has 5000 digits"),
    (r'{"a": "x \ud800"}', r"the text 'x \\ud800' ends with a lone surrogate"),
    (r'{"\ud800": 1}', r"the text '\\ud800' ends with a lone surrogate"),
]


@pytest.mark.parametrize(("text", "cause"), REFUSED)
def test_json_that_is_ambiguous_or_beyond_a_limit_is_refused(text, cause):
    with pytest.raises(ValueError, match=cause):
        parse_json(text)


def test_a_surrogate_pair_is_a_character():
    assert parse_json(r'["\ud83d\ude00"]') == ["😀"]


def test_a_setting_may_begin_with_a_byte_order_mark():
    assert cast_value("encoder_config", '\ufeff{"hidden_size": 8}') == {"hidden_size": 8}


@pytest.mark.parametrize(("text", "cause"), REFUSED)
@pytest.mark.parametrize("name", ["hyperparameters.json", "impute_dict.json", "pipeline.json", "signature"])
def test_a_file_names_the_cause_and_itself(tmp_path, name, text, cause):
    paths = JobPaths(tmp_path)
    readers = {
        "hyperparameters.json": lambda: load_hyperparameters(paths),
        "impute_dict.json": lambda: read_json(tmp_path / name, "Write it again."),
        "pipeline.json": lambda: load_config(tmp_path / name),
        "signature": lambda: read_signature(tmp_path),
    }
    path = paths.hyperparameter_files[-1] if name == "hyperparameters.json" else tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"[{text}]" if name == "signature" else text)
    with pytest.raises(ContractError, match=rf"(?s){name}.*{cause}"):
        readers[name]()


@pytest.mark.parametrize(("text", "cause"), REFUSED)
def test_a_setting_names_the_cause_and_itself(text, cause):
    with pytest.raises(ContractError, match=rf"(?s)encoder_config: .*{cause}") as caught:
        cast_value("encoder_config", text)
    assert len(caught.value.cause) < 500
    with pytest.raises(ContractError, match=rf"(?s)environment variable LABEL_MAP: .*{cause}") as caught:
        TabularPreprocessingSettings.from_environment({"LABEL_FIELD": "y", "LABEL_MAP": text})
    assert len(caught.value.cause) < 500


def test_a_repeated_key_of_a_python_literal_is_refused():
    with pytest.raises(ContractError, match="imputation_dict: .*the key 'n' occurs more than once"):
        cast_value("imputation_dict", "{'n': 1, 'm': None, 'n': 2}")


def test_a_setting_and_its_alias_in_one_file_are_refused(tmp_path):
    path = JobPaths(tmp_path).hyperparameter_files[-1]
    path.parent.mkdir(parents=True)
    path.write_text('{"chunk_truncate": true, "chunk_trancate": false}')
    with pytest.raises(ContractError, match="chunk_trancate: is set twice in"):
        load_hyperparameters(JobPaths(tmp_path))


@pytest.mark.parametrize("text", ["[[]" + ",[]" * 1_000_000 + "]", json.dumps({f"a{i}": "1" for i in range(300_000)})])
def test_other_threads_run_while_a_long_value_of_a_request_is_decoded(text):
    def turns() -> int:
        count, done = 0, threading.Event()

        def run() -> None:
            nonlocal count
            while not done.wait(0.001):
                count += 1

        thread = threading.Thread(target=run)
        thread.start()
        InterruptibleDecoder().decode(text)
        done.set()
        thread.join()
        return count

    assert turns() > 20


@pytest.mark.parametrize("length", range(65_533, 65_540))
@pytest.mark.parametrize("last", ["123", "true", '"x"', "{}", "1e5"])
def test_a_value_has_the_same_content_wherever_it_ends(length, last):
    text = f"[{' ' * (length - len(last) - 1)}{last}, 1]"
    assert InterruptibleDecoder().decode(text) == json.loads(text)
    for number in ("1" * length + ".5", "1" * length + "e-5"):
        assert InterruptibleDecoder(parse_float=str, parse_int=str).raw_decode(number) == (number, len(number))
    with pytest.raises(json.JSONDecodeError) as caught:
        InterruptibleDecoder().decode(text[:-1])
    assert caught.value.pos == len(text) - 1
