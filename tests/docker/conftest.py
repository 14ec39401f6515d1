"""Tests of the built image. They need a Docker engine; only `make test-docker` runs them."""

from pathlib import Path

import pytest

from testing.jobs import REPOSITORY
from tests.docker.engine import IMAGE, Container, docker, why_no_engine


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.docker)


@pytest.fixture(scope="session")
def image() -> str:
    """Build the image of this working tree, from the cache where possible, and return its name."""
    reason = why_no_engine()
    if reason:
        pytest.fail(f"{reason}; these tests build and run the image", pytrace=False)
    docker("build", "--network", "host", "--tag", IMAGE, REPOSITORY, timeout=1800)
    return IMAGE


@pytest.fixture
def containers():
    """Start containers, and remove them when the test ends."""
    started = []

    def start(*arguments):
        started.append(Container.start(*arguments))
        return started[-1]

    yield start
    for container in started:
        container.remove()
