"""A package's own inference.py gets what SageMaker's inference toolkit passes, in the server and in its processes."""

import hashlib
import os
from pathlib import Path

import pytest

from container.serving import handler, inference, runner
from container.serving.runner import load_runner
from contracts.errors import ContractError
from contracts.inference_script import Context, check_source
from contracts.serving import CSV, JSON, ServingSettings
from testing.serving import package, refused_start, serving

MODEL = "def model_fn(model_dir): return model_dir\n"
FOUR = f"""{MODEL}
def input_fn(data, content_type): return data
def predict_fn(data, model): return data
def output_fn(prediction, accept): return prediction
"""
CUSTOM = "X-Amzn-SageMaker-Custom-Attributes"


def test_the_log_has_the_hash_of_a_script_that_a_package_brings(tmp_path, caplog, monkeypatch):
    root = package(tmp_path, FOUR)
    monkeypatch.setenv("SM_MODEL_DIR", str(root / "model"))  # which loading would leave to the next tests
    load_runner(root / "model")
    digest = hashlib.sha256((root / "model" / "code" / "inference.py").read_bytes()).hexdigest()
    (line,) = [record.getMessage() for record in caplog.records if digest in record.getMessage()]
    assert f"uid={os.getuid()}" in line
    assert "SERVING_SCRIPT=forbid" in line


def test_a_forbidden_script_is_refused_before_a_line_of_it_runs(tmp_path, monkeypatch):
    root = package(tmp_path, f"raise SystemExit('it ran')\n{FOUR}")
    monkeypatch.setattr(handler, "settings", lambda: ServingSettings(serving_script="forbid"))
    with pytest.raises(ContractError, match="SERVING_SCRIPT=forbid, but this package has a script of its own"):
        load_runner(root / "model")


def test_the_script_of_this_project_is_not_forbidden(tmp_path, monkeypatch):
    root = package(tmp_path, Path(inference.__file__).read_text())
    monkeypatch.setattr(handler, "settings", lambda: ServingSettings(serving_script="forbid"))
    monkeypatch.setattr(runner, "ModelRunner", lambda folder: folder)
    assert load_runner(root / "model") == root / "model"


# With a server


@pytest.mark.slow
def test_functions_with_one_parameter_more_get_the_context_of_the_request(tmp_path):
    script = f"""
def model_fn(model_dir, context): return context.system_properties['model_dir']
def input_fn(data, content_type, context): return context.get_request_header(0, '{CUSTOM}')
def predict_fn(data, model, context=None): return model, data, context.get_all_request_header(0)['{CUSTOM}']
def output_fn(prediction, accept, context):
    properties = context.request_processor[0].get_request_properties()
    context.set_response_status(code=418, phrase='short')
    return '|'.join((*prediction, properties['Content-Type'], properties.get('{CUSTOM.lower()}'))), 'text/plain'
"""
    with serving(package(tmp_path, script)) as server:
        answer = server.ask("{}", **{CUSTOM: "trace=7"})
        assert server.ask("{}").status == 500  # None cannot be joined
    assert answer.body.decode().split("|") == [str(tmp_path / "model"), "trace=7", "trace=7", JSON, "trace=7"]
    assert (answer.status, answer.headers["content-type"]) == (418, "text/plain")


@pytest.mark.slow
@pytest.mark.parametrize("last", ["", ", context"])
def test_transform_fn_replaces_the_other_three(tmp_path, last):
    function = f"def transform_fn(model, data, content_type, accept{last}): "
    with serving(package(tmp_path, f"{MODEL}{function}return f'{{data!r}} {{accept}}'")) as server:
        answers = [server.ask("é", kind, accept="text/x") for kind in (JSON, CSV, "application/octet-stream")]
        assert server.ask(b"\xff", CSV).status == 400
    assert [answer.body.decode() for answer in answers] == ["'é' text/x", "'é' text/x", r"b'\xc3\xa9' text/x"]


@pytest.mark.slow
def test_functions_around_the_loading_of_the_model_are_called(tmp_path):
    script = f"""calls = []
def pre_model_fn(model_dir): calls.append('before')
def model_warmup_fn(model_dir, model): calls.append(model == model_dir)
{FOUR}
def output_fn(prediction, accept): return str(calls)
"""
    with serving(package(tmp_path, script)) as server:
        assert server.ask("").body == b"['before', True]"


