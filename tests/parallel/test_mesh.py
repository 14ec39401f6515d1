"""The device mesh of a job, and the coordinates of each rank in it."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from container.parallel.degrees import AXES, DATA_AXES, MODEL_AXES, ParallelDegrees
from container.parallel.mesh import RankMesh, build_mesh


def describe(degrees: dict[str, int]) -> dict[str, Any]:
    """Return what one rank knows of its coordinates."""
    ranks = build_mesh(ParallelDegrees(**degrees))
    names = ("rank", "world_size", "data_size", "data_rank", "dropout_stream", "is_first", "is_data_leader")
    groups = {axis: dist.get_process_group_ranks(ranks.group(axis)) for axis in degrees if ranks.group(axis)}
    return {name: getattr(ranks, name) for name in names} | {
        "coordinates": tuple(ranks.coordinate(axis) for axis in degrees),
        "groups": groups,
        "sum": ranks.sum(torch.tensor([float(ranks.rank)])).item(),
    }


def mesh_at(**coordinates: int) -> RankMesh:
    """Return rank 0's view of a mesh of 2 x 2 x 2 x 2 x 2, at these coordinates."""
    degrees = ParallelDegrees(**dict.fromkeys(AXES, 2))
    return RankMesh(torch.device("cpu"), None, degrees, rank=0, world_size=degrees.product, coordinates=coordinates)


@pytest.mark.parametrize("inner", ["dp_shard", "tp", "branch"])
def test_the_ranks_of_a_2_by_2_mesh_count_the_inner_axis_first(rank_pool, inner):
    outer = "pp" if inner == "dp_shard" else "dp_shard"
    results = rank_pool.run(describe, {outer: 2, inner: 2}, world_size=4)
    assert [found["coordinates"] for found in results] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [found["groups"][inner] for found in results] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert [found["groups"][outer] for found in results] == [[0, 2], [1, 3], [0, 2], [1, 3]]


def test_ranks_of_both_data_axes_see_different_records(rank_pool):
    results = rank_pool.run(describe, {"dp_replicate": 2, "dp_shard": 2}, world_size=4)
    assert [(found["data_rank"], found["data_size"]) for found in results] == [(rank, 4) for rank in range(4)]
    assert all(found["is_data_leader"] for found in results)


@pytest.mark.parametrize("axis", MODEL_AXES)
def test_ranks_along_a_model_axis_see_the_same_records_and_one_of_them_counts_them(rank_pool, axis):
    results = rank_pool.run(describe, {"dp_shard": 2, axis: 2}, world_size=4)
    by_coordinate = {found["coordinates"]: found for found in results}
    for (shard, own), found in by_coordinate.items():
        assert (found["data_rank"], found["data_size"]) == (shard, 2)
        assert found["is_data_leader"] == (own == 0)


def timeouts(degrees: dict[str, int], *, minutes: float) -> list[float]:
    """Return the timeout of the group along each axis, in seconds."""
    ranks = build_mesh(ParallelDegrees(**degrees), timeout_minutes=minutes)
    backends = [ranks.group(axis)._get_backend(torch.device("cpu")) for axis in degrees]
    return [backend.options._timeout.total_seconds() for backend in backends]


def test_the_group_of_every_axis_waits_as_long_as_the_group_of_all_processes(rank_pool):
    assert rank_pool.run(timeouts, {"dp_shard": 2, "tp": 2}, minutes=2.5, world_size=4) == [[150.0, 150.0]] * 4


def test_one_rank_is_the_first(rank_pool):
    results = rank_pool.run(describe, {"dp_shard": 2, "tp": 2}, world_size=4)
    assert [found["is_first"] for found in results] == [True, False, False, False]


def test_a_sum_adds_up_the_values_of_all_ranks(rank_pool):
    assert [found["sum"] for found in rank_pool.run(describe, {"pp": 2, "tp": 2}, world_size=4)] == [6.0] * 4


def test_a_single_process_has_no_mesh_and_every_role(rank_pool):
    (found,) = rank_pool.run(describe, {}, world_size=1)
    assert found["is_first"]
    assert found["is_data_leader"]
    assert (found["data_rank"], found["data_size"], found["groups"], found["sum"]) == (0, 1, {}, 0.0)


def test_every_axis_either_splits_the_records_or_shares_them():
    assert sorted((*DATA_AXES, *MODEL_AXES)) == sorted(AXES)


@pytest.mark.parametrize("axis", AXES)
def test_dropout_differs_between_ranks_that_compute_on_different_numbers_alone(axis):
    """A slice (tp) or a branch computes on the same numbers as its peers: after them, masks must agree."""
    differs = mesh_at(**{axis: 1}).dropout_stream != mesh_at().dropout_stream
    assert differs == (axis in (*DATA_AXES, "pp"))


def test_no_two_combinations_of_data_rank_and_stage_share_a_dropout_stream():
    streams = [
        mesh_at(pp=pp, dp_replicate=replicate, dp_shard=shard).dropout_stream
        for pp in range(2) for replicate in range(2) for shard in range(2)
    ]  # fmt: skip
    assert len(set(streams)) == 8


def sizes_of_submesh(axes: tuple[str, ...], **degrees: int) -> tuple[int, ...] | None:
    mesh = build_mesh(ParallelDegrees(**degrees)).submesh(*axes)
    return None if mesh is None else tuple(mesh.shape)


def test_a_submesh_has_the_axes_that_are_in_the_mesh(rank_pool):
    degrees = {"dp_shard": 2, "tp": 2}
    assert rank_pool.run(sizes_of_submesh, ("dp_shard", "pp"), world_size=4, **degrees) == [(2,)] * 4
    assert rank_pool.run(sizes_of_submesh, ("pp", "branch"), world_size=4, **degrees) == [None] * 4


def test_replicas_alone_get_a_shard_axis_of_size_1(rank_pool):
    assert rank_pool.run(sizes_of_submesh, DATA_AXES, world_size=2, dp_replicate=2) == [(2, 1)] * 2
