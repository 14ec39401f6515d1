"""Generate and run one input in a process of its own, forked from a server that has imported everything."""

import faulthandler
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from contracts.program import open_standard_streams
from testing.fuzz import carriers, checkpoints, hyperparameters, packages, steps, tables, weights
from testing.fuzz.outcome import Case, Outcome, product_frame, rng_of

# Requests, the other kind, go to one server (testing/fuzz/server.py).
KINDS: Mapping[str, Callable[[Case], Outcome]] = {
    "tables": tables.run,
    "hyperparameters": hyperparameters.run,
    "packages": packages.run,
    "steps": steps.run,
    "carriers": carriers.run,
    "checkpoints": checkpoints.run,
    "weights": weights.run,
}
ADDRESS_SPACE = 8 << 30  # bytes beyond what the process has at its start
MOST_MEMORY = 1 << 30  # bytes of growth that are a finding: the inputs have at most some MB


def main(kind: str, index: int, *, seed: int, folder: str, model: str, whole: bool, seconds: float) -> None:
    """Run an input; write outcome.json into `folder`, before `seconds` are over."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.setsid()  # so that the campaign can end every process of the input at once
    place = Path(folder)
    scratch = place / "tmp"
    scratch.mkdir(parents=True)
    tempfile.tempdir = os.environ["TMPDIR"] = str(scratch)
    os.environ["HF_HUB_OFFLINE"] = "1"
    log = os.open(place / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(log, number)
    open_standard_streams()
    faulthandler.enable(2)
    faulthandler.dump_traceback_later(max(seconds - 2, 1), file=2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    size = _status("VmSize") + ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    before = _status("VmRSS")
    case = Case(rng_of(seed, kind, index), place, Path(model), whole)
    outcome = outcome_of(KINDS[kind], case)
    grown = _status("VmHWM") - before
    if grown > MOST_MEMORY and not whole:
        outcome.problems.append(f"the process took {grown >> 20} MiB of memory")
    shutil.rmtree(scratch, ignore_errors=True)
    (place / "outcome.json").write_text(json.dumps(vars(outcome)), "utf-8")
    sys.stdout.flush()
    os._exit(0)


def outcome_of(run: Callable[[Case], Outcome], case: Case) -> Outcome:
    """Return the outcome; an exception that the product lets through is a problem."""
    try:
        outcome = run(case)
    except BaseException as error:
        traceback.print_exc()
        detail = " ".join(str(error).split())[:300]
        last = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        who = "the generator" if last.parent == Path(__file__).parent else "the product"
        where = product_frame("".join(traceback.format_exception(error)))
        problem = f"{who} raises{where}: {type(error).__name__}: {detail}"
        outcome = Outcome(problems=[problem], recipe=case.recipe)
    outcome.message = first_line(case.folder / "job")
    return outcome


def first_line(root: Path) -> str:
    """Return the first line of the failure below a root, if there is one."""
    for name in ("failure", "message"):
        if (root / "output" / name).is_file():
            return (root / "output" / name).read_text("utf-8", "replace").partition("\n")[0][:300]
    return ""


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise AssertionError(name)
