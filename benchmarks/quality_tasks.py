"""The tables and labels of benchmarks.quality.

The movies and the passengers of a ship are in the package bokeh-sampledata; apt keeps Debian's list of packages on
Debian and its derivatives. No rule of the presets was chosen on the tasks foreign and large. On the other tasks of
these tables, the rule of smooth_rows and features of the companion were.
"""

import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.review_data import REAL_REVIEWS, REPOSITORY, TWO_TEXTS
from contracts.paths import SPLITS

DRUG_REVIEWS = REAL_REVIEWS.parent / "drug-reviews"
UNSEEN = REPOSITORY / "build" / "unseen"  # parent of the folders that Task.write_missing makes
_GENRES = 8  # the most frequent ones; the others are one class
# Sections of programs. The others name a language or a kind of file, which the dependencies tell.
_TOPICS = {"admin", "devel", "games", "graphics", "math", "misc", "net"}
_TOPICS |= {"science", "sound", "text", "utils", "web", "x11"}
_INTERFACES = {"graphical": "interface::(?:graphical|x11)", "text": "interface::(?:commandline|text-mode|shell)"}


class MissingData(Exception):
    """The data of a task is not on this machine; the message says what the user must do."""


class Task(NamedTuple):
    """A label to predict.

    Attributes:
        data: folder with {train,val,test}.parquet.
        settings: hyperparameters: columns and model class.
        table: makes the table of the folder, in random order, if the folder is missing; may raise MissingData.
        rows: of train, val and test, for `table`.
    """

    data: Path
    settings: Mapping[str, Any]
    table: Callable[[], pd.DataFrame] | None = None
    rows: tuple[int, int, int] = (0, 0, 0)

    def with_joined_texts(self) -> "Task":
        """Return the task with its two texts as one sequence for one encoder."""
        settings = dict(self.settings)
        texts = [settings.pop(f"{role}_text_name") for role in ("primary", "secondary")]
        return self._replace(settings={**settings, "text_name": texts, "model_class": "multimodal_bert"})

    def write_missing(self) -> None:
        """Write the folder if it is missing.

        Raises:
            MissingData: its data is not on this machine.
        """
        if (self.data / "train.parquet").is_file():
            return
        if self.table is None:
            raise MissingData(f"{self.data} has no data")
        table = self.table()
        self.data.mkdir(parents=True, exist_ok=True)
        ends = np.cumsum(self.rows).tolist()
        for split, rows, end in [*zip(SPLITS, self.rows, ends, strict=True)][::-1]:  # train last: it marks the end
            table.iloc[end - rows : end].to_parquet(self.data / f"{split}.parquet", index=False)


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

    def table() -> pd.DataFrame:
        movies = _read_movies().dropna(subset=source)
        return _shuffled(movies.assign(label=label(movies[source].to_numpy())))

    settings = {"id_name": "imdbID", "primary_text_name": "Title", "secondary_text_name": "Cast", "label_name": "label"}
    columns = {"tab_field_list": numbers.split(), "cat_field_list": categories.split()}
    return Task(UNSEEN / name, {**settings, **columns, "model_class": "trimodal_bert"}, table, rows)


def _bokeh_data() -> Path:
    package = find_spec("bokeh_sampledata")
    if package is None or package.origin is None:
        raise MissingData("the movies and passengers are not installed: pip install bokeh-sampledata")
    return Path(package.origin).parent / "_data"


def _read_movies() -> pd.DataFrame:
    with sqlite3.connect(_bokeh_data() / "movies.db") as database:
        movies = pd.read_sql("select * from omdb", database)
        critics = pd.read_sql("select ID, Rating as Score, Meter, Reviews from tomatoes", database)
    movies = movies.merge(critics, on="ID").drop_duplicates("imdbID")
    for column in ("Year", "Runtime", "Oscars", "Reviews", "Meter", "Score"):
        movies[column] = pd.to_numeric(movies[column], errors="coerce")
    return movies.assign(MainGenre=[genre.split(",")[0].strip() for genre in movies["Genre"]])


def _is_foreign(languages: np.ndarray) -> np.ndarray:
    return np.array(["English" not in each for each in languages]).astype(int)


