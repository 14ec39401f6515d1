"""Measure small text + table data (500 to 1,500 rows), in folds that use each row of test once.

    python -m benchmarks.small [--tables NAME ...] [--folds N ...] [--systems NAME ...] [--r-packages DIR]

Tables: imdb (ten published folds), and cut to a sample: cards, effectiveness (drug reviews), clothing (Rating), movies
and passengers of the package bokeh-sampledata (fresh, score, survived), Debian's packages (topic, interface), and
foods, tate and tweets of the R packages modeldata and dslabs, which need `pip install rdata` and

    apt-get download r-cran-modeldata r-cran-dslabs
    for package in *.deb; do dpkg-deb -x $package DIR; done

Systems: ours (preset recommended), before (the same with the code of --before), logistic (logistic regression over
TF-IDF of words and word pairs, one-hot categories and scaled numbers), lightgbm and autogluon (published_peers.py, with
--peers). Train has nine tenths of the rows outside of test, val one tenth; logistic and autogluon train on both.
Nothing is chosen on test. The metrics are AUROC (of several classes the mean of one against the rest) and log loss of
test.
"""

import argparse
import bz2
import json
import lzma
import os
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.preprocessing import OneHotEncoder

from benchmarks.printing import print_machine, print_table
from benchmarks.published import BENCHMARKS, PEERS, SHARED
from benchmarks.quality import auroc_one_versus_rest
from benchmarks.quality_tasks import DRUG_REVIEWS, TASKS
from benchmarks.review_data import REAL_REVIEWS, REPOSITORY, lay_out_job
from contracts.paths import SPLITS, JobPaths

FOLDS = 3
SEED = 7


@dataclass(frozen=True)
class Table:
    """A table: its columns, the number of rows to keep, and a function that reads it."""

    label: str
    id_name: str
    texts: Sequence[str]
    numbers: Sequence[str]
    categories: Sequence[str]
    rows: int
    read: Callable[[Path | None], pd.DataFrame]
    folds: int = FOLDS

    @property
    def inputs(self) -> list[str]:
        return [*self.texts, *self.numbers, *self.categories]


def _pooled(folder: Path) -> pd.DataFrame:
    return pd.concat([pd.read_parquet(folder / f"{split}.parquet") for split in SPLITS], ignore_index=True)


def _cards(_: Path | None) -> pd.DataFrame:
    cards = pd.read_parquet(SHARED / "data" / "published" / "cards.parquet").drop_duplicates()
    return cards.query("player_class.notna() and player_class not in ['DREAM', 'DEATHKNIGHT']")


def _of_r(package: str, name: str, folder: Path | None) -> pd.DataFrame:
    """Return a data frame of an installed R package: a compressed part of its lazy-load database."""
    from rdata.conversion import convert  # pyright: ignore[reportMissingImports]
    from rdata.parser import parse_data, parse_file  # pyright: ignore[reportMissingImports]

    if folder is None:
        sys.exit(f"the table of {package} needs --r-packages; see --help")
    database = folder / "usr/lib/R/site-library" / package / "data"
    start, length = map(int, convert(parse_file(database / "Rdata.rdx"))["variables"][name])
    part = (database / "Rdata.rdb").read_bytes()[start : start + length]
    raw = {"format": lzma.FORMAT_RAW, "filters": [{"id": lzma.FILTER_LZMA2}]}
    read = {b"2": bz2.decompress, b"Z": lambda data: lzma.decompress(data, **raw)}.get(part[4:5])
    return convert(parse_data(read(part[5:]) if read else zlib.decompress(part[4:])), default_encoding="utf-8")


def _foods(folder: Path | None) -> pd.DataFrame:
    return _of_r("modeldata", "training_data", folder)


def _tate(folder: Path | None) -> pd.DataFrame:
    works = _of_r("modeldata", "tate_text", folder)
    frequent = works["medium"].astype(str).value_counts().index[:5].tolist()
    return works.assign(medium=works["medium"].astype(str)).query(f"medium in {frequent}")


