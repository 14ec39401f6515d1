"""Check that this machine can connect to itself, and choose a port for a server that another process opens."""

import random
import socket
from contextlib import suppress

from contracts.errors import ContractError

LOOPBACK = "127.0.0.1"  # an address: no name has to resolve
_PORTS = range(20_000, 32_768)  # below the ephemeral ports of Linux, above the ports of most services


def check_loopback() -> None:
    """Raise ContractError where the processes of a job cannot connect to each other, for which torch would wait."""
    try:
        with socket.create_server((LOOPBACK, 0)) as server, socket.create_connection(server.getsockname(), timeout=5):
            pass
    except OSError as error:
        raise ContractError(
            f"{LOOPBACK}: this machine cannot connect to itself: {error}",
            "Set its loopback interface up: ip link set lo up",
        ) from error


def free_port(address: str = "") -> int:
    """Return a free port that the kernel assigns to no outgoing connection: the server may open it seconds later.

    Args:
        address: of the server; all of the host's if empty.

    Raises:
        OSError: no port of the range is free.
    """
    for port in random.sample(_PORTS, len(_PORTS)):
        with suppress(OSError), socket.create_server((address, port)):
            return port
    raise OSError(f"no free port from {_PORTS.start} to {_PORTS.stop - 1}")
