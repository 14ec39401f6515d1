"""Run a job on the clothing reviews as a user does, and collect its results."""

import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from sklearn.metrics import average_precision_score

from benchmarks.review_data import REPOSITORY, lay_out_job
from contracts import artifacts
from contracts.paths import SPLITS, JobPaths

LOG = "train.log"
TITLE_AND_TEXT = "Title and Review Text"
_RATE = re.compile(r"step \d+/\d+, .*?([\d.]+) rows/s")
_PARAMETERS = re.compile(r": ([\d,]+) parameters on ")


@dataclass(frozen=True)
class ReviewJob:
    """A finished job.

    Attributes:
        metrics: the content of metrics.json.
        rare_ap: average precision of class 0 on test; None if there are more than two classes.
        rows_per_second: median over the progress lines of training; None if there are none.
        seconds: duration of the whole job.
    """

    paths: JobPaths
    metrics: dict[str, Any]
    rare_ap: float | None
    parameters: int
    rows_per_second: float | None
    seconds: float

    @property
    def rate(self) -> str:
        return "too short" if self.rows_per_second is None else f"{self.rows_per_second:,.0f}"


def configuration(name: str) -> dict[str, Any]:
    """Return the content of hyperparams/{name}.json."""
    return json.loads((REPOSITORY / "hyperparams" / f"{name}.json").read_text())


def missing_data(folder: Path) -> str | None:
    """Return instructions to get the reviews, or None if they are in `folder`."""
    missing = [split for split in SPLITS if not (folder / f"{split}.parquet").is_file()]
    if not missing:
        return None
    return (
        f"{folder} has no {missing[0]}.parquet. The data is Women's E-Commerce Clothing Reviews (CC0), in "
        "the split of Multimodal-Toolkit (github.com/georgian-io/Multimodal-Toolkit, in "
        "datasets/Womens_Clothing_E-Commerce_Reviews). Save its splits as {train,val,test}.parquet with a column "
        "review_id, and pass their folder as --data."
    )


def train_on_reviews(root: Path, values: Mapping[str, Any], *, data: Path, rows: int | None = None) -> ReviewJob:
    """Write a job to `root`, which is replaced, and run it.

    The tables get the additional column TITLE_AND_TEXT: the title, " . ", the review.

    Args:
        rows: training rows; None = all.
    """
    shutil.rmtree(root, ignore_errors=True)  # a finished job would not run again
    tables = {split: _with_title_and_text(pq.read_table(data / f"{split}.parquet")) for split in SPLITS}
    tables["train"] = tables["train"].slice(0, rows)
    paths = lay_out_job(root, tables, values)
    log = root / LOG
    print(f"Training {root.name}; its log: {log}", flush=True)
    start = time.perf_counter()
    with log.open("w") as sink:
        command = [sys.executable, "-m", "container", "train", "--root", str(root)]
        finished = subprocess.run(command, cwd=REPOSITORY, stdout=sink, stderr=subprocess.STDOUT, check=False)
    if finished.returncode:
        sys.exit(f"{root.name} ended with exit code {finished.returncode}:\n{log.read_text()[-2000:]}")
    seconds = time.perf_counter() - start
    predictions = pd.read_parquet(paths.output_data / "test_predictions.parquet")
    text = log.read_text()
    rates = [float(rate) for rate in _RATE.findall(text)]
    return ReviewJob(
        paths,
        metrics=json.loads((paths.output_data / artifacts.METRICS).read_text()),
        rare_ap=average_precision_score(1 - predictions[values["label_name"]], predictions["prob_class_0"])
        if values.get("is_binary", True)
        else None,
        parameters=int(_PARAMETERS.search(text).group(1).replace(",", "")),
        rows_per_second=statistics.median(rates) if rates else None,
        seconds=seconds,
    )


def _with_title_and_text(table: pa.Table) -> pa.Table:
    texts = (table[column].cast(pa.string()) for column in ("Title", "Review Text"))
    joined = pc.binary_join_element_wise(*texts, " . ", null_handling="replace", null_replacement="")
    return table.append_column(TITLE_AND_TEXT, joined)
