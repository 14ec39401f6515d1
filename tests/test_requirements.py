"""The image's locked requirements: what the tests ran with, each package by hash."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest

from testing.jobs import REPOSITORY

FOLDER = REPOSITORY / "requirements"
LOCKED = sorted(path.name for path in FOLDER.glob("*.txt"))


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(file: str) -> dict[str, tuple[str, int]]:
    """{name: (version, number of hashes)}"""
    found = {}
    for block in (FOLDER / file).read_text().replace("\\\n", " ").splitlines():
        if not block.startswith("#"):
            requirement, *hashes = block.split()
            assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes), block
            name, _, version = requirement.partition("==")
            found[normal(name)] = (version, len(hashes))
    return found


def test_there_is_a_file_for_each_build():
    assert LOCKED == ["cpu.txt", "cuda.txt", "image.txt", "mlflow.txt", "openvino.txt", "sbom.txt"]


@pytest.mark.parametrize("file", LOCKED)
def test_every_package_has_one_version_and_a_hash(file):
    for name, (version, hashes) in locked(file).items():
        assert re.fullmatch(r"[\w.+]+", version), name
        assert hashes >= 1, name


@pytest.mark.parametrize("file", LOCKED)
def test_no_url_or_index_is_in_a_lock_file(file):
    assert not re.search(r"://|--index|--find-links|--extra", (FOLDER / file).read_text())


def test_the_image_runs_the_versions_that_the_tests_ran_with():
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    tested = {normal(name): version for name, _, version in (line.partition("==") for line in lines)}
    for name, (version, _) in locked("image.txt").items():
        assert tested.get(name) == version, name


def test_every_dependency_of_the_project_is_in_the_image_and_none_of_the_extras():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]

    def names(requirements):
        return {normal(re.match(r"[\w.-]+", one)[0]) for one in requirements}

    image = set(locked("image.txt"))
    needed = names(project["dependencies"])
    assert needed <= image
    for extra, requirements in project["optional-dependencies"].items():
        assert not (names(requirements) - needed) & image, extra


@pytest.mark.parametrize(
    ("extra", "packages"), [("mlflow", {"mlflow-skinny", "sagemaker-mlflow"}), ("openvino", {"openvino"})]
)
def test_an_extra_can_be_added_at_the_versions_that_the_tests_ran_with(extra, packages):
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    tested = {normal(name): version for name, _, version in (line.partition("==") for line in lines)}
    added = locked(f"{extra}.txt")
    assert packages <= set(added)
    assert not set(added) & set(locked("image.txt"))
    assert {name: version for name, (version, _) in added.items()} == {name: tested.get(name) for name in added}


def test_the_image_has_no_sagemaker_sdk():
    assert not [name for name in locked("image.txt") if name.startswith(("sagemaker", "boto"))]


def test_torch_has_the_hashes_of_its_builds_and_a_cpu_image_takes_the_cpu_build():
    version, hashes = locked("image.txt")["torch"]
    assert hashes > 1
    assert locked("cpu.txt") == {"torch": (f"{version}+cpu", 1)}
    cpu = re.search(r"sha256:\w+", (FOLDER / "cpu.txt").read_text())[0]
    assert cpu in (FOLDER / "image.txt").read_text()


def test_only_the_cuda_file_has_cuda_libraries():
    assert not [name for name in locked("image.txt") if name.startswith(("nvidia-", "cuda-", "triton"))]
    assert "nvidia-nccl-cu13" in locked("cuda.txt")


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="this machine is not Debian; the image is")
def test_the_bill_of_debian_packages_has_each_installed_package_with_its_version_and_its_source():
    command = [sys.executable, str(FOLDER / "debian_packages.py")]
    printed = [subprocess.run(command, capture_output=True, check=True).stdout for _ in range(2)]
    assert printed[0] == printed[1]
    bill = json.loads(printed[0])
    assert bill["bomFormat"] == "CycloneDX"
    form = "--showformat=${db:Status-Status} ${Package} ${Version}\\n"
    listed = subprocess.run(["dpkg-query", "--show", form], capture_output=True, text=True, check=True).stdout
    installed = {tuple(line.split()[1:]) for line in listed.splitlines() if line.startswith("installed ")}
    assert {(each["name"], each["version"]) for each in bill["components"]} == installed
    (libc,) = [each for each in bill["components"] if each["name"] == "libc6"]
    assert libc["properties"][0] == {"name": "source", "value": "glibc"}
    assert libc["purl"].startswith("pkg:deb/debian/libc6@2.")
    assert bill["metadata"]["component"]["name"] == platform.freedesktop_os_release()["ID"]


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="this machine is not Debian; the image is")
def test_an_advisory_of_an_installed_version_is_found_and_fails_where_a_newer_version_fixes_it(tmp_path):
    def advisory(name, *, release="12", introduced="0", fixed=None, **more):
        events = [{"introduced": introduced}, *([{"fixed": fixed}] if fixed else [])]
        package = {"ecosystem": f"Debian:{release}", "name": name}
        return {**more, "affected": [{"package": package, "ranges": [{"type": "ECOSYSTEM", "events": events}]}]}

    advisories = {
        "DSA-1": advisory("glibc", fixed="2.36-9+deb12u10"),
        "DSA-2": advisory("glibc", fixed="2.36-9+deb12u9"),
        "DSA-3": advisory("glibc", release="11", fixed="2.99"),
        "DSA-4": advisory("glibc", introduced="2.37", fixed="2.38"),
        "DSA-5": advisory("glibc"),
        "DSA-6": advisory("openssl", fixed="9"),
        "DSA-7": advisory("glibc", fixed="9", withdrawn="2026-01-01"),
    }
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as database:
        for name, content in advisories.items():
            database.writestr(f"{name}.json", json.dumps({"id": name, **content}))
    properties = [{"name": "source", "value": "glibc"}, {"name": "source-version", "value": "2.36-9+deb12u9"}]
    system = {"type": "operating-system", "name": "debian", "version": "12"}
    bill = {"metadata": {"component": system}, "components": [{"name": "libc6", "properties": properties}]}

    def scanned():
        (tmp_path / "bill.json").write_text(json.dumps(bill))
        command = [sys.executable, FOLDER / "scan_debian.py", tmp_path / "bill.json", tmp_path / "all.zip"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not ended.stderr
        return ended.returncode, ended.stdout.splitlines()

    ending = "advisories have a fix, and 1 have none yet."
    assert scanned() == (1, ["glibc 2.36-9+deb12u9: DSA-1, fixed in 2.36-9+deb12u10", f"1 {ending}"])
    properties[1]["value"] = "2.36-9+deb12u10"
    assert scanned() == (0, [f"0 {ending}"])


@pytest.mark.parametrize("line", ["python:3.11-slim", f"python:3.11-slim@sha256:{'0' * 64}"])
def test_the_base_image_is_pinned_by_the_digest_that_the_registry_gives(tmp_path, line):
    folder, digest = tmp_path / "requirements", f"sha256:{'ab' * 32}"
    folder.mkdir()
    shutil.copy(FOLDER / "base_image.py", folder)
    (tmp_path / "Dockerfile").write_text(f"# text\nARG BASE_IMAGE={line}\nFROM ${{BASE_IMAGE}}\n")
    (tmp_path / "docker").write_text(f'#!/bin/sh\n[ "$6" = python:3.11-slim ] && echo {digest}\n')
    (tmp_path / "docker").chmod(0o755)

    def run(*arguments):
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        command = [sys.executable, folder / "base_image.py", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert run("--check").returncode == ("@" not in line)
    assert run().stdout.strip() == f"python:3.11-slim@{digest}"
    assert run("--write").returncode == 0
    assert (tmp_path / "Dockerfile").read_text().splitlines()[1] == f"ARG BASE_IMAGE=python:3.11-slim@{digest}"
    assert run("--check").returncode == 0
    assert run("another").returncode == 1, "the registry does not have it"


def test_the_page_of_licences_has_every_package_of_the_image():
    rows = re.findall(r"^\| ([\w.-]+) \| (\d[\w.+]*) \| .+ \|$", (FOLDER / "LICENSES.md").read_text(), re.MULTILINE)
    assert {normal(name): version for name, version in rows} == {
        name: version for name, (version, _) in locked("image.txt").items()
    }
