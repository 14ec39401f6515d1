"""Files of weights are checked by their headers: complete ones are accepted, others are named with what they are."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from container.text.weight_files import check_weight_file, check_weights, weight_files
from contracts.errors import ContractError

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 90868376\n"
PAGE = b"\n<!DOCTYPE html>\n<html><body>Sign in</body></html>"
REFUSED = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code></Error>'
SAFE, PICKLED, INDEX = "model.safetensors", "pytorch_model.bin", "model.safetensors.index.json"


def state():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)).state_dict()


def write(folder, form):
    """Write weights in one of the forms in which transformers reads them, and return the file to damage."""
    folder.mkdir(parents=True, exist_ok=True)
    if form == "safetensors":
        save_file(state(), folder / SAFE)
        return folder / SAFE
    if form == "archive":
        torch.save(state(), folder / PICKLED)
        return folder / PICKLED
    names = ["model-1-of-2.safetensors", "model-2-of-2.safetensors"]
    parts = [dict(list(state().items())[part::2]) for part in range(2)]
    for name, part in zip(names, parts):
        save_file(part, folder / name)
    weight_map = {key: name for name, part in zip(names, parts) for key in part}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder / names[1]


FORMS = ("safetensors", "archive", "shards")


def refusal(folder):
    with pytest.raises(ContractError) as raised:
        check_weights(folder)
    assert raised.value.fix
    return raised.value


@pytest.mark.parametrize("form", FORMS)
def test_complete_weights_are_accepted(tmp_path, form):
    write(tmp_path, form)
    check_weights(tmp_path)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty"),
        (LFS, "is a Git LFS pointer, not the file itself"),
        (PAGE, "is a web page, not the file itself: it begins with '\\n<!DOCTYPE html>"),
        (REFUSED, "is a web page, not the file itself: it begins with '<?xml"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\0\0\0", "is "),
    ],
    ids=["empty", "pointer", "page", "message", "gzip"],
)
def test_a_file_with_something_else_is_named_with_what_it_is(tmp_path, form, content, what):
    path = write(tmp_path, form)
    path.write_bytes(content)
    error = refusal(tmp_path)
    assert error.cause.startswith(f"{path}: {what}")
    assert ("git lfs pull" in error.fix) == (content == LFS)


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.99])
@pytest.mark.parametrize("form", FORMS)
def test_a_cut_file_is_named(tmp_path, form, share):
    path = write(tmp_path, form)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    assert refusal(tmp_path).cause.startswith((f"{path}: is cut", f"{path}: is no file of torch.save"))


def test_a_file_of_torch_before_1_6_is_named_with_its_format(tmp_path):
    torch.save(state(), tmp_path / PICKLED, _use_new_zipfile_serialization=False)
    error = refusal(tmp_path)
    assert error.cause == f"{tmp_path / PICKLED}: has the format of torch before version 1.6"
    assert "torch.save" in error.fix


def test_a_file_without_its_last_byte_is_named_with_its_size(tmp_path):
    path = write(tmp_path, "safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    assert f"it has {path.stat().st_size} bytes" in refusal(tmp_path).cause


def test_safetensors_with_bytes_after_the_last_tensor_are_refused(tmp_path):
    path = write(tmp_path, "safetensors")
    path.write_bytes(path.read_bytes() + b"more")
    assert "file not fully covered" in refusal(tmp_path).cause


class Module(torch.nn.Linear):
    """A model of a user's own code."""


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (Module(2, 2), f"contains an object of {Module.__module__}.Module"),
        (torch.nn.Linear(2, 2), "contains a Linear"),
        ({"state_dict": state(), "epoch": 3}, "contains no tensors by name, but a dict of 'state_dict', 'epoch'"),
        ({"weight": torch.zeros(1), "made": Path("x")}, "contains an object of pathlib."),
        ([torch.zeros(1)], "contains a list"),
        ({}, "contains no tensors by name, but a dict of nothing"),
    ],
    ids=["module", "torch's module", "nested", "path", "list", "empty"],
)
def test_an_object_that_is_no_state_dict_is_named(tmp_path, content, what):
    path = tmp_path / PICKLED
    torch.save(content, path)
    error = refusal(tmp_path)
    assert error.cause.startswith(f"{path}: {what}")
    assert "save_pretrained" in error.fix


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # users still have such files
def test_a_program_of_torchscript_is_named(tmp_path):
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / PICKLED)
    assert "is a TorchScript program" in refusal(tmp_path).cause


class Touch:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


def test_reading_a_pickle_runs_nothing_of_it(tmp_path):
    torch.save({"weight": Touch(tmp_path / "touched")}, tmp_path / PICKLED)
    assert "so it is no state dict" in refusal(tmp_path).cause
    assert not (tmp_path / "touched").exists()


def test_a_pickle_that_torch_did_not_write_is_named(tmp_path):
    (tmp_path / PICKLED).write_bytes(pickle.dumps({"weight": [1.0]}))
    assert f"{PICKLED}: is no file of torch.save: it begins with b'\\x80" in refusal(tmp_path).cause


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"{", "it is not JSON"),
        (b"{}", "has no 'weight_map'"),
        (b'{"weight_map": {"a": 5}}', "wrong value"),
        (LFS, "Git LFS"),
    ],
)
def test_an_index_that_cannot_be_read_is_named(tmp_path, content, what):
    write(tmp_path, "shards")
    (tmp_path / INDEX).write_bytes(content)
    error = refusal(tmp_path)
    assert str(tmp_path / INDEX) in error.cause
    assert what in error.cause


def test_only_the_files_that_transformers_loads_are_checked(tmp_path):
    write(tmp_path, "safetensors")
    write(tmp_path, "shards").write_bytes(b"")
    (tmp_path / PICKLED).write_bytes(LFS)
    assert weight_files(tmp_path) == [tmp_path / SAFE]
    check_weights(tmp_path)


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(ContractError, match=r"model\.pth: does not exist"):
        check_weight_file(tmp_path / "model.pth")


def test_an_index_with_a_byte_order_mark_is_refused_as_transformers_cannot_read_it(tmp_path):
    write(tmp_path, "shards")
    index = tmp_path / INDEX
    index.write_bytes(b"\xef\xbb\xbf" + index.read_bytes())
    error = refusal(tmp_path)
    assert error.cause == f"{index}: begins with a byte order mark, which transformers refuses"
