"""Channels that are shared out between hosts: which may be, and how each host comes to hold all of them."""

import hashlib
import json
import logging
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from container.failure import Failure
from container.hosts import gather as gather_module
from container.hosts.channels import sharded_channels
from container.hosts.control import HostTrouble
from container.hosts.gather import check_room, gather_channels
from container.hosts.parts import (
    BrokenOff,
    Held,
    Part,
    PartClient,
    PartServer,
    TransferError,
    as_json,
    from_json,
    merge_parts,
    parts_of,
)
from container.hosts.topology import Topology
from container.preprocessing.fingerprint import input_fingerprint
from container.supervisor import train
from contracts.errors import ContractError
from contracts.paths import JobPaths
from testing.jobs import write_job
from testing.table_jobs import settings
from tests.hosts.test_control import GROUPS, HOSTS, Together, resources

CONTENT = {
    "part-0.csv": b"0" * 9_000_000,  # more than two blocks
    "part-1.csv": b"one",
    "part-10.csv": b"",
    "year=2025/part-2.csv": b"two",
}


def configured(tmp_path, **channels) -> JobPaths:
    paths = JobPaths(tmp_path)
    paths.config.mkdir(parents=True, exist_ok=True)
    (paths.config / "inputdataconfig.json").write_text(json.dumps(channels))
    return paths


def kind(name="ShardedByS3Key", mode="File"):
    return {"TrainingInputMode": mode, "S3DistributionType": name, "RecordWrapperType": "None"}


def test_sharded_channels_are_the_sharded_splits_in_their_order(tmp_path):
    paths = configured(tmp_path, test=kind(), val=kind("FullyReplicated"), train=kind(), extra=kind())
    assert sharded_channels(paths, Topology(HOSTS, HOSTS[0])) == ("train", "test")


def test_a_single_host_has_all_of_a_sharded_channel(tmp_path):
    assert sharded_channels(configured(tmp_path, train=kind(), pretrained=kind()), Topology()) == ()


def test_local_mode_which_names_no_distribution_shards_nothing(tmp_path):
    paths = configured(tmp_path, train={"TrainingInputMode": "File"})
    assert sharded_channels(paths, Topology(HOSTS, HOSTS[0])) == ()
    assert sharded_channels(JobPaths(tmp_path / "none"), Topology(HOSTS, HOSTS[0])) == ()


@pytest.mark.parametrize("name", ["pretrained", "model_artifacts_input", "settings"])
def test_a_channel_whose_files_are_read_together_cannot_be_sharded(tmp_path, name):
    with pytest.raises(ContractError, match=f"channel {name}: is ShardedByS3Key over 3 hosts.*\n.*FullyReplicated"):
        sharded_channels(configured(tmp_path, **{name: kind()}), Topology(HOSTS, HOSTS[0]))


def test_a_channel_that_hosts_which_do_not_train_have_parts_of_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("INSTANCE_GROUP", "data")
    paths = resources(tmp_path, current_host="algo-1", hosts=["algo-1", "algo-2", "algo-3"], instance_groups=GROUPS)
    configured(tmp_path, train=kind())
    with pytest.raises(ContractError, match="channel train: .* algo-2, algo-3 receive parts but do not train"):
        sharded_channels(paths, Topology.read(paths))


@pytest.mark.parametrize("hosts", [("localhost",), HOSTS])
def test_a_pipe_and_an_unknown_distribution_are_refused_with_the_reason(tmp_path, hosts):
    topology = Topology(hosts, hosts[0])
    with pytest.raises(ContractError, match="channel train: .* input mode Pipe, .*reads the data twice.*\n.*FastFile"):
        sharded_channels(configured(tmp_path, train=kind(mode="Pipe")), topology)
    with pytest.raises(ContractError, match="channel val: has the distribution 'ByHash'"):
        sharded_channels(configured(tmp_path, val=kind("ByHash")), topology)
    with pytest.raises(ContractError, match=r"inputdataconfig\.json: "):
        sharded_channels(configured(tmp_path, val=3), topology)


def part(name, content=b"x", channel="train") -> Part:
    return Part(channel, name, len(content), hashlib.sha256(content).hexdigest())


def test_parts_of_all_hosts_are_merged_and_what_several_have_counts_once():
    a, b, c = part("a"), part("b"), part("a", channel="val")
    assert merge_parts({"h1": [b], "h2": [], "h3": [c, a, b]}) == [Held(a, "h3"), Held(b, "h1"), Held(c, "h3")]


