"""How many ways each mesh axis splits the work: one small type that holds, checks and prints all of them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from itertools import islice

from contracts.consistency import check_parallelism
from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters

# The axis that a strategy is about: it takes what is left, unless its size is given.
_AXIS_OF = {"ddp": "dp_replicate", "fsdp": "dp_shard", "tp": "tp", "pp": "pp", "branch": "branch"}
# Ranks along a data axis see different records; ranks along any other axis see the same ones.
DATA_AXES = ("dp_replicate", "dp_shard")
_AXES_OF = {**{strategy: (axis,) for strategy, axis in _AXIS_OF.items()}, "hsdp": DATA_AXES}
_TEXTS = 2  # of the model classes whose branches can be shared out
_SUGGESTIONS = 3


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
        """The degrees that `hp` asks for on `world_size` processes.

        A size that is given holds; one may be -1, what is left (branch_size beside it: a rank for each text). If none
        is, the strategy's axis takes what is left, or else replicas do.

        Args:
            per_host: processes of one host, where there are several hosts; hsdp shards within one.

        Raises:
            ContractError: sizes that do not multiply out to `world_size`, or settings that contradict them.
        """
        degrees = _multiplied_out(hp, world_size, per_host or world_size)
        check_parallelism(hp, degrees.features(hp), pipeline_ranks=degrees.pp)
        return degrees

    def features(self, hp: Hyperparameters) -> frozenset[str]:
        """What is at work: the axes of the mesh, and `ddp` or `fsdp`, by which gradients come together.

        DistributedDataParallel serves replicas alone. Beside any other axis, and where the strategy asks for it,
        replicas are made by fully_shard, over a shard axis of size 1.
        """
        at_work = set(self.axes)
        if self.data_size > 1:
            pure = at_work == {"dp_replicate"} and hp.strategy not in ("fsdp", "hsdp")
            at_work.add("ddp" if pure else "fsdp")
        return frozenset(at_work)

    @property
    def axes(self) -> dict[str, int]:
        """Name and size of the axes that are in the mesh, outermost first."""
        return {field.name: size for field in fields(self) if (size := getattr(self, field.name)) > 1}

    @property
    def data_size(self) -> int:
        """Return how many ranks see different records: replicas and shards."""
        return math.prod(getattr(self, axis) for axis in DATA_AXES)

    @property
    def product(self) -> int:
        return math.prod(astuple(self))

    def __str__(self) -> str:
        return ", ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))


AXES = tuple(field.name for field in fields(ParallelDegrees))
MODEL_AXES = tuple(axis for axis in AXES if axis not in DATA_AXES)


def _multiplied_out(hp: Hyperparameters, world_size: int, per_host: int) -> ParallelDegrees:
    degrees = _solve(hp, world_size, per_host)
    if degrees is None:
        raise _do_not_multiply_out(hp, _sizes_asked_for(hp, world_size, per_host), world_size)
    return degrees


def _solve(hp: Hyperparameters, world_size: int, per_host: int) -> ParallelDegrees | None:
    """Return the degrees; None if the sizes do not multiply to `world_size`."""
    sizes = _sizes_asked_for(hp, world_size, per_host)
    open_axes = [axis for axis, size in sizes.items() if size == -1]
    if len(open_axes) > 1:
        raise ContractError(
            f"{_settings(open_axes)}: both would take what is left of {world_size} processes "
            f"(WORLD_SIZE={world_size}, strategy {hp.strategy!r}): {_named(sizes)}",
            f"Give {_settings(open_axes[:1])} or {_settings(open_axes[1:])} a number.",
        )
    _check_branch(hp, sizes["branch"], f"{_named(sizes)}; WORLD_SIZE={world_size}")
    taken = math.prod(size for size in sizes.values() if size != -1)
    if (world_size % taken if open_axes else world_size != taken) != 0:
        return None
    return ParallelDegrees(**{axis: world_size // taken if size == -1 else size for axis, size in sizes.items()})


def _sizes_asked_for(hp: Hyperparameters, world_size: int, per_host: int) -> dict[str, int]:
    """The size of every axis, -1 where it takes what is left; more than one may."""
    given = {axis: getattr(hp, f"{axis}_size") for axis in AXES if f"{axis}_size" in hp.model_fields_set}
    for axis, size in given.items():
        if size == 0 or (size == 1 and axis in _AXES_OF.get(hp.strategy, ()) and world_size > 1):
            raise ContractError(
                f"{axis}_size: is {size}, with strategy {hp.strategy!r} on {world_size} processes "
                f"(WORLD_SIZE={world_size})",
                f"Leave {axis}_size out, or set it to -1, which takes what is left, or to a number above 1"
                + (", or strategy to auto." if size else "."),
            )
    if given.get("branch") == -1:
        given["branch"] = _TEXTS
    if hp.strategy == "ddp":
        _check_replicas_alone(hp, given, world_size)
    if hp.strategy == "hsdp":
        return {**dict.fromkeys(AXES, 1), **given, **_hsdp_sizes(given, world_size, per_host)}
    sizes = {**dict.fromkeys(AXES, 1), **given}
    own = _AXIS_OF.get(hp.strategy)
    if own == "dp_shard" and hp.sharding_strategy == "NO_SHARD":
        own = "dp_replicate"
    if own is not None and own not in given:
        sizes[own] = _TEXTS if own == "branch" else -1
    if -1 not in sizes.values() and "dp_replicate" not in given:
        sizes["dp_replicate"] = -1
    return sizes


def _check_replicas_alone(hp: Hyperparameters, given: Mapping[str, int], world_size: int) -> None:
    others = {axis: size for axis, size in given.items() if axis != "dp_replicate" and size != 1}
    if others:
        raise ContractError(
            f"strategy: 'ddp' makes replicas of the whole model on {world_size} processes (WORLD_SIZE={world_size}), "
            f"but {', '.join(f'{axis}_size is {size}' for axis, size in others.items())}",
            f"Set strategy to auto: beside other axes replicas are made by fully_shard, whose gradients are right "
            f"under every pipeline schedule ({hp.pp_schedule}, ...). Or leave {_settings(others)} out.",
        )


def _check_branch(hp: Hyperparameters, size: int, shown: str) -> None:
    texts = hp.architecture.num_texts
    if size not in (1, texts):
        raise ContractError(
            f"branch_size: is {size} ({shown}), but model_class {hp.model_class!r} has {texts} text encoder"
            f"{'s' if texts > 1 else ''}, one for each rank",
            "Set branch_size to 2, or leave it out, which shares out no encoders."
            if texts == 2
            else "Set strategy to auto without branch_size, or choose a model_class with two texts.",
        )


def _hsdp_sizes(given: Mapping[str, int], world_size: int, per_host: int) -> dict[str, int]:
    """Sizes of the two data axes: what one of them leaves, or shards within each host."""
    shard, replicate = given.get("dp_shard", -1), given.get("dp_replicate", -1)
    if shard != -1 or replicate != -1:
        return {"dp_replicate": replicate, "dp_shard": shard}
    inside = given.get("branch", 1) * max(1, given.get("tp", 1))
    left = world_size // math.prod(size for size in given.values() if size > 1)
    shard = min(per_host // inside, left)
    if per_host < world_size and shard > 1:
        return {"dp_replicate": -1, "dp_shard": shard}
    possible = [size for size in range(2, left) if left % size == 0]
    raise ContractError(
        f"dp_shard_size: missing with strategy 'hsdp' on one host of {world_size} processes (WORLD_SIZE={world_size})",
        f"Set dp_shard_size, the ranks that share one copy, to one of {possible}; the copies are then replicas."
        if possible
        else "Set strategy to fsdp: there are too few processes for sharded copies beside each other.",
    )


def _do_not_multiply_out(hp: Hyperparameters, sizes: Mapping[str, int], world_size: int) -> ContractError:
    taken = math.prod(size for size in sizes.values() if size != -1)
    is_open = -1 in sizes.values()
    asked = [axis for axis, size in sizes.items() if size > 1] or ["dp_replicate"]
    needs = f"need a multiple of {taken}" if is_open else f"multiply to {taken}"
    worlds = [world for world in (_worlds(taken, world_size) if is_open else [taken]) if _works(hp, world)]
    free = [axis for axis in AXES if sizes[axis] > 1 or (sizes[axis] == 1 and axis == "dp_replicate" and not is_open)]
    fitting = sorted(_fitting({axis: sizes[axis] for axis in free}, world_size, exactly=not is_open))
    working = (_as_settings(found) for _, found in fitting if _works(hp, world_size, found))
    run = [f"make nproc_per_node x hosts {' or '.join(map(str, worlds))}"] if worlds else []
    fix = "; or ".join([*run, *(f"set {found}" for found in islice(working, _SUGGESTIONS))])
    return ContractError(
        f"{_settings(asked)}: the degrees {_named(sizes)} {needs}, but there are {world_size} "
        f"processes (WORLD_SIZE={world_size})",
        f"{fix[:1].upper()}{fix[1:]}.",
    )


def _worlds(taken: int, world_size: int) -> list[int]:
    """The multiples of `taken` on both sides of `world_size`."""
    below = world_size // taken * taken
    return [size for size in (below, below + taken) if size]


def _fitting(
    wanted: Mapping[str, int], world_size: int, *, exactly: bool
) -> Iterator[tuple[float, tuple[tuple[str, int], ...]]]:
    """Sizes of the `wanted` axes that multiply out, with how far each lies from what was wanted (in doublings)."""
    if not wanted:
        if not exactly or world_size == 1:
            yield 0.0, ()
        return
    (axis, size), *rest = wanted.items()
    for candidate in range(1, world_size + 1):
        if world_size % candidate == 0:
            apart = abs(math.log2(candidate / size))
            for further, others in _fitting(dict(rest), world_size // candidate, exactly=exactly):
                yield apart + further, ((axis, candidate), *others)


def _works(hp: Hyperparameters, world_size: int, sizes: tuple[tuple[str, int], ...] = ()) -> bool:
    try:
        sizes_given = {f"{axis}_size": size for axis, size in sizes}
        changed = Hyperparameters(**{**hp.model_dump(exclude_unset=True), **sizes_given})
        return _solve(changed, world_size, per_host=world_size) is not None
    except ContractError:
        return False


def _settings(axes: Mapping[str, int] | list[str]) -> str:
    return ", ".join(f"{axis}_size" for axis in axes)


def _as_settings(combination: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{axis}_size={size}" for axis, size in combination)


def _named(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{axis}={'what is left' if size == -1 else size}" for axis, size in sizes.items())
