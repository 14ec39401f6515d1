"""Options of training and of the model, all at once: every strategy gives the numbers of one process."""

from typing import Any

import pytest

from testing.parity import (
    DROPOUT_OFF,
    ONE_PROCESS,
    SGD,
    TOLERANCE,
    ParityJobs,
    difference,
)
from testing.parity_strategies import BY_NAME

pytestmark = [pytest.mark.slow, pytest.mark.long]

OPTIONS: dict[str, Any] = {
    "loss": "focal", "focal_gamma": 1.5, "label_smoothing": 0.1, "class_weights": "balanced", "layer_lr_decay": 0.7,
    "ema_decay": 0.9, "numeric_embedding": "piecewise_linear", "category_embedding_dim": 6, "pooling": "mean",
}  # fmt: skip
UNDER = (
    "ddp 2, accumulation",
    "fsdp 2, FULL_SHARD",
    "fsdp 2, SHARD_GRAD_OP",
    "tp 2",
    "pp 2, 1F1B",
    "branch 2",
    "pp 2 x fsdp 2, ZBVZeroBubble",
    "tp 2 x fsdp 2",
)


@pytest.fixture(scope="module")
def jobs(rank_pool, tmp_path_factory):
    return ParityJobs(rank_pool, tmp_path_factory.mktemp("options"))


@pytest.fixture(scope="module")
def alone(jobs):
    return trained(jobs, ONE_PROCESS)


def trained(jobs, strategy, **options):
    (run,) = jobs.train(strategy, {**DROPOUT_OFF, **SGD, **OPTIONS, **options})
    return run


@pytest.mark.parametrize("name", UNDER)
def test_a_strategy_gives_the_numbers_of_one_process_with_every_option(jobs, alone, name):
    found = difference(trained(jobs, BY_NAME[name]), alone)
    assert found.value <= TOLERANCE, found


@pytest.mark.parametrize(
    "option",
    [
        {"loss": "cross_entropy"},
        {"class_weights": [1.0, 1.0]},
        {"layer_lr_decay": 1.0},
        {"ema_decay": 0.0},
        {"numeric_embedding": "none"},
    ],
    ids=lambda option: next(iter(option)),
)
def test_an_option_left_out_would_be_noticed(jobs, alone, option):
    assert difference(trained(jobs, ONE_PROCESS, **option), alone).value > 100 * TOLERANCE