def _tweets(folder: Path | None) -> pd.DataFrame:
    tweets = _of_r("dslabs", "trump_tweets", folder)
    written = pd.to_datetime(tweets["created_at"], unit="s")
    tweets = tweets.assign(hour=written.dt.hour, year=written.dt.year, source=tweets["source"].astype(str))
    return tweets.query("year in [2015, 2016] and source in ['Twitter for Android', 'Twitter for iPhone']")


def _task(name: str, rows: int) -> Table:
    task = TASKS[name]
    assert task.table is not None
    settings, read = task.settings, task.table
    texts = [settings[key] for key in ("text_name", "primary_text_name", "secondary_text_name") if key in settings]
    columns = settings["tab_field_list"], settings["cat_field_list"]
    return Table(settings["label_name"], settings["id_name"], texts, *columns, rows, lambda _: read())


_IMDB = BENCHMARKS["imdb"]
TABLES = {
    "imdb": Table(_IMDB.label, _IMDB.id_name, _IMDB.texts, _IMDB.numbers, (), 800, lambda _: pd.DataFrame(), 10),
    "cards": Table(
        "player_class",
        "row_id",
        ["text", "name", "flavor"],
        ["cost", "attack", "health"],
        ["type", "set", "rarity"],
        1000,
        _cards,
    ),
    "effectiveness": Table(
        "effectiveness",
        "review_id",
        ["benefitsReview", "sideEffectsReview"],
        ["rating"],
        ["sideEffects", "urlDrugName", "condition"],
        800,
        lambda _: _pooled(DRUG_REVIEWS),
    ),
    "clothing": Table(
        "Rating",
        "review_id",
        ["Review Text", "Title"],
        ["Age", "Positive Feedback Count", "Recommended IND"],
        ["Division Name", "Department Name", "Class Name", "Clothing ID"],
        1000,
        lambda _: _pooled(REAL_REVIEWS),
    ),
    "foods": Table("score", "row_id", ["review"], [], ["product"], 1000, _foods),
    "tate": Table("medium", "row_id", ["title"], ["year"], ["artist"], 1000, _tate),
    "tweets": Table(
        "source", "row_id", ["text"], ["hour", "retweet_count", "favorite_count"], ["is_retweet"], 1000, _tweets
    ),
    "fresh": _task("fresh", 1200),
    "score": _task("score", 1200),
    "survived": _task("survived", 1000),
    "topic": _task("topic", 1500),
    "interface": _task("interface", 1000),
}


def main() -> None:
    """Measure the systems on the folds, and print the tables."""
    arguments = _arguments()
    print_machine()
    measured: dict[tuple[str, str], list[tuple[float, float]]] = {}
    rows = []
    for name in arguments.tables:
        table = TABLES[name]
        for fold in arguments.folds if arguments.folds is not None else range(table.folds):
            folder = arguments.work / f"{name}-{fold}"
            if not (folder / "test.parquet").is_file():
                _write_fold(folder, name, fold, arguments)
            for system in arguments.systems:
                began = time.monotonic()
                truth, scores = _run(folder, table, system, arguments)
                found = (
                    auroc_one_versus_rest(truth, scores),
                    float(log_loss(truth, scores, labels=range(scores.shape[1]))),
                )
                measured.setdefault((name, system), []).append(found)
                rows.append(
                    [name, str(fold), system, *(f"{value:.4f}" for value in found), f"{time.monotonic() - began:.0f}"]
                )
                print("  ".join(rows[-1]), flush=True)
    print_table("each fold", ("table", "fold", "system", "AUROC", "log loss", "seconds"), rows)
    _print_means(measured, arguments.systems)


