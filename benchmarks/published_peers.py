"""Fit LightGBM or AutoGluon Tabular for benchmarks/published.py: a job (a JSON file) in, test's probabilities out.

The interpreter is that of an environment with autogluon.tabular[all], which installs LightGBM:

    python3.11 -m venv PEERS && PEERS/bin/pip install "autogluon.tabular[all]"

lightgbm    the numbers, the categories, and TF-IDF of words and word pairs of the joined texts; val stops the rounds
autogluon   TabularPredictor with best_quality, on train and val together, which it bags; it makes n-grams of the texts
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    columns = [*job["texts"], *job["numbers"], *job["categories"]]
    tables = {
        split: pd.read_parquet(Path(job["data"], f"{split}.parquet"), columns=[*columns, job["label"]])
        for split in ("train", "val", "test")
    }
    for table in tables.values():
        table[job["numbers"]] = table[job["numbers"]].astype(float)
        table[job["categories"]] = table[job["categories"]].astype(object).fillna("missing").astype(str)
    fit = {"lightgbm": _lightgbm, "autogluon": _autogluon}[job["system"]]
    probabilities = fit(tables, job)
    pd.DataFrame(probabilities, columns=list(map(str, job["classes"]))).to_parquet(Path(job["folder"], "test.parquet"))


def _lightgbm(tables: dict[str, pd.DataFrame], job: dict[str, Any]) -> np.ndarray:
    import lightgbm

    texts = {split: table[job["texts"]].fillna("").agg(" ".join, axis=1) for split, table in tables.items()}
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), min_df=3, max_features=20_000, sublinear_tf=True)
    vectorizer.fit(texts["train"])
    inputs, labels = {}, {}
    for split, table in tables.items():
        codes = [
            pd.Categorical(table[name].astype(str), tables["train"][name].astype(str).unique()).codes.astype(float)
            for name in job["categories"]
        ]
        numbers = np.nan_to_num(table[job["numbers"]].to_numpy(float), nan=-1e9)  # sparse inputs have no NaN
        dense = np.column_stack([numbers, *codes]) if codes else numbers
        inputs[split] = hstack([csr_matrix(dense), vectorizer.transform(texts[split])]).tocsr()
        labels[split] = table[job["label"]].map(job["classes"].index).to_numpy()
    first = len(job["numbers"])
    model = lightgbm.LGBMClassifier(n_estimators=2000, learning_rate=0.05, num_leaves=31, n_jobs=2, verbose=-1)
    model.fit(
        inputs["train"],
        labels["train"],
        eval_set=[(inputs["val"], labels["val"])],
        categorical_feature=list(range(first, first + len(job["categories"]))),
        callbacks=[lightgbm.early_stopping(50, verbose=False)],
    )
    return np.asarray(model.predict_proba(inputs["test"]))


def _autogluon(tables: dict[str, pd.DataFrame], job: dict[str, Any]) -> np.ndarray:
    from autogluon.tabular import TabularPredictor

    metric = "roc_auc" if len(job["classes"]) == 2 else "roc_auc_ovr_macro"
    predictor = TabularPredictor(job["label"], eval_metric=metric, path=str(Path(job["folder"], "model")))
    predictor.fit(
        pd.concat([tables["train"], tables["val"]], ignore_index=True),
        presets="best_quality",
        time_limit=job["seconds"],
        num_cpus=2,
        num_gpus=0,
    )
    print(predictor.leaderboard(), flush=True)
    found = predictor.predict_proba(tables["test"].drop(columns=job["label"]))
    return found[job["classes"]].to_numpy()


if __name__ == "__main__":
    main()
