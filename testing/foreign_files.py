"""Files that operating systems, editors and notebooks put beside a user's."""

from pathlib import Path

_CONTENT = b"\0\5\x16\7 of another program"


def add_foreign_files(root: Path) -> list[str]:
    """Write them into `root` and every folder below it, beside each file; return their names."""
    added = set()
    files = sorted(path for path in root.rglob("*") if path.is_file())
    for folder in {root, *(parent for file in files for parent in file.parents if parent.is_relative_to(root))}:
        names = [file.name for file in files if file.parent == folder]
        foreign = [".DS_Store", "Thumbs.db", "desktop.ini", "~$table.xlsx", ".ipynb_checkpoints/config.json"]
        for name in names:
            foreign += [f"._{name}", f"__MACOSX/._{name}", f"__MACOSX/{name}", f".{name}.swp", f"{name}~"]
        for name in foreign:
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(_CONTENT)
            added.add(path.relative_to(root).as_posix())
    return sorted(added)
