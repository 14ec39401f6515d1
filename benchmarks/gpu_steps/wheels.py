"""Download the packages that a bare GPU machine lacks, as wheels for its Python and platform.

The machine has Python 3.12, torch and the packages of MACHINE; it has no network, no compiler and no make.
"""

import io
import os
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

from benchmarks.gpu_steps.machine import Requirement, requirements
from benchmarks.gpu_steps.processes import REPOSITORY

# Versions that were seen there; "" where only the name was.
MACHINE = {
    "torch": "2.11.0", "triton": "3.6.0", "transformers": "5.17.0", "tokenizers": "0.23.2", "numpy": "2.5.2",
    "onnx": "1.23.1", "onnx-ir": "1.0.0", "onnxscript": "0.7.2", "onnxruntime": "1.30.0", "accelerate": "1.15.0",
    "safetensors": "0.8.0", "huggingface-hub": "1.33.0", "sentencepiece": "0.2.2",
    **dict.fromkeys((
        "pandas", "pyarrow", "scikit-learn", "scipy", "matplotlib", "tensorboard", "jinja2", "tqdm", "peft", "pyyaml",
        "pytest", "pytest-xdist", "hypothesis", "packaging", "typing-extensions", "joblib", "threadpoolctl",
        "markupsafe", "python-dateutil", "six", "ml-dtypes", "flatbuffers", "filelock", "requests",
        "psutil", "pillow", "networkx", "sympy", "regex",
    ), ""),
}  # fmt: skip
PYTHON = "3.12"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_24_x86_64", "manylinux_2_17_x86_64",
             "manylinux2014_x86_64", "manylinux1_x86_64")  # fmt: skip
MOST_BYTES = 60 << 20  # of the wheels and the checkout, which travel together
_ENVIRONMENT = {
    "python_version": PYTHON, "python_full_version": f"{PYTHON}.3", "sys_platform": "linux", "os_name": "posix",
    "platform_system": "Linux", "platform_machine": "x86_64", "implementation_name": "cpython",
    "platform_python_implementation": "CPython", "extra": "",
}  # fmt: skip


def download_wheels(folder: Path) -> int:
    """Download what the product needs and MACHINE lacks, with its own needs, and return the exit code.

    Every requirement in the wheels' metadata is met by MACHINE or by another wheel of the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()  # two versions of a package would stop the installation
    pins = constraints()
    carried: dict[str, str] = {}
    problems = []
    needed = requirements()
    while needed:
        requirement = needed.pop()
        name = canonical(requirement.name)
        if name in MACHINE or name in carried:
            found = MACHINE.get(name) or carried.get(name, "")
            if found and not requirement.specifier.contains(found, prereleases=True):
                problems.append(f"{requirement}: version {found} is there")
            continue
        wheel = _download(f"{name}=={pins[name]}" if name in pins else str(requirement), folder)
        if wheel is None:
            return 1
        metadata = _metadata(wheel)
        carried[name] = metadata["Version"]
        needed += [each for each in map(Requirement, metadata.get_all("Requires-Dist") or []) if _applies(each)]
    wheels = sum(wheel.stat().st_size for wheel in folder.glob("*.whl"))
    checkout = _checkout_bytes()
    print("\n".join(f"{name} {version}" for name, version in sorted(carried.items())))
    print(f"{wheels / 2**20:.1f} MiB of wheels, {checkout / 2**20:.1f} MiB of checkout")
    if wheels + checkout > MOST_BYTES:
        problems.append(f"{(wheels + checkout) / 2**20:.1f} MiB together; at most {MOST_BYTES >> 20} travel")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def constraints() -> dict[str, str]:
    """Return the versions of constraints.txt by canonical name."""
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if "==" in line)
    return {canonical(name.strip()): version.split(";")[0].strip() for name, version in pairs}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _download(requirement: str, folder: Path) -> Path | None:
    """Return the wheel of one package, without its needs; None, after pip's error, if there is none."""
    before = set(folder.glob("*.whl"))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--python-version", PYTHON, "--implementation", "cp", "--dest", str(folder), requirement]
    command += [option for platform in PLATFORMS for option in ("--platform", platform)]
    ended = subprocess.run(command, env={**os.environ, "PIP_CONSTRAINT": ""}, check=False)
    if ended.returncode:
        print(f"{requirement}: no wheel for Python {PYTHON} on Linux x86_64", file=sys.stderr)
        return None
    (new,) = set(folder.glob("*.whl")) - before
    return new


def _metadata(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parse(io.StringIO(archive.read(name).decode()))


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(_ENVIRONMENT)


def _checkout_bytes() -> int:
    listed = subprocess.run(["git", "-C", str(REPOSITORY), "ls-files", "-z"], capture_output=True, check=False).stdout
    files = [REPOSITORY / name for name in listed.decode().split("\0") if name]
    return sum(path.stat().st_size for path in files if path.is_file())