def _print_means(measured: Mapping[tuple[str, str], Sequence[tuple[float, float]]], systems: Sequence[str]) -> None:
    """Print each table's means, ranks by AUROC, and the ratio of the first system's log loss to the best other one."""
    tables = list(dict.fromkeys(name for name, _ in measured))
    lines, ranks, ratios = [], [], []
    for name in tables:
        values = {system: np.array(measured[name, system]) for system in systems}
        means = {system: value.mean(axis=0) for system, value in values.items()}
        order = sorted(systems, key=lambda system, means=means: -means[system][0])
        ranks.append([order.index(system) + 1 for system in systems])
        first, cells = values[systems[0]], []
        for system in systems:
            difference = first[:, 0] - values[system][:, 0]
            error = difference.std(ddof=1) / len(difference) ** 0.5 if len(difference) > 1 else float("nan")
            behind = " (below)" if system != systems[0] and difference.mean() < -error else ""
            cells.append(f"{means[system][0]:.4f}, {means[system][1]:.3f}{behind}")
        if len(systems) > 1:
            ratios.append(means[systems[0]][1] / min(means[system][1] for system in systems[1:]))
        lines.append([name, str(len(first)), *cells])
    lines.append(["**mean rank**", "", *(f"**{rank:.2f}**" for rank in np.mean(ranks, axis=0))])
    print_table(
        "AUROC, log loss; (below): the first system is below by a standard error", ("table", "folds", *systems), lines
    )
    if ratios:
        print(f"log loss of {systems[0]} divided by that of the best other system: mean {np.mean(ratios):.3f}")


