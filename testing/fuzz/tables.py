"""Kind tables: channels of a training job, and tables of the steps that read them, in every format and damaged."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from contracts.paths import JobPaths
from contracts.steps import DATA_LOADING, TABULAR_PREPROCESSING
from testing.fuzz import oracle, render, strict_csv
from testing.fuzz.channels import change_folder
from testing.fuzz.draft import CELL_MUTATIONS, Draft, change_names, plain_draft, raw_quotes
from testing.fuzz.outcome import ACCEPTED, REFUSED, Case, Outcome
from testing.fuzz.run_product import ended_step, ended_training
from testing.jobs import ONE_LAYER, write_hyperparameters

CHANNEL_SUFFIXES = ("csv", "csv", "csv", "csv.gz", "tsv", "tsv.gz", "parquet", "parquet")
PART_SUFFIXES = (*CHANNEL_SUFFIXES, "json", "jsonl", "jsonl", "json.gz", "jsonl.gz", "parquet.gz")
SMALL = {"encoder_config": ONE_LAYER, "max_epochs": 1, "batch_size": 8, "explain": 0, "nproc_per_node": 1}


@dataclass
class Expected:
    """The ids that must come out of a split if the product accepts it, in the order of the files.

    Attributes:
        ids: None if only the generator's own reader could know, and it could not.
        ordered: whether the order of the files is known.
    """

    ids: list[Any] | None
    ordered: bool = True


def run(case: Case) -> Outcome:
    """Generate one input of the kind and run it."""
    target = case.rng.random()
    if case.whole or target < 0.7:
        return _training(case)
    return _preprocess(case) if target < 0.85 else _load_data(case)


def _training(case: Case) -> Outcome:
    rng, paths = case.rng, JobPaths(case.folder / "job")
    suffix = rng.choice(CHANNEL_SUFFIXES)
    changed = rng.choice(("train", "train", "val", "test", "all"))
    recipe = case.recipe
    recipe.append(f"train on {suffix}, {changed} changed")
    expected = {
        split: write_folder(paths.channel(split), split, rng, suffix, changed=changed in (split, "all"), recipe=recipe)
        for split in ("train", "val", "test")
    }
    settings: dict[str, Any] = dict(SMALL)
    if rng.random() < 0.1:
        settings["drop_unlabelled"] = True
        expected["train"].ids = None
    write_hyperparameters(paths, settings)
    code, reached = ended_training(case, paths, whole=case.whole)
    outcome = Outcome(ACCEPTED if reached else REFUSED, recipe=recipe)
    if not reached:
        outcome.problems = oracle.refused_job_problems(paths) if code == 1 else [f"exit code {code}"]
    else:
        outcome.problems = predicted(paths, expected) if case.whole else prepared(paths, expected)
    return outcome


def write_folder(folder: Path, split: str, rng: Random, suffix: str, *, changed: bool, recipe: list[str]) -> Expected:
    """Write a table into one or several files, mutated in one to three ways, and return what must come out."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = plain_draft(rng, split)
    mutations = rng.choice((1, 1, 1, 2, 2, 3)) if changed else 0
    ways = [
        rng.choice(("cells", "cells", "cells", "names", "form", "form", "damage", "raw", "folder"))
        for _ in range(mutations)
    ]
    for way in ways:
        if way == "cells":
            rng.choice(CELL_MUTATIONS)(draft, rng)
        elif way == "names":
            change_names(draft, rng)
        elif way == "raw" and draft.rows:
            raw_quotes(draft, rng)
    parts = rng.choice((1, 1, 1, 2, 4)) if changed else 1
    ids: list[Any] | None = []
    for number, part in enumerate(_split(draft, parts)):
        odd = "form" in ways and number == rng.randrange(parts)
        data, found = _write(part, rng, suffix, odd=odd, damaged="damage" in ways and number == 0)
        (folder / f"part-{number}.{suffix}").write_bytes(data)
        ids = None if ids is None or found is None else ids + found
        draft.recipe += part.recipe
    recipe += [f"{split}: {step}" for step in draft.recipe] + ([f"{split}: {parts} files"] if parts > 1 else [])
    ordered = True
    if "folder" in ways:
        ids = ids if change_folder(folder, rng, recipe) else None
        ordered = False
    return Expected(ids, ordered)


