"""Fit AutoGluon Multimodal for benchmarks/quality.py: a job (a JSON file) in, the probabilities of val and test out.

The interpreter is that of an environment with AutoGluon. Its settings are its defaults but for the encoder,
the precision and the epochs.
"""

import json
import sys
from pathlib import Path

import pandas as pd
from autogluon.multimodal import MultiModalPredictor


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    types, label = job["column_types"], job["label"]
    columns = [*types, label]
    splits = {
        name: pd.read_parquet(f"{job['data']}/{name}.parquet", columns=columns) for name in ("train", "val", "test")
    }
    splits = {name: table[table[label].notna()] for name, table in splits.items()}
    for table in splits.values():
        numbers = [name for name, kind in types.items() if kind == "numerical"]
        table[numbers] = table[numbers].astype(float)
    problem = "binary" if len(job["classes"]) == 2 else "multiclass"
    predictor = MultiModalPredictor(label, problem_type=problem, path=f"{job['folder']}/model")
    predictor.fit(
        splits["train"],
        tuning_data=splits["val"],
        column_types=types,
        hyperparameters={
            "model.hf_text.checkpoint_name": job["encoder"],
            "optim.max_epochs": job["max_epochs"],
            "env.num_gpus": 0,
            "env.precision": job["precision"],
        },
        seed=job["seed"],
    )
    for name in ("val", "test"):
        probabilities = predictor.predict_proba(splits[name].drop(columns=label), as_pandas=True)
        probabilities[job["classes"]].set_axis(map(str, job["classes"]), axis=1).to_parquet(
            f"{job['folder']}/{name}.parquet"
        )


if __name__ == "__main__":
    main()
