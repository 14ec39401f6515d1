"""Compare a bill of materials of Debian packages with a database of advisories: OSV's all.zip of Debian. Needs dpkg.

The exit code is 1 if an installed package has an advisory that a newer version of it fixes.
"""

import argparse
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def findings(bill: dict[str, Any], database: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield source package, version, fixed version ("" where there is none) and advisory, in the database's order."""
    system = bill["metadata"]["component"]
    ecosystem = f"{system['name'].title()}:{system['version']}"
    installed = dict[str, str]()
    for component in bill["components"]:
        of_source = {each["name"]: each["value"] for each in component["properties"]}
        installed[of_source["source"]] = of_source["source-version"]
    with zipfile.ZipFile(database) as archive:
        for name in sorted(archive.namelist()):
            advisory = json.loads(archive.read(name))
            for affected in [] if advisory.get("withdrawn") else advisory.get("affected", []):
                package = affected.get("package", {})
                version = installed.get(package.get("name", ""))
                if package.get("ecosystem") == ecosystem and version is not None:
                    fixed = _fixed(version, affected.get("ranges", []))
                    if fixed is not None:
                        yield package["name"], version, fixed, advisory["id"]


def _fixed(version: str, ranges: list[dict[str, Any]]) -> str | None:
    """Return the version that fixes an installed one, "" if there is none yet; None if it is not affected."""
    for events in (each["events"] for each in ranges if each["type"] == "ECOSYSTEM"):
        began = next((event["introduced"] for event in events if "introduced" in event), "0")
        fixed = next((event["fixed"] for event in events if "fixed" in event), "")
        if (began == "0" or not _is_before(version, began)) and (not fixed or _is_before(version, fixed)):
            return fixed
    return None


def _is_before(version: str, other: str) -> bool:
    return subprocess.run(["dpkg", "--compare-versions", version, "lt", other], check=False).returncode == 0


def main() -> int:
    """Print the findings; return 1 if a newer version fixes one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bill", type=Path, help="debian.cdx.json of an image")
    parser.add_argument("database", type=Path, help="all.zip of OSV's ecosystem Debian")
    options = parser.parse_args()
    rows = list(findings(json.loads(options.bill.read_text("utf-8")), options.database))
    fixable = [row for row in rows if row[2]]
    for package, version, fixed, advisory in fixable:
        print(f"{package} {version}: {advisory}, fixed in {fixed}")
    print(f"{len(fixable)} advisories have a fix, and {len(rows) - len(fixable)} have none yet.")
    return int(bool(fixable))


if __name__ == "__main__":
    sys.exit(main())
