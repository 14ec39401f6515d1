import socket
from pathlib import Path

import pytest

from contracts import ports
from contracts.ports import free_port


def test_a_port_is_none_of_those_that_the_kernel_assigns():
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not first <= free_port() <= last


def test_a_port_in_use_is_not_chosen(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        monkeypatch.setattr(ports, "_PORTS", range(port, port + 1))
        with pytest.raises(OSError, match=f"no free port from {port} to {port}"):
            free_port("127.0.0.1")
