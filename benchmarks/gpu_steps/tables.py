"""Print the results of a check: a summary of one, and the tables of several for docs/benchmarks.md."""

from collections.abc import Sequence
from typing import Any

from benchmarks.gpu_steps import Step, steps_of
from benchmarks.gpu_steps.results import Results
from benchmarks.printing import print_table

MOST_LINES = 60
_GIB = 2**30
_SPEED = ("shape", "mode", "records", "real tokens/s", "MFU", "of a product", "step", "peak memory")
_MEMORY = ("model", "records", "precision", "checkpointing", "peak", "reserved", "weights, gradients, optimizer")
_PARITY = ("strategy", "losses", "gradients", "weights", "predictions")
_DECISIONS = ("step", "change", "measured", "make if above", "decision")
_COSTLY = ("step", "kernel", "calls", "ms", "share")


def print_summary(results: Results, steps: Sequence[Step]) -> None:
    """Print at most MOST_LINES lines: the machine, each step, what does not hold, the speeds."""
    lines = ["", _title(results)]
    for step in steps:
        found = results.steps.get(step.name)
        if found is None:
            lines.append(f"{step.name:14} not run")
            continue
        facts = found.findings.facts
        held = sum(fact["holds"] for fact in facts)
        lines.append(f"{step.name:14} {found.status:24} {found.seconds:4.0f} s  {held} of {len(facts)} facts hold")
        wrong = [f"    {_fact(fact)}"[:150] for fact in facts if not fact["holds"]]
        lines += wrong[:3] + ([f"    and {len(wrong) - 3} more"] if len(wrong) > 3 else [])
        lines += [f"    {note}"[:150] for note in found.findings.notes][:2]
        if found.status not in ("passed", "failed"):
            lines += [f"    | {line}"[:150] for line in found.last_lines[-3:]]
    speeds = [" | ".join(row) for row in _speed_rows(results)]
    print("\n".join([*lines, *([" | ".join(_SPEED)] if speeds else []), *speeds][:MOST_LINES]), flush=True)


def print_markdown(all_results: Sequence[Results]) -> int:
    """Print the tables of these results; the first column says of which."""
    runs = [(_run(results), results) for results in all_results]
    for run, results in runs:
        print(f"{run}: {_title(results)}")
    for title, columns, rows_of in (
        ("Steps", ("step", "status", "seconds", "facts that hold", "shows"), _step_rows),
        ("Facts that do not hold", ("step", "fact"), _failure_rows),
        ("Notes", ("step", "note"), _note_rows),
        ("Training in bfloat16; MFU is of 989 TFLOP/s (H100 and H200 SXM)", _SPEED, _speed_rows),
        ("The costliest kernels of a step", _COSTLY, _costly_rows),
        (
            "A step on the GPU",
            ("step", "time", "busy", "idle", "kernels", "host waits", "copies to the GPU"),
            _cost_rows,
        ),
        ("Peak memory of a training step", _MEMORY, _memory_rows),
        ("Largest relative differences to one process", _PARITY, _parity_rows),
        ("Decisions", _DECISIONS, _decision_rows),
        ("Other figures", ("step", "figure", "value"), _other_rows),
    ):
        rows = [[run, *row] for run, results in runs for row in rows_of(results)]
        if rows:
            print_table(title, ("run", *columns), rows)
    return 0


def _title(results: Results) -> str:
    machine, of = results.machine, results.identity
    gpus = "; ".join(machine.get("gpus") or []) or of["device"]
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("torch", "transformers", "numpy"))
    tiny = ", tiny sizes" if of["tiny"] else ""
    return f"{gpus}{tiny}; Python {machine['python']}, {versions}; {of['commit']}; {results.date}"


def _run(results: Results) -> str:
    gpu = results.figures("facts").get("gpu", {}).get("name", results.identity["device"])
    return f"{gpu}, {results.date[:10]}"


def _fact(fact: dict[str, Any]) -> str:
    limit = f", at most {fact['limit']:g}" if "limit" in fact else ""
    return f"{fact['fact']}: {fact['value']}{limit}"


