"""benchmarks/gpu_check.py on a CPU: every step runs, and nothing that a step does stops the check."""

import itertools
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.profiler import profile, schedule

from benchmarks.encoders import BASE, chat_lengths
from benchmarks.gpu_steps import ONE_GPU, SEVERAL_GPUS, machine
from benchmarks.gpu_steps.recorder import Recorder, Request
from benchmarks.gpu_steps.results import RESULTS, Results
from benchmarks.gpu_steps.tables import MOST_LINES
from benchmarks.gpu_steps.trace import cost, fewest_waits, read_trace
from benchmarks.gpu_steps.training_step import GROUPED, batch_lengths
from benchmarks.gpu_steps.wheels import MACHINE, canonical
from testing.jobs import REPOSITORY
from tests.gpu_check_steps import LEFT_BEHIND

TINY = ("--device", "cpu", "--tiny")


def run(*arguments, program=("-m", "benchmarks.gpu_check"), expect=0, **environment):
    ended = subprocess.run(
        [sys.executable, *program, *map(str, arguments)],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=900,  # a busy machine is no failure
        check=False,
    )
    assert ended.returncode == expect, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def ended_in_every_way(tmp_path_factory):
    """The output and the results of a check whose steps hang, crash, fail and pass."""
    out = tmp_path_factory.mktemp("ended")
    program = (
        "import sys; from benchmarks import gpu_check; from tests.gpu_check_steps import STEPS; "
        "gpu_check.steps_of = lambda _: STEPS; sys.exit(gpu_check.main())"
    )
    printed = run(*TINY, "--minutes", 9, "--out", out, program=("-c", program), expect=1)
    return printed, Results.open(out)


@pytest.mark.slow
def test_a_step_that_hangs_crashes_or_fails_is_recorded_and_the_next_one_runs(ended_in_every_way):
    _, results = ended_in_every_way
    assert {name: step.status for name, step in results.steps.items()} == {
        "hangs": "out of time",
        "crashes": "crashed (signal 11)",
        "raises": "crashed (exit code 1)",
        "differs": "failed",
        "passes": "passed",
    }
    assert results.figures("hangs") == {"before": 1}
    assert "ValueError: the cause" in results.steps["raises"].last_lines
    assert [fact["holds"] for fact in results.steps["differs"].findings.facts] == [False, False, False]


@pytest.mark.slow
def test_nothing_that_a_step_started_outlives_it(ended_in_every_way):
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [command for command in commands if LEFT_BEHIND.encode() in command]


@pytest.mark.slow
def test_the_summary_names_what_does_not_hold(ended_in_every_way):
    printed, _ = ended_in_every_way
    assert "a difference: 2.0, at most 1" in printed
    assert "a part: no error: ValueError: of a part" in printed


def test_a_torch_that_cannot_be_imported_is_the_failure_of_each_step(tmp_path):
    broken = tmp_path / "site" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise OSError('libcudart.so.13: cannot open shared object file')")
    found_first = os.pathsep.join([str(broken.parent), os.environ.get("PYTHONPATH", "")])
    run(*TINY, "--out", tmp_path / "out", "--steps", "facts", expect=1, PYTHONPATH=found_first)
    facts = Results.open(tmp_path / "out").steps["facts"]
    assert facts.status == "crashed (exit code 1)"
    assert "OSError: libcudart.so.13: cannot open shared object file" in facts.last_lines


@pytest.mark.slow
def test_without_a_gpu_the_check_names_the_way_to_run_without_one(tmp_path):
    printed = run("--out", tmp_path, expect=1, CUDA_VISIBLE_DEVICES="")
    assert printed.splitlines()[-2] == "no GPU: torch finds none"
    assert "--device cpu --tiny" in printed.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--steps", "speed,fast"), "--steps: fast is no step\nChoose from: facts, kernels"),
        (("--minutes", 0.5), "--minutes 0.5, --gpus 1: below 1"),
        (("--out", "/proc/results"), "--out: "),
        (("--table", "/nowhere"), "/nowhere/results.json: cannot be read as results of a check"),
    ],
    ids=str,
)
def test_a_bad_argument_is_named(tmp_path, arguments, said):
    assert said in run(*TINY, "--out", tmp_path, *arguments, expect=1)


def test_the_sizes_of_a_gpu_are_refused_on_a_cpu(tmp_path):
    assert "Add --tiny." in run("--device", "cpu", "--out", tmp_path, expect=1)


@pytest.mark.slow
def test_results_of_other_code_are_replaced_only_with_force(tmp_path, ended_in_every_way):
    _, other = ended_in_every_way
    other = Results(tmp_path, {**other.identity, "commit": "another"}, other.machine)
    other.put("facts", ended_in_every_way[1].steps["passes"])
    arguments = (*TINY, "--out", tmp_path, "--steps", "facts", "--skip-done")
    assert "has results of commit another, not " in run(*arguments, expect=1)
    run(*arguments, "--force")
    assert Results.open(tmp_path).figures("facts")["product_tflops"] > 0
    started = time.monotonic()
    assert "passed" in run(*arguments)
    assert time.monotonic() - started < 30, "nothing is left to run"


def test_all_missing_packages_are_named_at_once(monkeypatch):
    known = machine.version

    def version(name):
        if name in ("pydantic", "emoji"):
            raise machine.PackageNotFoundError
        return {"torch": "2.10.0+cu130", "transformers": "5.17.0+local"}.get(name) or known(name)

    monkeypatch.setattr(machine, "version", version)
    missing = machine.missing_packages()
    assert [re.split("[<>]", name)[0] for name in missing] == ["torch", "pydantic", "emoji"]
    assert "(found 2.10.0+cu130)" in missing[0]


