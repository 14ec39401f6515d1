"""The pool of ranks that other tests run their jobs in."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from contracts.errors import ContractError
from testing.rank_pool import RankFailed, _cause


def place_and_sum(offset):
    summed = torch.tensor([float(dist.get_rank() + offset)])
    dist.all_reduce(summed)
    return os.environ["RANK"], os.environ["WORLD_SIZE"], summed, torch.get_num_threads()


def rows_of_a_mesh(rows, columns):
    mesh = init_device_mesh("cpu", (rows, columns), mesh_dim_names=("row", "column"))
    summed = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(summed, group=mesh.get_group("column"))
    return summed.item()


def fail_on(rank, how):
    if dist.get_rank() == rank:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "crash":
            os.write(2, b"terminate called after throwing an instance\n")
            os.abort()
        if how == "hang":
            time.sleep(600)
        raise ContractError("column chat: is missing", "Add it.")
    dist.barrier()


def unpicklable():
    return lambda: None


@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_every_rank_runs_the_function_in_one_group(rank_pool, world_size):
    results = rank_pool.run(place_and_sum, 1, world_size=world_size)
    expected = torch.tensor([world_size * (world_size + 1) / 2])
    assert results == [(str(rank), str(world_size), expected, 1) for rank in range(world_size)]


def test_jobs_share_no_meshes(rank_pool):
    assert rank_pool.run(rows_of_a_mesh, 2, columns=2, world_size=4) == [1.0, 1.0, 5.0, 5.0]
    assert rank_pool.run(rows_of_a_mesh, 1, columns=4, world_size=4) == [6.0] * 4


def test_an_exception_is_no_crash_and_names_its_rank_and_the_pool_stays_usable(rank_pool):
    with pytest.raises(RankFailed, match=r"rank 2 of 3: (?s:.*)fail_on(?s:.*)column chat") as failed:
        rank_pool.run(fail_on, 2, "raise", world_size=3)
    assert failed.value.ranks[0] == 2
    assert isinstance(failed.value.__cause__, ContractError)
    assert not failed.value.crashed
    assert len(rank_pool.run(place_and_sum, 0, world_size=3)) == 3


def test_a_rank_that_crashes_is_named_with_its_stderr_and_stack(rank_pool):
    cause = r"rank 1 of 2: ended with exit code -6\nterminate called(?s:.*)in fail_on"
    with pytest.raises(RankFailed, match=cause) as failed:
        rank_pool.run(fail_on, 1, "crash", world_size=2)
    assert failed.value.crashed


def test_a_killed_rank_is_named_with_its_exit_code_and_the_errors_of_others_follow(rank_pool):
    with pytest.raises(RankFailed, match=r"rank 1 of 2: ended with exit code -9\n(?s:.*)also rank 0: .*Error"):
        rank_pool.run(fail_on, 1, "kill", world_size=2)


def test_of_chained_errors_of_another_rank_the_first_is_named():
    assert (
        _cause(
            "Traceback:\n  in attend\ngloo.Error: Connection closed\n\n"
            "The above exception was the direct cause of the following exception:\n\n"
            "Traceback:\n  in stage\nRuntimeError: failed to run forward\n    kwargs: {}\n"
        )
        == "gloo.Error: Connection closed"
    )


def test_ranks_that_hang_are_named_with_their_stack_and_are_ended(rank_pool):
    started = time.monotonic()
    with pytest.raises(RankFailed, match=r"not done after 1 s: ranks \[0, 1\] of 2(?s:.*)rank 1:\n(?s:.*)in fail_on"):
        rank_pool.run(fail_on, 1, "hang", world_size=2, timeout=1)
    assert time.monotonic() - started < 5


def test_a_result_that_cannot_be_pickled_is_an_error_of_its_rank(rank_pool):
    with pytest.raises(RankFailed, match="rank 0 of 1: (?s:.*)unpicklable"):
        rank_pool.run(unpicklable, world_size=1)


def test_a_job_starts_in_well_under_a_second(rank_pool):
    rank_pool.run(place_and_sum, 0, world_size=1)
    started = time.monotonic()
    rank_pool.run(place_and_sum, 0, world_size=8)
    assert time.monotonic() - started < 5  # 0.2 s on a quiet machine; importing torch eight times takes 20 s