def _is_fresh(meter: np.ndarray) -> np.ndarray:
    return (meter >= 60).astype(int)


def _frequent_genre(genres: np.ndarray) -> np.ndarray:
    names, counts = np.unique(genres.astype(str), return_counts=True)
    frequent = names[np.argsort(-counts, kind="stable")[:_GENRES]]
    return np.where(np.isin(genres, frequent), genres, "Other")


def _fifth(scores: np.ndarray) -> np.ndarray:
    names = np.array(["lowest", "low", "middle", "high", "highest"])
    return names[np.searchsorted(np.quantile(scores, [0.2, 0.4, 0.6, 0.8]), scores)]


def _passengers() -> pd.DataFrame:
    return _shuffled(pd.read_csv(_bokeh_data() / "titanic_all.csv").reset_index(names="id"))


def _read_packages() -> pd.DataFrame:
    """Return Debian's packages, one of each source, because those of one source resemble each other."""
    listed = shutil.which("apt-cache") and subprocess.check_output(["apt-cache", "dumpavail"], text=True)
    if not listed:
        raise MissingData("this machine has no list of Debian's packages: run apt-get update on Debian, then run again")
    fields = (block.replace("\n ", " ").split("\n") for block in listed.split("\n\n") if block)
    packages = pd.DataFrame([dict(line.partition(": ")[::2] for line in lines) for lines in fields])
    packages["Source"] = packages["Source"].fillna(packages["Package"]).str.partition(" ")[0]
    packages["Dependencies"] = packages["Depends"].str.count(",") + 1
    for column in ("Size", "Installed-Size"):
        packages[column] = packages[column].astype(float)
    return packages.sort_values("Package").drop_duplicates("Source")  # apt's order is not always the same


def _packages(
    name: str,
    table: Callable[[], pd.DataFrame],
    *,
    texts: Sequence[str],
    categories: Sequence[str],
    rows: tuple[int, int, int],
    numbers: Sequence[str] = ("Size", "Installed-Size", "Dependencies"),
) -> Task:
    """Return a task on packages; `categories` besides maintainer and architecture."""
    roles = ("text_name",) if len(texts) == 1 else ("primary_text_name", "secondary_text_name")
    settings = {
        "id_name": "Package",
        "label_name": "label",
        "tab_field_list": [*numbers],
        "cat_field_list": [*categories, "Maintainer", "Architecture"],
        "model_class": "multimodal_bert" if len(texts) == 1 else "trimodal_bert",
    }
    return Task(UNSEEN / name, {**dict(zip(roles, texts, strict=True)), **settings}, table, rows)


def _topics() -> pd.DataFrame:
    packages = _read_packages()
    return _shuffled(packages[packages["Section"].isin(_TOPICS)].rename(columns={"Section": "label"}))


def _sizes() -> pd.DataFrame:
    packages = _read_packages()
    sizes = packages["Installed-Size"]
    return _shuffled(packages.assign(label=(sizes > sizes.median()).astype(int)))


def _interfaces() -> pd.DataFrame:
    packages = _read_packages()
    found = {name: packages["Tag"].fillna("").str.contains(tags) for name, tags in _INTERFACES.items()}
    packages = packages.assign(label=found["text"].astype(int))
    return _shuffled(packages[found["graphical"] != found["text"]])


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
    "foreign": _movies(
        "foreign",
        "Language",
        _is_foreign,
        numbers="Year Runtime Reviews Meter",
        categories="Genre Director Writer Rating",
        rows=(6000, 1500, 3000),
    ),
    "large": _packages(
        "large",
        _sizes,
        texts=("Description", "Depends"),
        categories=["Section"],
        numbers=["Dependencies"],
        rows=(6000, 1200, 2000),
    ),
    "topic": _packages("topic", _topics, texts=("Description", "Depends"), categories=[], rows=(6000, 1200, 2000)),
    "interface": _packages(
        "interface", _interfaces, texts=("Description",), categories=["Section"], rows=(2400, 600, 900)
    ),
}
REVIEWS = ("recommended", "rating", "effectiveness", "side_effects")
