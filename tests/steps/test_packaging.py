"""Package: what SageMaker hosts stands alone, has the same bytes every time, and is refused where it would not load."""

import ast
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zlib
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from container.steps.archives import extract_archive, write_archive
from container.steps.packaging import _members
from contracts.artifacts import MODEL_ONNX
from contracts.errors import ContractError
from contracts.inference_script import bound_names
from contracts.input_files import files_below
from contracts.steps import ARCHIVED_MODEL, PACKAGE
from testing.foreign_files import add_foreign_files
from testing.jobs import table
from testing.step_runs import failure_of, give, run_step


def package_of(root: Path) -> Path:
    return PACKAGE.output("packaged_model").path(root) / ARCHIVED_MODEL


def packed(root: Path, **environment: str) -> Path:
    run_step(root, "package", **environment)
    return package_of(root)


def names(archive: Path) -> set[str]:
    with tarfile.open(archive) as tar:
        return set(tar.getnames())


def archive_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return sink.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry


def ask_alone(package: Path, folder: Path, program: str, *, code_on_path: bool = False) -> str:
    """Run a program beside an unpacked package, in a Python that sees neither the house nor torch nor a network.

    Args:
        code_on_path: as hosts have it; ours does without.
    """
    extract_archive(package, folder)
    guard = (
        "import sys, socket\n"
        "class Refuse:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.partition('.')[0] in ('torch', 'transformers', 'pandas', 'sklearn', 'onnx', 'waitress'):\n"
        "            raise ImportError(f'{name} is not needed to serve')\n"
        "def refuse(*_):\n"
        "    raise OSError('no network')\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "socket.socket.connect = refuse\n"
        f"package = {str(folder)!r}\n"
        f"sys.path += [package + '/code'] * {code_on_path}\n"
        "import importlib.util\n"
        "spec = importlib.util.spec_from_file_location('inference', package + '/code/inference.py')\n"
        "inference = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(inference)\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", guard + program],
        cwd=folder,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def package(trained_job, tmp_path_factory):
    """The package of the trained model."""
    root = give(tmp_path_factory.mktemp("package"), PACKAGE, model_input=trained_job.model)
    return packed(root)


# Archives


def test_an_archive_has_the_same_bytes_wherever_and_whenever_it_is_written(tmp_path):
    first, second = tmp_path / "a" / "x.tar.gz", tmp_path / "b" / "y.tar.gz"
    for archive in (first, second):
        archive.parent.mkdir()
        (archive.parent / "file").write_bytes(b"content")
        members = {"b/c": archive.parent / "file", "a": b"bytes"}
        write_archive(archive, members if archive is first else dict(reversed(members.items())))
        os.utime(archive.parent / "file", (0, 0))
        (archive.parent / "file").chmod(0o600)
        time.sleep(1.1)
    assert first.read_bytes() == second.read_bytes()
    assert extract_archive(first, tmp_path / "out") == ["a", "b/c"]
    assert (tmp_path / "out" / "b" / "c").read_bytes() == b"content"


@pytest.mark.parametrize(
    ("entry", "named"),
    [(member("../out"), "'../out'"), (member("/etc/x"), "'/etc/x'"), (member("a/../../x"), "'a/../../x'"),
     (member("link", tarfile.SYMTYPE, "/etc/passwd"), "'link'"), (member("hard", tarfile.LNKTYPE, "a"), "'hard'"),
     (member("dev", tarfile.CHRTYPE), "'dev'"), (member("pipe", tarfile.FIFOTYPE), "'pipe'"), (member("a"), "twice"),
     (member("./a"), "twice"), (member("a/b"), "a file and a folder"), (member("."), "a file and a folder"),
     (member("x" * 300), "a name that is too long"), (member("caf\udce9"), r"'caf\\xe9' has a name that is not UTF-8")],
)  # fmt: skip
def test_a_member_that_is_no_plain_file_of_the_archive_is_refused(tmp_path, entry, named):
    archive = tmp_path / "x.tar.gz"
    archive.write_bytes(archive_of((member("a"), b"first"), (entry, b"")))
    with pytest.raises(ContractError) as caught:
        extract_archive(archive, tmp_path / "into" / "here")
    assert str(archive) in caught.value.cause
    assert named in caught.value.cause
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] in (["x.tar.gz", "a"], ["a", "x.tar.gz"])


