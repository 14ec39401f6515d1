"""Fixtures that every test module may use."""

import pytest


@pytest.fixture(scope="session")
def rank_pool():
    """Runs a function as a job of n ranks in a process group of their own; see tests/rank_pool.py."""
    from tests.rank_pool import RankPool  # imports torch, which many tests do without

    with RankPool() as pool:
        yield pool


@pytest.fixture(scope="session")
def trained_job(tmp_path_factory):
    """The JobPaths of a completed job of two classes, on tests.jobs.table; read only."""
    from tests.jobs import run_train, write_job

    paths = write_job(tmp_path_factory.mktemp("trained"))
    run_train(paths)
    return paths
