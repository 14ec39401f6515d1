"""How many ways each mesh axis splits the work: one small type that holds, checks and prints all of them."""

from dataclasses import dataclass, fields

from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters

BUILT_STRATEGIES = ("auto", "ddp")


@dataclass(frozen=True)
class ParallelDegrees:
    """Sizes of the mesh axes, outermost first. An axis of size 1 is not in the mesh."""

    dp_replicate: int = 1

    @classmethod
    def resolve(cls, hp: Hyperparameters, world_size: int) -> "ParallelDegrees":
        """The degrees that `hp` asks for on `world_size` processes.

        Raises:
            ContractError: a strategy that is not built, or degrees that do not multiply out to `world_size`.
        """
        if hp.strategy not in BUILT_STRATEGIES:
            raise ContractError(
                f"strategy: {hp.strategy!r} is not built in this version",
                f"Set strategy to one of: {', '.join(BUILT_STRATEGIES)}.",
            )
        for name in ("pp_size", "tp_size", "branch_size", "dp_shard_size"):
            if getattr(hp, name) not in (1, -1):
                raise ContractError(
                    f"{name}: is {getattr(hp, name)}, but this version replicates only (ddp)", f"Set {name} to 1."
                )
        replicate = world_size if hp.dp_replicate_size == -1 else hp.dp_replicate_size
        degrees = cls(dp_replicate=replicate)
        if degrees.product != world_size:
            raise ContractError(
                f"dp_replicate_size: the degrees ({degrees}) multiply to {degrees.product}, "
                f"but there are {world_size} processes (WORLD_SIZE)",
                f"Set dp_replicate_size to {world_size} or -1, or nproc_per_node to {degrees.product}.",
            )
        return degrees

    @property
    def axes(self) -> dict[str, int]:
        """Name and size of the axes that are in the mesh, outermost first."""
        return {field.name: size for field in fields(self) if (size := getattr(self, field.name)) > 1}

    @property
    def product(self) -> int:
        product = 1
        for field in fields(self):
            product *= getattr(self, field.name)
        return product

    def __str__(self) -> str:
        return ", ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))