def test_foreign_members_of_an_archive_are_not_extracted(tmp_path):
    foreign = ["._a", "__MACOSX/._a", "./.DS_Store", "b/Thumbs.db", "b/.cache/x"]
    archive = tmp_path / "x.tar.gz"
    archive.write_bytes(
        archive_of((member("./a"), b""), (member("b/c"), b""), *((member(name), b"") for name in foreign))
    )
    assert extract_archive(archive, tmp_path / "out") == ["a", "b/c"]


def test_a_member_larger_than_the_disk_is_refused_before_it_is_written(tmp_path):
    archive = tmp_path / "x.tar.gz"
    entry = member("a")
    entry.size = 1 << 60
    archive.write_bytes(gzip.compress(entry.tobuf(tarfile.GNU_FORMAT)))
    with pytest.raises(ContractError, match=rf"'a' has {1 << 60} bytes, but .* bytes free"):
        extract_archive(archive, tmp_path / "out")
    assert not (tmp_path / "out" / "a").exists()


@pytest.mark.parametrize("link", ["extra", "folder/extra", "folder"])
def test_a_link_in_a_folder_is_not_packed(tmp_path, link):
    folder, secret = tmp_path / "model", tmp_path / "secret"
    (secret / "extra").mkdir(parents=True)
    (secret / "extra" / "key").write_text("secret")
    (folder / link).parent.mkdir(parents=True, exist_ok=True)
    (folder / link).symlink_to(secret / "extra")
    with pytest.raises(ContractError, match=rf"there: {link}/key would be packed through the link {link} -> {secret}"):
        _members(files_below(folder).files, folder, place="there")


