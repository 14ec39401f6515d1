"""Two containers on a separate network, as the hosts of a job: stopped, killed and resumed."""

import json
import re
import shutil
import time
import uuid

import pytest

from contracts.paths import JobPaths
from testing.jobs import NO_DROPOUT, failure_line, write_job
from tests.docker.engine import Container, docker

HOSTS = ("algo-1", "algo-2")
LONG = {**NO_DROPOUT, "nproc_per_node": 1, "batch_size": 4, "max_epochs": 8, "checkpoint_every_n_steps": 3}
LONG |= {"load_ckpt": False, "early_stop_patience": 100}


class Pair:
    """A job's two hosts: a folder and a container each, on an internal network."""

    def __init__(self, image: str, folder) -> None:
        self.image = image
        self.network = f"hosts-{uuid.uuid4().hex[:8]}"
        docker("network", "create", "--internal", self.network)
        first = write_job(folder / HOSTS[0], overrides=LONG)
        shutil.copytree(first.root, folder / HOSTS[1])
        self.paths = {host: JobPaths(folder / host) for host in HOSTS}
        for host, paths in self.paths.items():
            content = {"current_host": host, "hosts": list(HOSTS), "network_interface_name": "ethwe"}
            paths.resource_config.write_text(json.dumps(content))
        self.containers: dict[str, Container] = {}

    def start(self, *hosts: str, **variables: str) -> None:
        self.remove()
        for host in hosts or HOSTS:
            environment = [part for name, value in variables.items() for part in ("--env", f"{name}={value}")]
            self.containers[host] = Container.start(
                "--network", self.network, "--network-alias", host, "--hostname", host, "--shm-size", "64m",
                *environment, "--volume", f"{self.paths[host].root}:/opt/ml", self.image, "train",
            )  # fmt: skip

    def end(self) -> dict[str, int]:
        return {host: container.wait(seconds=300) for host, container in self.containers.items()}

    def remove(self) -> None:
        for container in self.containers.values():
            container.remove()
        self.containers = {}

    def close(self) -> None:
        self.remove()
        docker("network", "rm", self.network, expect=None)


@pytest.fixture
def pair(image, tmp_path):
    made = Pair(image, tmp_path)
    yield made
    made.close()


def test_docker_stop_of_one_host_stops_both_and_the_next_run_of_both_resumes(pair):
    pair.start()
    pair.containers["algo-1"].wait_for("step 10/")
    pair.containers["algo-2"].stop()
    assert pair.end() == {"algo-1": 143, "algo-2": 143}
    saved = re.search(r"checkpoint (epoch=\S+) is complete", pair.containers["algo-1"].log)[1]
    pair.start()
    assert pair.end() == {"algo-1": 0, "algo-2": 0}
    assert f"resuming from {saved}" in pair.containers["algo-1"].log
    assert "eth0, which has" in pair.containers["algo-2"].log  # resourceconfig.json names ethwe
    assert (pair.paths["algo-1"].model / "model.pth").is_file()
    assert not (pair.paths["algo-2"].model / "model.pth").exists()
    first, second = (
        {file.relative_to(job.checkpoints): file.read_bytes() for file in job.checkpoints.rglob("*") if file.is_file()}
        for job in pair.paths.values()
    )
    assert first == second


@pytest.mark.parametrize("killed", HOSTS)
def test_a_host_that_is_killed_is_named_by_the_other_which_ends(pair, killed):
    (other,) = set(HOSTS) - {killed}
    pair.start()
    pair.containers["algo-1"].wait_for("step 10/")
    started = time.monotonic()
    docker("kill", pair.containers[killed].name)
    assert pair.containers[other].wait(seconds=120) == 1
    print(f"{killed} killed: {other} ended {time.monotonic() - started:.1f} s later")
    assert failure_line(pair.paths[other]).startswith(f"host {killed} was lost")


@pytest.mark.parametrize("missing", HOSTS)
def test_a_host_that_never_starts_is_named_by_the_other(pair, missing):
    (other,) = set(HOSTS) - {missing}
    pair.start(other, HOST_WAIT_SECONDS="5")
    assert pair.end() == {other: 1}
    assert re.match(rf"host {missing}.* within 5 s .*its name does not resolve", failure_line(pair.paths[other]))
