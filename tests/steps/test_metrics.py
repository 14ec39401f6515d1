"""ModelMetricsComputation: what it says of predictions, and what it refuses."""

import json
import subprocess
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as sk

from container.evaluation.capture import capture
from container.evaluation.comparison import auroc_difference_interval, compare
from container.evaluation.curves import auroc_interval, rank
from container.evaluation.slices import MISSING, OTHERS, slices
from container.steps.metrics.read_predictions import find_predictions, score_columns
from contracts.errors import ContractError
from contracts.paths import JobPaths
from contracts.revision import revision
from testing.jobs import REPOSITORY
from testing.jobs import metrics as job_metrics
from testing.step_runs import input_folder, message, output_folder, run_step

SETTINGS = {"ID_FIELD": "id", "LABEL_FIELD": "label", "GENERATE_PLOTS": "false"}


def compute(root: Path, *, expect: int = 0, **settings: Any) -> dict[str, Any]:
    """metrics_report.json of a run; empty after a failure."""
    run_step(root, "metrics", expect=expect, **{**SETTINGS, **settings})
    return read(root, "metrics_report.json") if expect == 0 else {}


def read(root: Path, name: str) -> dict[str, Any]:
    return json.loads((output_folder(root, "metrics", "metrics_output") / name).read_text())


def scored(rows: int, *, seed: int = 0, noise: float = 1.0, prefix: str = "r") -> pd.DataFrame:
    """id, label and the probabilities of two classes; the same labels for the same seed."""
    rng = np.random.default_rng(seed)
    label = (rng.random(rows) < 0.3).astype(int)
    logit = 2 * label - 1.2 + noise * rng.normal(size=rows)
    score = 1 / (1 + np.exp(-logit))
    ids = [f"{prefix}{i:05d}" for i in range(rows)]
    return pd.DataFrame({"id": ids, "label": label, "prob_class_0": 1 - score, "prob_class_1": score})


def lay_out(root: Path, *, name: str = "eval_output", suffix: str = "csv", **splits: pd.DataFrame) -> None:
    folder = input_folder(root, "metrics", name)
    for split, frame in (splits or {"val": scored(300, seed=1), "test": scored(400, seed=2)}).items():
        path = folder / f"{split}_predictions.{suffix}"
        if suffix == "parquet":
            frame.to_parquet(path, index=False)
        elif suffix == "json":
            frame.to_json(path, orient="records", double_precision=15)
        else:
            frame.to_csv(path, index=False, sep="\t" if suffix == "tsv" else ",")


def processed(root: Path, **splits: pd.DataFrame) -> None:
    """processed_data, as the preprocessing step writes it."""
    folder = input_folder(root, "metrics", "processed_data")
    (folder / "data_profile.json").write_text("{}")
    for split, frame in splits.items():
        (folder / split).mkdir()
        frame.to_csv(folder / split / f"{split}_processed_data.csv", index=False)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet", "json"])
def test_metrics_are_those_of_scikit_learn_in_every_format(tmp_path: Path, suffix: str) -> None:
    test = scored(400, seed=2)
    lay_out(tmp_path, suffix=suffix)
    compute(tmp_path)
    found = read(tmp_path, "metrics.json")
    decided = test["prob_class_1"] >= 0.5
    assert found["test/auroc"] == pytest.approx(sk.roc_auc_score(test["label"], test["prob_class_1"]))
    assert found["test/average_precision"] == pytest.approx(
        sk.average_precision_score(test["label"], test["prob_class_1"])
    )
    assert found["test/f1_score"] == pytest.approx(sk.f1_score(test["label"], decided))
    assert found["test/loss"] == pytest.approx(sk.log_loss(test["label"], test[["prob_class_0", "prob_class_1"]]))
    assert found["test/brier_score"] == pytest.approx(sk.brier_score_loss(test["label"], test["prob_class_1"]))


def test_everything_is_written_and_plots_are_drawn(tmp_path: Path) -> None:
    lay_out(tmp_path)
    run_step(tmp_path, "metrics", **{**SETTINGS, "GENERATE_PLOTS": "true"})
    summary = (output_folder(tmp_path, "metrics", "metrics_output") / "metrics_summary.txt").read_text()
    assert "AUROC" in summary
    plots = {path.name for path in output_folder(tmp_path, "metrics", "plots_output").iterdir()}
    assert plots == {
        "roc_curve.png", "pr_curve.png", "calibration.png", "scores.png", "thresholds.png", "recall_by_budget.png"
    }  # fmt: skip


