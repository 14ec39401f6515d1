"""Files and folders appear complete or not at all."""

import os

import pytest

from contracts.atomic_files import AtomicFile, atomic_folder, temporary_path, write_text_atomically


def _write_and_raise(path):
    path.parent.mkdir(exist_ok=True)
    path.write_text("ha")
    raise RuntimeError


def test_a_file_has_its_name_only_when_the_block_ends(tmp_path):
    path = tmp_path / "metrics.json"
    with AtomicFile(path) as temporary:
        temporary.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"
    assert os.listdir(tmp_path) == ["metrics.json"]


def test_an_exception_leaves_the_old_file_and_no_temporary_one(tmp_path):
    path = tmp_path / "metrics.json"
    write_text_atomically(path, "old")
    with pytest.raises(RuntimeError), AtomicFile(path) as temporary:
        _write_and_raise(temporary)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["metrics.json"]


def test_a_file_has_the_rights_that_the_umask_gives(tmp_path):
    before = os.umask(0)
    try:
        write_text_atomically(tmp_path / "open", "")
    finally:
        os.umask(before)
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o666


def test_a_folder_replaces_the_old_one_when_the_block_ends(tmp_path):
    folder = tmp_path / "7"
    for name in ("old", "new"):
        with atomic_folder(folder) as temporary:
            temporary.mkdir()
            (temporary / name).touch()
            assert not (folder / name).exists()
    assert os.listdir(folder) == ["new"]
    assert os.listdir(tmp_path) == ["7"]


def test_an_exception_leaves_the_old_folder_and_no_temporary_one(tmp_path):
    folder = tmp_path / "7"
    folder.mkdir()
    with pytest.raises(RuntimeError), atomic_folder(folder) as temporary:
        _write_and_raise(temporary / "part")
    assert os.listdir(tmp_path) == ["7"]


def test_what_a_killed_process_left_of_a_folder_is_removed_first(tmp_path):
    folder = tmp_path / "7"
    (temporary_path(folder) / "left").mkdir(parents=True)
    with atomic_folder(folder) as temporary:
        temporary.mkdir()
    assert os.listdir(folder) == []
