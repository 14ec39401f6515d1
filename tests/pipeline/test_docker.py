"""python -m pipeline run --docker, with a script in place of Docker that runs the container's program as a process."""

import json
import sys

import pytest

from contracts.errors import ContractError
from pipeline.local.run import COMPLETED, run
from testing.jobs import REPOSITORY
from testing.pipelines import configuration

DOCKER = f"""#!{sys.executable}
import json, os, shutil, sys
arguments = sys.argv[1:]
if arguments[0] == "image":
    print("sha256:123")
    sys.exit()
options = [each for each in arguments if each.startswith("--")]
volumes = [each.removeprefix("--volume=").split(":") for each in options if each.startswith("--volume=")]
root = next(source for source, path, *_ in volumes if path == "/opt/ml")
for source, path, *mode in volumes:
    if path != "/opt/ml":
        assert mode == ["ro"]
        place = root + path.removeprefix("/opt/ml")
        os.rmdir(place)  # which must be there, and be empty
        os.symlink(source, place)
environment = dict(each.removeprefix("--env=").split("=", 1) for each in options if each.startswith("--env="))
with open(os.path.join({{calls!r}}), "a") as calls:
    print(json.dumps([*(each for each in options if each.startswith("--network")), *arguments[-2:]]), file=calls)
os.environ.update(environment)
os.environ["PYTHONPATH"] = {str(REPOSITORY)!r}
os.execv(sys.executable, [sys.executable, "-m", "container", arguments[-1], "--root", root])
"""


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Put the script into PATH; return the file of its calls: the network, the image and the command."""
    (tmp_path / "bin").mkdir()
    docker = tmp_path / "bin" / "docker"
    docker.write_text(DOCKER.replace("{calls!r}", repr(str(tmp_path / "calls"))))
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(docker.parent), prepend=":")
    return tmp_path / "calls"


@pytest.mark.slow
def test_every_step_runs_in_a_container_with_its_folders_and_is_cached(calls, tmp_path):
    config = configuration(condition={"metric": "test/auroc", "minimum": 0.0})
    for _ in range(2):
        assert run(config, tmp_path / "root", image="mine") == COMPLETED
    commands = ["load-data", "preprocess", "train", "metrics", "package", "payload"]
    made = [json.loads(line) for line in calls.read_text().splitlines()]
    assert made == [["--network=none", "mine", command] for command in commands]
    assert (tmp_path / "root/registry/demo/1/model.tar.gz").is_file()


def test_the_cause_of_a_program_that_fails_in_its_container_is_printed(calls, tmp_path, capsys):
    (tmp_path / "table").mkdir()
    (tmp_path / "table/claims.csv").write_text("order_id,chat,shiptrack,price\n" + "1,hello,sent,2\n" * 40)
    changes = {"inputs": {"input_data": str(tmp_path / "table")}, "settings": {}}
    assert run(configuration(**changes), tmp_path / "root", image="mine") == 1
    assert "TabularPreprocessing failed: " in (printed := capsys.readouterr().out + capsys.readouterr().err)
    assert "'label'" in printed


def test_a_folder_that_docker_cannot_mount_is_refused(tmp_path):
    with pytest.raises(ContractError, match="a:b: contains ':'"):
        run(configuration(), tmp_path / "a:b", image="any")


@pytest.mark.parametrize(
    ("words", "fix"),
    [("Error: No such image: mine", "make image"), ("Cannot connect to the Docker daemon", "start Docker")],
)
def test_the_cause_of_docker_decides_the_fix(calls, tmp_path, words, fix):
    docker = tmp_path / "bin" / "docker"
    docker.write_text(f"#!/bin/sh\necho '{words}' >&2\nexit 1\n")
    with pytest.raises(ContractError, match=words) as error:
        run(configuration(), tmp_path / "root", image="mine")
    assert fix in error.value.fix