def test_two_different_files_of_one_name_are_an_error_that_names_it():
    with pytest.raises(ContractError, match=r"hosts h1 and h2 have different files named a \(1 and 3 bytes, SHA-256"):
        merge_parts({"h1": [part("a")], "h2": [part("a", b"xyz")]})
    with pytest.raises(ContractError, match="a is a file on host h1, and a folder with the file a/b/c on host h2"):
        merge_parts({"h1": [part("a")], "h2": [part("a/b/c")]})


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "a/../../b", "a//b", "", "."])
def test_a_name_that_leads_out_of_its_folder_is_refused(name):
    with pytest.raises(ContractError, match="host h1 has a file named"):
        merge_parts({"h1": [part(name)]})
    with pytest.raises(ContractError, match="host h1 has a file named"):
        merge_parts({"h1": [part("a", channel=f"../{name}")]})


class Shards:
    """Three hosts, each with a root of its own in which some files of the channels lie."""

    def __init__(self, tmp_path: Path, monkeypatch) -> None:
        self._tmp_path, self._monkeypatch = tmp_path, monkeypatch
        self.paths = {host: JobPaths(tmp_path / host) for host in HOSTS}

    def deal(self, *names, channel="train", content=CONTENT) -> None:
        """Give each host the files of `names`; None is a host to which the service gave not even a folder."""
        for paths, own in zip(self.paths.values(), names):
            folder = paths.input_channel(channel)
            if folder.is_dir():
                folder.rename(self._tmp_path / f"{time.monotonic_ns()}")
            if own is None:
                continue
            folder.mkdir(parents=True)
            for name in own:
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_bytes(content[name])

    def gather(self, channels=("train",), *, absent=None, slow=None):
        """What gathering returned or raised on each host; one that is `absent` meets the others and then hangs, one
        that is `slow` says for 2 s that it reads."""
        together = Together(self._monkeypatch)

        def act(control):
            control.connect({})
            if control.topology.current == absent:
                return control.gather("never", None)
            for count in range(7 if control.topology.current == slow else 0):
                control.publish("parts moved", ["reading", count])
                time.sleep(0.3)
            try:
                return gather_channels(control, self.paths[control.topology.current], channels)
            except ContractError as error:
                control.fail(Failure.from_exception(error))
                raise

        results = together.each(act)
        together.each(lambda control: control.leave())
        return results

    def held(self, host, channel="train") -> dict[str, bytes]:
        folder = self.paths[host].gathered_channel(channel)
        found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        return {name: path.read_bytes() for name, path in found.items()}


@pytest.fixture
def shards(tmp_path, monkeypatch):
    return Shards(tmp_path, monkeypatch)


NAMES = list(CONTENT)


def test_every_host_holds_all_files_whatever_part_it_was_given(shards):
    shards.deal(NAMES[:2], [], None)
    shards.deal([NAMES[3]], NAMES[2:3], NAMES[:1], channel="val")
    results = shards.gather(("train", "val"))
    for host in HOSTS:
        assert shards.held(host) == {name: CONTENT[name] for name in NAMES[:2]}
        assert shards.held(host, "val") == {name: CONTENT[name] for name in (NAMES[0], NAMES[2], NAMES[3])}
        found = results[host]
        assert found.paths.channel("train") == shards.paths[host].gathered_channel("train")
        assert found.paths.channel("test") == shards.paths[host].input_channel("test")
        path = found.paths.channel("train") / NAMES[1]
        assert found.contents[path] == hashlib.sha256(b"one").hexdigest()
        assert sorted(entry.name for entry in path.parent.parent.iterdir()) == ["train", "val"]  # nothing half-written


def test_a_hosts_own_files_are_not_copied(shards):
    shards.deal(NAMES, [], [])
    shards.gather()
    links = [[(shards.paths[host].gathered_channel("train") / name).is_symlink() for name in NAMES] for host in HOSTS]
    assert links == [[True] * 4, [False] * 4, [False] * 4]


def test_a_file_that_every_host_has_is_not_sent_and_counts_once(shards, caplog):
    caplog.set_level(logging.INFO)
    shards.deal(NAMES, NAMES, NAMES)
    shards.gather()
    assert all(shards.held(host) == CONTENT for host in HOSTS)
    assert "fetching" not in caplog.text


