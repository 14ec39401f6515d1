"""Keep a worker on the cores near its GPU."""

import logging
import os
from pathlib import Path

import torch

logger = logging.getLogger(__name__)

_PCI_DEVICES = Path("/sys/bus/pci/devices")


def stay_near(device: torch.device, pci_devices: Path = _PCI_DEVICES) -> None:
    """Let this thread, and those that it starts, run on the cores of the GPU's NUMA node only.

    Without NUMA nodes, or where the process may use none of these cores, nothing changes.
    """
    if device.type != "cuda":
        return
    gpu = torch.cuda.get_device_properties(device)
    address = f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"
    try:
        near = _cores((pci_devices / address / "local_cpulist").read_text())
    except OSError:  # a virtual machine or container may hide it
        return
    allowed = os.sched_getaffinity(0)
    if near & allowed and not allowed <= near:
        os.sched_setaffinity(0, near & allowed)
        logger.info("GPU %s: using its %d near cores of %d", address, len(near & allowed), len(allowed))


def _cores(ranges: str) -> set[int]:
    """Return the cores of a list such as 0-3,8."""
    bounds = [part.split("-") for part in ranges.strip().split(",") if part]
    return {core for bound in bounds for core in range(int(bound[0]), int(bound[-1]) + 1)}
