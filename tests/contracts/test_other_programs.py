"""Folders that other programs write into are removed completely, and their files are recognized."""

import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from contracts.other_programs import is_foreign, remove_folder


@pytest.mark.parametrize(
    ("name", "foreign"),
    [
        ("model.onnx.sagemaker-uploading", True),
        (".metadata.sagemaker-uploaded", True),
        ("._tokenizer.json", True),
        (".DS_Store", True),
        ("model.onnx", False),
        ("sagemaker-uploaded", False),
    ],
)
def test_files_of_other_programs_are_recognized_by_their_names(name: str, foreign: bool) -> None:
    assert is_foreign(Path("model") / name) == foreign


def test_a_folder_is_removed_while_another_program_puts_files_into_it(tmp_path: Path) -> None:
    folder, removed = tmp_path / "ensemble", threading.Event()
    for number in range(300):
        (folder / "seed-42" / f"{number}").mkdir(parents=True)
    inside = os.open(folder, os.O_RDONLY)  # it finds the folder under any name

    def put_files() -> None:
        for number in range(10**6):
            if removed.is_set():
                return
            with suppress(OSError):
                os.close(os.open(f"{number}.sagemaker-uploading", os.O_CREAT, dir_fd=inside))

    thread = threading.Thread(target=put_files)
    thread.start()
    while not list(folder.glob("*.sagemaker-uploading")):
        pass
    remove_folder(folder)
    assert not folder.exists()
    removed.set()
    thread.join()
    os.close(inside)


def test_files_that_appear_during_the_first_pass_are_removed_in_the_next(tmp_path: Path, monkeypatch) -> None:
    folder, rmdir, late = tmp_path / "tuning", os.rmdir, ["1", "2", "3"]
    (folder / "trial-0000").mkdir(parents=True)

    def slow_rmdir(path, **arguments):
        if late and Path(path).name.startswith("tuning"):
            (next((tmp_path / ".sagemaker-ignore").iterdir()) / f"search.json.{late.pop()}").touch()
        rmdir(path, **arguments)

    monkeypatch.setattr(os, "rmdir", slow_rmdir)
    remove_folder(folder)
    assert not late
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_folder_or_does_not_exist_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    remove_folder(tmp_path / "file")
    remove_folder(tmp_path / "gone" / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