def _step_rows(results: Results) -> list[list[str]]:
    shows = {step.name: step.shows for gpus in (1, 2) for step in steps_of(gpus)}
    return [
        [name, step.status, f"{step.seconds:.0f}", f"{sum(fact['holds'] for fact in step.findings.facts)} of "
         f"{len(step.findings.facts)}", shows.get(name, "")]
        for name, step in results.steps.items()
    ]  # fmt: skip


def _failure_rows(results: Results) -> list[list[str]]:
    return [
        [name, _fact(fact)] for name, step in results.steps.items() for fact in step.findings.facts if not fact["holds"]
    ]


def _note_rows(results: Results) -> list[list[str]]:
    return [[name, note] for name, step in results.steps.items() for note in step.findings.notes]


def _speed_rows(results: Results) -> list[list[str]]:
    rows = []
    for row in results.figures("speed").get("speed", []):
        named = [row["shape"], row["mode"], str(row["records"])]
        if "failed" in row:
            rows.append([*named, row["failed"], "-", "-", "-", "-"])
            continue
        peak = f"{row['peak_bytes'] / _GIB:.1f} GiB" if "peak_bytes" in row else "-"
        shares = f"{row['mfu']:.1%}", f"{row['share_of_product']:.1%}"
        rows.append([*named, f"{row['tokens_per_s']:,}", *shares, f"{row['ms']:.1f} ms", peak])
    return rows


def _costs(results: Results) -> list[tuple[str, dict[str, Any]]]:
    figures = results.figures("speed").items()
    return [(name.removeprefix("step of "), costs) for name, costs in figures if name.startswith("step of ")]


def _costly_rows(results: Results) -> list[list[str]]:
    return [
        [step, kernel[:80], f"{calls:.0f}", f"{time:.2f}", f"{share:.1%}"]
        for step, costs in _costs(results)
        for kernel, calls, time, share in costs["costliest"]
    ]


def _cost_rows(results: Results) -> list[list[str]]:
    rows = []
    for step, costs in _costs(results):
        copies = sum(time for name, (_, time) in costs["copies"].items() if "HtoD" in name)
        times = f"{costs['step']:.1f} ms", f"{costs['busy']:.1f} ms", f"{costs['idle_share']:.1%}"
        waits = ", ".join(f"{name} {count:g}" for name, count in costs["waits"].items()) or "0"
        rows.append([step, *times, f"{costs['kernels']:.0f}", waits, f"{copies:.2f} ms"])
    return rows


def _memory_rows(results: Results) -> list[list[str]]:
    rows = []
    for row in results.figures("memory").get("memory", []):
        peaks = [f"{row[name] / _GIB:.2f} GiB" if row[name] else "-" for name in ("max_allocated", "max_reserved")]
        held = sum(row[name] for name in ("parameters", "gradients", "optimizer"))
        precision = "bfloat16" if row["bf16"] else "float32"
        named = [row["model"], str(row["records"]), precision, str(row["activation_checkpointing"])]
        rows.append([*named, *peaks, f"{held / _GIB:.2f} GiB"])
    return rows


def _parity_rows(results: Results) -> list[list[str]]:
    return [
        [row["strategy"], *(f"{row[part]:.1e}" for part in _PARITY[1:])]
        for step in results.steps.values()
        for row in step.findings.figures.get("parity", [])
    ]


def _decision_rows(results: Results) -> list[list[str]]:
    rows = results.figures("decisions").get("decisions", [])
    return [[str(row[name]) if name != "measured" else f"{row[name]:.3f}" for name in _DECISIONS] for row in rows]


def _other_rows(results: Results) -> list[list[str]]:
    """Return the single numbers, and the table of one product for query, key and value."""
    rows = [
        [name, figure, f"{value:g}"]
        for name, step in results.steps.items()
        for figure, value in step.findings.figures.items()
        if isinstance(value, int | float)
    ]
    for row in results.figures("decisions").get("one_product", []):
        figure = f"query, key and value, width {row['width']}, {row['tokens']} tokens"
        rows.append(["decisions", figure, f"three products {row['three_ms']:.3f} ms, one {row['one_ms']:.3f} ms"])
    return rows
