"""Files of a user that hold JSON: what cannot be read is an error with the path and a fix."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from container.decision.decision import Decision
from container.job import supervisor
from container.job.failure import Failure, write_failure
from container.job.hosts.channels import check_channels
from container.job.hosts.topology import Topology
from container.preprocessing.fitted import FittedPreprocessing
from container.steps.metrics.read_predictions import PredictionFiles, find_predictions
from container.steps.program import is_sharded
from contracts.errors import ContractError
from contracts.hyperparameter_files import load_hyperparameters
from contracts.local_paths import with_local_paths
from contracts.package_inputs import CalibrationMap
from contracts.paths import JobPaths
from contracts.step_contract import processing_resources
from pipeline.condition import decision_of
from testing.jobs import run_python
from testing.table_jobs import fit, table

READERS: dict[str, Callable[[Path], object]] = {
    "input/config/hyperparameters.json": lambda root: load_hyperparameters(JobPaths(root)),
    "input/config/resourceconfig.json": lambda root: Topology.read(JobPaths(root).resource_config),
    "input/config/inputdataconfig.json": lambda root: check_channels(JobPaths(root), Topology()),
    "input/config/checkpointconfig.json": lambda root: with_local_paths(JobPaths(root)),
    "config/resourceconfig.json": lambda root: Topology.read(processing_resources(root)),
    "config/processingjobconfig.json": lambda root: is_sharded(root, "DATA"),
    "decision.json": Decision.load,
    "preprocessing.json": FittedPreprocessing.load,
    "calibration.json": lambda root: CalibrationMap.read(root / "calibration.json"),
}
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a folder": (Path.mkdir, "is a folder, not a file"),
    "a pipe": (os.mkfifo, "is a named pipe, not a file"),
    "a link to nothing": (lambda path: path.symlink_to("gone"), "is a link to gone, which does not exist"),
    "a list": (lambda path: path.write_text("[1]"), "contains a list, not an object"),
    "a pointer": (lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"), "is a Git LFS pointer"),
    "a page": (lambda path: path.write_text("\n<!doctype HTML>", "utf-8-sig"), "is a web page, not the file itself"),
    "empty": (Path.touch, "cannot be read: the file is empty"),
    "no JSON": (lambda path: path.write_text("{"), "cannot be read: it is not JSON in UTF-8: Expecting"),
    "nested": (lambda path: path.write_text("[" * 100_000), "cannot be read: it is not JSON in UTF-8: "),
    "no UTF-8": (lambda path: path.write_bytes(b'{"a": "\xe9"}'), "cannot be read: it is not JSON in UTF-8: 'utf-8'"),
}


def file_at(root: Path, name: str) -> Path:
    """The path of a file, in a folder that exists."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def refusal(root: Path, name: str, content: object) -> str:
    """Write an object to a file, and return the cause of the error with which its reader refuses it."""
    path = file_at(root, name)
    path.write_text(json.dumps(content))
    with pytest.raises(ContractError) as caught:
        {**READERS, "impute_dict.json": FittedPreprocessing.load}[name](root)
    assert caught.value.fix
    assert caught.value.cause.startswith(f"{path}: ")
    return caught.value.cause.removeprefix(f"{path}: ")


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", READERS)
def test_a_file_that_holds_no_object_is_an_error_with_its_path_and_a_fix(
    tmp_path: Path, name: str, damage: str
) -> None:
    write, problem = DAMAGE[damage]
    path = file_at(tmp_path, name)
    write(path)
    with pytest.raises(ContractError) as caught:
        READERS[name](tmp_path)
    assert caught.value.cause.startswith(f"{path}: {problem}")
    assert caught.value.fix


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("name", READERS)
def test_a_byte_order_mark_changes_nothing(tmp_path: Path, name: str, encoding: str) -> None:
    path = file_at(tmp_path, name)

    def read(encoding: str) -> object:
        path.write_text('{"caf\u00e9": 1}', encoding=encoding)
        try:
            return READERS[name](tmp_path)
        except ContractError as error:
            return error.cause

    assert read(encoding) == read("utf-8")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("input/config/resourceconfig.json", {"hosts": 3}),
        ("input/config/resourceconfig.json", {"hosts": "algo-1"}),
        ("input/config/resourceconfig.json", {"hosts": [None]}),
        ("input/config/resourceconfig.json", {"hosts": ["algo-1", "algo-1"]}),
        ("input/config/resourceconfig.json", {"current_host": "algo-2", "hosts": ["algo-1"]}),
        ("input/config/resourceconfig.json", {"hosts": ["algo-1"], "network_interface_name": 5}),
        ("input/config/resourceconfig.json", {"instance_groups": [{"instance_group_name": "gpu", "hosts": []}]}),
        (
            "input/config/resourceconfig.json",
            {"instance_groups": [{"instance_group_name": "gpu", "hosts": ["algo-2"]}]},
        ),
        ("input/config/resourceconfig.json", {"hosts": ["algo-1"], "instance_groups": [{}]}),
        ("input/config/inputdataconfig.json", {"train": 3}),
        ("config/resourceconfig.json", {"hosts": ["algo-1", "algo-2"]}),
        ("config/resourceconfig.json", {"hosts": "algo-1", "current_host": "a"}),
        ("config/resourceconfig.json", {"hosts": ["algo-1", "algo-1"], "current_host": "algo-1"}),
        ("config/resourceconfig.json", {"hosts": ["algo-1"], "current_host": "algo-2"}),
        ("input/config/checkpointconfig.json", {"LocalPath": 5}),
        ("config/processingjobconfig.json", {"ProcessingInputs": [3]}),
        ("decision.json", {"format_version": 2}),
        ("decision.json", {"format_version": 2, "calibration": {"method": "none"}, "prior": 3, "threshold": None}),
        ("decision.json", {"format_version": 2, "calibration": []}),
    ],
)
def test_an_object_without_the_keys_or_values_it_needs_is_an_error_with_its_path_and_a_fix(
    tmp_path: Path, name: str, content: object
) -> None:
    refusal(tmp_path, name, content)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (3, "has the value 3 for 'instance_groups'"),
        (["gpu"], "has the value 'gpu' for 'instance_groups.0'"),
        ([{"hosts": ["algo-1"]}], "has no 'instance_groups.0.instance_group_name'"),
        ([{"instance_group_name": None, "hosts": ["algo-1"]}], "has the value None for 'instance_groups.0.instance_gr"),
        ([{"instance_group_name": "gpu", "hosts": "algo-1"}], "has the value 'algo-1' for 'instance_groups.0.hosts'"),
        ([{"instance_group_name": "gpu", "hosts": ["algo-2"]}], "has a wrong value: 'algo-2' is not one of the hosts"),
    ],
)
def test_instance_groups_that_are_not_a_list_of_names_and_hosts_are_an_error_that_names_the_key_and_value(
    tmp_path: Path, groups: object, said: str
) -> None:
    content = {"hosts": ["algo-1"], "instance_groups": groups}
    assert refusal(tmp_path, "input/config/resourceconfig.json", content).startswith(said)