def test_another_distribution_of_the_same_files_fetches_only_missing_ones(shards, caplog):
    caplog.set_level(logging.INFO)
    shards.deal(NAMES[:1], NAMES[1:], [])
    shards.gather()
    first = shards.paths[HOSTS[2]].gathered_channel("train") / NAMES[0]
    before = first.stat().st_mtime_ns
    (first.parent / "part-1.csv").write_bytes(b"eno")  # damaged since, of the right size
    (first.parent / "gone").mkdir()
    (first.parent / "gone" / "part-7.csv").write_bytes(b"of an earlier channel")
    (first.parent.parent / ".fetching").write_bytes(b"half of it")  # of a run that was killed
    caplog.clear()
    shards.deal([], NAMES[:1], NAMES[3:] + NAMES[1:3])
    shards.gather()
    assert all(shards.held(host) == CONTENT for host in HOSTS)
    assert first.stat().st_mtime_ns == before
    assert not (first.parent / "gone").exists()
    assert [path.name for path in first.parent.parent.iterdir()] == ["train"]
    fetches = [record.getMessage() for record in caplog.records if record.getMessage().startswith("fetching")]
    # The first host had 9 MB by itself, now of the second; the second had the three small ones, now of the third.
    assert sorted(fetches) == [
        f"fetching 1 file (9.0 MB) from {HOSTS[1]}",
        f"fetching 3 files (6 bytes) from {HOSTS[2]}",
    ]


def test_other_content_under_an_old_name_replaces_the_copy(shards):
    shards.deal(NAMES, [], [])
    shards.gather()
    changed = {**CONTENT, "part-1.csv": b"ONE"}
    shards.deal([], NAMES, [], content=changed)
    shards.gather()
    assert all(shards.held(host) == changed for host in HOSTS)


def test_a_disk_that_fills_up_while_parts_are_fetched_is_named_and_leaves_no_half_file(shards, monkeypatch):
    shards.deal(NAMES, [], [])
    gathered = shards.paths[HOSTS[2]].gathered_channel("train").parent
    gathered.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(gathered)], check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    monkeypatch.setattr(gather_module, "check_room", lambda *_: None)  # what fills the disk may come afterwards
    try:
        cause = shards.gather()[HOSTS[2]].cause
        assert cause == f"{gathered}: the disk is full: files of other hosts could not be fetched"
        assert [path.name for path in gathered.rglob("*") if path.is_file()] == []
    finally:
        subprocess.run(["umount", str(gathered)], check=True)


def test_a_channel_that_no_host_got_a_file_of_is_named(shards):
    shards.deal(NAMES, [], [])
    shards.deal([], [], None, channel="val")
    for result in shards.gather(("train", "val")).values():
        cause = result.failure.cause if isinstance(result, HostTrouble) else result.cause
        assert cause.startswith("channel val: is sharded, but none of the 3 hosts received a file of it")


def test_different_files_of_one_name_end_all_hosts_with_the_same_cause(shards):
    shards.deal(["part-1.csv"], [], [])
    folder = shards.paths[HOSTS[2]].input_channel("train")
    (folder / "part-1.csv").write_bytes(b"another")
    results = shards.gather()
    for result in results.values():  # each finds it by itself, or hears of it first
        cause = result.failure.cause if isinstance(result, HostTrouble) else result.cause
        assert cause.startswith(f"channel train: hosts {HOSTS[0]} and {HOSTS[2]} have different files named part-1.csv")


def test_a_host_that_is_alive_and_never_comes_to_the_exchange_is_named_on_all_hosts(shards, monkeypatch):
    monkeypatch.setattr(gather_module, "STUCK", 1.0)
    shards.deal(NAMES[:1], NAMES[1:], [])
    results = shards.gather(absent=HOSTS[1])
    for host in (HOSTS[0], HOSTS[2]):
        cause = results[host].failure.cause if isinstance(results[host], HostTrouble) else results[host].cause
        stuck = f"host {HOSTS[1]} is connected, but has read and fetched nothing of the sharded channels for 1 s"
        assert cause == stuck


def test_a_host_that_takes_long_but_moves_on_is_waited_for(shards, monkeypatch):
    monkeypatch.setattr(gather_module, "STUCK", 1.0)
    shards.deal(NAMES[:1], NAMES[1:], [])
    results = shards.gather(slow=HOSTS[1])
    assert not any(isinstance(result, BaseException) for result in results.values())
    assert all(shards.held(host) == CONTENT for host in HOSTS)


