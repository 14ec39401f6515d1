"""The content of the image."""

import json
import re
import shutil
import time
from importlib.metadata import version

import pytest

from testing.jobs import REPOSITORY
from tests.docker.engine import docker

LIMIT = 2.5e9  # bytes


def inside(image: str, *command: str, expect: int | None = 0) -> str:
    entrypoint, *arguments = command
    return docker("run", "--rm", "--network", "none", "--entrypoint", entrypoint, image, *arguments, expect=expect)


def test_help_lists_the_commands(image):
    shown = docker("run", "--rm", "--network", "none", image, "--help")
    for command in ("train", "demo"):
        assert re.search(rf"^\s+{command}\s", shown, re.MULTILINE)


def test_the_image_is_at_most_two_and_a_half_gigabytes(image):
    size = json.loads(docker("inspect", image))[0]["Size"]
    print(f"image: {size / 1e9:.2f} GB")
    assert size <= LIMIT


def test_the_service_can_append_train_and_a_local_run_can_leave_it_out(image):
    config = json.loads(docker("inspect", image))[0]["Config"]
    assert config["Entrypoint"] == ["python", "-m", "container"]
    assert config["Cmd"] == ["train"]
    assert config["User"] in ("", "root")


@pytest.mark.parametrize("tool", ["gcc", "cc", "g++", "clang", "make", "git", "pytest", "ruff", "uv"])
def test_it_has_no_compiler_and_no_development_tool(image, tool):
    assert inside(image, "sh", "-c", f"command -v {tool} || echo none").strip() == "none"


@pytest.mark.parametrize("module", ["sagemaker", "boto3", "pytest", "hypothesis", "cyclonedx_py", "pip"])
def test_it_has_no_module_that_only_development_needs(image, module):
    assert "ModuleNotFoundError" in inside(image, "python", "-c", f"import {module}", expect=1)


def test_opt_ml_is_empty_because_the_service_mounts_over_it(image):
    assert inside(image, "sh", "-c", "ls -A /opt/ml 2>/dev/null || true").strip() == ""


def test_every_module_is_compiled_in_the_image(image):
    compiled = "ls $(dirname $f)/__pycache__/$(basename $f .py).*.pyc > /dev/null"
    assert inside(image, "sh", "-c", f"find . -name '*.py' | while read f; do {compiled}; done").strip() == ""


def test_the_bill_of_materials_names_every_package_at_its_installed_version(image):
    bill = json.loads(inside(image, "cat", "/usr/share/sbom/python.cdx.json"))
    assert bill["bomFormat"] == "CycloneDX"
    listed = {(part["name"].lower(), part["version"]) for part in bill["components"]}
    code = "import importlib.metadata as m; [print(each.name.lower(), each.version) for each in m.distributions()]"
    installed = {tuple(line.split()) for line in inside(image, "python", "-c", code).splitlines()}
    assert installed <= listed
    assert any(name == "torch" for name, _ in installed)


def test_the_bill_of_materials_names_every_debian_package_at_its_installed_version(image):
    bill = json.loads(inside(image, "cat", "/usr/share/sbom/debian.cdx.json"))
    listed = {f"{part['name']}\t{part['version']}" for part in bill["components"]}
    installed = inside(image, "dpkg-query", "--show", "--showformat=${Package}\\t${Version}\\n").splitlines()
    assert set(installed) == listed


def test_packages_are_those_that_the_tests_ran_with(image):
    code = "import importlib.metadata as m; print(m.version('pyarrow'), m.version('transformers'), m.version('torch'))"
    installed = [version(name) for name in ("pyarrow", "transformers", "torch")]
    shown = inside(image, "python", "-c", code).split()
    assert [text.partition("+")[0] for text in shown] == [text.partition("+")[0] for text in installed]


def test_no_layer_was_made_with_a_credential(image):
    history = docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", image)
    environment = json.loads(docker("inspect", image))[0]["Config"]["Env"]
    for text in (history, *environment):
        assert not re.search(r"(?i)(secret|token|password|aws_[a-z_]*key)|://[^/\s]+@", text), text


def test_a_change_of_code_alone_rebuilds_in_seconds(image, tmp_path):
    context = tmp_path / "context"
    for name in ("contracts", "container", "requirements"):
        shutil.copytree(REPOSITORY / name, context / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Dockerfile", ".dockerignore"):
        shutil.copy(REPOSITORY / name, context)
    with (context / "container" / "__init__.py").open("a") as module:
        module.write(f"# changed at {time.time()}\n")
    started = time.monotonic()
    built = docker("build", "--network", "host", "--tag", f"{image}-changed", context)
    seconds = time.monotonic() - started
    docker("rmi", f"{image}-changed")
    print(f"rebuild after a change of code: {seconds:.1f} s")
    assert seconds < 60
    assert built.count("Using cache") >= 8  # the packages are among them
