"""plan: print a table of the ways to run a job, and write plan.json and plan.md."""

import json
import logging
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from container.job.processes import log_level, set_up_logging
from container.planning.arguments import HERE
from container.planning.calibrate import calibrated, from_check
from container.planning.catalogue import Catalogue
from container.planning.check import remedies
from container.planning.options import SPARE, Option, all_options, recommend
from container.planning.workload import Workload, read_workload
from contracts.atomic_files import write_text_atomically
from contracts.errors import ContractError
from contracts.paths import JobPaths
from contracts.spelling import aligned

PLAN, PAGE = "plan.json", "plan.md"
_COLUMNS = (
    "instance,hosts,strategy,weights,gradients,optimizer,activations,total GiB,fits,tokens/s,hours,$ on demand,bound by"
).split(",")
_LISTED = 12  # options in the table on the screen; the page has all


def plan(paths: JobPaths, options: Namespace) -> int:
    """Print the table, and write plan.json and plan.md to the root; return 0.

    Raises:
        ContractError: invalid options, settings or files.
    """
    set_up_logging()
    catalogue = Catalogue.load(options.catalogue)
    instances, calibration = catalogue.choose(options.instances), {}
    # The model is built for every option: its lines would repeat.
    with tempfile.TemporaryDirectory(prefix="plan-") as scratch, log_level("container.models", logging.WARNING):
        work = _workload(paths, options, catalogue, Path(scratch))
        if options.calibrate:
            here = options.calibrate == HERE
            calibration = calibrated(work, catalogue) if here else from_check(catalogue, options.calibrate)
        choices = all_options(work, catalogue, instances, hosts=options.hosts, calibration=calibration)
        taken = recommend(choices, budget=options.budget, hours=options.hours)
        advice = []
        if choices and not any(option.fits for option in choices):
            advice = remedies(work, catalogue, max((o.instance for o in choices), key=lambda each: each.memory_gib))
    lines = [*_summary(choices, taken, options, catalogue), *(f"- {each}" for each in advice)]
    content = {
        "options": [option.to_json(catalogue) for option in choices],
        "recommended": None if taken is None else taken.to_json(catalogue),
        "prices": catalogue.prices.model_dump(),
        "job": _job(work, options),
        "advice": [*advice, *batch_advice(work, choices)],
    }
    write_text_atomically(paths.root / PLAN, json.dumps(content, indent=1, allow_nan=False) + "\n")
    write_text_atomically(paths.root / PAGE, _page(work, choices, lines, catalogue))
    print("\n".join(aligned([_COLUMNS, *map(_cells, _ranked(choices)[:_LISTED])])), "", *lines, sep="\n")
    print(f"\nWritten: {paths.root / PLAN} with {len(choices)} options, and {paths.root / PAGE}", flush=True)
    return 0


def _workload(paths: JobPaths, options: Namespace, catalogue: Catalogue, scratch: Path) -> Workload:
    """Return the workload of the folder, or of the file of hyperparameters and the folder's data."""
    file, root = options.hyperparameters, paths.root
    if file is not None:
        if not file.is_file():
            raise ContractError(f"--hyperparameters: {file} is not a file", "Correct the path.")
        paths = JobPaths(scratch / "job")
        paths.config.mkdir(parents=True)
        if (root / "input" / "data").is_dir():
            (paths.root / "input" / "data").symlink_to((root / "input" / "data").absolute())
        shutil.copyfile(file, paths.hyperparameter_files[-1])
    try:
        work = read_workload(paths, catalogue, scratch=scratch, rows=options.rows, tokens=options.tokens)
        if options.global_batch:
            work = work.changed({"batch_size": options.global_batch, "accumulate_grad_batches": 1})
        work.check_size()
    except ContractError as error:  # may name a path of the scratch folder
        texts = [text.replace(str(paths.hyperparameter_files[-1]), str(file)) for text in (error.cause, error.fix)]
        raise ContractError(*(text.replace(str(paths.root), str(root)) for text in texts)) from error
    return work


def _ranked(found: Sequence[Option]) -> list[Option]:
    return sorted(found, key=lambda option: option.rank)


def _job(work: Workload, options: Namespace) -> dict[str, Any]:
    hp = work.hp
    return {
        "model_class": hp.model_class,
        "encoders": [shape.name for shape in work.encoders],
        "rows": dict(work.rows),
        "tokens_per_record": round(float(work.tokens.mean()), 1),
        "global_batch": hp.batch_size * hp.accumulate_grad_batches,
        "budget": options.budget,
        "hours": options.hours,
    }


