"""model.onnx in OpenVINO; tests/models/test_model_classes.py compares it with the training of each class."""

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from container.openvino_session import OpenvinoSession
from container.predictor import Predictor
from container.serving import backends
from container.serving.model import ServedModel
from contracts.errors import ContractError
from contracts.serving import ServingSettings
from testing.exported_models import linear_model

RECORDS = [{"text": "good shirt late parcel " * n, "x": 1.0, "y": 2, "c": "a"} for n in range(1, 9)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("linear")
    linear_model(root, np.array([0.005, -2.0, 3.0]), of_tokens=0.005, bias=-1.0)
    return root / "model"


def test_several_threads_get_the_probabilities_of_onnx_runtime(model: Path) -> None:
    expected = Predictor.load(model).predict(RECORDS)
    predictor = Predictor.load(model, backend="openvino")
    with ThreadPoolExecutor(4) as threads:
        for i, found in enumerate(threads.map(lambda i: predictor.predict([RECORDS[i % 8]]), range(64))):
            np.testing.assert_allclose(found[0], expected[i % 8], atol=0.01)


def test_records_of_many_lengths_have_few_shapes_because_each_keeps_memory(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "_FILLED", 8)  # the model's chunks have at most 12 tokens
    predictor = Predictor.load(model, backend="openvino")
    shapes, run = set(), OpenvinoSession.run

    def recorded(session: OpenvinoSession, names: Sequence[str], feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        shapes.update(array.shape for array in feed.values() if array.ndim == 3)
        return run(session, names, feed)

    monkeypatch.setattr(OpenvinoSession, "run", recorded)
    for words in range(1, 12):
        predictor.predict([{**RECORDS[0], "text": "good " * words}])
    assert shapes == {(1, 1, 8), (1, 1, 12), (1, 2, 12)}


def test_reasons_are_those_of_onnx_runtime(model: Path) -> None:
    expected, found = (
        Predictor.load(model, backend=backend).explain(RECORDS[:1])[0]["contributions"]
        for backend in ("onnx", "openvino")
    )
    by_part = {reason["part"]: reason["contribution"] for reason in found}
    assert by_part == pytest.approx({reason["part"]: reason["contribution"] for reason in expected}, abs=0.05)


def test_openvino_that_is_not_installed_is_an_error_with_the_name_of_the_extra(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ContractError, match=r"(?s)not installed.*text-table-trainer\[openvino\]"):
        ServedModel.load(model, ServingSettings.from_environment({"SERVING_BACKEND": "openvino"}))


def test_openvino_whose_library_is_missing_is_no_damaged_model(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "openvino.py").write_text("raise ImportError('libtbb.so.12: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "openvino", raising=False)
    with pytest.raises(ContractError, match=r"(?s)libtbb\.so\.12.*text-table-trainer\[openvino\]"):
        Predictor.load(model, backend="openvino")


def test_an_operator_that_openvino_lacks_is_named_with_the_backend_that_has_it(tmp_path: Path) -> None:
    table = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml")
    domains = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(helper.make_graph([node], "g", table[:1], table[1:]), opset_imports=domains), path)
    with pytest.raises(ContractError, match=r"(?s)model\.onnx: OpenVINO.*TreeEnsembleRegressor.*SERVING_BACKEND=onnx"):
        OpenvinoSession(path, threads=1)
