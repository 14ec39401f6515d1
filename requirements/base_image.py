"""Print a base image by digest, as the registry gives it now; --write pins it in the Dockerfile. Needs Docker."""

import argparse
import re
import subprocess
import sys
from pathlib import Path

_DOCKERFILE = Path(__file__).parents[1] / "Dockerfile"
_BASE = re.compile(r"^ARG BASE_IMAGE=(\S+)$", re.MULTILINE)
_BY_DIGEST = re.compile(r"\S+@sha256:[0-9a-f]{64}")


def by_digest(name: str) -> str:
    """Return an image by its digest, also of a name that has another one already.

    Raises:
        subprocess.CalledProcessError: the registry does not have it, or is not reachable.
    """
    command = ["docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}"]
    tag = name.partition("@")[0]
    ended = subprocess.run([*command, tag], stdout=subprocess.PIPE, encoding="utf-8", check=True)
    found = f"{tag}@{ended.stdout.strip()}"
    if not _BY_DIGEST.fullmatch(found):
        raise ValueError(f"{tag}: the registry gave no digest, but {ended.stdout.strip()!r}")
    return found


def main() -> int:
    """Return 0, or 1 with --check where the Dockerfile has no digest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("image", nargs="?", help="an image; default: that of the Dockerfile")
    parser.add_argument("--write", action="store_true", help="pin the digest in the Dockerfile")
    parser.add_argument("--check", action="store_true", help="only say whether the Dockerfile names a digest")
    options = parser.parse_args()
    text = _DOCKERFILE.read_text("utf-8")
    (present,) = _BASE.findall(text)
    if options.check:
        print(present if _BY_DIGEST.fullmatch(present) else f"{present} has no digest: run make lock-base")
        return int(not _BY_DIGEST.fullmatch(present))
    pinned = by_digest(options.image or present)
    if options.write:
        _DOCKERFILE.write_text(_BASE.sub(f"ARG BASE_IMAGE={pinned}", text), encoding="utf-8")
    print(pinned)
    return 0


if __name__ == "__main__":
    sys.exit(main())
