"""Data files of a channel: links are followed, and what cannot be read is an error with its path."""

import gzip
import logging
import os
import socket
from pathlib import Path

import pytest

from container.tables.data_files import data_files, find_data_files
from contracts.errors import ContractError
from testing.jobs import run_python


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    folder = tmp_path / "train"
    folder.mkdir()
    (folder / "a.csv").write_text("id\n1\n")
    return folder


def test_links_to_files_and_folders_are_followed(channel: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.csv").write_text("id\n2\n")
    (channel / "folder").symlink_to(tmp_path / "elsewhere")
    (channel / "c.csv").symlink_to(tmp_path / "elsewhere" / "b.csv")
    names = [str(path.relative_to(channel)) for path in find_data_files(channel)]
    assert names == ["a.csv", "c.csv", "folder/b.csv"]


@pytest.mark.parametrize(
    ("name", "content"), [("b.csv", b""), ("b.csv.gz", gzip.compress(b"", mtime=0)), ("b.parquet", b"")]
)
def test_an_empty_file_beside_others_is_ignored_and_named(channel, name, content, caplog):
    caplog.set_level(logging.INFO)
    (channel / name).write_bytes(content)
    assert find_data_files(channel) == [channel / "a.csv"]
    assert caplog.messages == [f"{channel}: ignored, because the file is empty: {name}."]


def test_the_files_of_a_channel_are_kept_if_all_are_empty(channel: Path) -> None:
    (channel / "a.csv").write_text("")
    assert find_data_files(channel) == [channel / "a.csv"]


def test_a_link_to_nothing_is_an_error(channel: Path) -> None:
    (channel / "b.csv").symlink_to("gone.csv")
    with pytest.raises(ContractError, match=r"train/b\.csv: is a link to gone\.csv, which does not exist") as caught:
        data_files(channel)
    assert "remove the link" in caught.value.fix
    with pytest.raises(ContractError, match="which does not exist"):
        find_data_files(channel, "b.csv")


@pytest.mark.parametrize("target", [".", "..", "../../train", "b.csv"])
def test_a_link_that_leads_back_is_an_error(channel: Path, target: str) -> None:
    (channel / "part").mkdir()
    (channel / "part" / "b.csv").symlink_to(target)
    with pytest.raises(
        ContractError, match=r"part/b\.csv.*(leads back to the folder|Too many levels of symbolic links)"
    ):
        data_files(channel)


def test_two_folders_that_link_to_each_other_are_an_error(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "link").symlink_to(tmp_path / other)
    with pytest.raises(ContractError, match="a/link/link: leads back to the folder"):
        data_files(tmp_path / "a")


def bind_socket(name: str) -> None:
    socket.socket(socket.AF_UNIX).bind(name)


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize(
    ("make", "kind"),
    [(os.mkfifo, "a named pipe"), (bind_socket, "a socket"), (lambda name: os.symlink("/dev/zero", name), "a device") ],
)  # fmt: skip
def test_a_pipe_a_socket_and_a_device_are_errors_and_never_opened(channel, monkeypatch, make, kind):
    monkeypatch.chdir(channel)  # the name of a socket is short
    make("b.csv")
    for find in (data_files, lambda folder: find_data_files(folder, "b.csv")):
        with pytest.raises(ContractError, match=rf"b\.csv: is {kind}, not a file"):
            find(channel)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("hidden", ["a.csv", "part", "."])
def test_what_the_jobs_user_may_not_read_is_an_error(channel: Path, hidden: str) -> None:
    (channel / "part").mkdir()
    (channel / hidden).chmod(0)
    # The other user gets the folder above the channel as its working directory: it may not search those above it.
    code = (
        "import os, sys; from pathlib import Path; from container.tables.data_files import data_files; "
        "os.setuid(65534); data_files(Path(sys.argv[1]))"
    )
    channel.parent.chmod(0o755)
    done = run_python(code, channel.name, cwd=channel.parent)
    (channel / hidden).chmod(0o755)
    assert f"ContractError: {Path(channel.name, hidden)}: cannot be read: permission denied" in done.stderr


def test_ignored_names_but_those_of_spark_are_logged_once(channel: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in (".DS_Store", "_SUCCESS", "_tmp", "Thumbs.db", "a.csv~", "~$a.csv"):
        (channel / name).touch()
    (channel / ".broken").symlink_to("gone")
    with caplog.at_level(logging.INFO):
        assert [path.name for path in find_data_files(channel)] == ["a.csv"]
    assert [record.message for record in caplog.records] == [
        f"{channel}: ignored, because the name begins with . or _, or is one of a system's files: "
        ".DS_Store, .broken, Thumbs.db, _tmp, a.csv~, ~$a.csv."
    ]


def test_a_name_that_is_not_utf8_is_refused_with_its_bytes_escaped(channel: Path) -> None:
    Path(os.fsdecode(os.fsencode(channel) + b"/caf\xe9.csv")).touch()
    with pytest.raises(ContractError) as caught:
        data_files(channel)
    assert caught.value.cause == f"{channel}/caf\\xe9.csv: the name is not UTF-8"
    caught.value.cause.encode()


def test_an_ignored_name_that_is_not_utf8_is_logged(channel: Path, caplog: pytest.LogCaptureFixture) -> None:
    Path(os.fsdecode(os.fsencode(channel) + b"/.caf\xe9")).touch()
    with caplog.at_level(logging.INFO):
        data_files(channel)
    assert ".caf\\xe9" in caplog.text


def test_a_name_that_is_too_long_is_an_error(channel: Path) -> None:
    with pytest.raises(ContractError, match="cannot be read: File name too long"):
        find_data_files(channel, "x" * 300 + ".csv")


def test_a_channel_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train").touch()
    with pytest.raises(ContractError, match="train: cannot be read: Not a directory"):
        find_data_files(tmp_path / "train")
