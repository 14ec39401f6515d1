"""Kind carriers: a table with a column of any type, which must have the same inputs in every form."""

import numpy as np
import pandas as pd

from testing import carriers
from testing.fuzz.outcome import ACCEPTED, Case, Outcome
from testing.table_jobs import fit_file, settings

_PYTHON_FLOATS = ("dicts", "JSON", "JSON Lines")  # after train in a text format, which has no narrow floats


def run(case: Case) -> Outcome:
    """Train on a table in one form, and compare its inputs in all others."""
    rng, rows = case.rng, case.rng.choice((20, 100, 1000))
    name, suffix = rng.choice(list(carriers.TYPES)), rng.choice(carriers.FILES)
    case.recipe.append(f"{rows} rows of {name}, train in {suffix}")
    columns = {
        "id": pd.Series([f"r{i}" for i in range(rows)]),
        "text": pd.Series(["good"] * rows),
        "x": pd.Series([rng.random() for _ in range(rows)]),
        "y": pd.Series([rng.randint(0, 9) for _ in range(rows)]),
        "c": carriers.column(name, rng, rows=rows),
        "label": pd.Series([rng.randint(0, 1) if i > 1 else i for i in range(rows)]),
    }
    case.folder.mkdir(parents=True, exist_ok=True)
    path = carriers.write(case.folder / f"train.{suffix}", columns)
    preprocessor, _ = fit_file(case.folder, path, settings(category_embedding_dim=4))
    inputs = {
        form: preprocessor.transform(table).batch.column("tabular").flatten().to_numpy()
        for form, table in carriers.read_back(columns, case.folder)
        if suffix == "parquet" or name not in carriers.NARROW or form not in _PYTHON_FLOATS
    }
    expected = inputs[f"{suffix} file"]
    problems = [
        f"a column of {name} in {form} has other inputs than in {suffix}"
        for form, found in inputs.items()
        if not np.allclose(found, expected, rtol=0, atol=1e-6)
    ]
    return Outcome(ACCEPTED, problems=problems, recipe=case.recipe)