@pytest.mark.parametrize("damage", [lambda content: content[: len(content) // 2], lambda content: b"no archive"])
def test_an_archive_that_is_not_whole_is_named(tmp_path, damage):
    archive = tmp_path / "x.tar.gz"
    archive.write_bytes(damage(archive_of((member("a"), os.urandom(100_000)))))
    with pytest.raises(ContractError, match=r"x\.tar\.gz: is not a complete tar\.gz"):
        extract_archive(archive, tmp_path / "out")


@pytest.mark.parametrize(
    ("position", "value", "named"),
    [(512, b"B", "CRC check failed"), (1024, b"x", "the header of a member is damaged"), (-1, b"x", "another archive")],
)
def test_an_archive_whose_content_was_changed_is_refused(tmp_path, position, value, named):
    whole = bytearray(gzip.decompress(archive_of((member("a"), b"A" * 8), (member("b"), b"B" * 8))))
    checksum = zlib.crc32(whole) if named.startswith("CRC") else None
    whole[position : position + 1 or None] = value
    compressed = bytearray(gzip.compress(whole, mtime=0))
    if checksum is not None:
        compressed[-8:-4] = checksum.to_bytes(4, "little")
    (tmp_path / "a.tar.gz").write_bytes(compressed)
    with pytest.raises(ContractError, match=named):
        extract_archive(tmp_path / "a.tar.gz", tmp_path / "out")


# The package


@pytest.mark.slow
def test_the_package_stands_alone_and_answers_as_the_training_job_did(package, trained_job, tmp_path):
    records = table(24, seed=2).drop(columns=["label", "order_id"])
    (tmp_path / "request.csv").write_text(records.to_csv(index=False))
    printed = ask_alone(
        package,
        tmp_path / "model",
        "model = inference.model_fn(package)\n"
        f"body = open({str(tmp_path / 'request.csv')!r}, 'rb').read()\n"
        "records = inference.input_fn(body, 'text/csv')\n"
        "body, kind = inference.output_fn(inference.predict_fn(records, model), 'application/json')\n"
        "print(body.decode())\n"
        "print({module.__file__ for name, module in sys.modules.items() if name.startswith(('container', 'contr'))})\n",
    )
    answer, files = printed.splitlines()
    found = np.array([entry["probabilities"] for entry in json.loads(answer)["predictions"]])
    trained = pd.read_csv(trained_job.output_data / "test_predictions.csv").filter(like="prob_class_")
    np.testing.assert_allclose(found, trained, atol=1e-4)
    assert all(str(tmp_path / "model" / "code") in name for name in files.split(", "))


@pytest.mark.slow
def test_the_package_has_what_serving_reads_and_nothing_else(package):
    found = names(package)
    assert {MODEL_ONNX, "preprocessing.json", "decision.json", "tokenizer/tokenizer.json", "code/inference.py"} <= found
    assert not [name for name in found if name.endswith((".pth", ".pkl"))]
    assert not [name for name in found if name.startswith(("code/container/training", "code/container/models"))]


@pytest.mark.slow
def test_the_requirements_are_what_is_installed_here(package, tmp_path):
    extract_archive(package, tmp_path)
    lines = dict(line.split("==") for line in (tmp_path / "code" / "requirements.txt").read_text().splitlines())
    assert lines.keys() == {"emoji", "numpy", "onnxruntime", "pyarrow", "pydantic", "tokenizers"}
    assert all(version(name) == pinned for name, pinned in lines.items())


@pytest.mark.slow
@pytest.mark.parametrize("archived", [False, True])
def test_a_folder_or_archive_of_the_model_is_packed_without_foreign_files(package, trained_job, tmp_path, archived):
    given = shutil.copytree(trained_job.model, tmp_path / "model")
    add_foreign_files(given)
    if archived:
        with tarfile.open(tmp_path / ARCHIVED_MODEL, "w:gz") as tar:  # as the service packs it: with times and folders
            tar.add(given, arcname=".")
        given = tmp_path / ARCHIVED_MODEL
    assert packed(give(tmp_path / "root", PACKAGE, model_input=given)).read_bytes() == package.read_bytes()


@pytest.mark.slow
def test_the_weights_are_packed_on_request(trained_job, tmp_path):
    root = give(tmp_path, PACKAGE, model_input=trained_job.model)
    assert {"model.pth", "model_artifacts.pth"} <= names(packed(root, INCLUDE_WEIGHTS="true"))


@pytest.mark.slow
def test_scripts_go_into_code_and_inference_py_replaces_ours(trained_job, tmp_path):
    scripts = {
        "inference.py": "from container.serving.handler import input_fn, output_fn, predict_fn\n"
        "from rules import model_fn\n",
        "rules.py": "from container.serving.handler import model_fn\n",
    }
    root = give(tmp_path / "root", PACKAGE, model_input=trained_job.model, inference_scripts_input=scripts)
    ask_alone(packed(root), tmp_path / "out", "inference.model_fn(package)", code_on_path=True)
    for name, text in scripts.items():
        assert (tmp_path / "out" / "code" / name).read_text() == text


@pytest.mark.slow
def test_scripts_with_a_byte_order_mark_and_a_coding_line_are_packed_and_run(trained_job, tmp_path):
    scripts = {
        "inference.py": b"\xef\xbb\xbffrom rules import model_fn\n"
        b"def transform_fn(model, data, content_type, accept, context): return model\n",
        "rules.py": b"# -*- coding: latin-1 -*-\ndef model_fn(model_dir, context): return 'caf\xe9'\n",
    }
    root = give(tmp_path / "root", PACKAGE, model_input=trained_job.model, inference_scripts_input=scripts)
    program = "print(ascii(inference.transform_fn(inference.model_fn(package, None), '', '', '', None)))"
    assert ask_alone(packed(root), tmp_path / "out", program, code_on_path=True) == "'caf\\xe9'\n"


@pytest.mark.slow
def test_files_beside_the_scripts_and_their_requirements_are_packed(trained_job, tmp_path):
    scripts = {"rules.py": "x = 1", "words/vocab.json": "[1]", "requirements.txt": "emoji==2.0"}
    root = give(tmp_path / "root", PACKAGE, model_input=trained_job.model, inference_scripts_input=scripts)
    extract_archive(packed(root), tmp_path / "out")
    assert (tmp_path / "out" / "code" / "words" / "vocab.json").read_text() == "[1]"
    requirements = (tmp_path / "out" / "code" / "requirements.txt").read_text().splitlines()
    assert requirements[-1] == "emoji==2.0"
    assert len(requirements) > 1


@pytest.mark.slow
def test_a_calibration_is_packed_and_applied(trained_job, tmp_path):
    flat = {"calibration.json": '{"scores": [0, 1], "probabilities": [0.875, 0.875]}'}
    root = give(tmp_path / "root", PACKAGE, model_input=trained_job.model, calibration_model=flat)
    program = (
        "request = inference.input_fn(b'hi,1,2,red', 'text/csv')\n"
        "print(inference.predict_fn(request, inference.model_fn(package)).probabilities.tolist())\n"
    )
    assert json.loads(ask_alone(packed(root), tmp_path / "out", program)) == [[0.125, 0.875]]


def without(name):
    return lambda model: (model / name).unlink()


def damaged(name):
    return lambda model: (model / name).write_bytes(b"\0\1 damaged")


BAD_MODELS = {
    "a damaged graph": (damaged("model.onnx"), "model.onnx: cannot be loaded"),
    "no preprocessing": (without("preprocessing.json"), "has no preprocessing.json"),
    "a damaged preprocessing": (damaged("preprocessing.json"), "preprocessing.json"),
    "a damaged decision": (damaged("decision.json"), "decision.json"),
    "no tokenizer": (lambda model: shutil.rmtree(model / "tokenizer"), "tokenizer.json is missing"),
    "both": (damaged("model.tar.gz"), "contains both model.tar.gz and model.onnx"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BAD_MODELS)
def test_a_model_that_cannot_be_served_is_named_in_the_message(trained_job, tmp_path, case):
    spoil, named = BAD_MODELS[case]
    root = give(tmp_path, PACKAGE, model_input=trained_job.model)
    spoil(PACKAGE.input("model_input").path(root))
    assert named in failure_of(root, "package")
    assert not package_of(root).exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "named"),
    [(b"no archive", "model.tar.gz: is not a complete tar.gz"),
     (archive_of((member("model.pth"), b"x")), "model.tar.gz: has no model.onnx; it contains model.pth")],
)  # fmt: skip
def test_an_archive_that_holds_no_model_is_named_in_the_message(tmp_path, content, named):
    root = give(tmp_path, PACKAGE, model_input={ARCHIVED_MODEL: content})
    assert named in failure_of(root, "package")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "named"),
    [({"calibration.json": '{"scores": [1, 0], "probabilities": [0, 1]}'},
      "calibration.json: scores are not ascending: 0.0 follows 1.0"),
     ({"inference.py": "def model_fn(:"}, "inference.py: "),
     ({"inference.py": "def model_fn(model_dir): ..."}, "inference.py: has no input_fn, predict_fn, output_fn"),
     ({"inference.py": "\ndef model_fn(): ..."}, "inference.py: line 2: model_fn has 0 parameters"),
     ({"inference.py": "def transform_fn(a, b, c, d): ..."}, "inference.py: has no model_fn"),
     ({"rules.py": b"# coding: nonsense"}, "rules.py: unknown encoding: nonsense"),
     ({"container.py": ""}, "container.py conflicts with"),
      ({"contracts/x.py": "x = 1"}, "contracts/x.py conflicts with")],
)  # fmt: skip
def test_a_script_or_calibration_that_would_not_work_is_named_in_the_message(trained_job, tmp_path, files, named):
    name = "calibration_model" if "calibration.json" in files else "inference_scripts_input"
    given = {name: {file: text or "x = 1" for file, text in files.items()}}
    root = give(tmp_path, PACKAGE, model_input=trained_job.model, **given)
    assert named in failure_of(root, "package")


def test_names_in_branches_and_in_every_kind_of_assignment_are_bound():
    script = """
try:
    from fast import model_fn
except ImportError:
    from slow import input_fn
with open("x") as file:
    predict_fn: object = max
    x, (output_fn, y) = 1, (2, 3)
    unset: int
    x.attribute = 1
def function():
    local = 1
"""
    found = bound_names(ast.parse(script))
    assert found == {"model_fn", "input_fn", "predict_fn", "output_fn", "x", "y", "function"}