def _split(draft: Draft, parts: int) -> list[Draft]:
    """Return consecutive rows as several tables; raw cells stay in their rows."""
    size = max(-(-len(draft.rows) // parts), 1)
    tables = []
    for number in range(parts):
        first = number * size
        raw = {
            (row - first if row >= 0 else -1, column)
            for row, column in draft.raw
            if row == -1 or first <= row < first + size
        }
        tables.append(Draft(list(draft.names), draft.rows[first : first + size], raw, draft.id_column))
    return tables


def _write(draft: Draft, rng: Random, suffix: str, *, odd: bool, damaged: bool) -> tuple[bytes, list[Any] | None]:
    """Return a file, and its ids if they are known."""
    plain, _, gz = suffix.partition(".")
    ids: list[Any] | None = list(draft.ids)
    if plain == "parquet":
        data, ids = render.parquet(draft, rng, odd=odd)
    elif plain in ("json", "jsonl"):
        text = render.json_text(draft, rng, lines=plain == "jsonl", odd=odd)
        data = text.encode("utf-8", "surrogatepass")
        if draft.names.count("order_id") > 1 or any("order_id" in step for step in draft.recipe):
            ids = None  # the key occurs twice, or its value is not in the draft
    else:
        data, ids = _text_file(draft, rng, render.DELIMITERS[plain], odd=odd)
    if gz:
        data = render.compress(data, rng, draft.recipe) if odd else render.gzipped(data)
    if damaged:
        whole, data = data, render.damage(data, rng, draft.recipe)
        ids = _ids_of_damaged(data, draft, ids, render.DELIMITERS.get(suffix)) if data != whole else ids
    return data, ids


def _text_file(draft: Draft, rng: Random, delimiter: str, *, odd: bool) -> tuple[bytes, list[Any] | None]:
    text = render.csv_text(draft, rng, delimiter=delimiter, odd=odd)
    if odd and rng.random() < 0.25:
        text = render.ragged(text, rng, delimiter=delimiter, recipe=draft.recipe)
    data = render.encode(text, rng, odd=odd and rng.random() < 0.3, recipe=draft.recipe)
    strict = strict_csv.parse(text.removeprefix("\ufeff"), delimiter)
    if strict.malformed:
        return data, written_ids(draft)  # whatever a reader makes of it, these rows were written
    return data, strict.column("order_id")


def written_ids(draft: Draft) -> list[Any]:
    """Return the ids; `...` for a cell whose quotes a reader may remove or keep."""
    return [... if (row, draft.id_column) in draft.raw else cell for row, cell in enumerate(draft.ids)]


def _ids_of_damaged(data: bytes, draft: Draft, ids: list[Any] | None, delimiter: str | None) -> list[Any] | None:
    """Return the ids of a damaged file: of a text that is still well-formed, its own; otherwise unknown."""
    if delimiter is None:
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    strict = strict_csv.parse(text, delimiter)
    if not strict.malformed:
        return strict.column("order_id")
    ids = None if ids is None else written_ids(draft)
    return ids if "insert" in draft.recipe[-1] and draft.recipe[-1].endswith("b'\"'") else None


def prepared(paths: JobPaths, expected: dict[str, Expected]) -> list[str]:
    problems = []
    for split, wanted in expected.items():
        if wanted.ids is not None:
            file = next(paths.prepared.glob(f"*/{split}.arrow"))
            with pa.memory_map(str(file)) as source:
                found = pa.ipc.open_file(source).read_all()["id"].to_pylist()
            problems += oracle.id_problems(f"prepared {split}", found, wanted.ids, ordered=wanted.ordered)
    return problems


def predicted(paths: JobPaths, expected: dict[str, Expected]) -> list[str]:
    problems = []
    for split in ("val", "test"):
        names, rows = read_rows(next(paths.output_data.glob(f"{split}_predictions.*")))
        place = f"{split}_predictions"
        wanted = expected[split]
        if wanted.ids is not None:
            found = [row[names.index("order_id")] for row in rows]
            problems += oracle.id_problems(place, found, wanted.ids, ordered=wanted.ordered)
        scores = [place for place, name in enumerate(names) if name.startswith("prob_class_")]
        problems += oracle.probability_problems(place, [[float(row[i]) for i in scores[-2:]] for row in rows])
    return problems


def read_rows(path: Path) -> tuple[list[str], list[list[Any]]]:
    """Return the header and the rows of a file that the product wrote, not with its own readers."""
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        return table.column_names, [list(row) for row in zip(*(column.to_pylist() for column in table.columns))]
    rows = strict_csv.parse(path.read_bytes().decode(), render.DELIMITERS[path.suffix[1:]]).rows
    return rows[0], rows[1:]


def _load_data(case: Case) -> Outcome:
    rng, root = case.rng, case.folder / "job"
    suffix = rng.choice(PART_SUFFIXES)
    recipe = case.recipe
    recipe.append(f"load-data of {suffix}")
    folder = DATA_LOADING.input("input_data").path(root)
    expected = write_folder(folder, "train", rng, suffix, changed=True, recipe=recipe)
    output = rng.choice(("CSV", "TSV", "PARQUET"))
    recipe.append(f"OUTPUT_FORMAT={output}")
    code = ended_step(case, "load-data", {"OUTPUT_FORMAT": output})
    files = sorted(DATA_LOADING.output("DATA").path(root).glob("part-*"))
    return _step_outcome(case, code, contract=DATA_LOADING, files=files, expected=expected)


def _preprocess(case: Case) -> Outcome:
    rng, root = case.rng, case.folder / "job"
    suffix = rng.choice(PART_SUFFIXES)
    recipe = case.recipe
    recipe.append(f"preprocess of {suffix}")
    folder = TABULAR_PREPROCESSING.input("DATA").path(root)
    expected = write_folder(folder, "train", rng, suffix, changed=True, recipe=recipe)
    settings = {"LABEL_FIELD": "label", "OUTPUT_FORMAT": rng.choice(("CSV", "TSV", "PARQUET"))}
    settings |= rng.choice(({}, {"ID_FIELD": "order_id"}, {"ID_FIELD": "order_id"}))
    settings |= rng.choice(({}, {"SPLIT_BY": "stratified"}))
    job_type = rng.choice(("training", "training", "testing", "calibration"))
    recipe.append(f"{settings} {job_type}")
    code = ended_step(case, "preprocess", settings, "--job_type", job_type)
    files = sorted(TABULAR_PREPROCESSING.output("processed_data").path(root).glob("*/*_processed_data*"))
    expected.ordered = expected.ordered and job_type != "training"
    return _step_outcome(case, code, contract=TABULAR_PREPROCESSING, files=files, expected=expected)


def _step_outcome(case: Case, code: int, *, contract: Any, files: Sequence[Path], expected: Expected) -> Outcome:
    root = case.folder / "job"
    outcome = Outcome(ACCEPTED if code == 0 else REFUSED, recipe=case.recipe)
    if code != 0:
        folders = [folder.path(root) for folder in contract.outputs if folder.name != "processed_data"]
        message = root / "output" / "message"
        outcome.problems = oracle.refused_step_problems(message, folders) if code == 1 else [f"exit code {code}"]
        outcome.problems += [f"{path.name} is left after exit 1" for path in files if path.exists()]
    elif expected.ids is not None:
        found: list[Any] = []
        for path in files:
            names, rows = read_rows(path)
            if "order_id" not in names:  # it was renamed: only the number of rows is known
                expected.ids = [...] * len(expected.ids)
            found += [dict(zip(names, row)).get("order_id") for row in rows]
        outcome.problems = oracle.id_problems("the output", found, expected.ids, ordered=expected.ordered)
    return outcome
