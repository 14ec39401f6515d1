"""Fixtures that every test module may use."""

import contextlib
import fcntl
import io
import logging
import os
import traceback

import hypothesis
import pandas as pd
import pytest

from container.job.processes import set_up_logging
from contracts.paths import JobPaths

# Where it is set, each of the hundreds of processes that tests start would compile the project's modules once more.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Tests run in one process per core; more threads would only wait for each other, at full processor load.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A busy machine is no failure.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


def pytest_configure(config):
    """Hide this machine's GPUs from the tests and the processes that they start, except from `-m gpu`.

    The tests start more processes than most machines have GPUs, and compare numbers with those of a CPU.
    """
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items):
    """Take what is long as slow too: a parameter of a fast test can be long."""
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker("slow")


@pytest.fixture(scope="session", autouse=True)
def transformers_in_this_process():
    """Ask transformers in the tests' process; in jobs it is asked in a process of its own, which imports it first."""
    from container.text import encoder_config, encoder_source, transformers_process

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


@pytest.fixture(autouse=True)
def no_log_of_a_job():
    """Remove the handlers of a job that ran in the tests' process: pytest removes the folder of its log."""
    yield
    root = logging.getLogger()
    for handler in [each for each in root.handlers if type(each).__module__ == set_up_logging.__module__]:
        root.removeHandler(handler)
        handler.close()
    ours = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] in ("container", "pipeline")]
    changed = [name for name in ours if logging.getLogger(name).level]
    assert not changed, f"the level of {changed} stays changed: later tests and calls of this process log less or more"


@pytest.fixture(scope="session")
def rank_pool():
    """Runs a function as a job of n ranks in a process group of their own; see testing/rank_pool.py."""
    from testing.rank_pool import RankPool  # imports torch, which many tests do without

    with RankPool() as pool:
        yield pool


@pytest.fixture(scope="module")
def one_rank():
    """A process group whose only rank is the tests' process; see testing/one_rank.py."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def job_once(tmp_path_factory):
    """Return a function that runs a job of a name once for all test processes: its JobPaths; read only."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent

    def run(name, **job):
        from testing.jobs import run_train, write_job

        with (root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = root / f"{name}.done"
            if not done.exists():
                run_train(write_job(root / name, **job))
                done.touch()
        return JobPaths(root / name)

    return run


@pytest.fixture(scope="session")
def trained_job(job_once):
    """The JobPaths of a completed job of two classes, on testing.jobs.table; read only."""
    from testing.jobs import ONE_LAYER

    return job_once("trained", overrides={"encoder_config": ONE_LAYER})


@pytest.fixture(scope="session")
def calibrated_job(job_once):
    """The JobPaths of a completed job with a companion and a fitted calibration and threshold; read only."""
    from testing.jobs import ONE_LAYER

    settings = {
        "calibration": "isotonic",
        "decision_threshold": "recall>=0.8",
        "target_prior": 0.2,
        "companion": True,
        "label_issues": True,
    }
    return job_once("calibrated", overrides={**settings, "encoder_config": ONE_LAYER}, rows=(60, 60, 24))


@pytest.fixture(scope="session")
def unusual_job(job_once):
    """The JobPaths of a completed job with ids that occur twice, rows without a label, and a vector for each category;
    read only."""
    from testing.jobs import ONE_LAYER, table

    train, test = table(60, seed=0), pd.concat([table(12, seed=2)] * 2, ignore_index=True)
    train.loc[5, "order_id"] = train.loc[4, "order_id"]
    train, test = (frame.astype({"label": object}) for frame in (train, test))
    train.loc[[3, 9], "label"] = None
    test.loc[[0, 5], "label"] = None
    settings = {"drop_unlabelled": True, "category_embedding_dim": 4, "max_epochs": 1, "lr": 0.01}
    settings["encoder_config"] = ONE_LAYER
    return job_once("unusual", overrides=settings, frames={"train": train, "test": test}, file_format="parquet")
