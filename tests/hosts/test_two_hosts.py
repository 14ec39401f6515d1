"""Two hosts train together, stop together, and end together when one of them fails; each is a supervisor of its own."""

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch

from contracts import artifacts
from contracts.paths import JobPaths
from testing.jobs import NO_DROPOUT, failure_line, metrics, run_train, write_job
from testing.tiers import long_except
from testing.two_hosts import HOSTS, TwoHosts
from tests.training.test_interruptions import workers_of

pytestmark = pytest.mark.slow

SETTINGS = {**NO_DROPOUT, "nproc_per_node": 1, "batch_size": 4, "checkpoint_every_n_steps": 3}
LONG = {**SETTINGS, "max_epochs": 30, "load_ckpt": False, "early_stop_patience": 100}


@pytest.fixture
def job(tmp_path):
    made = []

    def write(**overrides):
        wait = overrides.pop("wait", 60)
        made.append(TwoHosts.write(tmp_path, overrides=overrides, wait=wait))
        return made[-1]

    yield write
    for one in made:
        one.kill()


def weights(paths):
    return torch.load(paths.model / "model.pth", weights_only=True)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One host with the same global batch."""
    paths = write_job(tmp_path_factory.mktemp("alone"), overrides={**SETTINGS, "nproc_per_node": 2})
    run_train(paths)
    return paths


@pytest.mark.parametrize(
    "strategy",
    long_except([{}], [{}, {"strategy": "fsdp"}, {"nproc_per_node": 2, "batch_size": 2, "strategy": "hsdp"}]),
)
def test_two_hosts_train_the_weights_of_one_with_the_same_global_batch(job, alone, strategy):
    pair = job(**{**SETTINGS, **strategy})
    pair.run()
    assert "2 hosts with" in pair.log(0)
    for name, value in weights(alone).items():
        torch.testing.assert_close(weights(pair.paths[0])[name], value, rtol=1e-4, atol=1e-5, msg=name)
    assert metrics(pair.paths[0])["test/loss"] == pytest.approx(metrics(alone)["test/loss"], rel=1e-4)
    # One model in the job: what the hosts' folders hold becomes one archive.
    written = [[path.name for path in own.model.rglob("*") if path.is_file()] for own in pair.paths]
    assert set(artifacts.REQUIRED_MODEL_FILES) <= set(written[0]) | {"tokenizer"}
    assert written[1] == []
    assert not (pair.paths[1].output_data / artifacts.METRICS).exists()


@pytest.mark.long
def test_every_host_holds_the_same_complete_checkpoints(job):
    pair = job(**{**SETTINGS, "strategy": "fsdp"})
    pair.run()
    first, second = (
        {path.relative_to(own.checkpoints): path.read_bytes() for path in own.checkpoints.rglob("*") if path.is_file()}
        for own in pair.paths
    )
    assert first == second
    assert any(path.name == ".metadata" for path in first)
    assert len([path for path in first if path.suffix == ".distcp"]) >= 2


@pytest.mark.long
def test_a_stop_of_one_host_stops_both_at_one_step_and_the_next_run_resumes(job, tmp_path):
    pair = job(**LONG)
    pair.start()
    pair.wait_for("step 10/")
    pair.processes[1].send_signal(signal.SIGTERM)
    assert pair.end(seconds=60) == [143, 143]
    for host in (0, 1):
        assert re.search(r"stopped on request: checkpoint epoch=\d+-step=\d+.ckpt is complete", pair.log(host))
    pair.run()
    assert "resuming from" in pair.log(0)
    paths = write_job(tmp_path / "whole", overrides={**LONG, "nproc_per_node": 2})
    run_train(paths)
    for name, value in weights(paths).items():
        torch.testing.assert_close(weights(pair.paths[0])[name], value, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.long
@pytest.mark.parametrize("host", [0, 1])
def test_a_worker_that_is_killed_is_restarted_with_those_of_the_other_host(job, host):
    pair = job(**LONG)
    pair.start()
    pair.wait_for("step 10/")
    os.kill(next(iter(workers_of(pair.processes[host]))), signal.SIGKILL)
    pair.wait_for("restart 1 of 3", host=0)
    assert pair.end() == [0, 0], pair.log(0)[-3000:]
    for one in (0, 1):
        assert f"was ended by SIGKILL: usually the machine ran out of memory [host {HOSTS[host]}]" in pair.log(one)
    assert (pair.paths[0].model / "model.pth").is_file()


@pytest.mark.long
@pytest.mark.parametrize("host", [0, 1])
@pytest.mark.parametrize("phase", ["Read ", "step 10/"])
def test_a_host_that_dies_ends_the_job_on_the_other_with_its_name(job, host, phase):
    pair = job(**LONG)
    pair.start()
    pair.wait_for(phase)
    pair.processes[host].kill()
    killed = time.monotonic()
    codes = pair.end(seconds=120)
    print(f"host {host} killed at {phase!r}: the other ended {time.monotonic() - killed:.1f} s later")
    assert codes[1 - host] == 1
    assert failure_line(pair.paths[1 - host]).startswith(f"host {HOSTS[host]} was lost")


@pytest.mark.long
def test_a_host_that_hangs_ends_the_job_on_the_other_within_two_minutes(job):
    pair = job(**LONG)
    pair.start()
    pair.wait_for("step 10/")
    hung = pair.processes[1]
    pids = [hung.pid, *descendants(hung.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert pair.processes[0].wait(timeout=120) == 1
        assert failure_line(pair.paths[0]) == f"host {HOSTS[1]} was lost: it sent nothing for 30 s"
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def descendants(pid):
    children = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*children, *(below for child in children for below in descendants(child))]


@pytest.mark.long
def test_a_host_that_never_comes_is_named(job):
    pair = job(**SETTINGS, wait=5)
    pair.start()
    pair.processes[1].kill()
    assert pair.processes[0].wait(timeout=60) == 1
    assert failure_line(pair.paths[0]).startswith(f"host {HOSTS[1]} did not connect within 5 s")


@pytest.mark.long
def test_a_failure_of_one_host_s_input_is_the_cause_on_both(job):
    pair = job(**SETTINGS)
    for file in pair.paths[1].channel("val").iterdir():
        file.write_text(file.read_text().replace("order_id", "order", 1))
    pair.run(expect=(1, 1))
    assert failure_line(pair.paths[0]) == failure_line(pair.paths[1])
    assert "order_id" in failure_line(pair.paths[0])


@pytest.mark.long
def test_hosts_that_were_given_other_rows_say_so(job):
    pair = job(**SETTINGS)
    for file in pair.paths[1].channel("train").iterdir():
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:-4]))
    pair.run(expect=(1, 1))
    assert "host 127.0.0.10 prepared other data than host 127.0.0.2" in failure_line(pair.paths[0])


@pytest.mark.long
def test_hosts_with_other_settings_say_so(job):
    pair = job(**SETTINGS)
    path = pair.paths[1].config / "hyperparameters.json"
    path.write_text(path.read_text().replace('"batch_size": "4"', '"batch_size": "8"'))
    pair.run(expect=(1, 1))
    assert failure_line(pair.paths[0]).startswith("settings: host 127.0.0.10 has")


def parts_of_table(paths, channel, count):
    """A channel's one CSV file as `count` files with a header each, whose names sort as the rows do."""
    header, *rows = (paths.channel(channel) / "data.csv").read_bytes().splitlines(keepends=True)
    cuts = [len(rows) * i // count for i in range(count + 1)]
    return {f"part-{i}.csv": b"".join([header, *rows[cuts[i] : cuts[i + 1]]]) for i in range(count)}


def prepared_rows(paths):
    """Rows, hashes of the prepared rows, and figures of every split."""
    (marker,) = paths.prepared.glob("*/prepared.json")
    found = json.loads(marker.read_text())
    summary = json.loads(marker.with_name("summary.json").read_text())
    for split in summary["splits"].values():
        del split["seconds"], split["rows_per_second"]
    return found["rows"], found["digests"], summary


def assert_trained_as(paths, whole):
    for name, value in weights(whole).items():
        torch.testing.assert_close(weights(paths)[name], value, rtol=1e-4, atol=1e-5, msg=name)
    for name, value in metrics(whole).items():
        if "/" in name and isinstance(value, float):
            assert metrics(paths)[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


@pytest.mark.long
@pytest.mark.parametrize(
    "dealt",
    [{"train": ([0, 2], [1, 3, 4])}, {"train": ([], [0, 1, 2, 3, 4]), "val": ([0, 1], None), "test": ([1], [0])}],
)
def test_sharded_channels_train_the_weights_of_one_host_with_all_files(job, alone, dealt):
    pair = job(**SETTINGS)
    for channel, hosts in dealt.items():
        parts = parts_of_table(alone, channel, 1 + max(i for own in hosts for i in own or ()))
        pair.deal(channel, parts, *(own if own is None else [f"part-{i}.csv" for i in own] for own in hosts))
    pair.run()
    assert_trained_as(pair.paths[0], alone)
    fitted = (alone.model / "preprocessing.json").read_bytes()
    assert (pair.paths[0].model / "preprocessing.json").read_bytes() == fitted
    predicted = (pair.paths[0].output_data / "test_predictions.csv").read_text().splitlines()
    whole = (alone.output_data / "test_predictions.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in predicted] == [line.split(",")[:2] for line in whole]
    for paths in pair.paths:
        assert prepared_rows(paths) == prepared_rows(alone)
        assert prepared_rows(paths)[0] == {"train": 60, "val": 24, "test": 24}
    for host in (0, 1):
        assert set(re.findall(r"channel (\w+) is sharded", pair.log(host))) == set(dealt)


@pytest.mark.long
def test_a_run_resumes_with_another_distribution_of_its_files_and_on_one_host_with_all(job, alone, tmp_path):
    pair = job(**SETTINGS)
    parts = parts_of_table(pair.paths[0], "train", 4)
    names = list(parts)
    pair.deal("train", parts, names[:1], names[1:])
    pair.run()
    pair.deal("train", parts, names[2:], names[:2])
    whole = JobPaths(shutil.copytree(alone.root, tmp_path / "whole"))
    shutil.rmtree(whole.checkpoints)
    shutil.copytree(pair.paths[0].checkpoints, whole.checkpoints)
    for paths in (*pair.paths, whole):
        path = paths.config / "hyperparameters.json"
        path.write_text(path.read_text().replace('"max_epochs": "2"', '"max_epochs": "3"'))
    pair.run()
    for host in (0, 1):
        assert "Data found prepared" in pair.log(host)
    assert "resuming from" in pair.log(0)
    assert "resuming from" in run_train(whole)
    assert_trained_as(pair.paths[0], whole)


@pytest.mark.long
def test_two_different_files_of_one_name_end_both_hosts_and_are_named(job):
    pair = job(**SETTINGS)
    parts = parts_of_table(pair.paths[0], "train", 2)
    pair.deal("train", parts, ["part-0.csv"], ["part-1.csv"])
    (pair.paths[1].channel("train") / "part-0.csv").write_bytes(parts["part-1.csv"])
    pair.run(expect=(1, 1))
    assert failure_line(pair.paths[0]) == failure_line(pair.paths[1])
    assert f"hosts {HOSTS[0]} and {HOSTS[1]} have different files named part-0.csv" in failure_line(pair.paths[0])


@pytest.fixture
def fetching(job):
    """Two hosts, of which the second is fetching from the first, for some seconds."""
    pair = job(**SETTINGS)
    pair.deal("train", parts_of_table(pair.paths[0], "train", 2), ["part-0.csv"], ["part-1.csv"])
    with (pair.paths[0].channel("train") / "large.bin").open("wb") as file:
        file.truncate(1_500_000_000)
    pair.start()
    pair.wait_for("fetching 2 files (1.5 GB)", host=1)
    return pair


@pytest.mark.long
@pytest.mark.parametrize("host", [0, 1])
def test_a_stop_while_parts_are_fetched_stops_both_and_the_next_run_continues(fetching, alone, host):
    fetching.processes[host].send_signal(signal.SIGTERM)
    assert fetching.end(seconds=60) == [143, 143]
    for one in (0, 1):
        assert "stopped on request: before training began" in fetching.log(one)
        assert not (fetching.paths[one].root / "output" / "failure").exists()
    assert not (fetching.paths[1].gathered_channel("train") / "large.bin").exists()
    fetching.run()
    assert_trained_as(fetching.paths[0], alone)


@pytest.mark.long
@pytest.mark.parametrize("host", [0, 1])
def test_a_host_that_dies_while_parts_are_fetched_ends_the_other_with_its_name(fetching, host):
    fetching.processes[host].kill()
    killed = time.monotonic()
    codes = fetching.end(seconds=120)
    print(f"host {host} killed while parts are fetched: the other ended {time.monotonic() - killed:.1f} s later")
    assert codes[1 - host] == 1
    assert failure_line(fetching.paths[1 - host]).startswith(f"host {HOSTS[host]} was lost")
    assert "fetched 1.5 GB" not in fetching.log(1)


@pytest.mark.long
def test_a_host_that_hangs_while_parts_are_fetched_ends_the_other_within_two_minutes(fetching):
    fetching.processes[0].send_signal(signal.SIGSTOP)
    assert fetching.processes[1].wait(timeout=120) == 1
    assert failure_line(fetching.paths[1]) == f"host {HOSTS[0]} was lost: it sent nothing for 30 s"
