"""Artifacts of an earlier step: read on request, and never trusted."""

import collections
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from container.preprocessing.precomputed import load_precomputed, read_pickle, selected_features
from contracts.errors import ContractError

BINS = {"c": {"bins": {"a": np.float64(0.75), "b": 0.25}, "default_bin": 0.5}}


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.path}",)


def load(folder: Path, **given: object) -> object:
    return load_precomputed(folder, **{"numeric_columns": ["x"], "categorical_columns": ["c"], **given})


@pytest.fixture
def _imputation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USE_PRECOMPUTED_IMPUTATION", "true")


@pytest.fixture
def _risk_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USE_PRECOMPUTED_RISK_TABLES", "True")


@pytest.mark.usefixtures("_imputation", "_risk_tables")
@pytest.mark.parametrize("form", ["json", "pkl"])
def test_both_artifacts_are_read_in_both_forms(tmp_path: Path, form: str) -> None:
    for name, value in (("impute_dict", {"x": 1.5, "unused": 3}), ("risk_table_map", BINS)):
        data = json.dumps(value).encode() if form == "json" else pickle.dumps(value)
        (tmp_path / f"{name}.{form}").write_bytes(data)
    found = load(tmp_path)
    assert found.imputation == {"x": 1.5}
    assert found.risk_tables == BINS


@pytest.mark.usefixtures("_imputation")
def test_json_is_preferred(tmp_path: Path) -> None:
    (tmp_path / "impute_dict.json").write_text('{"x": 1}')
    (tmp_path / "impute_dict.pkl").write_bytes(pickle.dumps({"x": 2}))
    assert load(tmp_path).imputation == {"x": 1.0}


def test_without_the_flag_nothing_is_read_and_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    (tmp_path / "impute_dict.pkl").write_bytes(b"garbage")
    assert load(tmp_path).imputation is None
    assert "impute_dict.pkl is not used: USE_PRECOMPUTED_IMPUTATION is not true" in caplog.text


def test_a_flag_is_true_or_false(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("USE_PRECOMPUTED_IMPUTATION", "yes")
    with pytest.raises(ContractError, match="USE_PRECOMPUTED_IMPUTATION: is 'yes'"):
        load(tmp_path)


@pytest.mark.usefixtures("_imputation")
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (None, b"", "neither impute_dict.json nor impute_dict.pkl exists"),
        ("impute_dict.json", b'{"x": ', "impute_dict.json: cannot be read"),
        ("impute_dict.json", b"[1]", "is a list, not an object"),
        ("impute_dict.json", b'{"X": 1}', "impute_dict.json: column 'x' is missing"),
        ("impute_dict.json", b'{"x": "high"}', "column 'x': 'high' is not a finite number"),
        ("impute_dict.json", b'{"x": NaN}', "column 'x': nan is not a finite number"),
        ("impute_dict.pkl", pickle.dumps({"x": 1})[:-3], "is not a readable pickle"),
        ("impute_dict.pkl", b"not a pickle", "is not a readable pickle"),
        ("impute_dict.pkl", b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
    ],
)
def test_a_missing_or_corrupt_artifact_is_named(tmp_path: Path, name: str | None, content: bytes, message: str) -> None:
    if name:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ContractError, match=message) as caught:
        load(tmp_path)
    assert str(tmp_path) in caught.value.cause


@pytest.mark.usefixtures("_risk_tables")
@pytest.mark.parametrize(
    ("content", "message"), [('{"color": {}}', "column 'c' is missing"), ("[]", "is a list, not an object")]
)
def test_a_risk_table_map_without_a_column_is_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "risk_table_map.json").write_text(content)
    with pytest.raises(ContractError, match=f"risk_table_map.json: {message}"):
        load(tmp_path)


@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_pickle_is_refused_and_does_not_run(tmp_path: Path, protocol: int) -> None:
    path, proof = tmp_path / "impute_dict.pkl", tmp_path / "ran"
    path.write_bytes(pickle.dumps({"x": Malicious(proof)}, protocol=protocol))
    with pytest.raises(ContractError, match=r"the pickle refers to (posix|os|nt)\.system, which is not allowed"):
        read_pickle(path)
    assert not proof.exists()


@pytest.mark.parametrize(
    "code",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cbuiltins\ngetattr\n(cbuiltins\nlist\nS'append'\ntR.",
        b"\x80\x04\x8c\x05numpy\x8c\x06system\x93.",
        b"\x80\x04\x8c\x08builtins\x8c\x0edict.__class__\x93.",
        b"cfunctools\npartial\n(cos\nsystem\ntR.",
    ],
)
def test_other_ways_to_reach_code_are_refused(tmp_path: Path, code: bytes) -> None:
    path = tmp_path / "impute_dict.pkl"
    path.write_bytes(code)
    with pytest.raises(ContractError, match="which is not allowed"):
        read_pickle(path)


def test_plain_containers_and_numpy_values_are_read(tmp_path: Path) -> None:
    value = {
        "scalars": [np.float64(0.5), np.int64(3), np.float32(0.25), 1, "a", None, True],
        "array": np.arange(3.0),
        "ordered": collections.OrderedDict(a=1),
        "default": collections.defaultdict(float, a=1.0),
    }
    for protocol in (2, 4, 5):
        path = tmp_path / "a.pkl"
        path.write_bytes(pickle.dumps(value, protocol=protocol))
        found = read_pickle(path)
        np.testing.assert_array_equal(found.pop("array"), np.arange(3.0))
        assert found == {name: entry for name, entry in value.items() if name != "array"}


@pytest.mark.parametrize("content", ['["c", "x"]', '{"selected_features": ["c", "x"]}'])
def test_selected_features_restrict_the_table(tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    (tmp_path / "selected_features.json").write_text(content)
    assert selected_features(tmp_path, ["x", "y", "c"]) == ("c", "x")
    assert "selects 2 of 3 table columns; left out: ['y']" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [('["z"]', "column 'z' is missing"), ('{"features": []}', "not a list"), ("[1]", "not a list")],
)
def test_a_wrong_selection_is_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "selected_features.json").write_text(content)
    with pytest.raises(ContractError, match=f"selected_features.json: .*{message}"):
        selected_features(tmp_path, ["x"])
