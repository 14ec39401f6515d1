"""Fixtures that every test module may use."""

import contextlib
import io
import os
import traceback

import pytest

# Where it is set, each of the hundreds of processes that tests start would compile the project's modules once more.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(scope="session", autouse=True)
def transformers_in_this_process():
    """Ask transformers in the tests' process; in jobs it is asked in a process of its own, which imports it first."""
    from container.preprocessing import encoder_config, encoder_source, transformers_process

    def ask(command: str, first: str, second: str) -> str:
        try:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                transformers_process.main([command, first, second])
        except Exception as error:
            raise RuntimeError(traceback.format_exception_only(error)[-1].strip().splitlines()[-1]) from error
        return printed.getvalue()

    with pytest.MonkeyPatch.context() as patch:
        for module in (encoder_config, encoder_source):
            patch.setattr(module, "run_transformers", ask)
        yield


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
