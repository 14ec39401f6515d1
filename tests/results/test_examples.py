"""The report's examples are read again from the channel of the split with labels, and cannot fail the job."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from container.data.split import PreparedSplit
from container.decision.decision import Decision
from container.evaluation.predictions import SplitPredictions
from container.preprocessing.prepare import prepare_data
from container.results.shown_records import find_examples
from contracts.hyperparameter_files import load_hyperparameters
from testing.jobs import table, write_job


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A prepared job, its data, and predictions of class 1 with a probability that grows with the row."""
    paths = write_job(tmp_path_factory.mktemp("job"), rows=(60, 24, 120), overrides={"text_name": ["chat", "events"]})
    hp = load_hyperparameters(paths)
    prepared = prepare_data(paths, hp)
    data = SimpleNamespace(
        prepared=prepared,
        splits={name: PreparedSplit(prepared.split(name), roles=["text"]) for name in ("val", "test")},
    )
    splits = {}
    for name, split in data.splits.items():
        scores = np.linspace(0.5, 0.9, len(split))
        labels, probabilities = split.column("label").to_numpy(), np.stack([1 - scores, scores], axis=1)
        splits[name] = SplitPredictions(name, split.column("id"), split.column("raw_label"), labels, probabilities)
    return SimpleNamespace(paths=paths, hp=hp), data, splits


def test_the_errors_have_the_texts_of_their_rows_and_the_values_those_of_the_raw_column(finished):
    job, data, splits = finished
    found = find_examples(cast(Any, job), cast(Any, data), splits, decision=Decision())
    frame = table(120, seed=2)
    last = frame[frame["label"] == 0].iloc[-1]
    assert (found.split, found.errors[0].id, found.errors[0].decided) == ("test", last["order_id"], 1)
    assert found.errors[0].text.endswith(f"events: {last['events']}")
    counts = {each.group: each.labelled for each in found.values["color"]}
    expected = frame["color"].value_counts()
    assert all(counts[name] == rows for name, rows in expected.items() if rows >= 30)


def test_without_a_label_in_test_the_examples_are_of_val(finished):
    job, data, splits = finished
    unlabelled = replace(splits["test"], labels=np.full(120, -100))
    found = find_examples(cast(Any, job), cast(Any, data), {**splits, "test": unlabelled}, decision=Decision())
    assert found.split == "val"


def test_a_channel_that_cannot_be_read_again_leaves_the_examples_out(finished, tmp_path, caplog):
    job, data, splits = finished
    gone = SimpleNamespace(hp=job.hp, paths=type(job.paths)(tmp_path))
    assert find_examples(cast(Any, gone), cast(Any, data), splits, decision=Decision()) is None
    assert "examples: none, because of ContractError" in caplog.text