def test_evaluation_json_has_the_deciding_metric_in_the_model_registrys_format(tmp_path: Path) -> None:
    lay_out(tmp_path)
    report = compute(tmp_path, DECISION_METRIC="val/average_precision")
    found = read(tmp_path, "evaluation.json")
    decision = found["decision"]
    assert (decision["metric"], decision["value"]) == ("val/average_precision", report["val/average_precision"])
    assert decision["champion"]["records"] == 0, "no registered model was scored"
    assert found["version"]["metric_interval_95"] == "none"
    statistics = found["binary_classification_metrics"]
    assert statistics["auc"]["value"] == report["val/auroc"]
    assert sum(sum(row.values()) for row in statistics["confusion_matrix"].values()) == 300


def test_evaluation_json_has_texts_that_describe_a_version(tmp_path: Path) -> None:
    lay_out(tmp_path)
    processed = input_folder(tmp_path, "metrics", "processed_data")
    for name, rows in (("data_profile.json", 700), ("data_profile-algo-2.json", 77)):
        (processed / name).write_text(json.dumps({"splits": {"train": {"rows": rows}}}))
    report = compute(tmp_path, DECISION_METRIC="val/auroc")
    low, high = report["intervals_95"]["val"]["auroc"]
    assert read(tmp_path, "evaluation.json")["version"] == {
        "metric_value": f"{report['val/auroc']:.6g}",
        "metric_interval_95": f"{low:.6g} to {high:.6g}",
        "measured_on": "300 labelled records of val",
        "training_rows": "777",
        "commit": revision(),
    }


def test_a_commit_is_that_of_the_image_or_of_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINER_REVISION", raising=False)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True).stdout.strip()
    assert revision().removesuffix("-dirty") == head
    monkeypatch.setenv("TRAINER_REVISION", "abc")
    assert revision() == "abc"


def test_an_undefined_metric_decides_with_null(tmp_path: Path) -> None:
    lay_out(tmp_path, test=scored(50).assign(label=0))
    compute(tmp_path)
    found = read(tmp_path, "evaluation.json")
    assert found["decision"]["value"] is None
    assert (found["version"]["metric_value"], found["version"]["training_rows"]) == ("undefined", "unknown")
    assert "no curve" not in read(tmp_path, "metrics.json")["undefined"]["test/auroc"]


@pytest.mark.parametrize("folder", ["", "data/"], ids=["the service's", "local mode's"])
def test_an_archive_of_a_training_job_is_unpacked(tmp_path: Path, folder: str) -> None:
    lay_out(tmp_path / "loose")
    expected = compute(tmp_path / "loose")
    archive = input_folder(tmp_path / "packed", "metrics", "eval_output") / "output.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for path in input_folder(tmp_path / "loose", "metrics", "eval_output").iterdir():
            tar.add(path, folder + path.name)
    assert compute(tmp_path / "packed")["test/auroc"] == expected["test/auroc"]


def test_a_table_of_another_scorer_is_one_split_of_its_own_columns(tmp_path: Path) -> None:
    frame = scored(200).rename(columns={"prob_class_1": "risk"}).drop(columns="prob_class_0")
    frame.to_csv(input_folder(tmp_path, "metrics", "eval_output") / "scores.csv", index=False)
    report = compute(tmp_path, SCORE_FIELDS="risk")
    assert report["test/auroc"] == pytest.approx(sk.roc_auc_score(frame["label"], frame["risk"]))


def test_rows_without_a_label_count_for_nothing(tmp_path: Path) -> None:
    frame = scored(300)
    expected = sk.roc_auc_score(frame["label"][100:], frame["prob_class_1"][100:])
    lay_out(tmp_path, test=frame.assign(label=[""] * 100 + frame["label"][100:].tolist()))
    report = compute(tmp_path)
    assert report["records"]["test"] == {"rows": 300, "labelled": 200}
    assert report["test/auroc"] == pytest.approx(expected)