def test_too_little_disk_is_said_before_anything_is_fetched(tmp_path):
    with pytest.raises(ContractError, match=r"take 1000\.0 PB|take 1000000\.0 TB.*\n.*VolumeSizeInGB"):
        check_room(tmp_path, 10**18)
    check_room(tmp_path, 0)


def test_a_file_that_cannot_be_read_is_an_error_and_no_host_misses_it_silently(tmp_path):
    (tmp_path / "b.csv").symlink_to("gone.csv")
    with pytest.raises(ContractError, match=r"b\.csv: is a link to gone\.csv, which does not exist"):
        parts_of("train", tmp_path, on_bytes=lambda _: None)


@pytest.fixture
def served(tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    for name in NAMES[:3]:
        (folder / name).write_bytes(CONTENT[name])
    own = parts_of("train", folder, on_bytes=lambda _: None)
    server = PartServer("127.0.0.1", own)
    yield server, folder, list(own)
    server.close()


def fetch(server, one, tmp_path, *, token=None):
    with PartClient("127.0.0.1", server.port, token or server.token) as client:
        client.fetch(one, tmp_path / "target", temporary=tmp_path / "temporary", on_bytes=lambda _: None)


def left(tmp_path):
    return sorted(path.name for path in tmp_path.iterdir() if path.name != "own")


def test_a_request_with_a_wrong_token_or_for_an_unknown_part_gets_no_data(served, tmp_path):
    server, _, parts = served
    with pytest.raises(BrokenOff, match="ended before its first byte"):
        fetch(server, parts[0], tmp_path, token="0" * 32)
    for line in (b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b'{"token": 1}\n'):
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as stranger:
            stranger.sendall(line)
            assert stranger.recv(100) == b""
    with pytest.raises(BrokenOff, match="ended before its first byte"):
        fetch(server, part("../own/part-1.csv", b"one"), tmp_path)
    assert left(tmp_path) == []
    fetch(server, parts[1], tmp_path)
    assert left(tmp_path) == ["target"]


def test_a_file_that_changed_shrank_or_went_since_it_was_hashed_is_not_taken(served, tmp_path):
    server, folder, parts = served
    (folder / "part-1.csv").write_bytes(b"eno")
    with pytest.raises(TransferError, match="its content has changed"):
        fetch(server, parts[1], tmp_path)
    os.truncate(folder / "part-0.csv", 5_000_000)
    with pytest.raises(BrokenOff, match="the connection ended after 5000000 of 9000000 bytes"):
        fetch(server, parts[0], tmp_path)
    (folder / "part-10.csv").unlink()
    with pytest.raises(TransferError, match="that host cannot read it: .*No such file"):
        fetch(server, parts[2], tmp_path)
    assert left(tmp_path) == []


def test_a_host_that_cannot_be_reached_is_named_with_its_address(served, tmp_path):
    server, _, parts = served
    server.close()
    with pytest.raises(BrokenOff, match=r"127\.0\.0\.1:\d+ cannot be reached: .*refused"):
        fetch(server, parts[0], tmp_path)


def test_parts_are_equal_after_a_round_trip_through_json():
    parts = [part("a"), part("b/ü 😀.csv")]
    assert from_json(json.loads(json.dumps(as_json(parts)))) == parts


def test_prepared_data_of_known_content_does_not_depend_on_the_files_times(tmp_path):
    paths = JobPaths(tmp_path)
    file = paths.channel("train") / "a.csv"
    file.parent.mkdir(parents=True)
    file.write_text("x")
    hp = settings()

    def name(**contents):
        by_path = {paths.channel("train") / f"{stem}.csv": digest for stem, digest in contents.items()}
        return input_fingerprint(paths, hp, files={"train": [file]}, encoders={}, contents=by_path)

    known, unknown = name(a="1"), name()
    os.utime(file, (0, 0))
    assert name(a="1") == known
    assert name(a="2") != known
    assert name() != unknown


def test_a_search_begins_only_if_every_host_has_all_rows(tmp_path, monkeypatch):
    monkeypatch.setenv("INSTANCE_GROUP", "data")
    resources(tmp_path, current_host="algo-1", hosts=["algo-1", "algo-2", "algo-3"], instance_groups=GROUPS)
    paths = write_job(tmp_path, overrides={"tuning": {"trials": 1}})
    configured(tmp_path, train=kind())
    assert train(paths) != 0
    assert "channel train: " in (tmp_path / "output" / "failure").read_text()
    assert not paths.tuning.exists()
