"""Cores are those of affinity, quota and share, in every process; OMP_NUM_THREADS means what torch reads."""

import os
import subprocess
import sys

import pytest

from container import cores
from container.cores import CORES, available_cores, cpu_quota, given_threads, memory_limit, share_of_cores, threads_of


@pytest.fixture
def machine(monkeypatch):
    """A machine with 8 cores, and a process that nobody has limited."""
    for name in (CORES, "OMP_NUM_THREADS", "TRAINER_OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(cores, "cpu_quota", lambda: None)
    return monkeypatch


@pytest.mark.parametrize(
    ("own", "files", "quota", "memory"),
    [
        ("0::/", {"cpu.max": "50000 100000", "memory.max": "1000"}, 0.5, 1000),
        ("0::/", {"cpu.max": "max 100000", "memory.max": "max"}, None, None),
        ("0::/a/b", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000", "a/memory.max": "7"}, 1.5, 7),
        ("0::/a/b", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "200000 100000"}, 2.0, None),
        ("4:cpu,cpuacct:/a", {"cpu,cpuacct/a/cpu.cfs_quota_us": "25000"}, 0.25, None),
        ("4:cpuacct,cpu:/host", {"cpu/cpu.cfs_quota_us": "400000"}, 4.0, None),
        ("5:memory:/", {"memory/memory.limit_in_bytes": "9"}, None, 9),
        ("4:cpu:/\n0::/", {"cpu/cpu.cfs_quota_us": "-1", "unified/cpu.max": "max 100000"}, None, None),
        ("4:cpu:/", {"cpu/cpu.cfs_quota_us": "30000", "cpu/cpu.cfs_period_us": "10000"}, 3.0, None),
        ("", {}, None, None),
    ],
)  # fmt: skip
def test_a_quota_is_the_least_of_the_control_groups_of_either_version(tmp_path, own, files, quota, memory):
    (tmp_path / "own").write_text(f"{own}\n")
    for name, content in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(f"{content}\n")
    assert cpu_quota(tmp_path / "groups", tmp_path / "own") == quota
    assert memory_limit(tmp_path / "groups", tmp_path / "own") == memory


@pytest.mark.parametrize(("quota", "expected"), [(None, 8), (0.5, 1), (1.5, 2), (3.0, 3), (99.0, 8)])
def test_cores_are_at_most_the_quota(machine, quota, expected):
    machine.setattr(cores, "cpu_quota", lambda: quota)
    assert available_cores() == expected


def test_processes_side_by_side_share_the_cores_also_when_they_start_others(machine):
    machine.setenv(CORES, share_of_cores(2)[CORES])
    assert available_cores() == 4
    assert share_of_cores(2) == {"OMP_NUM_THREADS": "2", CORES: "2"}
    assert share_of_cores(16) == {"OMP_NUM_THREADS": "1", CORES: "1"}


def test_what_the_user_set_reaches_every_process_and_a_share_is_not_taken_for_it(machine):
    machine.setenv("OMP_NUM_THREADS", "3")
    assert given_threads({**os.environ, **share_of_cores(4)}) == 3
    assert share_of_cores(4)["OMP_NUM_THREADS"] == "3"
    machine.delenv("OMP_NUM_THREADS")
    assert given_threads({**os.environ, **share_of_cores(4)}) is None


# The number that torch takes; None: its own default.
SPELLINGS: dict[str, int | None] = {
    "2,1": 2,
    "1,2": 1,
    " 1 ": 1,
    "01": 1,
    "+3": 3,
    "03": 3,
    "2x": 2,
    "0": None,
    "-2": None,
    "two": None,
    "999999999999": None,
    "": None,
}


@pytest.mark.parametrize(("text", "number"), SPELLINGS.items())
def test_a_number_of_threads_is_read_as_torch_reads_it(text, number):
    assert given_threads({"OMP_NUM_THREADS": text}) == number


@pytest.mark.slow
@pytest.mark.parametrize("text", ["1,2", " 1 ", "01"])
def test_torch_reads_it_so(text):
    program = "import torch; print(torch.get_num_threads())"
    found = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "OMP_NUM_THREADS": text}, capture_output=True, check=True
    )
    assert int(found.stdout) == SPELLINGS[text]


def test_a_small_fit_has_one_thread_and_a_large_one_those_of_the_process(machine):
    assert threads_of(1500 * 20) == 1
    assert threads_of(5_000_000) == 2
    assert threads_of(10**9) == 8
    machine.setenv("OMP_NUM_THREADS", "3")
    assert threads_of(10**9) == 3
