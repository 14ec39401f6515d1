"""Create the process group and the device mesh of a job, with this rank's coordinates."""

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout

from container.job.hosts.gpus import VISIBLE, count_gpus
from container.parallel.degrees import DATA_AXES, MODEL_AXES, ParallelDegrees
from container.parallel.threads import RankThreads
from contracts.errors import ContractError, first_line

# Environment variable for tests: "1" = all ranks of a host share its first GPU (docs/testing.md).
SHARE_GPU = "TEXT_TABLE_SHARE_GPU"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RankMesh:
    """This rank in the mesh. Axes, outermost first: pp, dp_replicate, dp_shard, branch, tp.

    Attributes:
        device: the device of this rank.
        mesh: the device mesh; None if all axes have size 1.
        coordinates: this rank's coordinate on each axis of the mesh.
        threads: of its computations on the CPU.
    """

    device: torch.device
    mesh: DeviceMesh | None
    degrees: ParallelDegrees
    rank: int
    world_size: int
    coordinates: Mapping[str, int]
    threads: RankThreads = field(default_factory=RankThreads)

    def size(self, axis: str) -> int:
        """Return the number of ranks along `axis`; 1 if it is not in the mesh."""
        return getattr(self.degrees, axis)

    def coordinate(self, axis: str) -> int:
        """Return this rank's coordinate along `axis`, from 0."""
        return self.coordinates.get(axis, 0)

    @property
    def data_size(self) -> int:
        """Return the number of ranks that see different records: replicas and shards."""
        return self.degrees.data_size

    @property
    def data_rank(self) -> int:
        """Return this rank's index among the ranks that see different records, 0..data_size-1."""
        rank = 0
        for axis in DATA_AXES:
            rank = rank * self.size(axis) + self.coordinate(axis)
        return rank

    @property
    def dropout_stream(self) -> tuple[int, int]:
        """Return the coordinates that the seed of a step includes.

        Ranks with different records or pipeline stages draw different dropout masks. Ranks along the other axes compute
        the same values and must draw the same masks.
        """
        return self.data_rank, self.coordinate("pp")

    @property
    def is_first(self) -> bool:
        """Return whether this rank writes the files that only one rank writes."""
        return self.rank == 0

    @property
    def is_data_leader(self) -> bool:
        """Return whether this rank counts its records and their loss; ranks along model axes see the same records."""
        return not any(self.coordinate(axis) for axis in MODEL_AXES)

    def group(self, axis: str) -> dist.ProcessGroup | None:
        """Return the process group of this rank along `axis`; None if the axis is not in the mesh."""
        return self.mesh.get_group(axis) if self.mesh is not None and axis in self.coordinates else None

    def submesh(self, *axes: str) -> DeviceMesh | None:
        """Return the mesh of those `axes` that are in the mesh; None if there are none."""
        present = [axis for axis in axes if axis in self.coordinates]
        return self.mesh[tuple(present)] if self.mesh is not None and present else None

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum `values` in place over all ranks and return them; CPU tensors do not wait for the device.

        A rank that holds a copy of another rank's contribution passes zeros.
        """
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def with_threads(self, *, cores: int, fixed: int | None) -> "RankMesh":
        """Return this rank with `fixed` threads, or the number that its computations will show. Collective.

        Nothing is measured for a GPU, whose computations take one thread of the host.

        Args:
            cores: most threads of this rank. The number of all ranks is at most the least of theirs.
        """
        if self.device.type != "cpu":
            torch.set_num_threads(fixed or cores)
            return replace(self, threads=RankThreads())
        of_ranks = torch.zeros(self.world_size)
        of_ranks[self.rank] = cores
        fewest = int(self.sum(of_ranks).min())
        return replace(self, threads=RankThreads.measured(cores=fewest, fixed=fixed, sum_over_ranks=self.sum))


def init_distributed(*, timeout_minutes: float) -> None:
    """Join the process group that torchrun's environment describes, and choose this rank's device.

    Args:
        timeout_minutes: maximum time that a collective waits for the other ranks.
    """
    dist.init_process_group(choose_device(), timeout=timedelta(minutes=timeout_minutes))


def choose_device() -> str:
    """Choose the GPU of this process's LOCAL_RANK, if the host has GPUs, and return the backends of its group.

    Raises:
        ContractError: PyTorch cannot use the GPUs of this host, or finds fewer than there are processes.
    """
    if not torch.cuda.is_available():
        _check_no_gpu()
        return "gloo"
    if shares_gpu():
        torch.cuda.set_device(0)
        _without_refused_segments()
        return "cpu:gloo,cuda:gloo"
    local_rank, devices = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    counted, source = _counted_gpus()
    if local_rank >= devices:
        raise ContractError(
            f"nproc_per_node: process {local_rank + 1} of {os.environ['LOCAL_WORLD_SIZE']} on this host "
            f"has no GPU: PyTorch finds {devices}. By default, there is a process for each GPU in {source}: {counted}",
            f"Set nproc_per_node to at most {devices}, or {VISIBLE} to the GPUs that PyTorch can use.",
        )
    if counted < devices and local_rank == 0:
        logger.warning(
            f"nproc_per_node: by default, there is a process for each GPU in {source}: {counted}, but PyTorch finds "
            f"{devices} GPUs. To use all of them, set nproc_per_node to {devices}."
        )
    torch.cuda.set_device(local_rank)
    _without_refused_segments()
    # Both backends: gloo sums CPU tensors, such as counts, without waiting for the device's queue.
    return "cpu:gloo,cuda:nccl"


def is_one_host() -> bool:
    """Return whether all processes of the job are on this host, by the variables that a launcher sets."""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")


def shares_gpu() -> bool:
    """Return whether all ranks of a host share its first GPU, for tests of several ranks on one GPU.

    NCCL refuses such ranks, so gloo moves the tensors through the host. It does not show NCCL's order of operations nor
    its streams. gloo has operations on CUDA tensors for ddp; reduce_scatter, which fsdp needs, is unproven there.
    """
    return os.environ.get(SHARE_GPU) == "1"


def _without_refused_segments() -> None:
    """Turn expandable segments off where this machine refuses them, as a sandbox such as gVisor may."""
    try:
        torch.empty(1, device="cuda")
    except RuntimeError as error:
        # torch names no public function for it.
        torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
        torch.empty(1, device="cuda")  # raises what has another cause
        logger.info("expandable segments of GPU memory are off: this machine refuses them: %s", first_line(error))


def _check_no_gpu() -> None:
    """Raise ContractError if this host has GPUs, which PyTorch cannot use."""
    counted, source = _counted_gpus()
    if not counted:
        return
    try:
        torch.cuda.init()
        reason = "it finds no device"
    except (RuntimeError, AssertionError) as error:
        reason = first_line(error)
    raise ContractError(
        f"GPUs: this host has {counted} ({source}), but PyTorch {torch.__version__} can use none: {reason}",
        f"Use an image and a driver that fit, and MIG instances that exist. To train on the CPU, set {VISIBLE} "
        "to an empty value.",
    )


def _counted_gpus() -> tuple[int, str]:
    """Return the number of this host's GPUs without asking PyTorch, and what they were counted from."""
    visible = os.environ.get(VISIBLE)
    return count_gpus(), "/dev/nvidia*" if visible is None else f"{VISIBLE}={visible}"


def build_mesh(
    degrees: ParallelDegrees, *, timeout_minutes: float | None = None, device: torch.device | None = None
) -> RankMesh:
    """Return the mesh of `degrees` over the process group's ranks.

    Args:
        timeout_minutes: as in init_distributed; None = torch's default for each group.
        device: by default, the current GPU, or the CPU where there is none.
    """
    if device is None:
        gpu = torch.cuda.is_available()
        device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
    axes = degrees.axes
    if "dp_replicate" in axes and "dp_shard" not in axes:
        # fully_shard needs a shard axis, of size 1, to make replicas (sharding.py).
        axes = {name: size for name, size in asdict(degrees).items() if size > 1 or name == "dp_shard"}
    mesh = init_device_mesh(device.type, tuple(axes.values()), mesh_dim_names=tuple(axes)) if axes else None
    if mesh is not None and timeout_minutes is not None:
        for group in mesh.get_all_groups():  # a new group has torch's default, not the timeout of all processes
            _set_pg_timeout(timedelta(minutes=timeout_minutes), group)
    return RankMesh(
        device=device,
        mesh=mesh,
        degrees=degrees,
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        coordinates={} if mesh is None else {name: mesh.get_local_rank(name) for name in axes},
    )