def _summary(found: Sequence[Option], taken: Option | None, options: Namespace, catalogue: Catalogue) -> Iterator[str]:
    fitting = [option for option in found if option.fits]
    if taken is not None:
        cost = f"{taken.hours:.2f} hours, ${taken.dollars:.2f} on demand"
        if taken.time is None:
            cost = f"${taken.hourly:.2f} per hour on demand; {taken.reason}"
        yield (
            f"Recommended: {taken.instance.name} x {taken.hosts}, {taken.strategy}: {cost} "
            f"(prices of {catalogue.prices.date}, {catalogue.prices.region})."
        )
        yield f"Set: {json.dumps(dict(taken.settings))}"
    elif not found:
        yield "No strategy can divide this job over these instances."
    elif not fitting:
        least = min(found, key=lambda option: option.memory.total)
        yield (
            f"Nothing fits. The smallest need is {least.memory.in_gib()['total']:.1f} GiB per process, with "
            f"{least.strategy} on {least.instance.name}, which has {least.instance.memory_gib:g} GiB. What would help:"
        )
    else:
        cheapest, fastest = min(fitting, key=lambda o: o.rank), min(fitting, key=lambda o: o.hours)
        limits = [f"a budget of ${options.budget:g}"] if options.budget is not None else []
        limits += [f"{options.hours:g} hours"] if options.hours is not None else []
        if cheapest.time is None:
            yield f"No option meets {' and '.join(limits)}: no instance has a GPU, and {cheapest.reason}."
            return
        yield (
            f"Nothing meets {' and '.join(limits)}. The cheapest option costs ${cheapest.dollars:.2f} and takes "
            f"{cheapest.hours:.2f} hours: {cheapest.instance.name} x {cheapest.hosts}, {cheapest.strategy}. The "
            f"fastest takes {fastest.hours:.2f} hours and costs ${fastest.dollars:.2f}: {fastest.instance.name} x "
            f"{fastest.hosts}, {fastest.strategy}."
        )


def batch_advice(work: Workload, found: Sequence[Option]) -> list[str]:
    """Return what more GPUs do to the global batch and the learning rate."""
    batch = work.hp.batch_size * work.hp.accumulate_grad_batches
    larger = sorted({option.global_batch for option in found if option.global_batch != batch})
    rate, larger_rate = work.hp.lr, work.hp.lr * 10**0.5
    advice = [
        f"The global batch stays {batch} records on any number of GPUs: batch_size is divided by the data-parallel "
        f"ranks. So lr stays {rate:g}, and the result is that of one GPU.",
        f"On ten times as many GPUs with an undivided batch_size, the global batch is {10 * batch}, and an epoch has a "
        f"tenth of the steps. AdamW then usually needs a higher rate: start at lr={larger_rate:.2g} (times the square "
        "root of 10), with the same share of warmup steps, and compare val metrics.",
    ]
    if larger:
        batches = ", ".join(map(str, larger))
        advice.append(f"Options with a global batch of {batches}: their data-parallel ranks do not divide {batch}.")
    return advice


def _cells(option: Option) -> tuple[str, ...]:
    memory = [f"{size:.2f}" for size in option.memory.in_gib().values()]
    idle = ", fp16" * option.settings.get("fp16", False) + f", {option.idle:.0%} idle" * bool(option.idle)
    costs = ("-", "-", "-")
    if option.time is not None:
        costs = f"{option.time.tokens_per_second:,.0f}", f"{option.hours:.2f}", f"{option.dollars:.2f}"
    place = option.instance.name, str(option.hosts), option.strategy + idle
    return (*place, *memory, "yes" if option.fits else "no", *costs, option.bound_by or "-")


def _page(work: Workload, found: Sequence[Option], lines: Sequence[str], catalogue: Catalogue) -> str:
    job = ", ".join(f"{shape.name} ({shape.layers} layers)" for shape in work.encoders)
    rows = [_COLUMNS, ("-",) * len(_COLUMNS), *map(_cells, _ranked(found))]
    table = ["| " + " | ".join(row) + " |" for row in rows]
    reasons = [
        f"- {option.instance.name} x {option.hosts}, {option.strategy}: {option.reason}. "
        f"Set `{json.dumps(dict(option.settings))}`."
        for option in found
    ]
    sources = [f"- {name}: {entry['source']}" for name, entry in catalogue.measurements.items()]
    about = (
        f"{work.hp.model_class} with {job}; {work.rows['train']:,} rows of train with {work.tokens.mean():.0f} tokens, "
        f"{work.hp.max_epochs} epochs. Memory is per GPU, in GiB; an option fits with {SPARE:.0%} to spare."
    )
    prices = (
        f"- prices: on demand of {catalogue.prices.date}, {catalogue.prices.region}; spot is assumed to cost "
        f"{catalogue.prices.spot_share:.0%} of it"
    )
    sections = {
        "# Plan": [*lines, "", about, "", *table],
        "## Global batch and learning rate": [f"- {advice}" for advice in batch_advice(work, found)],
        "## Options": reasons,
        "## Sources": [*sources, prices],
    }
    return "\n".join(line for title, body in sections.items() for line in (title, "", *body, ""))
