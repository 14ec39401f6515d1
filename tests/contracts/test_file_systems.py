"""What some file systems refuse: hygiene goes on without it, the rest is named."""

import errno
import fcntl
import os
import shutil
from functools import partial

import pytest
import torch

from contracts.errors import ContractError
from contracts.file_systems import alone_in, copy_folder, link_folder, link_or_copy, move, naming_full_disk, sync_folder
from contracts.other_programs import remove_folder
from testing.faults.shim import sitecustomize


@pytest.fixture
def refuse(monkeypatch):
    """Return a function that lets a call raise an error of the system."""
    return partial(sitecustomize.refuse, replace=monkeypatch.setattr)


@pytest.fixture
def other_device(refuse):
    """Let a rename to another folder fail, as over devices."""
    for name in ("rename", "replace"):
        refuse(os, name, errno.EXDEV, when=sitecustomize.leaves_folder)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_a_folder_that_cannot_be_synced_is_no_error(tmp_path, refuse, number):
    refuse(os, "fsync", number)
    sync_folder(tmp_path)


def test_a_disk_that_fails_while_a_folder_is_synced_is_an_error(tmp_path, refuse):
    refuse(os, "fsync", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(tmp_path)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_costs_a_warning_that_names_the_call(tmp_path, refuse, caplog, number):
    refuse(fcntl, "flock", number)
    with alone_in(tmp_path / "run", seconds=0):
        assert f"{tmp_path / 'run' / '.lock'}: flock failed" in caplog.text


def test_a_folder_in_use_is_an_error_only_where_another_process_has_the_lock(tmp_path):
    busy = ContractError("in use")
    with alone_in(tmp_path), pytest.raises(ContractError, match="in use"), alone_in(tmp_path, seconds=0.2, busy=busy):
        pass
    with alone_in(tmp_path, seconds=0, busy=busy):
        pass


def _tree(folder):
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file").write_text("content")
    return folder


def test_what_is_moved_over_devices_is_copied_and_gone(tmp_path, other_device):
    (tmp_path / "there").mkdir()
    move(_tree(tmp_path / "here" / "folder"), tmp_path / "there" / "folder")
    move(tmp_path / "there" / "folder" / "inner" / "file", tmp_path / "there" / "file")
    assert (tmp_path / "there" / "file").read_text() == "content"
    assert sorted(os.listdir(tmp_path / "there")) == ["file", "folder"]
    assert not (tmp_path / "here" / "folder").exists()


def test_a_copy_over_devices_that_fails_leaves_the_target_as_it_was(tmp_path, other_device, monkeypatch):
    def copy_a_part(_, target):
        target.write_text("ne")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", copy_a_part)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("old")
    (tmp_path / "new").write_text("new")
    with pytest.raises(OSError, match="No space"):
        move(tmp_path / "new", tmp_path / "there" / "file")
    assert (tmp_path / "there" / "file").read_text() == "old"
    assert os.listdir(tmp_path / "there") == ["file"]
    assert (tmp_path / "new").read_text() == "new"


def test_a_folder_that_cannot_be_renamed_is_removed(tmp_path, other_device):
    remove_folder(_tree(tmp_path / "folder"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("calls", [("link",), ("link", "chmod", "utime")])
def test_files_are_copied_where_links_and_permissions_are_refused(tmp_path, refuse, calls):
    source = _tree(tmp_path / "source")
    for call in calls:
        refuse(os, call, errno.EPERM)
    link_or_copy(source / "inner" / "file", tmp_path / "file")
    copy_folder(source, tmp_path / "copy")
    assert (tmp_path / "file").read_text() == (tmp_path / "copy" / "inner" / "file").read_text() == "content"


def test_a_link_that_is_needed_and_refused_is_named(tmp_path, refuse):
    refuse(os, "symlink", errno.EPERM)
    with pytest.raises(ContractError, match="link: the file system refuses symbolic links: symlink: Operation not"):
        link_folder(tmp_path, tmp_path / "link")


@pytest.mark.parametrize("buffering", [-1, 0])
def test_a_full_disk_is_named_with_its_space_and_what_is_needed(tmp_path, buffering):
    words = r": the disk is full: [0-9.,]+ MB of [0-9.,]+ MB are free. It needs more."
    named = pytest.raises(ContractError, match=words)
    with named as raised, naming_full_disk(tmp_path, needs="It needs more."), open("/dev/full", "wb", buffering) as out:
        torch.save(torch.zeros(1 << 16), out)
    assert raised.value.cause.startswith(str(tmp_path))


def test_a_full_disk_is_named_where_torch_opens_the_file(tmp_path):
    with pytest.raises(ContractError, match="the disk is full"), naming_full_disk(tmp_path):
        torch.save(torch.zeros(1 << 16), "/dev/full")


def test_of_several_disks_the_one_with_the_least_space_is_named(tmp_path, monkeypatch):
    usage = {tmp_path: 5, tmp_path.parent: 3}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 1, usage[path]))
    with pytest.raises(ContractError, match=f"^{tmp_path.parent}: the"), naming_full_disk(*usage):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")
