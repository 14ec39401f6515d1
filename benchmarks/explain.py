"""Measure reasons for predictions: their cost with MiniLM, and on finished jobs their sums, deletions and plants."""

import argparse
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
from scipy.stats import spearmanr

from benchmarks.printing import print_machine, print_table
from benchmarks.review_data import COLUMNS, REPOSITORY, generate_reviews, lay_out_job, require_minilm
from container.attribution import shapley
from container.predictor import Predictor
from contracts.paths import SPLITS, JobPaths

_SENTENCES = 8
_BATCH = 32
_COMPARED, _FEWEST_PARTS, _BY_SHAP = 50, 5, 20
_WARM_UP = 3
_MOST = {"column": 6, "text": 60}  # times a prediction
_TELLING = "Unfortunately I was very disappointed, it looks cheap and it was returned."
_FACTS = (
    "I ordered it in blue.", "It has two pockets.", "The sleeves end at the elbow.", "It arrived on Monday.",
    "I am 5'4 and weigh 130 lbs.", "The hem is at the knee.", "I ordered a size medium.", "I saw it in the store.",
    "It has a zipper at the back.", "There is a print on the front.", "It comes in three colors.",
    "The collar has a button.", "I wore it on Sunday.", "The fabric is cotton.", "It has a belt.",
)  # fmt: skip

Record = dict[str, Any]


def main() -> int:
    arguments = _arguments()
    print_machine()
    if arguments.jobs:
        rows = [_proofs(JobPaths(root), arguments) for root in arguments.jobs]
        columns = [
            "job",
            "classes",
            "records",
            "sum differs by",
            "logit differs by",
            "Spearman, least and mean",
            "deletions",
            "planted first",
            "from shap",
        ]
        print_table("Reasons of the test records", columns, rows)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return _cost(_job(Path(folder)).model, arguments)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--jobs", type=Path, nargs="+", metavar="DIR", help="check finished jobs instead of the cost")
    parser.add_argument("--records", type=int, default=2000, help="of each job, for the sums")
    parser.add_argument("--deletions", type=int, default=500, help="records of which a part is deleted")
    parser.add_argument(
        "--planted", type=int, default=100, help="neutral reviews to which a telling sentence is appended"
    )
    return parser.parse_args()


