"""For the same seed, data and global batch, every strategy gives one process's numbers.

These tests cover one strategy of each kind; `make parity` runs all. testing/parity.py and dropout_parity.py define the
measurements.
"""

import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from benchmarks import parity
from benchmarks.memory import PARTS, held_bytes
from testing.dropout_parity import DropoutCheck
from testing.jobs import REPOSITORY, run_train, write_job
from testing.parity import (
    ADAMW,
    DROPOUT_OFF,
    DROPOUT_ON,
    GLOBAL_BATCH,
    ONE_PROCESS,
    SETTINGS,
    SGD,
    SPLIT_ROWS,
    STEPS,
    TOLERANCE,
    ParityCheck,
    ParityJobs,
    Strategy,
    largest_difference,
)
from testing.parity_strategies import BY_NAME, STRATEGIES
from testing.rank_pool import RankFailed
from testing.tiers import long_except

pytestmark = pytest.mark.slow

IN_SHORT = (
    "ddp 2, accumulation",
    "ddp 2, token limit",
    "ddp 4",
    "fsdp 2, FULL_SHARD",
    "fsdp 2, SHARD_GRAD_OP",
    "hsdp 2x2",
    "tp 2",
    "tp 2, sequence parallel",
    "pp 2, 1F1B",
    "pp 2, ZBVZeroBubble",
    "branch 2",
    "pp 2 x fsdp 2",
    "tp 2 x fsdp 2",
    "branch 2 x fsdp 2",
    "pp 2 x tp 2 x dp 2",
)
FIRST = ("ddp 2, accumulation", "ddp 2, token limit", "fsdp 2, FULL_SHARD", "tp 2", "pp 2, 1F1B", "branch 2")
WITH_DROPOUT = ("ddp 2", "fsdp 2, FULL_SHARD", "tp 2", "pp 2, 1F1B", "branch 2")


@pytest.fixture(scope="module")
def jobs(rank_pool, tmp_path_factory):
    return ParityJobs(rank_pool, tmp_path_factory.mktemp("parity"))


@pytest.fixture(scope="module")
def check(jobs):
    return ParityCheck(jobs)


@pytest.fixture(scope="module")
def dropout(jobs):
    return DropoutCheck.prepare(jobs)


def test_at_least_24_strategies_and_products_are_in_the_table():
    assert len(STRATEGIES) == len(BY_NAME) >= 24
    assert max(strategy.world_size for strategy in STRATEGIES) >= 8


def test_what_is_compared_trains_clips_and_ends_epochs_unevenly(check):
    adamw, sgd = check.reference(ONE_PROCESS)
    losses = [float(loss) for name, loss in adamw.losses.items() if name.startswith("train/")]
    assert len(losses) == STEPS
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    assert sum(name.startswith("val/") for name in adamw.losses) == 2
    norm = np.sqrt(sum(np.square(gradient).sum() for (gradient,) in sgd.gradients.values()))
    assert norm == pytest.approx(SETTINGS["gradient_clip_val"], rel=1e-3)
    assert SPLIT_ROWS[0] % GLOBAL_BATCH == 5


@pytest.mark.parametrize("name", long_except(FIRST, IN_SHORT))
def test_a_strategy_gives_the_losses_gradients_weights_and_predictions_of_one_process(check, name):
    found = check.compare(BY_NAME[name])
    assert found.holds, found


@pytest.mark.long
@pytest.mark.parametrize("name", WITH_DROPOUT)
def test_with_dropout_the_loss_is_as_probable_and_copies_stay_together(dropout, name):
    found = dropout.compare(BY_NAME[name])
    assert found.holds, found


@pytest.mark.long
def test_dropout_left_off_would_be_noticed(dropout):
    assert not dropout.compare(ONE_PROCESS, DROPOUT_OFF).holds


def test_checkpointed_layers_drop_the_same_numbers_again(jobs):
    (plain,), (checkpointed,) = (
        jobs.train(strategy, {**DROPOUT_ON, **ADAMW}) for strategy in (ONE_PROCESS, BY_NAME["activation checkpointing"])
    )
    drawn, expected = (
        {name: loss for name, loss in run.losses.items() if name.startswith("train/")} for run in (checkpointed, plain)
    )
    assert drawn == expected
    # The last bit of a product without dropout depends on the addresses of its operands with MKL on Intel processors.
    assert np.array([*checkpointed.losses.values()]) == pytest.approx(np.array([*plain.losses.values()]), rel=1e-7)


@pytest.mark.long
def test_under_fsdp_a_rank_holds_its_share_of_parameters_gradients_and_optimizer_state(jobs):
    whole, *shared = (held_bytes(jobs, world_size) for world_size in (1, 2, 4))
    for own, world_size in zip(shared, (2, 4)):
        for part in PARTS:
            assert getattr(own, part) == pytest.approx(getattr(whole, part) / world_size, rel=0.05), part


