"""Mutations of a channel's folder: links, pipes, unusual names, missing and empty files."""

import os
import shutil
import socket
from pathlib import Path
from random import Random


def change_folder(folder: Path, rng: Random, recipe: list[str]) -> bool:
    """Change the folder; return whether it still holds every row that it held."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    name = rng.choice(sorted(_CHANGES))
    recipe.append(f"folder: {name}")
    _CHANGES[name](folder, files[0], rng)
    return name not in _REMOVES


def _move(folder: Path, file: Path, target: bytes | str) -> Path:
    path = Path(os.fsdecode(os.fsencode(folder) + b"/" + os.fsencode(target)))
    path.parent.mkdir(parents=True, exist_ok=True)
    file.rename(path)
    return path


def _suffix(file: Path) -> str:
    return file.name[file.name.index(".") :]


def _outside(folder: Path) -> Path:
    path = folder.parent.parent / "outside" / folder.name
    path.mkdir(parents=True, exist_ok=True)
    return path


def _file_link(folder: Path, file: Path, _: Random) -> None:
    target = _outside(folder) / file.name
    file.rename(target)
    file.symlink_to(target)


def _folder_link(folder: Path, file: Path, _: Random) -> None:
    target = _outside(folder)
    file.rename(target / file.name)
    (folder / "linked").symlink_to(target)


def _channel_link(folder: Path, _file: Path, _: Random) -> None:
    target = _outside(folder) / "channel"
    folder.rename(target)
    folder.symlink_to(target)


def _loop(folder: Path, *_: object) -> None:
    (folder / "loop").symlink_to(folder)


def _self_link(folder: Path, file: Path, _: Random) -> None:
    (folder / f"self{_suffix(file)}").symlink_to(folder / f"self{_suffix(file)}")


def _dangling(folder: Path, file: Path, _: Random) -> None:
    (folder / f"dangling{_suffix(file)}").symlink_to(folder / "nothing")


def _pipe(folder: Path, file: Path, rng: Random) -> None:
    os.mkfifo(folder / rng.choice((f"pipe{_suffix(file)}", "train_0")))


def _only_a_pipe(folder: Path, file: Path, _: Random) -> None:
    file.unlink()
    os.mkfifo(file)


def _linked_pipe(folder: Path, file: Path, _: Random) -> None:
    os.mkfifo(_outside(folder) / "pipe")
    (folder / f"pipe{_suffix(file)}").symlink_to(_outside(folder) / "pipe")


def _socket(folder: Path, file: Path, _: Random) -> None:
    here = os.getcwd()
    os.chdir(folder)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"s{_suffix(file)}")
    os.chdir(here)


def _odd_name(folder: Path, file: Path, rng: Random) -> None:
    suffix = _suffix(file)
    names = (
        f"a\nb{suffix}", f"it's{suffix}", f"a b{suffix}", f"%s{suffix}", f"é{suffix}", f"e\u0301{suffix}",
        f"a.b{suffix}",
        f"{'n' * (250 - len(suffix))}{suffix}", f"a\tb{suffix}", f"\u202e{suffix}", f"-rf{suffix}", f"*{suffix}",
        f"{{x}}{suffix}", suffix.upper().join(("data", "")),
    )  # fmt: skip
    _move(folder, file, rng.choice(names))


def _not_utf8(folder: Path, file: Path, rng: Random) -> None:
    suffix = os.fsencode(_suffix(file))
    _move(folder, file, rng.choice((b"d\xe9" + suffix, b"\xff\xfe/data" + suffix)))


def _other_not_utf8(folder: Path, _file: Path, rng: Random) -> None:
    path = os.fsencode(folder) + b"/" + rng.choice((b"\xe9.txt", b"\xff", b"x\xe9.md"))
    with open(path, "wb") as other:
        other.write(b"not a table")


def _bad_and_not_utf8(folder: Path, file: Path, rng: Random) -> None:
    _move(folder, file, b"d\xe9" + os.fsencode(_suffix(file))).write_bytes(b"damaged\nx,y\n")


def _subfolder(folder: Path, file: Path, rng: Random) -> None:
    _move(folder, file, rng.choice(("a/", "a/b/c/d/", "year=2026/", "a b/", "é/", "x.csv/")) + file.name)


def _hidden(folder: Path, file: Path, rng: Random) -> None:
    copy = folder / rng.choice((".hidden", "_temporary", ".ipynb_checkpoints")) / file.name
    copy.parent.mkdir()
    shutil.copy(file, copy)


def _markers(folder: Path, file: Path, _: Random) -> None:
    beside = f"._{file.name}", f".{file.name}.swp", f"{file.name}~", f"{file.name}.sagemaker-uploaded"
    for name in ("_SUCCESS", ".DS_Store", "_common_metadata", "data.manifest", "Thumbs.db", "README", *beside):
        (folder / name).write_bytes(b"x")


def _folder_with_a_files_name(folder: Path, file: Path, _: Random) -> None:
    (folder / f"folder{_suffix(file)}").mkdir()


def _empty_file(folder: Path, file: Path, rng: Random) -> None:
    (folder / f"{rng.choice('az')}{_suffix(file)}").write_bytes(b"")


def _only_an_empty_file(folder: Path, file: Path, _: Random) -> None:
    file.write_bytes(b"")


def _no_file(folder: Path, file: Path, _: Random) -> None:
    file.unlink()


def _no_folder(folder: Path, *_: object) -> None:
    shutil.rmtree(folder)


def _a_file_instead(folder: Path, *_: object) -> None:
    shutil.rmtree(folder)
    folder.write_bytes(b"order_id,label\n1,1\n")


def _other_format(folder: Path, file: Path, _: Random) -> None:
    other = ".tsv" if file.suffix != ".tsv" else ".csv"
    (folder / f"other{other}").write_bytes(b"order_id\tlabel\n1\t1\n")


def _wrong_suffix(folder: Path, file: Path, rng: Random) -> None:
    file.rename(
        folder / ("data" + rng.choice((".txt", ".csv.bz2", ".xlsx", "", ".parquet", ".csv", ".tsv", ".csv.gz")))
    )


def _many_files(folder: Path, file: Path, _: Random) -> None:
    for number in range(300):
        (folder / f"note{number:04d}.txt").write_bytes(b"")


_REMOVES = (
    "only a pipe", "bad and not utf8", "only an empty file", "no file", "no folder", "a file instead", "wrong suffix",
)  # fmt: skip
_CHANGES = {name.strip("_").replace("_", " "): change for name, change in list(globals().items()) if name in (
    "_file_link", "_folder_link", "_channel_link", "_loop", "_self_link", "_dangling", "_pipe", "_only_a_pipe",
    "_linked_pipe", "_socket", "_odd_name", "_not_utf8", "_other_not_utf8", "_bad_and_not_utf8", "_subfolder",
    "_hidden",
    "_markers", "_folder_with_a_files_name", "_empty_file", "_only_an_empty_file", "_no_file", "_no_folder",
    "_a_file_instead", "_other_format", "_wrong_suffix", "_many_files",
)}  # fmt: skip