def test_preprocessing_of_another_model_is_an_error_that_names_the_column(tmp_path: Path) -> None:
    preprocessor, _ = fit(tmp_path / "fitted", table(20))
    preprocessor.fitted.save(tmp_path)
    (tmp_path / "impute_dict.json").write_text('{"other": 1}')
    with pytest.raises(ContractError, match=r"impute_dict\.json: has no column 'x', which preprocessing\.json names"):
        FittedPreprocessing.load(tmp_path)


@pytest.mark.parametrize("name", ["class_labels", "is_binary", "text_fields", "numeric_transform", "tokenizer_digests"])
def test_preprocessing_without_a_key_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    preprocessor, _ = fit(tmp_path / "fitted", table(20))
    preprocessor.fitted.save(tmp_path)
    path = tmp_path / "preprocessing.json"
    rules = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in rules.items() if key != name}))
    with pytest.raises(ContractError, match=rf"preprocessing\.json: has no '{name}'"):
        FittedPreprocessing.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("preprocessing.json", {"format_version": 2}),
        ("preprocessing.json", {"id_name": 3}),
        ("preprocessing.json", {"id_name": "x"}),
        ("preprocessing.json", {"numeric_columns": "x"}),
        ("preprocessing.json", {"numeric_columns": {"x": 1}}),
        ("preprocessing.json", {"class_labels": [0]}),
        ("preprocessing.json", {"class_labels": [0, None]}),
        ("preprocessing.json", {"class_labels": [0, 1, 2]}),
        ("preprocessing.json", {"is_binary": "true"}),
        ("preprocessing.json", {"text_fields": [{"role": "text"}]}),
        ("preprocessing.json", {"text_fields": [3]}),
        ("preprocessing.json", {"numeric_transform": {"kind": "other"}}),
        ("preprocessing.json", {"numeric_transform": {"kind": "standard", "mean": [0], "scale": [1]}}),
        ("preprocessing.json", {"embedded_categories": {"other": ["a"]}}),
        ("preprocessing.json", {"missing_indicators": ["other"]}),
        ("impute_dict.json", {"x": None}),
        ("impute_dict.json", {"x": math.nan}),
        ("impute_dict.json", {"x": 10**40}),
        ("impute_dict.json", {"x": True}),
        ("decision.json", {"prior": {"source_share": 0, "target_share": 0.5}}),
        ("decision.json", {"threshold": {"value": math.inf}}),
        ("decision.json", {"calibration": {"method": "none", "fitted_on": 0, "temperature": 0}}),
        ("decision.json", {"calibration": {"method": "other", "fitted_on": 0, "temperature": 1}}),
        ("decision.json", {"calibration": {"method": "isotonic", "fitted_on": 0, "lines": []}}),
        (
            "decision.json",
            {
                "calibration": {
                    "method": "isotonic",
                    "fitted_on": 9,
                    "lines": [{"log_odds": [0, 1], "probability": [0.5]}],
                }
            },
        ),
        ("calibration.json", {"scores": [0, "1"], "probabilities": [0, 1]}),
        ("calibration.json", {"scores": [0, 1], "probabilities": [0, 1], "more": 1}),
    ],
)
def test_an_artifact_with_a_changed_value_is_an_error_with_its_path_and_the_key(
    tmp_path: Path, name: str, change: dict[str, object]
) -> None:
    preprocessor, _ = fit(tmp_path / "fitted", table(20))
    preprocessor.fitted.save(tmp_path)
    Decision().save(tmp_path)
    written = json.loads((tmp_path / name).read_text()) if (tmp_path / name).exists() else {}
    cause = refusal(tmp_path, name, {**written, **change})
    assert any(key in cause for key in change)


