"""Measure whole jobs as a user runs them: alone, beside a busy process, on one core and under a quota of half a core.

Each job runs from the start of its interpreter to its report, without OMP_NUM_THREADS. The job of an earlier version
(--before) takes turns with today's; without one, its place is taken by today's with as many threads as cores.
"""

import argparse
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from threadpoolctl import threadpool_limits

from benchmarks.printing import print_machine, print_table
from benchmarks.review_data import ONE_TEXT, REPOSITORY, lay_out_job, read_reviews, require_minilm
from benchmarks.serving import train_to_serve
from benchmarks.serving_threads import measure_server
from container.cores import available_cores
from container.parallel.threads import ThreadChoice

_ROWS = 1500
_MINILM_ROWS = {"train": 1000, "val": 200, "test": 200}
_CGROUPS = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")  # of version 1, of version 2
_SPIN = "while True: pass"
_PHASE = r"{} ([\d.]+) s"
_RATES = re.compile(r"threads of training: (\d+) of \d+ cores; tokens/s: (.*)")
_STEPS = 1000
_FITS = ((1_200, 30), (10_000, 50), (40_000, 50), (100_000, 50), (200_000, 100))


@dataclass(frozen=True)
class Version:
    """A version of the product.

    Attributes:
        code: the folder with its packages.
        all_cores: whether its jobs get OMP_NUM_THREADS=number of cores.
    """

    name: str
    code: Path
    all_cores: bool = False

    def run(self, command: Sequence[str], *, wrapper: Sequence[str] = ()) -> None:
        """Run `python -m container` to its end; its output goes to the file log.txt in the working directory."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "TRAINER_"))}
        environment["PYTHONPATH"] = str(self.code)
        if self.all_cores:
            environment["OMP_NUM_THREADS"] = str(available_cores())
        with open("log.txt", "w", encoding="utf-8") as log:
            done = subprocess.run(
                [*wrapper, sys.executable, "-m", "container", *command],
                env=environment, stdout=log, stderr=subprocess.STDOUT, check=False,
            )  # fmt: skip
        if done.returncode:
            sys.exit(f"{self.name} ended with exit code {done.returncode}:\n{Path('log.txt').read_text()[-2000:]}")


@dataclass(frozen=True)
class Times:
    """The seconds of a job and of its phases, and the line with the measured threads."""

    whole: float
    training: float
    companion: float
    threads: str = ""


@contextmanager
def beside_a_busy_process() -> Iterator[Sequence[str]]:
    """Keep one core busy; yield the prefix of a job's command."""
    process = subprocess.Popen([sys.executable, "-c", _SPIN])
    try:
        yield ()
    finally:
        process.kill()
        process.wait()


@contextmanager
def quota(cpus: float) -> Iterator[Sequence[str] | None]:
    """Make a control group with a quota; yield the prefix of a job's command, or None where the machine allows none."""
    folder = next((each / f"bench-{os.getpid()}" for each in _CGROUPS if each.is_dir()), None)
    try:
        assert folder is not None
        folder.mkdir()
        period = 100_000
        if (folder / "cpu.cfs_quota_us").exists():
            (folder / "cpu.cfs_quota_us").write_text(str(int(cpus * period)))
        else:
            (folder / "cpu.max").write_text(f"{int(cpus * period)} {period}")
    except (OSError, AssertionError):
        yield None
        return
    try:
        yield ("sh", "-c", f'echo $$ > {folder}/cgroup.procs; exec "$@"', "sh")
    finally:
        folder.rmdir()


@contextmanager
def alone() -> Iterator[Sequence[str]]:
    yield ()


@contextmanager
def on_one_core() -> Iterator[Sequence[str]]:
    yield ("taskset", "-c", "0")


CONDITIONS = {
    "quiet": alone, "beside a busy process": beside_a_busy_process, "on one core": on_one_core,
    "half a core (quota)": lambda: quota(0.5),
}  # fmt: skip


def main() -> int:
    arguments = _arguments()
    now = Version("today", REPOSITORY)
    before = Version("before", arguments.before) if arguments.before else replace(now, name="all cores", all_cores=True)
    print_machine()
    print(f"command: {' '.join(sys.argv)}")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        jobs = {"README's job": _readme_job(now), "MiniLM, 1,000 reviews": _minilm_job()}
        if "jobs" in arguments.parts:
            _measure_jobs(jobs, [before, now], conditions=arguments.conditions, rounds=arguments.rounds)
        if "machines" in arguments.parts:
            _simulate(jobs, now)
        if "fits" in arguments.parts:
            _measure_fits()
        if "serving" in arguments.parts:
            now.run(["train", "--root", str(jobs["README's job"])])
            minilm = Path("served").absolute()
            train_to_serve(minilm, require_minilm())
            measure_server({"small encoder": jobs["README's job"], "MiniLM": minilm})
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure whole jobs by threads, and the server.")
    parser.add_argument("--before", type=Path, help="a checkout of an earlier version, to compare with")
    parser.add_argument("--rounds", type=int, default=2)
    parts = ("jobs", "machines", "fits", "serving")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=tuple(CONDITIONS))
    return parser.parse_args()


def _readme_job(version: Version) -> Path:
    version.run(["load-data", "--generate-rows", str(_ROWS), "--root", "raw"])
    shutil.copy("raw/processing/output/data/part-00000.csv", "claims.csv")
    version.run(["init", "claims.csv", "--label", "label", "--root", "readme"])
    return Path("readme").absolute()


