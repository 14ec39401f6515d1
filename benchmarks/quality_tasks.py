"""The tables and labels of benchmarks.quality.

No rule of the presets was chosen on the tables of the package bokeh-sampledata: movies, and the passengers of a ship.
"""

import sqlite3
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.review_data import REAL_REVIEWS, REPOSITORY, TWO_TEXTS
from contracts.paths import SPLITS

DRUG_REVIEWS = REAL_REVIEWS.parent / "drug-reviews"
UNSEEN = REPOSITORY / "build" / "unseen"  # parent of the folders that Task.write_missing makes
_PACKAGE = "bokeh_sampledata"
_GENRES = 8  # the most frequent ones; the others are one class


class Task(NamedTuple):
    """A label to predict.

    Attributes:
        data: folder with {train,val,test}.parquet.
        settings: hyperparameters: columns and model class.
        table: makes the table of the folder, in random order, if the folder is missing.
        rows: of train, val and test, for `table`.
    """

    data: Path
    settings: Mapping[str, Any]
    table: Callable[[Path], pd.DataFrame] | None = None
    rows: tuple[int, int, int] = (0, 0, 0)

    def write_missing(self) -> str | None:
        """Write the folder if it is missing; return what the user must do if that is impossible, else None."""
        if (self.data / "train.parquet").is_file():
            return None
        package = find_spec(_PACKAGE)
        if self.table is None:
            return f"{self.data} has no data"
        if package is None or package.origin is None:
            return "the movies and passengers are not installed: pip install bokeh-sampledata"
        self.data.mkdir(parents=True, exist_ok=True)
        table = self.table(Path(package.origin).parent / "_data")
        ends = np.cumsum(self.rows).tolist()
        for split, rows, end in [*zip(SPLITS, self.rows, ends, strict=True)][::-1]:  # train last: it marks the end
            table.iloc[end - rows : end].to_parquet(self.data / f"{split}.parquet", index=False)
        return None


def _drug_reviews(label: str, other: str) -> Task:
    return Task(
        DRUG_REVIEWS,
        {
            "id_name": "review_id",
            "label_name": label,
            "primary_text_name": "benefitsReview",
            "secondary_text_name": "sideEffectsReview",
            "tab_field_list": ["rating"],
            "cat_field_list": [other, "urlDrugName", "condition"],
            "model_class": "trimodal_bert",
        },
    )


def _movies(
    name: str,
    source: str,
    label: Callable[[np.ndarray], np.ndarray],
    *,
    numbers: str,
    categories: str,
    rows: tuple[int, int, int],
) -> Task:
    """Return a task on movies.

    Args:
        source: column from which `label` computes the label.
        numbers, categories: columns besides title and cast, divided by blanks.
    """

    def table(folder: Path) -> pd.DataFrame:
        movies = _read_movies(folder).dropna(subset=source)
        return _shuffled(movies.assign(label=label(movies[source].to_numpy())))

    settings = {"id_name": "imdbID", "primary_text_name": "Title", "secondary_text_name": "Cast", "label_name": "label"}
    columns = {"tab_field_list": numbers.split(), "cat_field_list": categories.split()}
    return Task(UNSEEN / name, {**settings, **columns, "model_class": "trimodal_bert"}, table, rows)


def _read_movies(folder: Path) -> pd.DataFrame:
    with sqlite3.connect(folder / "movies.db") as database:
        movies = pd.read_sql("select * from omdb", database)
        critics = pd.read_sql("select ID, Rating as Score, Meter, Reviews from tomatoes", database)
    movies = movies.merge(critics, on="ID").drop_duplicates("imdbID")
    for column in ("Year", "Runtime", "Oscars", "Reviews", "Meter", "Score"):
        movies[column] = pd.to_numeric(movies[column], errors="coerce")
    return movies.assign(MainGenre=[genre.split(",")[0].strip() for genre in movies["Genre"]])


def _is_fresh(meter: np.ndarray) -> np.ndarray:
    return (meter >= 60).astype(int)


def _frequent_genre(genres: np.ndarray) -> np.ndarray:
    names, counts = np.unique(genres.astype(str), return_counts=True)
    frequent = names[np.argsort(-counts, kind="stable")[:_GENRES]]
    return np.where(np.isin(genres, frequent), genres, "Other")


def _fifth(scores: np.ndarray) -> np.ndarray:
    names = np.array(["lowest", "low", "middle", "high", "highest"])
    return names[np.searchsorted(np.quantile(scores, [0.2, 0.4, 0.6, 0.8]), scores)]


def _passengers(folder: Path) -> pd.DataFrame:
    return _shuffled(pd.read_csv(folder / "titanic_all.csv").reset_index(names="id"))


def _shuffled(table: pd.DataFrame) -> pd.DataFrame:
    return table.sample(frac=1, random_state=7)


_ABOUT = "Director Country Language Rating"
TASKS = {
    "recommended": Task(REAL_REVIEWS, TWO_TEXTS),
    "rating": Task(REAL_REVIEWS, {**TWO_TEXTS, "label_name": "Rating", "tab_field_list": [], "cat_field_list": []}),
    "effectiveness": _drug_reviews("effectiveness", "sideEffects"),
    "side_effects": _drug_reviews("sideEffects", "effectiveness"),
    "fresh": _movies(
        "fresh",
        "Meter",
        _is_fresh,
        numbers="Year Runtime Reviews Oscars",
        categories=f"Genre Writer {_ABOUT}",
        rows=(6000, 1500, 3000),
    ),
    "genre": _movies(
        "genre",
        "MainGenre",
        _frequent_genre,
        numbers="Year Runtime Reviews Meter",
        categories=_ABOUT,
        rows=(6000, 1500, 3000),
    ),
    "score": _movies(
        "score",
        "Score",
        _fifth,
        numbers="Year Runtime Reviews Oscars Meter",
        categories=f"MainGenre Genre Writer Awards {_ABOUT}",
        rows=(1200, 400, 1500),
    ),
    "survived": Task(
        UNSEEN / "survived",
        {
            "id_name": "id",
            "text_name": "name",
            "label_name": "survived",
            "tab_field_list": ["age"],
            "cat_field_list": ["class", "sex"],
            "model_class": "multimodal_bert",
        },
        _passengers,
        (800, 200, 313),
    ),
}
REVIEWS = ("recommended", "rating", "effectiveness", "side_effects")
