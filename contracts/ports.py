"""Choose a TCP port for a server that another process opens later."""

import random
import socket
from contextlib import suppress

_PORTS = range(20_000, 32_768)  # below the ephemeral ports of Linux, above the ports of most services


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
