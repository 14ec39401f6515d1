"""Run the kinds one after another, print the table and the findings."""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from testing.fuzz.campaign import Finding, Plan, Tally, run_kind, table
from testing.fuzz.child import KINDS
from testing.fuzz.requests import REPORTS, REQUESTS
from testing.jobs import ONE_LAYER, run_train, write_job

ALL_KINDS = (*KINDS, REQUESTS, REPORTS)


def run_campaign(options: argparse.Namespace) -> int:
    """Run the campaign that the command line describes; return 1 if it has findings."""
    kinds = options.kind or list(ALL_KINDS)
    unknown = set(kinds) - set(ALL_KINDS)
    if unknown:
        print(f"unknown kind {sorted(unknown)}; the kinds are {', '.join(ALL_KINDS)}", file=sys.stderr)
        return 2
    began, tallies = time.monotonic(), []
    indices = range(options.inputs) if options.only is None else [options.only]
    with tempfile.TemporaryDirectory(prefix="fuzz-", ignore_cleanup_errors=True) as folder:
        model = trained_model(Path(folder) / "trained")
        for number, kind in enumerate(kinds):
            left = options.minutes * 60 - (time.monotonic() - began)
            plan = Plan(
                options.seed, indices, time.monotonic() + left / (len(kinds) - number), options.jobs, options.timeout,
                model, Path(folder), Path(options.out), options.whole_every,
            )  # fmt: skip
            tally = _run(kind, plan, options.ping_limit)
            tallies.append(tally)
            if options.only is not None:
                last = tally.last
                print(f"{last.verdict}: {last.message or last.problems}\n{json.dumps(last.recipe)}")
            print(table([tally]), flush=True)
            if options.messages:
                for message, count in sorted(tally.messages.items(), key=lambda entry: -entry[1]):
                    print(f"{count:>6}  {message}")
            for finding in sorted(tally.findings.values(), key=lambda finding: -finding.count):
                _print_finding(plan.command(kind, finding.index), finding)
    print(f"\n{table(tallies)}")
    return int(any(tally.findings for tally in tallies))


def _run(kind: str, plan: Plan, ping_limit: float) -> Tally:
    if kind not in KINDS:
        from testing.fuzz.server import run_requests

        return run_requests(plan, ping_limit=ping_limit, kind=kind)
    return run_kind(kind, plan)


def trained_model(root: Path) -> Path:
    """Return the model folder of a tiny job."""
    paths = write_job(root, overrides={"encoder_config": ONE_LAYER, "max_epochs": 1, "explain": 0})
    run_train(paths)
    shutil.rmtree(paths.checkpoints, ignore_errors=True)
    return paths.model


def _print_finding(command: str, finding: Finding) -> None:
    print(f"* {finding.count}x {finding.problem[:400]}\n    {command}\n    {json.dumps(finding.recipe)[:400]}")
