"""A usual peer on text and tables: out-of-fold scores of TF-IDF and logistic regression, then boosted trees."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import OrdinalEncoder

_FOLDS = 5
_CATEGORIES = 200  # of a column; the others count as one


def stack_probabilities(
    tables: Mapping[str, pd.DataFrame], settings: Mapping[str, Any], classes: Sequence[Any]
) -> dict[str, np.ndarray]:
    """Return the probabilities of val and test."""
    labels = tables["train"][settings["label_name"]].map(list(classes).index).to_numpy()
    inputs = {split: _table(tables, split, settings) for split in tables}
    texts = [settings[name] for name in ("text_name", "primary_text_name", "secondary_text_name") if settings.get(name)]
    for column in texts:
        model = make_pipeline(
            make_union(
                TfidfVectorizer(min_df=2, ngram_range=(1, 2), sublinear_tf=True),
                TfidfVectorizer(
                    min_df=3, ngram_range=(2, 5), analyzer="char_wb", sublinear_tf=True, max_features=100_000
                ),
            ),
            LogisticRegression(C=3, max_iter=1000),
        )
        raw = {split: table[column].fillna("") for split, table in tables.items()}
        folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=0)
        scores = {"train": cross_val_predict(model, raw["train"], labels, cv=folds, method="predict_proba")}
        model.fit(raw["train"], labels)
        scores |= {split: model.predict_proba(raw[split]) for split in ("val", "test")}
        inputs = {split: np.hstack([inputs[split], scores[split]]) for split in tables}
    trees = HistGradientBoostingClassifier(
        learning_rate=0.03, max_iter=600, early_stopping=True, n_iter_no_change=30, random_state=0
    )
    val = tables["val"][settings["label_name"]].map(list(classes).index).to_numpy()
    trees.fit(inputs["train"], labels, X_val=inputs["val"], y_val=val)
    return {split: trees.predict_proba(inputs[split]) for split in ("val", "test")}


def _table(tables: Mapping[str, pd.DataFrame], split: str, settings: Mapping[str, Any]) -> np.ndarray:
    """Return numbers, and categories as codes by frequency."""
    numbers, categories = settings["tab_field_list"], settings["cat_field_list"]
    codes = OrdinalEncoder(
        handle_unknown="use_encoded_value",
        unknown_value=np.nan,
        encoded_missing_value=np.nan,
        max_categories=_CATEGORIES,
    )
    columns = ColumnTransformer([("numbers", "passthrough", numbers), ("categories", codes, categories)])
    columns.fit(_strings(tables["train"], categories))
    return np.asarray(columns.transform(_strings(tables[split], categories)), dtype=float)


def _strings(table: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    return table.assign(**{name: table[name].astype(object).where(table[name].notna(), np.nan) for name in columns})