def test_metrics_of_a_job_that_are_no_object_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "test_predictions.csv").write_text("id,prob_class_0,prob_class_1\n1,0.5,0.5\n")
    (tmp_path / "metrics.json").write_text("[]")
    with pytest.raises(ContractError, match=r"metrics\.json: contains a list, not an object"):
        find_predictions(tmp_path, scratch=tmp_path / "scratch")


def test_metrics_of_a_job_with_other_content_are_an_error(tmp_path: Path) -> None:
    files = PredictionFiles(tmp_path, {}, {"classes": {"val": [{}]}, "decision": {"threshold": {"target": "given"}}})
    with pytest.raises(ContractError, match=r"metrics\.json: has no 'label'"):
        _ = files.class_labels
    with pytest.raises(ContractError, match=r"metrics\.json: has no 'value'"):
        _ = files.threshold


@pytest.mark.parametrize(
    "name",
    ["model", "prepared", "output", "output/data", "checkpoints/tuning", "checkpoints/ensemble", "checkpoints", "."],
)
def test_a_file_where_the_job_writes_a_folder_is_an_error_before_it_begins(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(supervisor, "set_up_logging", lambda: None)
    monkeypatch.setattr(os, "umask", lambda _mask: 0)
    path = tmp_path / "job" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    assert supervisor.train(JobPaths(tmp_path / "job")) == 1
    assert f"{path}: is no folder, but the job writes a folder there\nWhat to change: Remove" in capfd.readouterr().err


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_folder_without_the_permission_to_write_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    tmp_path.chmod(0o755)
    code = (
        "import os; from pathlib import Path; from contracts.input_files import check_writable; "
        "os.setuid(65534); check_writable(Path('model', 'new'))"
    )
    done = run_python(code, cwd=tmp_path)
    assert "ContractError: model: cannot be written: permission denied" in done.stderr


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"decision": 3}', '{"decision": {"value": "high"}}', '{"decision": {"value": 1}}']
)
def test_an_evaluation_without_the_metric_is_an_error(text: str) -> None:
    with pytest.raises(ContractError, match=r"evaluation\.json: has no number decision\.value"):
        decision_of(text, where="evaluation.json")


def test_a_failure_with_a_name_that_is_not_utf8_is_written(tmp_path: Path) -> None:
    write_failure(Failure("caf\udce9.csv: is damaged"), *JobPaths(tmp_path).failure_files)
    for path in JobPaths(tmp_path).failure_files:
        assert path.read_text("utf-8") == "caf\\udce9.csv: is damaged\n"