def _job(root: Path) -> JobPaths:
    """Run a short job with MiniLM and nine columns."""
    table = next(generate_reviews(160, seed=0))
    table = table.append_column("Clothing ID", table["Class Name"])
    tables = {split: table.slice(40 * i, 40 if i else 80) for i, split in enumerate(reversed(SPLITS))}
    values = {
        **COLUMNS, "text_name": ["Review Text", "Title"], "tab_field_list": COLUMNS["tab_field_list"],
        "cat_field_list": [*COLUMNS["cat_field_list"], "Clothing ID"], "model_class": "multimodal_bert",
        "tokenizer": str(require_minilm()), "max_sen_len": 160, "max_epochs": 1, "batch_size": 16, "explain": 0,
    }  # fmt: skip
    paths = lay_out_job(root, tables, values)
    command = [sys.executable, "-m", "container", "train", "--root", str(root)]
    done = subprocess.run(command, check=False, cwd=REPOSITORY, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return paths


def _record() -> Record:
    """Return a record whose texts have eight sentences and about 128 tokens."""
    sentence = "the dress was small at the waist but the fabric felt soft and warm today."
    return {
        "Review Text": " ".join([sentence.capitalize()] * (_SENTENCES - 1)), "Title": "Nice but small", "Age": 41,
        "Rating": 4, "Positive Feedback Count": 3, "Division Name": "division 0", "Department Name": "department 1",
        "Class Name": "class 10", "Clothing ID": "class 11",
    }  # fmt: skip


def _cost(model: Path, arguments: argparse.Namespace) -> int:
    predictor, record = Predictor.load(model, threads=arguments.threads), _record()
    prepared = predictor.prepare(_table(predictor, [record]))
    ways: dict[str, Callable[[], Any]] = {
        "prediction": lambda: predictor.predict([record]),
        **{level: lambda level=level: predictor.explain([record], level=level) for level in _MOST},
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(_WARM_UP + arguments.repeats):
        for name, compute in ways.items():
            began = time.perf_counter()
            compute()
            if turn >= _WARM_UP:
                seconds[name].append(time.perf_counter() - began)
    context = multiprocessing.get_context("spawn")
    with context.Pool(1, maxtasksperchild=1) as pool:
        peaks = {name: pool.apply(_peak, (model, name, arguments.threads)) for name in ("batch", *_MOST)}
    one = float(np.median(seconds["prediction"]))
    rows, fine = [["prediction", f"{1000 * one:.1f} ms", "", f"{peaks['batch']:.0f} MB (batch of {_BATCH})"]], True
    for level, most in _MOST.items():
        half = float(np.median(seconds[level]))
        fine = fine and half <= most * one and peaks[level] < 2 * peaks["batch"]
        rows.append([level, f"{1000 * half:.1f} ms", f"{half / one:.1f} (at most {most})", f"{peaks[level]:.0f} MB"])
    title = (
        f"MiniLM, {prepared.padded_tokens(0)} tokens, 9 columns, {_SENTENCES} sentences, {arguments.threads} threads"
    )
    print_table(title, ["one record", "p50", "times a prediction", "memory above the loaded model"], rows)
    return 0 if fine else 1


def _peak(model: Path, way: str, threads: int) -> float:
    """Return the peak memory of a computation above that of the loaded model, in MB."""
    predictor, record = Predictor.load(model, threads=threads), _record()
    Path("/proc/self/clear_refs").write_text("5")  # the peak becomes the present size
    before = _kilobytes("VmHWM")
    if way == "batch":
        predictor.predict([record] * _BATCH)
    else:
        predictor.explain([record], level=way)  # type: ignore[arg-type]
    return (_kilobytes("VmHWM") - before) / 1000


def _kilobytes(name: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])


def _table(predictor: Predictor, records: Sequence[Record]) -> Any:
    from container.tables.records import records_to_table

    return records_to_table(records, predictor.feature_inputs)


def _proofs(paths: JobPaths, arguments: argparse.Namespace) -> list[str]:
    """Return the row of a finished job in the table of results."""
    predictor = Predictor.load(paths.model)
    table = pq.read_table(next(paths.channel("test").glob("*.parquet")))
    records = table.select(list(predictor.feature_inputs)).to_pylist()[: arguments.records]
    sums, logits = _sums(predictor, records)
    spearman = _estimates(predictor, records)
    better = _deletions(predictor, records[: arguments.deletions])
    planted = _planted(predictor, records, arguments.planted)
    count = min(len(records), arguments.deletions)
    return [
        paths.root.name, str(len(predictor.class_labels)), str(len(records)), f"{sums:.0e}", f"{logits:.0e}", spearman,
        f"{better} of {count}", planted, _shap_difference(predictor, records[:_BY_SHAP]),
    ]  # fmt: skip


def _logit(probabilities: np.ndarray, k: int) -> float:
    return float(np.log(probabilities[k]) - np.log(np.delete(probabilities, k).sum()))


def _sums(predictor: Predictor, records: Sequence[Record]) -> tuple[float, float]:
    """Return the largest difference of base + contributions from the logit, and of the logit from the prediction's."""
    found, probabilities = predictor.explain(records), predictor.predict(records)
    sums, logits = 0.0, 0.0
    for reasons, of_record in zip(found, probabilities):
        total = reasons["base"] + sum(each["contribution"] for each in reasons["contributions"])
        sums = max(sums, abs(total - reasons["logit"]))
        logits = max(logits, abs(reasons["logit"] - _logit(of_record, predictor.class_labels.index(reasons["class"]))))
    return sums, logits


def _estimates(predictor: Predictor, records: Sequence[Record]) -> str:
    """Return the least and the mean rank correlation of exact values with estimates at 200 permutations."""
    found: list[float] = []
    for record in records:
        if len(found) == _COMPARED:
            break
        (exact,) = predictor.explain([record], level="text")
        if len(exact["contributions"]) < _FEWEST_PARTS or "standard_error" in exact["contributions"][0]:
            continue
        with mock.patch.object(shapley, "MOST_EXACT", 0):
            (estimate,) = predictor.explain([record], level="text", permutations=200)
        pair = [{each["part"]: each["contribution"] for each in of["contributions"]} for of in (exact, estimate)]
        found.append(float(spearmanr(list(pair[0].values()), [pair[1][part] for part in pair[0]]).statistic))
    return f"{min(found):.3f}, {np.mean(found):.3f} ({len(found)})" if found else "none"


def _shap_difference(predictor: Predictor, records: Sequence[Record]) -> str:
    """Return the largest difference of a column's contribution from that of shap's exact explainer."""
    if find_spec("shap") is None:
        return "pip install shap"
    shap, columns = import_module("shap"), list(predictor.feature_inputs)
    masker, largest = shap.maskers.Independent(np.zeros((1, len(columns)))), 0.0
    for record, reasons in zip(records, predictor.explain(records)):
        k = predictor.class_labels.index(reasons["class"])

        def logits(kept: np.ndarray, record: Record = record, k: int = k) -> np.ndarray:
            made = [{name: record[name] if keep else None for name, keep in zip(columns, row)} for row in kept]
            return np.array([_logit(each, k) for each in predictor.predict(made)])

        expected = shap.explainers.Exact(logits, masker)(np.ones((1, len(columns)))).values[0]
        found = {each["part"]: each["contribution"] for each in reasons["contributions"]}
        largest = max(largest, *(abs(found.get(name, 0.0) - value) for name, value in zip(columns, expected)))
    return f"{largest:.0e} ({len(records)})"


def _deletions(predictor: Predictor, records: Sequence[Record]) -> int:
    """Return in how many records the deletion of the first part changes the logit more than that of another part."""
    rng, better = np.random.default_rng(0), 0
    for record, reasons in zip(records, predictor.explain(records)):
        first, *others = [each["part"] for each in reasons["contributions"]]
        if others:
            made = [record, {**record, first: None}, {**record, others[rng.integers(len(others))]: None}]
            k = predictor.class_labels.index(reasons["class"])
            whole, without_first, without_other = (_logit(each, k) for each in predictor.predict(made))
            better += abs(whole - without_first) > abs(whole - without_other)
    return better


def _planted(predictor: Predictor, records: Sequence[Record], count: int) -> str:
    """Return in how many neutral reviews of clothes an appended telling sentence has the largest contribution.

    A neutral review has four sentences that state a fact, and the other columns of a test record.
    """
    if "Review Text" not in predictor.feature_inputs:
        return "–"
    rng = np.random.default_rng(0)
    texts = [" ".join([*rng.choice(_FACTS, 4, replace=False), _TELLING]) for _ in range(count)]
    made = [{**records[i % len(records)], "Review Text": text} for i, text in enumerate(texts)]
    found = predictor.explain(made, level="text")
    first = sum(reasons["contributions"][0]["value"] == _TELLING for reasons in found)
    return f"{first} of {count}"


if __name__ == "__main__":
    sys.exit(main())
