"""Print the bill of materials (CycloneDX) of the Debian packages that are installed; needs only dpkg and Python."""

import json
import platform
import subprocess
import sys
from typing import Any
from urllib.parse import quote

_FIELDS = ("Package", "Version", "Architecture", "source:Package", "source:Version")


def bill() -> dict[str, Any]:
    """Return the bill; the same packages give the same bill.

    Raises:
        OSError, subprocess.CalledProcessError: there is no dpkg, or it fails.
    """
    form = "\\t".join(f"${{{field}}}" for field in ("db:Status-Status", *_FIELDS)) + "\\n"
    listed = subprocess.run(
        ["dpkg-query", "--show", f"--showformat={form}"], capture_output=True, encoding="utf-8", check=True
    ).stdout
    rows = [line.split("\t") for line in listed.splitlines()]
    components = [_component(*row[1:]) for row in sorted(rows) if row[0] == "installed"]
    release = platform.freedesktop_os_release()
    system = {"type": "operating-system", "name": release["ID"], "version": release.get("VERSION_ID", "unknown")}
    head = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": system}}
    return {**head, "components": components}


def _component(name: str, version: str, architecture: str, source: str, source_version: str) -> dict[str, Any]:
    # Advisories name source packages.
    of_source = [{"name": "source", "value": source}, {"name": "source-version", "value": source_version}]
    url = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={architecture}"
    return {"type": "library", "name": name, "version": version, "purl": url, "bom-ref": url, "properties": of_source}


if __name__ == "__main__":
    json.dump(bill(), sys.stdout, indent=1)
