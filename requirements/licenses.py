"""Write requirements/LICENSES.md: the licence of every Python package in the image, as its metadata names it.

python requirements/licenses.py
"""

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

FOLDER = Path(__file__).parent
HEAD = """# Licences

The project is licensed under Apache-2.0 (LICENSE). The image contains its base image and the Python packages below.
With ACCELERATOR=cuda, it also contains NVIDIA's libraries of requirements/cuda.txt under NVIDIA's own terms.
`python requirements/licenses.py` writes this page.

| package | version | licence |
| -- | -- | -- |
"""


def license_of(name: str) -> str:
    """Return the licence that the metadata of an installed package names, at most 80 characters."""
    try:
        metadata = distribution(name).metadata
    except PackageNotFoundError:
        return "not installed here"
    classifiers = [
        one.rpartition(" :: ")[2] for one in metadata.get_all("Classifier") or [] if one.startswith("License ::")
    ]
    text = metadata.get("License-Expression") or ", ".join(classifiers) or (metadata.get("License") or "").strip()
    return text.splitlines()[0][:80].strip() if text else "see its files"


def main() -> None:
    pins = re.findall(r"^([\w.-]+)==([\w.+]+)", (FOLDER / "image.txt").read_text(), re.MULTILINE)
    rows = "".join(f"| {name} | {version} | {license_of(name)} |\n" for name, version in pins)
    (FOLDER / "LICENSES.md").write_text(HEAD + rows)


if __name__ == "__main__":
    main()
