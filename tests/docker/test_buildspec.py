"""buildspec.yml: CodeBuild's phases. The build phase runs with `docker push` replaced by `docker save`."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile

import pytest
import yaml

from testing.jobs import REPOSITORY
from tests.docker.engine import docker

REPOSITORY_URI = "registry.invalid/text-table-trainer"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
PUSH_SAVES = """#!/usr/bin/env bash
if [ "$1" = push ]; then
  {docker} save --output {archive} "$2" && echo "digest: sha256:$(sha256sum {archive} | cut -d' ' -f1) size: 1"
else
  exec {docker} "$@"
fi
"""


@pytest.fixture(scope="module")
def spec() -> dict:
    return yaml.safe_load((REPOSITORY / "buildspec.yml").read_text())


def test_it_tests_before_it_builds_scans_before_it_pushes_and_keeps_what_a_deployment_needs(spec):
    assert str(spec["version"]) == "0.2"
    assert list(spec["phases"]) == ["install", "pre_build", "build"]
    before = spec["phases"]["pre_build"]["commands"]
    assert before[:2] == ["make lint", "make test"]
    assert before[2].startswith("BASE_IMAGE=$(python3 requirements/base_image.py")
    commands = spec["phases"]["build"]["commands"]
    scan, push = (
        next(n for n, each in enumerate(commands) if each.startswith(name)) for name in ("make", "docker push")
    )
    assert scan < push
    assert spec["artifacts"]["files"] == ["imageDetail.json", "sbom.cdx.json", "debian.cdx.json"]


def test_its_make_targets_exist(spec):
    targets = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    commands = [command for phase in spec["phases"].values() for command in phase["commands"]]
    assert {command.split()[1] for command in commands if command.startswith("make ")} <= set(targets)


def test_it_contains_no_secret(spec):
    assert "secret" not in (REPOSITORY / "buildspec.yml").read_text().lower()
    assert set(spec["env"]["variables"]) == {"BASE_IMAGE", "ACCELERATOR"}


def test_its_build_phase_builds_tags_and_names_the_image_by_digest(spec, image, tmp_path):
    tools, archive = tmp_path / "bin", tmp_path / "image.tar"
    tools.mkdir()
    (tools / "docker").write_text(PUSH_SAVES.format(docker=shutil.which("docker"), archive=archive))
    (tools / "make").write_text("#!/bin/sh\n")  # the scan needs a network
    for tool in tools.iterdir():
        tool.chmod(0o755)
    context = tmp_path / "context"
    context.mkdir()
    for name in ("contracts", "container", "requirements"):
        shutil.copytree(REPOSITORY / name, context / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Dockerfile", ".dockerignore"):
        shutil.copy(REPOSITORY / name, context)
    script = "\n".join(["set -e", *spec["phases"]["build"]["commands"]])
    environment = {
        **os.environ, **spec["env"]["variables"], "PATH": f"{tools}:{os.environ['PATH']}",
        "REPOSITORY_URI": REPOSITORY_URI, "CODEBUILD_RESOLVED_SOURCE_VERSION": COMMIT,
    }  # fmt: skip
    try:
        done = subprocess.run(
            ["bash", "-c", script], cwd=context, env=environment, timeout=1800,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-4000:]
        detail = json.loads((context / "imageDetail.json").read_text())
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        assert detail == {"ImageURI": f"{REPOSITORY_URI}@sha256:{digest}", "ImageTag": COMMIT}
        with tarfile.open(archive) as saved:
            manifest = json.load(saved.extractfile("manifest.json"))
        assert manifest[0]["RepoTags"] == [f"{REPOSITORY_URI}:{COMMIT}"]
        labels = json.loads(docker("inspect", f"{REPOSITORY_URI}:{COMMIT}"))[0]["Config"]["Labels"]
        assert labels["org.opencontainers.image.revision"] == COMMIT
        assert json.loads((context / "sbom.cdx.json").read_text())["bomFormat"] == "CycloneDX"
        assert re.search(r"^\s+train\s", done.stdout, re.MULTILINE)
    finally:
        docker("rmi", f"{REPOSITORY_URI}:{COMMIT}", expect=None)