def three_classes(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    label = rng.integers(0, 3, rows)
    logits = rng.normal(size=(rows, 3))
    logits[np.arange(rows), label] += 1.5
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    columns = {f"prob_class_{k}": probabilities[:, k] for k in range(3)}
    return pd.DataFrame({"id": np.arange(rows), "label": np.array(["a", "b", "c"])[label], **columns})


def test_more_classes_have_macro_metrics_slices_and_comparison(tmp_path: Path) -> None:
    frame = three_classes(300)
    shuffled = frame.assign(prob_class_0=frame["prob_class_1"], prob_class_1=frame["prob_class_0"])
    lay_out(tmp_path, test=frame.assign(market=["us", "uk", "de"] * 100))
    lay_out(tmp_path, name="previous_eval_output", test=shuffled)
    report = compute(tmp_path, GROUP_FIELDS="market")
    scores = frame[["prob_class_0", "prob_class_1", "prob_class_2"]]
    assert report["test/auroc"] == pytest.approx(sk.roc_auc_score(frame["label"], scores, multi_class="ovr"))
    assert len(report["slices"]["test"]["market"]) == 3
    assert report["comparison"]["test"]["differences"]["accuracy"] > 0.1
    assert report["comparison"]["test"]["verdict"] is None  # nothing tests whether the difference is significant
    assert "multiclass_classification_metrics" in read(tmp_path, "evaluation.json")


def test_labels_take_the_order_that_is_stated(tmp_path: Path) -> None:
    frame = three_classes(300)
    renamed = {"a": "zebra", "b": "b", "c": "c"}
    lay_out(tmp_path, test=frame.assign(label=frame["label"].map(renamed)))
    expected = sk.roc_auc_score(frame["label"], frame.filter(like="prob"), multi_class="ovr")
    assert compute(tmp_path, CLASS_LABELS="zebra,b,c")["test/auroc"] == pytest.approx(expected)
    assert compute(tmp_path)["test/auroc"] != pytest.approx(expected)


def test_recall_is_counted_in_records_and_in_amounts(tmp_path: Path) -> None:
    """By hand: ten records, four positives; the two highest scores are positives of 60 and 30 of 100 dollars."""
    frame = pd.DataFrame(
        {
            "id": range(10),
            "label": [1, 1, 0, 1, 0, 0, 1, 0, 0, 0],
            "prob_class_1": np.arange(10, 0, -1) / 11,
            "amount": [60, 30, 500, 5, 500, 500, 5, 500, 500, 500],
        }
    )
    lay_out(tmp_path, test=frame.assign(prob_class_0=1 - frame["prob_class_1"]))
    report = compute(tmp_path, AMOUNT_FIELD="amount", FLAGGED_SHARES="0.2,0.5", FALSE_POSITIVE_RATE=0.2)
    assert (report["test/count_recall_at_0.2"], report["test/dollar_recall_at_0.2"]) == (0.5, 0.9)
    assert (report["test/count_recall_at_0.5"], report["test/dollar_recall_at_0.5"]) == (0.75, 0.95)
    assert report["test/dollar_recall_at_fpr_0.2"] == 0.95
    assert report["capture"]["test"]["positive_amount"] == 100


def test_equal_scores_are_flagged_together_and_never_beyond_the_budget() -> None:
    is_positive = np.array([True, True, False, False, True, False])
    scores = np.array([0.9, 0.8, 0.8, 0.8, 0.1, 0.1])
    found = capture(
        rank(is_positive, scores),
        positive_scores=scores[is_positive],
        positive_amounts=None,
        flagged_shares=(0.5, 4 / 6, 1.0),
        false_positive_rate=0.5,
    )
    assert [point.flagged for point in found.at_shares.values()] == [1, 4, 6]
    assert found.at_false_positive_rate[0.5].flagged == 1


def test_amounts_and_groups_come_from_the_processed_data_by_id(tmp_path: Path) -> None:
    test = scored(400, seed=2)
    extra = pd.DataFrame({"id": test["id"], "amount": np.arange(400.0), "market": ["us", "uk"] * 200})
    lay_out(tmp_path / "own", test=test.merge(extra))
    lay_out(tmp_path / "joined", test=test)
    processed(tmp_path / "joined", test=extra.sample(frac=1, random_state=0), train=extra.assign(amount=7, market="x"))
    settings = {"AMOUNT_FIELD": "amount", "GROUP_FIELDS": '["market"]'}
    own, joined = (compute(tmp_path / name, **settings) for name in ("own", "joined"))
    assert own == joined


def test_slices_are_metrics_of_their_own_records(tmp_path: Path) -> None:
    test = scored(400, seed=2).assign(market=["u\ns", "uk", "", "de"] * 100)
    lay_out(tmp_path, test=test)
    found = {each["group"]: each for each in compute(tmp_path, GROUP_FIELDS="market")["slices"]["test"]["market"]}
    assert set(found) == {"u\ns", "uk", "de", MISSING}
    summary = (output_folder(tmp_path, "metrics", "metrics_output") / "metrics_summary.txt").read_text()
    assert "\nu\\ns " in summary
    own = test[test["market"] == "uk"]
    assert found["uk"]["auroc"] == pytest.approx(sk.roc_auc_score(own["label"], own["prob_class_1"]))


def test_small_groups_are_pooled() -> None:
    groups = ["large"] * 50 + ["tiny"] * 3 + ["small"] * 5 + [None] * 4
    labels = np.arange(62) % 2
    probabilities = np.stack([1 - labels * 0.5 - 0.1, labels * 0.5 + 0.1], axis=1)
    found = slices(groups, labels, probabilities, min_rows=30, threshold=0.5, class_labels=[0, 1])
    assert [(each.group, each.rows) for each in found] == [("large", 50), (OTHERS, 12)]


def test_a_previous_model_is_compared_on_the_records_that_both_scored(tmp_path: Path) -> None:
    test, before = scored(400, seed=2), scored(400, seed=2, noise=2.5)
    lay_out(tmp_path, test=test)
    lay_out(tmp_path, name="previous_eval_output", test=before[50:].sample(frac=1, random_state=0))
    found = compute(tmp_path)["comparison"]["test"]
    assert found["records"] == 350
    own, previous = (sk.roc_auc_score(frame["label"][50:], frame["prob_class_1"][50:]) for frame in (test, before))
    assert found["values"]["auroc"] == pytest.approx(own)
    assert found["differences"]["auroc"] == pytest.approx(own - previous)
    assert found["verdict"] == "better"


def test_a_previous_model_of_other_classes_or_of_another_order_is_refused(tmp_path: Path) -> None:
    lay_out(tmp_path, test=three_classes(30))
    lay_out(tmp_path, name="previous_eval_output", test=three_classes(30))
    previous = input_folder(tmp_path, "metrics", "previous_eval_output") / "metrics.json"
    for labels, expect in (("abc", 0), ("acb", 1)):
        previous.write_text(json.dumps({"classes": {"test": [{"label": label} for label in labels]}}))
        compute(tmp_path, expect=expect)
    assert message(tmp_path).endswith(
        "metrics.json: the previous model has the classes ['a', 'c', 'b'], this one ['a', 'b', 'c']"
    )


@pytest.mark.parametrize("labels", ["1,0", "no,yes"])
def test_labels_that_contradict_those_of_the_training_job_are_refused(tmp_path: Path, labels: str) -> None:
    lay_out(tmp_path)
    job = {"classes": {"test": [{"label": 0}, {"label": 1}]}}
    (input_folder(tmp_path, "metrics", "eval_output") / "metrics.json").write_text(json.dumps(job))
    compute(tmp_path, CLASS_LABELS="0,1")
    compute(tmp_path, expect=1, CLASS_LABELS=labels)
    assert message(tmp_path).startswith("CLASS_LABELS: is ")


@pytest.mark.parametrize("columns", ["prob_class_0", "prob_class_1,prob_class_0"])
def test_a_score_in_the_place_of_another_class_is_refused(tmp_path: Path, columns: str) -> None:
    lay_out(tmp_path)
    compute(tmp_path, expect=1, SCORE_FIELDS=columns)
    assert "use the order of the classes" in message(tmp_path)


def test_a_long_group_takes_no_memory_for_each_record() -> None:
    groups: list[str | None] = ["a" * 1_000_000, *["b"] * 999]
    labels, probabilities = np.arange(1000) % 2, np.full((1000, 2), 0.5)
    tracemalloc.start()
    try:
        slices(groups, labels, probabilities, min_rows=1, threshold=0.5, class_labels=[0, 1])
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


def test_every_group_field_has_a_plot_whatever_its_name(tmp_path: Path) -> None:
    fields = ["a b", "a_b", "列" * 100]
    lay_out(tmp_path, test=scored(100).assign(**dict.fromkeys(fields, "group")))
    run_step(tmp_path, "metrics", **{**SETTINGS, "GENERATE_PLOTS": "true", "GROUP_FIELDS": json.dumps(fields)})
    plots = [path.name for path in output_folder(tmp_path, "metrics", "plots_output").glob("slices_*")]
    assert sorted(plots) == ["slices_test_a_b.png", "slices_test_a_b_2.png", f"slices_test_{'列' * 50}.png"]


def test_the_interval_of_a_difference_covers_what_resampling_finds() -> None:
    rng = np.random.default_rng(0)
    label = rng.random(2000) < 0.3
    first, second = (label + rng.normal(size=2000) for _ in range(2))
    low, high = auroc_difference_interval(label, first, second)
    drawn = []
    for _ in range(300):
        rows = rng.integers(0, 2000, 2000)
        drawn.append(sk.roc_auc_score(label[rows], first[rows]) - sk.roc_auc_score(label[rows], second[rows]))
    assert (high - low) / (2 * 1.96) == pytest.approx(np.std(drawn), rel=0.15)


def test_against_a_constant_score_the_interval_is_that_of_one_curve() -> None:
    rng = np.random.default_rng(0)
    label = rng.random(1000) < 0.3
    score = label + rng.normal(size=1000)
    low, high = auroc_difference_interval(label, score, np.zeros(1000))
    of_one = auroc_interval(label, score)
    assert high - low == pytest.approx(of_one[1] - of_one[0], rel=0.02)


def test_swapped_records_are_counted_by_their_label() -> None:
    labels = np.array([1, 1, 0, 0])
    scores, before = np.array([0.9, 0.2, 0.7, 0.1]), np.array([0.1, 0.8, 0.2, 0.6])
    found = compare(
        labels, np.stack([1 - scores, scores], 1), np.stack([1 - before, before], 1),
        threshold=0.5, previous_threshold=0.5,
    )  # fmt: skip
    assert (found.newly_flagged.positives, found.newly_flagged.negatives) == (1, 1)
    assert (found.no_longer_flagged.positives, found.no_longer_flagged.negatives) == (1, 1)
    assert found.changed_decisions == 4


def test_operating_points_are_chosen_on_val_and_held_on_test(tmp_path: Path) -> None:
    lay_out(tmp_path)
    found = compute(tmp_path)["operating_points"]
    assert found["chosen_on"] == "val"
    point = found["targets"]["precision>=0.8"]
    assert point["reached"]["val"]["precision"] >= 0.8
    test = scored(400, seed=2)
    flagged = test["prob_class_1"] >= point["value"]
    assert point["reached"]["test"]["precision"] == pytest.approx(test["label"][flagged].mean())


@pytest.mark.parametrize(
    ("frame", "settings", "cause"),
    [
        (scored(20).drop(columns="id"), {}, "column 'id' is missing"),
        (scored(20).drop(columns="prob_class_1"), {}, "have no columns prob_class_0, prob_class_1, ..."),
        (scored(20), {"SCORE_FIELDS": "prob_clas_1"}, "column 'prob_clas_1' is missing; the similar column"),
        (scored(20).assign(prob_class_1=1.2), {}, "row 1, column 'prob_class_1': '1.2' is not a probability"),
        (scored(20).assign(prob_class_0=0.5, prob_class_1=0.9), {}, "row 1: the probabilities prob_class_0, "),
        (scored(20).assign(prob_class_0=np.nan), {}, "row 1, column 'prob_class_0': '' is not a probability"),
        (scored(20)[:0], {}, "have no rows"),
        (three_classes(20).assign(label="x"), {}, "has the 1 labels ['x']; the scores are of 3 classes"),
        (scored(20), {"CLASS_LABELS": "a,b"}, "is not one of the labels ['a', 'b']"),
        (scored(20), {"CLASS_LABELS": "a,b,c"}, "CLASS_LABELS: has 3 labels ['a', 'b', 'c'], but there are 2 classes"),
        (scored(20), {"AMOUNT_FIELD": "amount"}, "test predictions, and there is no processed_data: column 'amount'"),
        (scored(20).assign(a=-1), {"AMOUNT_FIELD": "a"}, "column 'a': -1 is below 0"),
        (scored(20), {"DECISION_METRIC": "test/aurok"}, "'aurok' is not a metric; did you mean 'auroc'"),
        (scored(20), {"DECISION_METRIC": "val/auroc"}, "DECISION_METRIC: 'val/auroc' is not one of the metrics"),
    ],
)  # fmt: skip
def test_predictions_that_do_not_fit_are_named(
    tmp_path: Path, frame: pd.DataFrame, settings: dict[str, Any], cause: str
) -> None:
    lay_out(tmp_path, test=frame)
    compute(tmp_path, expect=1, **settings)
    assert cause in message(tmp_path)


@pytest.mark.parametrize(
    ("column", "value", "settings"),
    [("label", "x", {"CLASS_LABELS": "0,1"}), ("amount", -3, {"AMOUNT_FIELD": "amount"})],
)
def test_an_invalid_cell_of_several_files_is_named_by_its_id(
    tmp_path: Path, column: str, value: Any, settings: dict[str, str]
) -> None:
    """Row 8 of both files is row 3 of the second."""
    folder = input_folder(tmp_path, "metrics", "eval_output")
    for number, prefix in enumerate("ab"):
        frame = scored(5, prefix=prefix).astype({"label": object}).assign(amount=1)
        frame.loc[2, column] = value if number else frame.loc[2, column]
        frame.to_csv(folder / f"test_predictions-{number}.csv", index=False)
    compute(tmp_path, expect=1, **settings)
    assert f"eval_data: the record with id 'b00002', column {column!r}: " in message(tmp_path)


def test_an_invalid_cell_of_processed_data_is_named_in_its_file(tmp_path: Path) -> None:
    test = scored(5)
    lay_out(tmp_path, test=test)
    processed(tmp_path, test=pd.DataFrame({"id": test["id"][::-1], "amount": [1, "x", 1, 1, 1]}))
    compute(tmp_path, expect=1, AMOUNT_FIELD="amount")
    assert "test_processed_data.csv: the record with id 'r00003', column 'amount': 'x'" in message(tmp_path)


def test_a_previous_model_of_other_records_is_refused(tmp_path: Path) -> None:
    lay_out(tmp_path, test=scored(50))
    lay_out(tmp_path, name="previous_eval_output", test=scored(50, prefix="other"))
    compute(tmp_path, expect=1)
    assert message(tmp_path).endswith("the previous model scored none of the records of test")


def test_processed_data_of_other_records_is_refused(tmp_path: Path) -> None:
    lay_out(tmp_path, test=scored(50))
    processed(tmp_path, test=scored(50, prefix="other").assign(amount=1)[["id", "amount"]])
    compute(tmp_path, expect=1, AMOUNT_FIELD="amount")
    assert "has none of the 50 ids of the predictions in 'id'" in message(tmp_path)


@pytest.mark.slow
def test_a_training_jobs_own_metrics_are_found_again(calibrated_job: JobPaths, tmp_path: Path) -> None:
    trained = job_metrics(calibrated_job)
    folder = input_folder(tmp_path / "step", "metrics", "eval_output")
    folder.rmdir()
    folder.symlink_to(calibrated_job.output_data, target_is_directory=True)
    found = compute(tmp_path / "step", ID_FIELD="order_id")
    for name in ("auroc", "average_precision", "f1_score", "precision", "recall", "accuracy", "loss"):
        for split in ("val", "test"):
            assert found[f"{split}/{name}"] == pytest.approx(trained[f"{split}/{name}"], abs=1e-6), name
    assert found["decision"]["threshold"]["value"] == trained["decision"]["threshold"]["value"]


def test_a_threshold_of_0_assigns_every_record_to_class_1(tmp_path: Path) -> None:
    lay_out(tmp_path, test=scored(50))
    job = {"decision": {"threshold": {"value": 0.0}}}
    (input_folder(tmp_path, "metrics", "eval_output") / "metrics.json").write_text(json.dumps(job))
    assert compute(tmp_path)["test/recall"] == 1


def test_a_second_archive_of_predictions_is_refused(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "output.tar.gz").touch()
    with pytest.raises(ContractError, match=r"has 2 archives: .*a/output.tar.gz, .*b/output.tar.gz"):
        find_predictions(tmp_path, scratch=tmp_path)


@pytest.mark.parametrize("value", ["NaN", "1e999"])
def test_a_threshold_that_is_not_finite_is_refused(tmp_path: Path, value: str) -> None:
    (tmp_path / "test_predictions.csv").write_text("id,prob_class_0,prob_class_1\n1,0.5,0.5\n")
    (tmp_path / "metrics.json").write_text(f'{{"decision": {{"threshold": {{"value": {value}}}}}}}')
    with pytest.raises(ContractError, match=r"metrics\.json: has a wrong value: the threshold"):
        _ = find_predictions(tmp_path, scratch=tmp_path).threshold


def test_a_score_column_with_thousands_of_digits_is_no_class(tmp_path: Path) -> None:
    (tmp_path / "test_predictions.csv").write_text(f"id,prob_class_0,prob_class_{'9' * 5000}\n1,0.5,0.5\n")
    with pytest.raises(ContractError, match="have no columns prob_class_0, prob_class_1"):
        score_columns(find_predictions(tmp_path, scratch=tmp_path), ())
