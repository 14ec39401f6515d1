"""Show in one call what only a GPU can show: correctness, speed, memory.

    python -m benchmarks.gpu_check --minutes 9 --out DIR [--steps A,B] [--skip-done] [--force]
    python -m benchmarks.gpu_check --device cpu --tiny --out DIR      the same steps without a GPU, in a minute
    python -m benchmarks.gpu_check --gpus N --out DIR                 the list of steps for several GPUs
    python -m benchmarks.gpu_check --wheels DIR                       download what a bare machine lacks
    python -m benchmarks.gpu_check --table DIR ...                    tables for docs/benchmarks.md

Each step has a process and a time limit of its own; a step that fails, crashes or hangs does not stop the next one. DIR
gets results.json after every step, log.txt, memory.json and trace.json.gz. docs/gpu.md describes the steps.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

from benchmarks.gpu_steps import MINUTES, Step, steps_of
from benchmarks.gpu_steps.machine import describe_machine, missing_packages
from benchmarks.gpu_steps.processes import REPOSITORY, StepProcesses
from benchmarks.gpu_steps.recorder import Findings, Request
from benchmarks.gpu_steps.results import LOG, OTHERS, Results, StepResult, identity
from benchmarks.gpu_steps.tables import print_markdown, print_summary
from benchmarks.gpu_steps.wheels import download_wheels

PROBE = Step("probe", 60, "whether torch finds a GPU")
_TO_WRITE = 3.0  # seconds for the results after the last step
_LOG_START, _LOG_END = 1 << 18, 1 << 20  # bytes of a step's output that are kept


def main() -> int:
    started = time.monotonic()
    arguments = _arguments()
    if arguments.wheels:
        return download_wheels(arguments.wheels)
    if arguments.table:
        return print_markdown([Results.open(folder) for folder in arguments.table])
    steps = _chosen(arguments)
    missing = missing_packages()
    if missing:
        _refuse(
            f"packages: missing, or of another version: {', '.join(missing)}",
            "Download them where there is a network: python -m benchmarks.gpu_check --wheels DIR. Then, here:\n"
            "python3 -m pip install --no-index --no-deps --target site DIR/*.whl && export PYTHONPATH=site",
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the step
    results = _results(arguments)
    check = Check(arguments, results, ends_at=started + 60 * arguments.minutes - _TO_WRITE)
    try:
        return check.run(steps)
    finally:
        shutil.rmtree(check.work, ignore_errors=True)


class Check:
    """A run of several steps."""

    def __init__(self, arguments: argparse.Namespace, results: Results, *, ends_at: float) -> None:
        self._arguments, self._results, self._ends_at = arguments, results, ends_at
        self._log = results.folder / LOG
        self.work = Path(tempfile.mkdtemp(prefix="gpu-check-"))
        given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        self._environment = {
            "TOKENIZERS_PARALLELISM": "false",
            "PYTORCH_ALLOC_CONF": "expandable_segments:True",  # as in jobs (container/job/launch/workers.py)
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # forks can use CUDA
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "TMPDIR": str(self.work),
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *map(os.path.abspath, given)]),
        }
        if arguments.device == "cpu":
            self._environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}

    def run(self, steps: list[Step]) -> int:
        results, arguments = self._results, self._arguments
        left = [step for step in steps if not (arguments.skip_done and results.passed(step.name))]
        if left:
            results.machine = describe_machine()
            self._run(left)
        print_summary(results, steps)
        return 0 if all(results.passed(step.name) for step in steps) else 1

    def _run(self, steps: list[Step]) -> None:
        with StepProcesses(self._log, self._environment) as processes:
            if not processes.forks:
                print("torch or the product cannot be imported; each step says why", flush=True)
            if self._arguments.device == "cuda":
                self._find_gpus(processes)
            begun, whole = time.monotonic(), sum(step.seconds for step in steps)
            share, of_steps = (self._ends_at - begun) / whole, 0.0
            for step in steps:
                of_steps += step.seconds  # time that a step leaves goes to the next ones
                self._step(step, processes, ends_at=begun + share * of_steps)

    def _step(self, step: Step, processes: StepProcesses, *, ends_at: float) -> None:
        started = time.monotonic()
        limit = ends_at - started
        print(f"{step.name}: {step.shows} (at most {limit:.0f} s)", flush=True)
        self._results.put(step.name, StepResult("running", 0.0, limit))
        position = self._append(f"\n== {step.name}: {step.shows}\n")
        code, findings = self._process(step, processes, ends_at=ends_at)
        result = StepResult.of(code, findings, seconds=time.monotonic() - started, limit=limit)
        if result.status != "passed":
            result.last_lines = self._last_lines(position)
        self._shorten(position)
        self._results.put(step.name, result)
        print(f"  {result.status} after {result.seconds:.0f} s", flush=True)

    def _process(self, step: Step, processes: StepProcesses, *, ends_at: float) -> tuple[int | None, Findings]:
        folder, found = self.work / step.name, self.work / f"{step.name}.json"
        folder.mkdir(exist_ok=True)
        found.unlink(missing_ok=True)
        module, function = step.place
        environment = {"TMPDIR": str(folder), "PYTORCH_ALLOC_CONF": self._environment["PYTORCH_ALLOC_CONF"]}
        request = Request(
            module, function, self._arguments.device, self._arguments.tiny, self._arguments.gpus, str(folder),
            str(found), str(self._results.folder), str(self._log.absolute()), ends_at, environment,
        )  # fmt: skip
        code = processes.run(request)
        shutil.rmtree(folder, ignore_errors=True)
        return code, Findings.read(found)

    def _find_gpus(self, processes: StepProcesses) -> None:
        """Exit if torch finds too few GPUs. A torch that cannot be asked is the failure of the steps.

        Where a fork cannot use CUDA, start new processes; where the driver refuses expandable segments, do without.
        """
        for retry in (processes.stop_forking, self._without_segments, lambda: None):
            code, findings = self._process(
                PROBE, processes, ends_at=min(self._ends_at, time.monotonic() + PROBE.seconds)
            )
            gpus = findings.figures.get("gpus")
            if gpus is not None and gpus < self._arguments.gpus:
                what = "no GPU: torch finds none" if not gpus else f"--gpus {self._arguments.gpus}: torch finds {gpus}"
                _refuse(what, "Without a GPU: python -m benchmarks.gpu_check --device cpu --tiny --out DIR")
            if code in (0, None):  # it allocates, or hangs
                return
            retry()
        print("torch cannot allocate on a GPU; each step says why", flush=True)

    def _without_segments(self) -> None:
        self._environment["PYTORCH_ALLOC_CONF"] = "expandable_segments:False"
        self._results.machine["expandable_segments"] = "tried without, after an allocation failed"

    def _append(self, text: str) -> int:
        """Return the position in the log at which this text begins."""
        with self._log.open("a") as log:
            position = log.tell()
            log.write(text)
        return position

    def _last_lines(self, position: int) -> list[str]:
        with self._log.open("rb") as log:
            log.seek(position)
            return log.read().decode(errors="replace").splitlines()[-40:]

    def _shorten(self, position: int) -> None:
        """Keep the start and the end of a long output."""
        with self._log.open("rb+") as log:
            log.seek(position)
            text = log.read()
            if len(text) > _LOG_START + _LOG_END:
                log.seek(position)
                log.write(text[:_LOG_START] + b"\n[...]\n" + text[-_LOG_END:])
                log.truncate()


def _chosen(arguments: argparse.Namespace) -> list[Step]:
    steps = {step.name: step for step in steps_of(arguments.gpus)}
    names = [name.strip() for name in arguments.steps.split(",")] if arguments.steps else list(steps)
    unknown = [name for name in names if name not in steps]
    if unknown:
        _refuse(f"--steps: {', '.join(unknown)} is no step", f"Choose from: {', '.join(steps)}")
    if arguments.device == "cpu" and not arguments.tiny:
        _refuse("--device cpu: the steps' sizes are those of a GPU", "Add --tiny.")
    if arguments.out is None:
        _refuse("--out: is missing", "Name a folder for the results.")
    if arguments.minutes < 1 or arguments.gpus < 1:
        _refuse(f"--minutes {arguments.minutes:g}, --gpus {arguments.gpus}: below 1", "Give at least 1 of each.")
    return [step for step in steps.values() if step.name in names]


def _results(arguments: argparse.Namespace) -> Results:
    asked = identity(device=arguments.device, tiny=arguments.tiny, gpus=arguments.gpus)
    folder = arguments.out.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not Results.exists(folder) or arguments.force:
            for name in (LOG, *OTHERS):
                (folder / name).unlink(missing_ok=True)
            return Results(folder, asked)
    except OSError as error:
        _refuse(f"--out: {error}", "Name a folder that can be written.")
    results = Results.open(folder)
    other = [f"{name} {results.identity.get(name)}, not {value}" for name, value in asked.items()
             if results.identity.get(name) != value]  # fmt: skip
    if other:
        _refuse(f"--out {folder}: has results of {'; '.join(other)}", "Choose another folder, or add --force.")
    return results


def _refuse(cause: str, fix: str) -> NoReturn:
    print(f"{cause}\n{fix}", file=sys.stderr)
    sys.exit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="the check never takes longer")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for results.json, log.txt and trace.json.gz")
    parser.add_argument("--steps", metavar="A,B", help="only these steps")
    parser.add_argument("--skip-done", action="store_true", help="go on from an earlier DIR: skip what passed")
    parser.add_argument("--force", action="store_true", help="replace the results in DIR, whatever they are of")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="run the list for several GPUs")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes and tables")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="download what a bare machine lacks")
    parser.add_argument("--table", type=Path, nargs="+", metavar="DIR", help="print the tables of these results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
