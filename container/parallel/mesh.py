"""The process group and the device mesh of a job, and this rank's place in them."""

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from container.parallel.degrees import ParallelDegrees
from contracts.errors import ContractError

COLLECTIVE_TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class RankMesh:
    """This rank in the mesh.

    Attributes:
        device: where this rank computes.
        mesh: the device mesh; None with one process, where no axis is left.
        data_rank: place among the ranks that see different records, 0..data_size-1.
    """

    device: torch.device
    mesh: DeviceMesh | None
    degrees: ParallelDegrees
    rank: int
    world_size: int
    data_rank: int
    data_size: int

    @property
    def is_first(self) -> bool:
        """Whether this rank writes what is written once."""
        return self.rank == 0

    def sum_over_data(self, values: torch.Tensor) -> torch.Tensor:
        """`values` summed in place over the ranks that see different records; on the CPU it waits for no device."""
        if self.mesh is not None:
            dist.all_reduce(values, group=self.mesh.get_group("dp_replicate"))
        return values


def init_distributed() -> None:
    """Join the process group that torchrun's environment describes, and choose this rank's device."""
    cuda = torch.cuda.is_available()
    if cuda:
        local_rank, devices = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if local_rank >= devices:
            raise ContractError(
                f"nproc_per_node: a worker has local rank {local_rank}, but this host has {devices} GPUs",
                f"Set nproc_per_node to at most {devices}.",
            )
        torch.cuda.set_device(local_rank)
    # Both: counts that the host needs travel over gloo, so that they never wait for the device's queue.
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)


def build_mesh(degrees: ParallelDegrees) -> RankMesh:
    """The mesh of `degrees` over the process group's ranks."""
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    axes = degrees.axes
    mesh = init_device_mesh(device.type, tuple(axes.values()), mesh_dim_names=tuple(axes)) if axes else None
    return RankMesh(
        device=device,
        mesh=mesh,
        degrees=degrees,
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        data_rank=dist.get_rank(),
        data_size=degrees.dp_replicate,
    )
