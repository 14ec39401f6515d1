"""profile=true traces steps; the log says what memory every rank holds."""

import gzip
import json
import platform

import pytest

from testing.jobs import run_python, run_train, write_job

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    paths = write_job(tmp_path_factory.mktemp("profiled"), overrides={"profile": True, "nproc_per_node": 2})
    return paths, run_train(paths)


def test_each_rank_writes_a_trace_of_whole_steps(profiled):
    paths, _ = profiled
    for rank in range(2):
        trace = json.loads(gzip.decompress((paths.output_data / f"profile/trace.rank{rank}.json.gz").read_bytes()))
        steps = {event["name"] for event in trace["traceEvents"] if event.get("name", "").startswith("ProfilerStep")}
        assert len(steps) == 3
        assert any(event.get("name") == "aten::addmm" for event in trace["traceEvents"])


def test_a_table_names_the_ten_costliest_operations(profiled):
    paths, log = profiled
    table = (paths.output_data / "profile/costliest.rank0.txt").read_text()
    operations = [line for line in table.splitlines() if "%" in line and "Self CPU %" not in line]
    assert len(operations) == 10
    assert table.splitlines()[0] in log


def test_the_memory_of_every_rank_is_logged_at_each_validation(profiled):
    _, log = profiled
    lines = [line for line in log.splitlines() if "memory in GiB" in line]
    assert len(lines) == 2
    assert all("rank 0: " in line and "rank 1: " in line for line in lines)


def test_a_run_shorter_than_the_trace_is_traced_too(tmp_path):
    paths = write_job(tmp_path, overrides={"profile": True, "max_epochs": 1, "batch_size": 60})
    run_train(paths)
    assert (paths.output_data / "profile/trace.rank0.json.gz").is_file()


def test_without_it_nothing_is_traced(tmp_path):
    paths = write_job(tmp_path)
    run_train(paths)
    assert not (paths.output_data / "profile").exists()


FREED = """
import torch
from container.training.profiling import return_freed_memory
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20
made = [torch.ones(1000 + i % 7) for i in range(30_000)]
kept = made[::100]
del made
before = resident()
return_freed_memory()
print(before - resident())
"""


@pytest.mark.skipif("glibc" not in platform.libc_ver(), reason="another C library decides for itself")
def test_fragmented_memory_of_batches_is_returned_to_the_system():
    assert float(run_python(FREED).stdout) > 50
