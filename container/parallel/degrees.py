"""Resolve, check and print the parallel degrees: the size of each mesh axis."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields

from contracts.consistency import check_parallelism
from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters

# A strategy sets this axis to the remaining number of processes, unless its size is given.
_AXIS_OF = {"ddp": "dp_replicate", "fsdp": "dp_shard", "tp": "tp", "pp": "pp", "branch": "branch"}
# Ranks along a data axis see different records; ranks along any other axis see the same ones.
DATA_AXES = ("dp_replicate", "dp_shard")
_AXES_OF = {**{strategy: (axis,) for strategy, axis in _AXIS_OF.items()}, "hsdp": DATA_AXES}
_WORDS = {
    "pp": "pipeline stages (pp)",
    "dp_replicate": "replicas (dp_replicate)",
    "dp_shard": "shards (dp_shard)",
    "branch": "texts (branch)",
    "tp": "slices of each layer (tp)",
}
_TEXTS = 2  # of the model classes that branch parallelism can split


@dataclass(frozen=True)
class ParallelDegrees:
    """Sizes of the mesh axes, outermost first. An axis of size 1 is not in the mesh."""

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    branch: int = 1
    tp: int = 1

    @classmethod
    def resolve(cls, hp: Hyperparameters, world_size: int, *, per_host: int | None = None) -> "ParallelDegrees":
        """Return the degrees that `hp` sets for `world_size` processes.

        Given sizes have priority. One size may be -1: all remaining processes (branch_size -1: one rank per text).
        Otherwise the strategy's axis takes the remaining processes, or they become replicas.

        Args:
            per_host: processes of each host if there are several hosts; hsdp then shards within a host.

        Raises:
            ContractError: the product of the sizes is not `world_size`, or another setting contradicts them.
        """
        degrees = _resolve(hp, world_size, per_host or world_size)
        check_parallelism(hp, degrees.features(hp), pipeline_ranks=degrees.pp)
        return degrees

    def features(self, hp: Hyperparameters) -> frozenset[str]:
        """Return the axes of the mesh, and `ddp` or `fsdp`, whichever reduces the gradients.

        DistributedDataParallel supports a mesh of replicas only. With any other axis, or under fsdp and hsdp,
        fully_shard makes the replicas, over a shard axis of size 1.
        """
        features = set(self.axes)
        if self.data_size > 1:
            only_replicas = features == {"dp_replicate"} and hp.strategy not in ("fsdp", "hsdp")
            features.add("ddp" if only_replicas else "fsdp")
        return frozenset(features)

    @property
    def axes(self) -> dict[str, int]:
        """Return name and size of the axes in the mesh, outermost first."""
        return {axis: size for axis, size in asdict(self).items() if size > 1}

    @property
    def data_size(self) -> int:
        """Return how many ranks see different records: replicas and shards."""
        return math.prod(getattr(self, axis) for axis in DATA_AXES)

    @property
    def product(self) -> int:
        """Return the number of processes that the degrees need."""
        return math.prod(asdict(self).values())

    def __str__(self) -> str:
        return _shown(asdict(self))

    @property
    def in_words(self) -> str:
        """Return the sizes above 1 with their meaning."""
        words = [f"{size} {_WORDS[axis]}" for axis, size in self.axes.items()]
        return " x ".join(words) or "1 process"


AXES = tuple(field.name for field in fields(ParallelDegrees))
MODEL_AXES = tuple(axis for axis in AXES if axis not in DATA_AXES)


def _resolve(hp: Hyperparameters, world_size: int, per_host: int) -> ParallelDegrees:
    sizes = _requested_sizes(hp, world_size, per_host)
    open_axes = [axis for axis, size in sizes.items() if size == -1]
    if len(open_axes) > 1:
        raise ContractError(
            f"{_settings(open_axes)}: each would take all remaining processes of {world_size} "
            f"(WORLD_SIZE={world_size}, strategy {hp.strategy!r}): {_shown(sizes)}",
            f"Set {_settings(open_axes[:1])} or {_settings(open_axes[1:])} to a number.",
        )
    _check_branch(hp, sizes["branch"], f"{_shown(sizes)}; WORLD_SIZE={world_size}")
    product = math.prod(size for size in sizes.values() if size != -1)
    if (world_size % product if open_axes else world_size != product) != 0:
        raise _product_error(sizes, world_size=world_size)
    return ParallelDegrees(**{axis: world_size // product if size == -1 else size for axis, size in sizes.items()})


def _requested_sizes(hp: Hyperparameters, world_size: int, per_host: int) -> dict[str, int]:
    """Return the size of every axis; -1 means all remaining processes, and several axes may request them."""
    requested = {axis: getattr(hp, f"{axis}_size") for axis in AXES if f"{axis}_size" in hp.model_fields_set}
    for axis, size in requested.items():
        if size == 0 or (size == 1 and axis in _AXES_OF.get(hp.strategy, ()) and world_size > 1):
            raise ContractError(
                f"{axis}_size: is {size}, with strategy {hp.strategy!r} on {world_size} processes "
                f"(WORLD_SIZE={world_size})",
                f"Leave {axis}_size out, or set it to -1 (all remaining processes) or to a number above 1"
                + (", or set strategy to auto." if size else "."),
            )
    if requested.get("branch") == -1:
        requested["branch"] = _TEXTS
    sizes = dict.fromkeys(AXES, 1) | requested
    if hp.strategy == "ddp":
        _check_only_replicas(hp, requested, world_size)
    elif hp.strategy == "hsdp":
        return sizes | _hsdp_sizes(requested, world_size, per_host)
    axis = _AXIS_OF.get(hp.strategy)
    if axis == "dp_shard" and hp.sharding_strategy == "NO_SHARD":
        axis = "dp_replicate"
    if axis is not None and axis not in requested:
        sizes[axis] = _TEXTS if axis == "branch" else -1
    if -1 not in sizes.values() and "dp_replicate" not in requested:
        sizes["dp_replicate"] = -1
    return sizes


def _check_only_replicas(hp: Hyperparameters, given: Mapping[str, int], world_size: int) -> None:
    others = {axis: size for axis, size in given.items() if axis != "dp_replicate" and size != 1}
    if others:
        raise ContractError(
            f"strategy: 'ddp' makes replicas of the whole model on {world_size} processes (WORLD_SIZE={world_size}), "
            f"but {', '.join(f'{axis}_size is {size}' for axis, size in others.items())}",
            "Set strategy to auto, which makes replicas with fully_shard; that works with all other axes and every "
            f"pp_schedule ({hp.pp_schedule}, ...). Or leave {_settings(others)} out.",
        )


def _check_branch(hp: Hyperparameters, size: int, context: str) -> None:
    texts = hp.architecture.num_texts
    if size not in (1, texts):
        raise ContractError(
            f"branch_size: is {size} ({context}), but model_class {hp.model_class!r} has {texts} text encoder"
            f"{'s' if texts > 1 else ''}, and each rank of the branch axis runs one",
            "Set branch_size to 2, or leave it out: every rank then runs both encoders."
            if texts == 2
            else "Set strategy to auto without branch_size, or choose a model_class with two texts.",
        )


def _hsdp_sizes(given: Mapping[str, int], world_size: int, per_host: int) -> dict[str, int]:
    """Return the sizes of both data axes: those given, -1 for the other; by default, shards within each host."""
    shard, replicate = given.get("dp_shard", -1), given.get("dp_replicate", -1)
    if shard != -1 or replicate != -1:
        return {"dp_replicate": replicate, "dp_shard": shard}
    inner_ranks = given.get("branch", 1) * max(1, given.get("tp", 1))
    data_ranks = world_size // math.prod(size for size in given.values() if size > 1)
    shard = min(per_host // inner_ranks, data_ranks)
    if per_host < world_size and shard > 1:
        return {"dp_replicate": -1, "dp_shard": shard}
    possible = [size for size in range(2, data_ranks) if data_ranks % size == 0]
    raise ContractError(
        f"dp_shard_size: missing with strategy 'hsdp' on one host of {world_size} processes (WORLD_SIZE={world_size})",
        f"Set dp_shard_size, the number of ranks that hold one copy of the model, to one of {possible}."
        if possible
        else "Set strategy to fsdp: there are too few processes for several sharded copies of the model.",
    )


def _product_error(sizes: Mapping[str, int], *, world_size: int) -> ContractError:
    product = math.prod(size for size in sizes.values() if size != -1)
    is_open = -1 in sizes.values()
    above_1 = [axis for axis, size in sizes.items() if size > 1] or ["dp_replicate"]
    needs = f"need a multiple of {product}" if is_open else f"multiply to {product}"
    below = world_size // product * product
    worlds = [str(world) for world in ((below, below + product) if is_open else (product,)) if world]
    return ContractError(
        f"{_settings(above_1)}: the degrees {_shown(sizes)} {needs}, but there are {world_size} "
        f"processes (WORLD_SIZE={world_size})",
        f"Make nproc_per_node x hosts {' or '.join(worlds)}; or set sizes whose product is {world_size}, or divides it "
        "if one of them is -1, which takes the remaining processes.",
    )


def _settings(axes: Iterable[str]) -> str:
    return ", ".join(f"{axis}_size" for axis in axes)


def _shown(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{axis}={'remaining' if size == -1 else size}" for axis, size in sizes.items())