@pytest.mark.parametrize("compression", long_except(["bf16"], ["fp16", "bf16"]))
def test_compressed_gradients_train_to_other_numbers(check, jobs, compression):
    strategy = Strategy(compression, 2, {"strategy": "ddp", "gradient_compression": compression})
    (ours,) = jobs.train(strategy, {**DROPOUT_OFF, **ADAMW})
    losses, expected = (np.array(list(run.losses.values())) for run in (ours, check.reference(ONE_PROCESS)[0]))
    assert losses[-1] == pytest.approx(expected[-1], rel=0.05)
    assert losses[-1] < 0.9 * losses[0]
    assert np.abs(losses - expected).max() > TOLERANCE


@pytest.mark.long
def test_processes_of_their_own_give_the_weights_of_one_process(check, tmp_path):
    overrides = {**SETTINGS, **DROPOUT_OFF, **SGD, "nproc_per_node": 2, "batch_size": GLOBAL_BATCH // 2}
    paths = write_job(tmp_path, overrides={**overrides, "text_name": None}, rows=SPLIT_ROWS)
    run_train(paths)
    state = torch.load(paths.model / "model.pth", weights_only=True)
    expected = {name: copies[0] for name, copies in check.reference(ONE_PROCESS)[1].weights.items()}
    found = largest_difference({name: [state[name].numpy()] for name in expected}, expected)
    assert found.value <= TOLERANCE, found


def test_a_difference_is_relative_to_the_largest_number_of_its_tensor():
    expected = {"a": np.array([2.0, -4.0]), "b": np.array([100.0])}
    found = largest_difference({"a": [expected["a"], np.array([2.0, -4.4])], "b": [np.array([101.0])]}, expected)
    assert (found.value, found.where) == (pytest.approx(0.1), "a")


def test_a_key_bias_is_measured_against_the_query_bias():
    expected = {"self.key.bias": np.array([1e-9]), "self.query.bias": np.array([0.5])}
    ours = {"self.key.bias": [np.array([-1e-9])], "self.query.bias": [np.array([0.5])]}
    assert largest_difference(ours, expected).value == pytest.approx(4e-9)


@pytest.mark.parametrize("ours", [{}, {"a": [np.array([np.nan])]}, {"a": [np.array([1.0, 1.0])]}])
def test_what_is_missing_not_finite_or_of_another_shape_differs(ours):
    assert largest_difference(ours, {"a": np.array([1.0])}).value == float("inf")


def printed_table(*arguments):
    """Exit code, verdict by row, and all that `make parity` prints, without the check with dropout."""
    command = [sys.executable, "-m", "benchmarks.parity", "--without-dropout", *arguments]
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=False)
    rows = (line for line in finished.stdout.splitlines() if line.startswith("|"))
    lines = [[cell.strip() for cell in row.split("|")] for row in rows]
    return finished.returncode, {cells[1]: cells[-2] for cells in lines[2:]}, finished.stdout


@pytest.mark.long
def test_the_table_names_what_differs_or_fails_and_its_exit_code_says_so():
    assert printed_table("accumulation", "--exactly")[:2] == (0, {"accumulation": "ok"})
    code, verdicts, printed = printed_table("accumulation", "--exactly", "--timeout", "0.01")
    assert (code, verdicts) == (1, {"accumulation": "fails"})
    assert "not done after 0.01 s" in printed


@pytest.mark.long
@pytest.mark.parametrize(("crashes", "code", "verdict"), [(1, 0, "ok"), (2, 1, "fails")])
def test_a_row_whose_process_crashed_runs_once_more(monkeypatch, capsys, crashes, code, verdict):
    class Crashing(ParityCheck):
        left = crashes

        def compare(self, strategy):
            if self.left:
                self.left -= 1
                raise RankFailed("rank 0 of 1: ended with exit code -11", ranks=[0], crashed=True)
            return super().compare(strategy)

    monkeypatch.setattr(parity, "ParityCheck", Crashing)
    monkeypatch.setattr(sys, "argv", ["parity", "accumulation", "--exactly", "--without-dropout"])
    assert parity.main() == code
    printed = capsys.readouterr().out
    assert "accumulation crashed, and runs again: rank 0 of 1: ended with exit code -11" in printed
    assert re.search(rf"^\| accumulation .* {verdict} +\|$", printed, re.MULTILINE)


@pytest.mark.long
def test_rows_that_did_not_start_in_time_are_named():
    code, verdicts, printed = printed_table("activation checkpointing", "--minutes", "0")
    assert (code, verdicts) == (0, {"activation checkpointing": "ok"})
    assert "not started within 0 minutes: fsdp 2, activation checkpointing; " in printed