def test_the_product_accepts_the_versions_of_the_bare_machine():
    known = [each for each in machine.requirements() if MACHINE.get(canonical(each.name))]
    assert len(known) > 5
    assert [str(each) for each in known if not each.specifier.contains(MACHINE[canonical(each.name)])] == []


def test_the_document_lists_every_step():
    text = (REPOSITORY / "docs" / "gpu.md").read_text()
    assert [step.name for step in (*ONE_GPU, *SEVERAL_GPUS) if f"| {step.name} |" not in text] == []


def event(category, name, begin, microseconds, number=None):
    arguments = {} if number is None else {"External id": number}
    return {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": microseconds, "args": arguments}


def test_the_cost_of_a_step_counts_kernels_waits_copies_and_idle_time():
    found = cost([
        event("cpu_op", "aten::mm", 0, 5, 7),
        event("cuda_runtime", "cudaLaunchKernel", 1, 2, 7),
        event("kernel", "gemm", 1000, 3000, 7),
        event("kernel", "gemm", 3000, 2000, 7),  # overlaps the first by one millisecond
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 7000, 1000),
        event("cuda_runtime", "cudaStreamSynchronize", 2, 4),
        {"ph": "M", "name": "process_name"},
    ])  # fmt: skip
    assert (found["span"], found["busy"], found["kernels"]) == (7.0, 5.0, 2)
    assert found["costliest"] == [["gemm", 2, 5.0, 1.0]]
    assert found["operations"] == {"aten::mm": 5.0}
    assert found["waits"] == {"cudaStreamSynchronize": 1}
    assert found["copies"] == {"Memcpy HtoD (Pinned -> Device)": [1, 1.0]}


def test_the_waits_of_a_job_are_those_of_its_step_without_a_capture(tmp_path):
    def write(profiled):
        profiled.export_chrome_trace(str(tmp_path / "trace.json.gz"))

    three = schedule(wait=0, warmup=1, active=3, repeat=1)
    with profile(schedule=three, on_trace_ready=write, acc_events=True) as profiled:
        for _ in range(4):
            torch.ones(9).sum()
            profiled.step()
    trace = read_trace(tmp_path / "trace.json.gz")
    steps = sorted(each["ts"] for each in trace if "ProfilerStep" in each["name"])
    for numbers, fewest in (([0, 2, 2], 0), ([0, 1, 1, 2, 2], 1)):
        waits = [event("cuda_runtime", "cudaEventSynchronize", steps[number], 1) for number in numbers]
        assert fewest_waits([*trace, *waits]) == fewest


@pytest.mark.slow
def test_every_step_runs_on_a_cpu_in_tiny_sizes(tmp_path):
    printed = run(*TINY, "--minutes", 12, "--out", tmp_path)
    results = Results.open(tmp_path)
    assert {name: step.status for name, step in results.steps.items()} == {step.name: "passed" for step in ONE_GPU}
    facts = sum(len(step.findings.facts) for step in results.steps.values())
    assert facts > 30
    summary = printed[printed.rindex("\n\n") :].splitlines()
    assert len(summary) <= MOST_LINES
    files = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert files.keys() == {RESULTS, "log.txt", "memory.json", "trace.json.gz"}
    assert max(files.values()) < 16 << 20
    assert len(json.loads((tmp_path / "memory.json").read_text())["rows"]) == 2
    table = run("--table", tmp_path)
    assert "| Hugging Face, grouped by length" in table
    assert "fsdp 2, FULL_SHARD" in table


@pytest.mark.slow
def test_the_steps_for_several_gpus_run_over_gloo(tmp_path):
    run(*TINY, "--gpus", 2, "--steps", "communicators,stops", "--minutes", 12, "--out", tmp_path)
    steps = Results.open(tmp_path).steps
    assert {step.status for step in steps.values()} == {"passed"}


def test_what_a_fork_of_a_step_records_stays_and_its_end_by_a_crash_is_a_fact(tmp_path):
    check = Recorder(Request("", "", "cpu", True, 1, "", str(tmp_path / "found.json"), "", "", 0.0))
    check.figure("before", 1)
    check.fork("works", lambda: check.figure("in a fork", 1))
    check.fork("crashes", lambda: (check.figure("then", 2), os._exit(3)))
    assert check.findings.figures.keys() == {"before", "in a fork", "then"}
    assert check.findings.facts == [
        {"fact": "crashes: its process ends with code 0", "value": 3, "holds": False},
    ]


@pytest.mark.parametrize("records", [4, 32, 128])
def test_grouped_and_shuffled_batches_have_the_same_texts_and_the_tokens_of_an_epoch(records):
    grouped, shuffled = (batch_lengths(BASE, records, grouped=grouped) for grouped in (True, False))
    assert sorted(itertools.chain(*grouped)) == sorted(itertools.chain(*shuffled))
    assert all(batch == sorted(batch) and len(batch) == records for batch in grouped)
    assert max(map(sum, shuffled)) / min(map(sum, shuffled)) < max(map(sum, grouped)) / min(map(sum, grouped))
    epoch = chat_lengths(GROUPED * records, longest=BASE.longest, random=np.random.default_rng(0))
    assert np.mean(grouped) == pytest.approx(np.mean(epoch), rel=0.03)
