"""files.json lists the files of a model, and loading compares the files that a backend reads with it."""

import copy
import json
import logging
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from container.attribution.parts import LEVELS, Level
from container.decision.decision import Decision
from container.predictor import Predictor
from container.serving.model import ServedModel
from container.serving.model_files import checked_files, write_model_files
from container.serving.requests import read_request
from contracts.errors import ContractError
from contracts.serving import JSON, ServingSettings
from testing.exported_models import linear_model
from testing.foreign_files import add_foreign_files

SHARED = ["preprocessing.json", "tokenizer/tokenizer.json"]
READ = {
    ("onnx", None): ["model.onnx", "model.onnx.data"],
    ("onnx", "int8"): ["model.int8.onnx"],
    ("torch", None): ["model.pth", "companion.onnx"],
}
FILES = [*SHARED, *(name for names in READ.values() for name in names), "model_artifacts.pth", "impute_dict.pkl"]


def write_model(folder: Path, *, ending: str = "") -> Path:
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name + ending)
    write_model_files(folder, [folder / name for name in FILES])
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def check_model_files(folder: Path, backend: str, *, variant: str | None) -> None:
    with checked_files(folder, backend, variant=variant):
        pass


def test_a_folder_that_is_replaced_while_a_model_is_loaded_is_an_error(model: Path) -> None:
    with (
        pytest.raises(ContractError, match=r"preprocessing\.json: is not the file whose hash"),
        checked_files(model, "onnx", variant=None),
    ):
        write_model(model, ending=" of another model")


@pytest.mark.parametrize(("backend", "variant"), READ)
def test_a_file_that_the_backend_reads_must_be_the_listed_one(model: Path, backend: str, variant: str | None) -> None:
    add_foreign_files(model)
    for name in [*SHARED, *READ[backend, variant]]:
        content = (model / name).read_text()
        (model / name).write_text(content[::-1])
        with pytest.raises(ContractError, match=f"{name}: is not the file whose hash .*files.json contains"):
            check_model_files(model, backend, variant=variant)
        (model / name).unlink()
        with pytest.raises(ContractError, match=f"{name}: is missing, but .*files.json lists it"):
            check_model_files(model, backend, variant=variant)
        (model / name).write_text(content)
    check_model_files(model, backend, variant=variant)


@pytest.mark.parametrize(("backend", "variant"), READ)
def test_a_file_that_the_backend_does_not_read_may_be_absent(model: Path, backend: str, variant: str | None) -> None:
    for name in set(FILES) - {*SHARED, *READ[backend, variant]}:
        (model / name).unlink()
    (model / "calibration.json").write_text("added by Package")
    check_model_files(model, backend, variant=variant)


@pytest.mark.parametrize(
    ("backend", "variant", "name"), [("torch", None, "companion.onnx"), ("onnx", "fused", "model.fused.onnx")]
)
def test_a_file_of_another_model_is_an_error(model: Path, backend: str, variant: str | None, name: str) -> None:
    write_model_files(model, [model / listed for listed in FILES if listed != name])
    (model / name).write_text("of another model")
    with pytest.raises(ContractError, match=f"{name}: is not a file of this model: .*files.json does not list it"):
        check_model_files(model, backend, variant=variant)


def test_a_model_of_an_earlier_version_is_loaded_with_a_warning(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    (model / "files.json").unlink()
    with caplog.at_level(logging.WARNING):
        check_model_files(model, "onnx", variant=None)
    assert caplog.messages == [
        f"{model / 'files.json'}: is missing, so the model's files are not checked; a model of version 0.1 has none."
    ]


def reasons(predictor: Predictor, level: Level) -> list[dict[str, Any]]:
    return predictor.explain([{"text": "good shirt late parcel", "x": 1.0, "y": 2, "c": "a"}], level=level)


@pytest.fixture
def link(tmp_path: Path) -> Path:
    """A link to the first of two models, `one` and `other`."""
    for name, weights in (("one", [0.005, -2.0, 3.0]), ("other", [0.5, 2.0, -3.0])):
        linear_model(tmp_path / name, np.array(weights), of_tokens=weights[0], bias=-1.0)
    (tmp_path / "current").symlink_to(tmp_path / "one" / "model")
    return tmp_path / "current"


def move(link: Path) -> None:
    link.unlink()
    link.symlink_to(link.parent / "other" / "model")


def test_a_model_that_is_replaced_after_loading_changes_neither_predictions_nor_reasons(link: Path) -> None:
    (link / "calibration.json").write_text('{"scores": [0, 1], "probabilities": [0.1, 0.9]}')
    expected = [reasons(Predictor.load(link), level) for level in LEVELS]
    loaded, served = Predictor.load(link), ServedModel.load(link, ServingSettings())
    request = read_request(json.dumps([{"text": "good shirt"}]).encode(), JSON, ServingSettings())
    probabilities = served.predict(request).probabilities
    move(link)
    assert reasons(Predictor.load(link), LEVELS[0]) != expected[0]
    for path in [path for path in (link.parent / "one").rglob("*") if path.is_file()]:
        path.write_bytes(b"")
    assert [reasons(loaded, level) for level in LEVELS] == expected
    np.testing.assert_array_equal(served.predict(request).probabilities, probabilities)


def test_a_link_that_is_moved_while_a_model_is_loaded_gives_the_first_model(
    link: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, load = reasons(Predictor.load(link), "column"), Decision.load
    monkeypatch.setattr(Decision, "load", lambda folder: (move(link), load(folder))[1])
    assert reasons(Predictor.load(link), "column") == expected


@pytest.mark.parametrize("send", [pickle.dumps, copy.deepcopy])
def test_a_predictor_that_is_sent_to_another_process_says_to_load_it_there(
    link: Path, send: Callable[[Predictor], object]
) -> None:
    with pytest.raises(ContractError, match=r"(?s)cannot be pickled.*call Predictor\.load in each process"):
        send(Predictor.load(link))


@pytest.mark.slow
def test_a_job_lists_every_file_of_its_model(calibrated_job) -> None:
    listed = json.loads((calibrated_job.model / "files.json").read_text())["sha256"]
    written = [path for path in calibrated_job.model.rglob("*") if path.is_file()]
    assert {*listed, "files.json"} == {path.relative_to(calibrated_job.model).as_posix() for path in written}


@pytest.mark.slow
def test_every_way_to_load_a_model_checks_its_files(calibrated_job, tmp_path: Path) -> None:
    folder = shutil.copytree(calibrated_job.model, tmp_path / "model")
    Predictor.load(folder, backend="torch")
    (folder / "companion.onnx").unlink()
    with pytest.raises(ContractError, match=r"companion\.onnx: is missing"):
        Predictor.load(folder, backend="torch")
    ServedModel.load(folder, ServingSettings())
    decision = folder / "decision.json"
    decision.write_text(decision.read_text() + "\n")
    for load in (Predictor.load, lambda model: ServedModel.load(model, ServingSettings())):
        with pytest.raises(ContractError, match=r"decision\.json: is not the file whose hash"):
            load(folder)
