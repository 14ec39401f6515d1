"""Derive the workers' network settings from the devices that exist, not from the instance type."""

import fcntl
import logging
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

from container.job.hosts.topology import Topology
from contracts.errors import ContractError
from contracts.ports import check_loopback

logger = logging.getLogger(__name__)

_GLOO, _NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
_INTERFACES = Path("/sys/class/net")
_EFA_DEVICES = Path("/sys/class/infiniband_verbs")
_SIOCGIFADDR = 0x8915
_OFI_PLUGINS = ("libnccl-net.so", "libnccl-net-ofi.so")


def check_interfaces(environment: Mapping[str, str], *, num_gpus: int) -> None:
    """Raise ContractError without loopback, or if the user's variable for gloo, or for NCCL with GPUs, is wrong."""
    check_loopback()
    names = [name for _, name in socket.if_nameindex()]
    wrong = {_GLOO: [name for name in environment.get(_GLOO, "").split(",") if name and name not in names]}
    nccl = environment.get(_NCCL, "")
    if num_gpus and nccl and not nccl.startswith("^"):  # beginnings of names, or whole names after =
        wanted = [each.partition(":")[0] for each in nccl.removeprefix("=").split(",")]
        exact = nccl.startswith("=")
        found = any(name == each if exact else name.startswith(each) for each in wanted for name in names)
        wrong[_NCCL] = [] if found else wanted
    for variable, missing in wrong.items():
        if missing:
            raise ContractError(
                f"environment variable {variable}: names {', '.join(missing)}, but the network interfaces of this host "
                f"are {', '.join(names)}",
                f"Name one of them, or remove {variable}: the job finds the interface between its hosts.",
            )


def network_environment(topology: Topology, address: str) -> dict[str, str]:
    """Return environment variables for gloo, NCCL and libfabric.

    Args:
        address: this host's address on the network between the hosts.
    """
    if topology.size == 1:
        return {_GLOO: "lo"}  # no proxy, no other interface
    interface = _interface(topology.interface, address)
    variables = {_GLOO: interface} if interface else {}
    variables[_NCCL] = interface or "^docker0,lo"
    return variables | _efa_environment(_EFA_DEVICES, os.environ)


def _interface(named: str | None, address: str) -> str | None:
    """Return the interface with `address`; the one in resourceconfig.json may not exist (in local mode)."""
    by_address = next((name for _, name in socket.if_nameindex() if _address_of(name) == address), None)
    if address.startswith("127."):
        by_address = by_address or "lo"
    if named and named != by_address:
        exists = (_INTERFACES / named).exists()
        logger.info(
            f"network interface: {by_address}, which has {address}; resourceconfig.json names {named}, which "
            f"{'has another address' if exists else 'does not exist'}"
        )
        return by_address or (named if exists else None)
    return by_address


def _address_of(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            request = struct.pack("256s", interface[:15].encode())
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
        except OSError:
            return None


def _efa_environment(devices: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return libfabric's settings if the host has EFA devices and the image has NCCL's plugin for them."""
    drivers = (Path(os.path.realpath(device / "device" / "driver")).name for device in devices.glob("uverbs*"))
    if "efa" not in drivers:  # none, or InfiniBand, which NCCL uses by itself
        return {}
    folders = [folder for folder in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    folders += ["/opt/amazon/ofi-nccl/lib", "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu", "/opt/aws-ofi-nccl/lib"]
    if not any((Path(folder) / name).exists() for folder in folders for name in _OFI_PLUGINS):
        logger.warning(
            "This host has EFA devices, but the image lacks NCCL's plugin for them (aws-ofi-nccl): NCCL uses sockets. "
            "Build the image with EFA_INSTALLER (docs/image.md)."
        )
        return {}
    # Forking copies huge pages, and libfabric then refuses them or crashes.
    return {"FI_PROVIDER": "efa", "FI_EFA_USE_HUGE_PAGE": "0"}