@pytest.mark.slow
def test_a_script_finds_the_model_and_the_default_accept_in_the_environment_of_the_toolkit(tmp_path):
    script = f"import os\nfolder = os.environ['SM_MODEL_DIR']\n{FOUR}\n" + (
        "def output_fn(prediction, accept): return f'{folder} {accept}'"
    )
    with serving(package(tmp_path, script), SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT="text/x") as server:
        answers = [server.ask("", **given).body.decode() for given in ({}, {"accept": "*/*"}, {"accept": "text/y"})]
    folder = tmp_path / "model"
    assert answers == [f"{folder} text/x", f"{folder} text/x", f"{folder} text/y"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "cause"),
    [
        (f"{FOUR}\ndef predict_fn(data): ...", "predict_fn has 1 parameters; it is called with data, model, or with"),
        (f"{FOUR}\npredict_fn = 3", "3 is not a callable object"),
        (f"{FOUR}\ndef transform_fn(a, b, c, d): ...", "transform_fn replaces input_fn, predict_fn and output_fn, but"),
    ],
)
def test_a_server_whose_script_cannot_be_called_ends_with_1_and_says_why(tmp_path, script, cause):
    assert f"{tmp_path}/model/code/inference.py: {cause}" in refused_start(package(tmp_path, script))


@pytest.mark.slow
def test_a_default_accept_that_is_no_format_of_the_model_ends_the_server_with_1_and_its_name(trained_job):
    log = refused_start(trained_job.root, SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT="text/x")
    assert "environment variable SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT: 'text/x' is no format of a response" in log


@pytest.mark.slow
def test_the_default_accept_is_for_clients_that_accept_anything(trained_job):
    record = '{"chat": "hello"}'
    with serving(trained_job.root, SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT=CSV) as server:
        kinds = [server.ask(record, **given).headers["content-type"] for given in ({}, {"accept": "*/*"})]
        assert [*kinds, server.ask(record, accept=JSON).headers["content-type"]] == [CSV, CSV, JSON]


# Before a server: without running the script


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("def predict_fn(data): ...", "line 7: predict_fn has 1 parameters; it is called with data, model, or with"),
        ("def input_fn(data, kind, context, more): ...", "line 7: input_fn has 4 parameters"),
        ("def output_fn(*rest): ...", "line 7: output_fn has 1 parameters"),
        ("def model_fn(folder, *, threads=1): ...", "line 7: model_fn takes threads by name only"),
        ("def predict_fn(data, model, **rest): ...", "line 7: predict_fn takes rest by name only"),
        ("if True:\n    def model_fn(): ...", "line 8: model_fn has 0 parameters; it is called with model_dir, or"),
        ("async def predict_fn(data, model): ...", "line 7: predict_fn is asynchronous; it is called without await"),
        ("def transform_fn(model, data, kind, accept): ...", "line 7: transform_fn replaces .* but there is input_fn"),
        ("from rules import transform_fn", "transform_fn replaces .* but there is input_fn too"),
    ],
)
def test_a_function_that_cannot_be_called_is_found_in_the_source(script, cause):
    with pytest.raises(ValueError, match=f"^{cause}"):
        check_source(f"{FOUR}\n{script}".encode())


@pytest.mark.parametrize(
    "script",
    [
        FOUR,
        f"{MODEL}def transform_fn(model, data, content_type, accept, context): ...",
        f"{FOUR}\ndef predict_fn(data, model, *rest): ...\ndef input_fn(data, *rest): ...",
        f"{FOUR}\n@anything\ndef predict_fn(): ...",
        "from rules import *",
        b"\xef\xbb\xbf" + FOUR.encode(),
        f"# -*- coding: latin-1 -*-\nname = 'é'\n{FOUR}".encode("latin-1"),
    ],
)
def test_a_script_that_can_be_called_is_accepted(script):
    check_source(script.encode() if isinstance(script, str) else script)


def test_the_context_of_a_request_has_no_second_request():
    with pytest.raises(IndexError):
        Context("model", {}).get_request_header(1, "Accept")
