import json
import shutil
from dataclasses import replace

import numpy as np
import onnx
import pandas as pd
import pyarrow as pa
import pytest

from container.commands import main
from container.decision.decision import Decision
from container.evaluation.bootstrap import Scores, paired_differences
from container.evaluation.predictions import SplitPredictions, write_predictions
from testing.table_jobs import fit, table


def scores(labels, *, noise, seed):
    """Probabilities of two classes that follow the labels, with noise; the more probable class is decided."""
    rng = np.random.default_rng(seed)
    second = 1 / (1 + np.exp(-(2 * labels - 1 + noise * rng.normal(size=len(labels)))))
    return Scores(np.stack([1 - second, second], axis=1), (second >= 0.5).astype(int))


def test_a_better_model_has_intervals_beyond_zero_and_the_same_model_has_none():
    labels = np.arange(400) % 2
    good, bad = (scores(labels, noise=noise, seed=0) for noise in (0.5, 4.0))
    found = paired_differences(labels, bad, good)
    assert {name: each.sign for name, each in found.items()} == {
        "loss": -1, "auroc": 1, "average_precision": 1, "f1_score": 1, "accuracy": 1,
    }  # fmt: skip
    same = paired_differences(labels, good, good)
    assert all(each.value == 0 and each.interval is None for each in same.values())


def test_the_interval_of_a_paired_difference_contains_the_true_one_in_95_percent_of_samples():
    inside = []
    for seed in range(200):
        labels = (np.random.default_rng(seed).random(300) < 0.3).astype(int)
        one, other = scores(labels, noise=2.0, seed=2 * seed), scores(labels, noise=2.0, seed=2 * seed + 1)
        low, high = paired_differences(labels, one, other)["auroc"].interval
        inside.append(low <= 0 <= high)
    assert 0.9 <= np.mean(inside) <= 0.99


def test_a_difference_that_is_written_as_zero_has_no_star(job, capsys):
    folders = [job("one", noise=1.0), job("two", noise=1.0 + 1e-6)]
    assert main(["compare", *folders]) == 0
    assert "+0.0000 (" in (printed := capsys.readouterr().out.replace("-0.0000", "+0.0000"))
    assert "0)*" not in printed


def test_unlabelled_records_and_one_class_have_no_difference():
    labels = np.array([1, 1, -1, 1])
    model = scores(labels, noise=1.0, seed=0)
    assert paired_differences(labels, model, model) == {}


@pytest.fixture
def job(tmp_path):
    """A function that writes what compare reads of a finished job."""
    preprocessor, _ = fit(tmp_path / "fit", table(40))

    def write(
        name, *, noise, ids=range(60), id_name="id", order=range(60), channel=range(60), metrics=None, **settings
    ):
        root, labels = tmp_path / name, np.arange(60) % 2
        if channel:
            (root / "input/data/test").mkdir(parents=True)
            raw = pd.DataFrame(
                {"text": [f"record {row // 2}" for row in channel], "label": [row % 2 for row in channel]}
            )
            raw.iloc[list(order)].to_csv(root / "input/data/test/test.csv", index=False)
        (root / "output/data").mkdir(parents=True)
        replace(preprocessor.fitted, id_name=None if id_name == "row" else id_name).save(root / "model")
        Decision().save(root / "model")
        (root / "model/hyperparameters.json").write_text(json.dumps({"lr": 2e-5, **settings}))
        (root / "output/data/metrics.json").write_text(
            json.dumps({"test/auroc": 0.5 + noise / 10, "test/weighted/auroc": 0.6 + noise / 10, **(metrics or {})})
        )
        found = scores(labels, noise=noise, seed=1).probabilities[list(order)]
        labels, ids = labels[list(order)], [str(ids[row]) for row in order]
        raw = pa.chunked_array([pa.array(labels)])
        ids = [str(row) for row in range(60)] if id_name == "row" else ids
        split = SplitPredictions("test", pa.chunked_array([pa.array(ids)]), raw, labels, found)
        write_predictions(
            root / "output/data", split, predicted=raw, id_name=id_name, label_name="label", file_format="csv"
        )
        return str(root)

    return write


