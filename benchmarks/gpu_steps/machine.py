"""Describe this machine, without importing torch, and find the packages that the product lacks here."""

import os
import platform
import re
import shutil
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.gpu_steps.processes import REPOSITORY
from container.job.processes import missing_for_compile

try:
    from packaging.requirements import Requirement
except ImportError:  # before anything is installed
    from pip._vendor.packaging.requirements import Requirement

_SMI = ("name", "driver_version", "memory.total", "power.limit")


def requirements() -> list[Requirement]:
    """Return the dependencies of the product."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return [Requirement(text) for text in project["dependencies"]]


def missing_packages() -> list[str]:
    """Return the requirements that this machine does not meet, with the version that it has."""
    missing = []
    for requirement in requirements():
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            missing.append(str(requirement))
            continue
        if not requirement.specifier.contains(re.sub(r"\+.*", "", found), prereleases=True):
            missing.append(f"{requirement} (found {found})")
    return missing


def describe_machine() -> dict[str, Any]:
    names = [requirement.name for requirement in requirements()] + ["triton", "accelerate"]
    versions = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "none"
    return {
        "python": platform.python_version(),
        "system": f"{platform.platform()}, {os.cpu_count()} cores",
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "gpus": _nvidia_smi(),
        "compiler": missing_for_compile() or "found",
        "versions": versions,
    }


def _nvidia_smi() -> list[str]:
    """Return a line for each GPU: name, driver, memory, power limit."""
    if not shutil.which("nvidia-smi"):
        return []
    command = ["nvidia-smi", f"--query-gpu={','.join(_SMI)}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout.splitlines()
    except subprocess.TimeoutExpired:
        return ["nvidia-smi did not answer"]
