"""Refuse a module whose parameters do not fit into the machine's memory, before they are allocated."""

import os
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from container.cores import memory_limit
from contracts.errors import ContractError

_BYTES = 4  # of a parameter in float32

_AnyModule = TypeVar("_AnyModule", bound=nn.Module)


def build_if_it_fits(build: Callable[[], _AnyModule], *, part: str, settings: str) -> _AnyModule:
    """Return `build()`, after the same call on the meta device has counted its parameters.

    Every process of a host builds the module on the CPU.

    Args:
        part: name of the module, for the message.
        settings: the settings that determine its size.

    Raises:
        ContractError: the parameters take more than the machine's memory.
    """
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in build().parameters())
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    needed, memory = parameters * _BYTES * processes, _memory_bytes()
    if needed > memory:
        raise ContractError(
            f"{settings}: {part} has {parameters:,} parameters, {needed / 1e9:,.0f} GB in {processes} processes, but "
            f"this machine has {memory / 1e9:,.0f} GB of memory",
            f"Lower {settings}, or take a larger machine.",
        )
    return build()


def _memory_bytes() -> int:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(machine, memory_limit() or machine)