def _minilm_job() -> Path:
    tables, _ = read_reviews(generated=False, generated_rows=2 * sum(_MINILM_ROWS.values()))
    settings = {**ONE_TEXT, "tokenizer": str(require_minilm()), "max_epochs": 1, "batch_size": 32}
    cut = {split: tables[split].slice(0, rows) for split, rows in _MINILM_ROWS.items()}
    root = Path("minilm").absolute()
    lay_out_job(root, cut, settings)
    return root


def _train(version: Version, job: Path, *, wrapper: Sequence[str]) -> Times:
    for results in ("model", "output", "checkpoints", "prepared"):
        shutil.rmtree(job / results, ignore_errors=True)
    began = time.monotonic()
    version.run(["train", "--root", str(job)], wrapper=wrapper)
    whole, log = time.monotonic() - began, Path("log.txt").read_text()
    phases = log.split("time of each phase:")[-1]
    training, companion = (re.search(_PHASE.format(name), phases) for name in ("train", "companion"))
    threads = _RATES.search(log)
    return Times(
        whole,
        float(training[1]) if training else 0.0,
        float(companion[1]) if companion else 0.0,
        threads[0] if threads else "",
    )


def _measure_jobs(
    jobs: Mapping[str, Path], versions: Sequence[Version], *, conditions: Sequence[str], rounds: int
) -> None:
    for name, job in jobs.items():
        rows = []
        for condition in conditions:
            if name != next(iter(jobs)) and condition not in ("quiet", "beside a busy process"):
                continue
            times: dict[str, list[Times]] = {version.name: [] for version in versions}
            for turn in range(rounds):
                for version in versions[:: 1 if turn % 2 == 0 else -1]:
                    with CONDITIONS[condition]() as wrapper:
                        if wrapper is None:
                            print(f"{condition}: this machine allows no control group with a quota", flush=True)
                            break
                        times[version.name].append(_train(version, job, wrapper=wrapper))
                        print(condition, version.name, times[version.name][-1], flush=True)
            if not all(times.values()):
                continue
            middle = {key: median(each.whole for each in of) for key, of in times.items()}
            base = next(iter(middle.values()))
            for key, of in times.items():
                each = ", ".join(f"{one.whole:.0f}" for one in of)
                parts = [f"{median(getattr(one, part) for one in of):.1f} s" for part in ("training", "companion")]
                rows.append([condition, key, f"{middle[key]:.0f} s", each, *parts, f"{middle[key] / base:.2f}x"])
        columns = ["condition", "version", "whole job", "each", "training", "companion", f"ratio to {versions[0].name}"]
        print_table(f"{name}, {available_cores()} cores", columns, rows)


def _measure_fits() -> None:
    """Print the time of boosted trees with one thread and with all cores, by the numbers that a fit reads."""
    rows, generator = [], np.random.default_rng(0)
    for records, features in _FITS:
        values = generator.normal(size=(records, features)).astype(np.float32)
        labels = (values[:, 0] + generator.normal(size=records) > 0).astype(int)
        for condition in ("quiet", "beside a busy process"):
            seconds = {}
            for threads in (1, available_cores()):
                with CONDITIONS[condition](), threadpool_limits(threads):
                    began = time.monotonic()
                    HistGradientBoostingClassifier(max_iter=50, early_stopping=False).fit(values, labels)
                    seconds[threads] = time.monotonic() - began
            one, all_cores = seconds.values()
            times = f"{one:.2f} s", f"{all_cores:.2f} s", f"{all_cores / one:.2f}x"
            rows.append([f"{records:,} x {features}", f"{values.size:,}", condition, *times])
            print(*rows[-1], flush=True)
    columns = ["rows x features", "numbers", "condition", "1 thread", f"{available_cores()} threads", "ratio"]
    print_table("A fit of 50 boosted trees by its threads", columns, rows)


def _simulate(jobs: Mapping[str, Path], version: Version) -> None:
    """Print what both rules choose on more cores, by two models of what two threads cost here.

    A step takes T1 seconds with one thread and T2 with two, L = T2 - T1 / 2 longer than half of it. barriers: each
    further thread adds L, because threads wait for each other. serial: a part of the step does not become shorter. A
    machine lies between them.
    """
    rows = []
    for name, job in jobs.items():
        line = _train(version, job, wrapper=()).threads
        rates = {int(n): float(rate.replace(",", "")) for rate, n in re.findall(r"([\d,]+) with (\d+)", line)}
        if not {1, 2} <= rates.keys():
            print(f"{name}: no measurement with one and two threads: {line!r}")
            continue
        one = 1 / rates[1]
        lost = max(0.0, 1 / rates[2] - one / 2)
        models: dict[str, Callable[[int], float]] = {
            "barriers": lambda n, one=one, lost=lost: one / n + lost * (n - 1),
            "serial": lambda n, one=one, lost=lost: min(one, 2 * lost) + max(0.0, one - 2 * lost) / n,
        }
        for (model, seconds), cores in itertools.product(models.items(), (2, 16, 96)):
            choice = ThreadChoice(name, cores=cores, sum_over_ranks=lambda sums: sums)
            spent = 0.0
            for _ in range(_STEPS):
                spent += seconds(choice.number)
                choice.add(seconds(choice.number), 1)
            new = seconds(choice.number)
            ratios = f"{seconds(cores) / new:.2f}x", f"{spent / _STEPS / new:.3f}x"
            rows.append([name, model, str(cores), str(cores), str(choice.number), *ratios])
    columns = ["job", "model", "cores", "threads, old rule", "threads, new rule", "old time / new time"]
    columns.append(f"time of {_STEPS} steps with the measurement / without")
    print_table("Other machines, by two models of the time with two threads here", columns, rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
