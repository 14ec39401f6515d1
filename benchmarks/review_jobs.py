"""A job on the clothing reviews, run as a user runs it, and what it reached on test."""

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
from review_data import REPOSITORY, lay_out_job
from sklearn.metrics import average_precision_score

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
        metrics: metrics.json.
        rare_ap: average precision of class 0 on test; None where there are more than two classes.
        rows_per_second: median over the progress lines of training; None where it was too short for one.
        seconds: of the whole job.
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
    """hyperparams/{name}.json."""
    return json.loads((REPOSITORY / "hyperparams" / f"{name}.json").read_text())


def missing_data(folder: Path) -> str | None:
    """What to do where the reviews are not in `folder`; None where they are."""
    missing = [split for split in SPLITS if not (folder / f"{split}.parquet").is_file()]
    if not missing:
        return None
    return (
        f"{folder} has no {missing[0]}.parquet. The data: Women's E-Commerce Clothing Reviews (CC0), in "
        "the split of Multimodal-Toolkit (github.com/georgian-io/Multimodal-Toolkit, in "
        "datasets/Womens_Clothing_E-Commerce_Reviews). Save its splits as {train,val,test}.parquet, with a column "
        "review_id, into a folder and give that as --data."
    )


def train_on_reviews(root: Path, values: Mapping[str, Any], *, data: Path, rows: int | None = None) -> ReviewJob:
    """Lay a job out in `root`, which is replaced, and run it to its end.

    The tables have a column more, TITLE_AND_TEXT: the title, " . ", the review.

    Args:
        rows: of train; None = all.
    """
    shutil.rmtree(root, ignore_errors=True)  # measured from nothing: a finished job would only be found finished
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