@pytest.mark.parametrize("id_name", ["id", "row"])
def test_settings_that_differ_and_metrics_with_differences_are_printed(job, capsys, id_name):
    first, second = job("one", noise=4.0, id_name=id_name), job("two", noise=0.5, lr=1e-3, id_name=id_name)
    assert main(["compare", first, second]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["lr", "2e-05", "0.001"] in lines
    assert len([line for line in lines if line and line[0] == "batch_size"]) == 0
    (auroc,) = [line for line in lines if line and line[0] == "auroc"]
    assert auroc[1:3] == ["0.9000", "0.5500"]
    assert auroc[3].startswith("+0.")
    assert auroc[-1].endswith(")*")


def test_records_in_another_order_are_compared_by_their_id(job, capsys):
    mixed = [*range(0, 60, 2), *range(1, 60, 2)][::-1]
    assert main(["compare", job("one", noise=1.0), job("two", noise=1.0, order=mixed)]) == 0
    assert "+0.0000 (no interval)" in capsys.readouterr().out


def test_jobs_with_other_test_records_have_no_differences(job, capsys):
    assert main(["compare", job("one", noise=1.0), job("two", noise=1.0, ids=range(1, 61))]) == 0
    printed = capsys.readouterr().out
    assert "No setting differs." in printed
    assert "no differences, because labels differ: 59 of 60 and 60 records were paired by id." in printed


def test_records_without_ids_are_paired_by_all_their_columns(job, capsys):
    mixed = [*range(0, 60, 2), *range(1, 60, 2)][::-1]
    jobs = job("one", noise=1.0, id_name="row"), job("two", noise=1.0, id_name="row", order=mixed)
    assert main(["compare", *jobs]) == 0
    printed = capsys.readouterr().out
    assert (
        "60 of 60 and 60 records were paired by equal values in every column, because a job has no id_name." in printed
    )
    assert "+0.0000 (no interval)" in printed


@pytest.mark.parametrize(
    ("channel", "says"),
    [(range(10, 70), "50 of 60 and 60 records were paired"), (None, "and input/data/test is missing")],
)
def test_records_that_differ_in_a_column_are_not_paired(channel, says, job, capsys):
    first = job("one", noise=1.0, id_name="row")
    assert main(["compare", first, job("two", noise=1.0, id_name="row", channel=channel)]) == 0
    assert says in capsys.readouterr().out


def test_weighted_metrics_are_shown(job, capsys):
    assert main(["compare", job("one", noise=1.0), job("two", noise=2.0)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["weighted/auroc", "0.7000", "0.8000", "-"] in rows
    assert "weighted/loss" not in [row[0] for row in rows if row]


@pytest.mark.parametrize(("factors", "same"), [((0.01, 1.0), True), ((0.5, 0.5), False)])
def test_two_models_of_the_same_trees_are_said_to_be_the_same(factors, same, job, tmp_path, capsys):
    folders = [
        job(name, noise=1.0, metrics={"companion": {"kept": True, "factors": factors}}) for name in ("one", "two")
    ]
    for number, folder in enumerate(folders):
        graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["a"], ["b"])], "trees", [], [])
        model = onnx.helper.make_model(graph)
        onnx.helper.set_model_props(model, {"network": str(number)})
        onnx.save(model, f"{folder}/model/companion.onnx")
    assert main(["compare", *folders]) == 0
    assert ("are the same trees" in capsys.readouterr().out) == same


def test_where_test_has_few_records_those_out_of_fold_are_compared(job, capsys):
    folders = [job(name, noise=1.0, metrics={"out_of_fold/auroc": 0.75}) for name in ("one", "two")]
    for folder in folders:
        shutil.copy(f"{folder}/output/data/test_predictions.csv", f"{folder}/output/data/out_of_fold_predictions.csv")
    for chosen, metric in (([], "out_of_fold"), (["--split", "test"], "test")):
        assert main(["compare", *folders, *chosen]) == 0
        printed = capsys.readouterr().out
        assert f"{metric} metric" in printed
        assert ("0.7500" in printed) == (metric == "out_of_fold")


@pytest.mark.parametrize("folders", [["one"], ["one", "missing"]])
def test_a_folder_without_a_finished_job_is_named(job, tmp_path, capsys, folders):
    job("one", noise=1.0)
    assert main(["compare", *(str(tmp_path / name) for name in folders)]) == 1
    assert ("missing: has no test predictions" if "missing" in folders else "at least two") in capsys.readouterr().err
