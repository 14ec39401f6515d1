"""The demo's data: what its columns hold, and that its label takes both the texts and the table."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict

from container.demo import CONFIGURATION
from container.demo_data import table_only_auroc, write_demo_data
from container.text.cleaning import split_dialogue
from contracts.paths import JobPaths

ROWS = 4000
TEXTS = ["chat", "shiptrack"]
NUMBERS = ["price", "quantity", "seller_rating", "account_age_days"]
CATEGORIES = ["marketplace", "category"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("demo")
    write_demo_data(root, rows=ROWS, seed=3)
    return root


@pytest.fixture(scope="module")
def splits(root: Path) -> dict[str, pd.DataFrame]:
    return {split: read(root, split) for split in ("train", "val", "test")}


@pytest.fixture(scope="module")
def claims(splits: dict[str, pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(splits.values(), ignore_index=True)


def read(root: Path, split: str) -> pd.DataFrame:
    files = sorted(JobPaths(root).channel(split).iterdir())
    return pd.concat([pd.read_csv(file) for file in files], ignore_index=True)


def written(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.csv")}


def test_the_same_seed_writes_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("first", 1), ("second", 1), ("other", 2)):
        write_demo_data(tmp_path / name, rows=100, seed=seed)
    first, second, other = (written(tmp_path / name) for name in ("first", "second", "other"))
    assert first == second
    assert first.keys() == other.keys()
    assert all(first[name] != other[name] for name in first)


def test_writing_again_replaces_what_was_there(tmp_path: Path) -> None:
    write_demo_data(tmp_path, rows=200, seed=1)
    write_demo_data(tmp_path, rows=100, seed=1)
    assert sum(len(read(tmp_path, split)) for split in ("train", "val", "test")) == 100


def test_train_is_70_percent_in_several_files_and_val_and_test_15_each(
    root: Path, splits: dict[str, pd.DataFrame]
) -> None:
    assert {split: len(table) for split, table in splits.items()} == {"train": 2800, "val": 600, "test": 600}
    assert len(list(JobPaths(root).channel("train").iterdir())) > 1


def test_no_row_is_lost_if_the_ratios_do_not_divide_the_rows(tmp_path: Path) -> None:
    write_demo_data(tmp_path, rows=101, seed=1)
    ids = [name for split in ("train", "val", "test") for name in read(tmp_path, split)["order_id"]]
    assert ids == [f"A-{row:06d}" for row in range(101)]


def test_the_columns_are_those_of_the_configuration(claims: pd.DataFrame) -> None:
    assert list(claims.columns) == ["order_id", *TEXTS, *NUMBERS, *CATEGORIES, "label"]
    named = [CONFIGURATION[f"{name}_name"] for name in ("id", "primary_text", "secondary_text", "label")]
    assert sorted(claims.columns) == sorted(
        [*named, *CONFIGURATION["tab_field_list"], *CONFIGURATION["cat_field_list"]]
    )


def test_both_labels_are_common_in_every_split(splits: dict[str, pd.DataFrame]) -> None:
    for table in splits.values():
        assert set(table["label"]) == {0, 1}
        assert 0.3 < table["label"].mean() < 0.6


@pytest.mark.parametrize("column", [*NUMBERS, *CATEGORIES])
def test_numbers_and_categories_have_gaps(claims: pd.DataFrame, column: str) -> None:
    assert 0.02 < claims[column].isna().mean() < 0.10
    assert pd.api.types.is_numeric_dtype(claims[column]) == (column in NUMBERS)


def test_every_category_is_common_enough_to_learn(claims: pd.DataFrame) -> None:
    for column in CATEGORIES:
        counts = claims[column].value_counts()
        assert len(counts) >= 5
        assert counts.min() > ROWS / 20


def test_chats_hold_two_to_six_messages_and_some_are_empty_or_without_markers(claims: pd.DataFrame) -> None:
    empty = claims["chat"].isna()
    marked = claims["chat"].str.startswith("[bom]", na=False)
    assert 0.02 < empty.mean() < 0.08
    assert 0.05 < (~empty & ~marked).mean() < 0.20
    messages = claims.loc[marked, "chat"].map(split_dialogue).map(len)
    assert set(messages) == {2, 3, 4, 5, 6}
    plain = claims.loc[~empty & ~marked, "chat"]
    assert not plain.str.contains("[bom]", regex=False).any()
    assert not plain.str.contains("[eom]", regex=False).any()


@pytest.mark.parametrize("found", ["<p>", "<br/>", "&amp;", "&nbsp;", "😡", "👍🏽"])
def test_chats_hold_tags_entities_and_emoji(claims: pd.DataFrame, found: str) -> None:
    assert claims["chat"].str.contains(found, regex=False, na=False).sum() > 20


def test_no_placeholder_is_left_in_a_text(claims: pd.DataFrame) -> None:
    for column in TEXTS:
        assert not claims[column].str.contains(r"[{}]", na=False).any()


def test_every_shipment_has_dated_events_in_order(claims: pd.DataFrame) -> None:
    for events in claims["shiptrack"].map(split_dialogue):
        assert 3 <= len(events) <= 5
        parts = [event.split(" ", maxsplit=2) for event in events]
        days = [int(day) for _, day, _ in parts]
        assert len({month for month, _, _ in parts}) == 1
        assert days == sorted(days)
        assert 1 <= days[0] <= days[-1] <= 28


def test_texts_are_of_moderate_length(claims: pd.DataFrame) -> None:
    assert 30 < claims["chat"].dropna().str.split().map(len).mean() < 60
    assert 12 < claims["shiptrack"].str.split().map(len).mean() < 30


def test_texts_alone_and_table_alone_stay_clearly_below_both_together(
    root: Path, splits: dict[str, pd.DataFrame]
) -> None:
    train, test = splits["train"], splits["test"]
    scores = text_scores(train, test)
    text = roc_auc_score(test["label"], scores[1])
    events = roc_auc_score(test["label"], text_scores(train, test, columns=["shiptrack"])[1])
    table = table_only_auroc(root)
    stack = HistGradientBoostingClassifier(learning_rate=0.05, random_state=0)
    stack.fit(with_score(train, train, scores[0]), train["label"])
    both = roc_auc_score(test["label"], stack.predict_proba(with_score(test, train, scores[1]))[:, 1])
    assert 0.60 < events < text - 0.05
    assert 0.72 < text < 0.87
    assert 0.72 < table < 0.87
    assert both > 0.90
    assert both > max(text, table) + 0.07


def test_table_only_auroc_is_of_test_and_of_the_table(root: Path, tmp_path: Path) -> None:
    """Texts that give the label away change nothing; labels of test dealt anew leave chance."""
    for split in ("train", "val", "test"):
        table = read(root, split)
        table["chat"] = np.where(table["label"] == 1, "abuse", "honest")
        if split == "test":
            table["label"] = np.random.default_rng(0).permutation(table["label"])
        folder = JobPaths(tmp_path).channel(split)
        folder.mkdir(parents=True)
        table.to_csv(folder / "part.csv", index=False)
    assert abs(table_only_auroc(tmp_path) - 0.5) < 0.08


def text_scores(
    train: pd.DataFrame, test: pd.DataFrame, *, columns: list[str] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Out-of-fold scores of train and scores of test, by words and pairs of words."""
    joined = [table[columns or TEXTS].fillna("").agg(" ".join, axis=1) for table in (train, test)]
    words = TfidfVectorizer(ngram_range=(1, 2), min_df=3, sublinear_tf=True)
    known, unknown = words.fit_transform(joined[0]), words.transform(joined[1])
    model = LogisticRegression(C=3.0, max_iter=500)
    folds = cross_val_predict(model, known, train["label"], cv=3, method="decision_function")
    return folds, model.fit(known, train["label"]).decision_function(unknown)


def with_score(table: pd.DataFrame, train: pd.DataFrame, score: np.ndarray) -> pd.DataFrame:
    """Numbers, each category's rate of abuse in train, and the texts' score."""
    rates = {name: table[name].map(train.groupby(name)["label"].mean()) for name in CATEGORIES}
    return table[NUMBERS].assign(**rates, text=score)