def _write_fold(folder: Path, name: str, fold: int, arguments: argparse.Namespace) -> None:
    table = TABLES[name]
    folder.mkdir(parents=True, exist_ok=True)
    if name == "imdb":
        splits = SHARED / "tools" / "published_splits.py"
        subprocess.run([sys.executable, str(splits), name, str(fold), str(folder)], check=True, capture_output=True)
        return
    rows = table.read(arguments.r_packages).reset_index(drop=True)
    rows = rows.assign(row_id=range(len(rows)))[[table.id_name, table.label, *table.inputs]]
    if len(rows) > table.rows:
        rows = train_test_split(rows, train_size=table.rows, random_state=SEED, stratify=rows[table.label])[0]
    rows = pd.DataFrame(rows).reset_index(drop=True)
    for column in [*table.texts, *table.categories]:
        rows[column] = [None if pd.isna(value) else str(value) for value in rows[column]]
    for column in table.numbers:
        rows[column] = pd.Series(pd.to_numeric(rows[column], errors="coerce")).astype(float)
    if rows[table.label].dtype.kind not in "bi":
        rows[table.label] = rows[table.label].astype(str)
    divided = list(StratifiedKFold(table.folds, shuffle=True, random_state=0).split(rows, rows[table.label]))
    rest, test = (rows.iloc[positions] for positions in divided[fold])
    train, val = map(
        pd.DataFrame, train_test_split(rest, test_size=len(rest) // 10, random_state=0, stratify=rest[table.label])
    )
    for split, part in (("train", train), ("val", val), ("test", test)):
        part.to_parquet(folder / f"{split}.parquet", index=False)


def _run(folder: Path, table: Table, system: str, arguments: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Return the class ids and the probabilities of test. [N], [N, K]"""
    tables = {split: pd.read_parquet(folder / f"{split}.parquet") for split in SPLITS}
    classes = sorted({label for part in tables.values() for label in part[table.label].tolist()})
    truth = tables["test"][table.label].map(classes.index).to_numpy()
    root = folder / system
    shutil.rmtree(root, ignore_errors=True)
    if system == "logistic":
        return truth, _logistic(tables, table, classes)
    if system in PEERS:
        root.mkdir()
        job = {
            "system": system,
            "data": str(folder),
            "folder": str(root),
            "label": table.label,
            "texts": [*table.texts],
        }
        job |= {"numbers": [*table.numbers], "categories": [*table.categories], "classes": classes, "seconds": 120}
        (root / "job.json").write_text(json.dumps(job))
        script = REPOSITORY / "benchmarks" / "published_peers.py"
        with (root / "log.txt").open("w") as log:
            command = [str(arguments.peers), str(script), str(root / "job.json")]
            subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True)
        return truth, pd.read_parquet(root / "test.parquet").to_numpy()
    return truth, _ours(root, table, tables, classes, code=arguments.before if system == "before" else REPOSITORY,
                        settings=json.loads(arguments.set))  # fmt: skip


def _ours(
    root: Path,
    table: Table,
    tables: Mapping[str, pd.DataFrame],
    classes: Sequence[Any],
    *,
    code: Path,
    settings: Mapping[str, Any],
) -> np.ndarray:
    import pyarrow as pa

    several = {"is_binary": False, "num_classes": len(classes), "multiclass_categories": list(classes)}
    values = {
        "preset": "recommended",
        "model_class": "multimodal_bert",
        "tokenizer": "from_scratch",
        "max_sen_len": 256,
        "seed": 0,
        "id_name": table.id_name,
        "label_name": table.label,
        "text_name": [*table.texts] if len(table.texts) > 1 else table.texts[0],
        "tab_field_list": [*table.numbers],
        "cat_field_list": [*table.categories],
        "explain": 0,
        **(several if len(classes) > 2 else {"multiclass_categories": list(classes)}),
        **settings,
    }
    channels = {split: pa.Table.from_pandas(part, preserve_index=False) for split, part in tables.items()}
    paths: JobPaths = lay_out_job(root, channels, values)
    command = [sys.executable, "-m", "container", "train", "--root", str(root)]
    with (root / "train.log").open("w") as log:
        environment = {**os.environ, "PYTHONPATH": str(code)}
        subprocess.run(command, cwd=code, stdout=log, stderr=subprocess.STDOUT, check=True, env=environment)
    columns = [f"prob_class_{i}" for i in range(len(classes))]
    found = pd.read_parquet(paths.output_data / "test_predictions.parquet")[columns].to_numpy()
    shutil.rmtree(root / "checkpoints", ignore_errors=True)
    return found


def _logistic(tables: Mapping[str, pd.DataFrame], table: Table, classes: Sequence[Any]) -> np.ndarray:
    """Return the probabilities of test by the usual baseline, fitted on train and val. [N, K]"""
    fitted_on = pd.concat([tables["train"], tables["val"]])
    texts = {name: part[[*table.texts]].fillna("").agg(" ".join, axis=1) for name, part in
             (("train", fitted_on), ("test", tables["test"]))}  # fmt: skip
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True).fit(texts["train"])
    parts = {name: [vectorizer.transform(text)] for name, text in texts.items()}
    frames = {"train": fitted_on, "test": tables["test"]}
    if table.categories:
        names = [*table.categories]
        encoder = OneHotEncoder(handle_unknown="ignore", min_frequency=2).fit(fitted_on[names].fillna(""))
        for name, frame in frames.items():
            parts[name].append(encoder.transform(frame[names].fillna("")))
    if table.numbers:
        names = [*table.numbers]
        median, mean, spread = (getattr(fitted_on[names], of)() for of in ("median", "mean", "std"))
        for name, frame in frames.items():
            parts[name].append(csr_matrix(((frame[names].fillna(median) - mean) / (spread + 1e-9)).to_numpy()))
    inputs = {name: hstack(columns).tocsr() for name, columns in parts.items()}
    codes = fitted_on[table.label].map(classes.index).to_numpy()
    model = LogisticRegression(max_iter=1000).fit(inputs["train"], codes)
    found = np.full((len(frames["test"]), len(classes)), 1e-6)
    found[:, model.classes_] = model.predict_proba(inputs["test"])
    return found / found.sum(axis=1, keepdims=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", choices=TABLES, nargs="+", default=list(TABLES))
    parser.add_argument("--folds", type=int, nargs="+", help="default: all folds of each table")
    parser.add_argument(
        "--systems", choices=("ours", "before", "logistic", *PEERS), nargs="+", default=["ours", "logistic"]
    )
    parser.add_argument("--set", default="{}", help='settings of ours in addition, as JSON, e.g. {"tokenizer": "DIR"}')
    parser.add_argument("--before", type=Path, help="checkout of an earlier version, for the system before")
    parser.add_argument("--r-packages", type=Path, help="folder with the unpacked R packages")
    parser.add_argument("--peers", type=Path, help="interpreter of an environment with lightgbm and autogluon.tabular")
    parser.add_argument("--work", type=Path, default=REPOSITORY / "build" / "small", help="folder of the jobs")
    arguments = parser.parse_args()
    if set(arguments.systems) & set(PEERS) and arguments.peers is None:
        parser.error("--systems lightgbm and autogluon need --peers PYTHON")
    if "before" in arguments.systems and arguments.before is None:
        parser.error("--systems before needs --before FOLDER")
    return arguments


if __name__ == "__main__":
    main()
