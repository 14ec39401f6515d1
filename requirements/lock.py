"""Writes the image's locked requirements: every package at one version, with the hash of each of its builds.

    python requirements/lock.py --cpu-wheels FOLDER_OR_PAGE_OF_LINKS

    image.txt    what the image runs; torch has the hashes of its CPU and of its CUDA builds
    cpu.txt      which of the builds a CPU image takes (pip would prefer one whose hash an index tells it)
    cuda.txt     what torch's CUDA build needs beside image.txt
    mlflow.txt   what the extra mlflow needs beside image.txt (--build-arg EXTRAS=mlflow); openvino.txt the same
    sbom.txt     the tool that lists the image's packages, used in the build alone

Versions are those of constraints.txt, with which the tests last passed. `uv` resolves twice, once for each build of
torch: what only one of them needs shows by that, not by a list of names.
"""

import argparse
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent
PYTHON, PLATFORM = "3.11", "x86_64-manylinux_2_28"
SBOM_TOOL = "cyclonedx-bom>=7,<8"
HEADS = {
    "image.txt": "What the image runs. A package with several builds has the hash of each.",
    "cpu.txt": "Beside image.txt: the build that a CPU image takes.",
    "cuda.txt": "What torch's CUDA build needs beside image.txt.",
    "mlflow.txt": "What the extra mlflow needs beside image.txt.",
    "openvino.txt": "What the extra openvino needs beside image.txt.",
    "sbom.txt": "What lists the image's packages, in the build alone.",
}

Locked = Mapping[str, frozenset[str]]  # name==version -> hashes


def main() -> int:
    """Resolve and write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu-wheels", required=True, help="folder or page of links that has torch's CPU wheel")
    options = parser.parse_args()
    project = ("pyproject.toml", "--constraint", "constraints.txt")
    cpu = resolve(*project, "--find-links", options.cpu_wheels)
    cuda = resolve(*project)
    builds = {public(name): hashes for name, hashes in cpu.items()}
    write("image.txt", {name: builds[name] | cuda.get(name, frozenset()) for name in builds})
    write("cpu.txt", {name: hashes for name, hashes in cpu.items() if name != public(name)})
    write("cuda.txt", {name: hashes for name, hashes in cuda.items() if name not in builds})
    for extra in ("mlflow", "openvino"):
        extended = resolve(*project, "--extra", extra, "--find-links", options.cpu_wheels)
        write(f"{extra}.txt", {name: hashes for name, hashes in extended.items() if public(name) not in builds})
    write("sbom.txt", resolve("-", given=SBOM_TOOL))
    return 0


def resolve(*arguments: str, given: str | None = None) -> Locked:
    """What `uv pip compile` resolves."""
    command = [
        "uv", "pip", "compile", *arguments, "--generate-hashes", "--no-header", "--no-annotate", "--quiet",
        "--python-version", PYTHON, "--python-platform", PLATFORM,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=FOLDER.parent, input=given, check=True, text=True, stdout=subprocess.PIPE)
    locked: dict[str, frozenset[str]] = {}
    for block in done.stdout.replace("\\\n", " ").splitlines():
        requirement, *hashes = block.split()
        locked[requirement] = frozenset(one.removeprefix("--hash=") for one in hashes)
    return locked


def public(requirement: str) -> str:
    """torch==2.13.0 of torch==2.13.0+cpu: builds of one version have one name."""
    return requirement.partition("+")[0]


def write(name: str, locked: Locked) -> None:
    """Write one file; pip refuses what has no hash, or another one."""
    lines = [f"# {HEADS[name]} Written by lock.py; not to be edited."]
    for requirement in sorted(locked):
        assert locked[requirement], f"{requirement} has no hash"
        lines.append(" \\\n    ".join([requirement, *(f"--hash={one}" for one in sorted(locked[requirement]))]))
    (FOLDER / name).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
