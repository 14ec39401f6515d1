"""files.json lists the files of a model, and loading compares the files that a backend reads with it."""

import json
import logging
import shutil
from pathlib import Path

import pytest

from container.model_files import check_model_files, write_model_files
from container.predictor import Predictor
from container.serving.model import ServedModel
from contracts.errors import ContractError
from contracts.serving import ServingSettings
from testing.foreign_files import add_foreign_files

SHARED = ["preprocessing.json", "tokenizer/tokenizer.json"]
READ = {
    ("onnx", None): ["model.onnx", "model.onnx.data"],
    ("onnx", "int8"): ["model.int8.onnx"],
    ("torch", None): ["model.pth", "companion.onnx"],
}
FILES = [*SHARED, *(name for names in READ.values() for name in names), "model_artifacts.pth", "impute_dict.pkl"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    write_model_files(folder, [folder / name for name in FILES])
    return folder


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
