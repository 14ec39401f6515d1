import pytest

from container.predictor import Predictor
from contracts.errors import ContractError


def test_an_unknown_backend_is_named_with_the_known_ones(tmp_path):
    with pytest.raises(ContractError, match="(?s)'tensorrt'.*onnx, torch"):
        Predictor.load(tmp_path, backend="tensorrt")


def test_a_folder_that_is_no_model_folder_is_named(tmp_path):
    with pytest.raises(ContractError, match=str(tmp_path)):
        Predictor.load(tmp_path)
