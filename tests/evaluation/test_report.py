import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from container.decision.calibrators import Temperature
from container.decision.decision import ClassRatios, Decision, PriorShift, Threshold
from container.evaluation.charts import number_axis, percent
from container.evaluation.choose_threshold import decisions_at
from container.evaluation.evaluate import write_evaluation
from container.evaluation.evaluation_input import EvaluationInput, Explanation, Importance
from container.evaluation.examples import ConfidentError, Examples
from container.evaluation.predictions import SplitPredictions
from container.evaluation.slices import slices
from testing.evaluations import evaluation, history, split, two_splits

HOSTILE = "<script>alert('x')</script>"
VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """A page's tags and visible text; asserts that tags nest."""

    def __init__(self, markup):
        super().__init__()
        self.open, self.tags, self.attributes, self.words = [], [], [], []
        self.feed(markup)
        assert self.open == []
        self.text = re.sub(r"\s+", " ", " ".join(self.words))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)


def report(tmp_path, made):
    write_evaluation(tmp_path, made)
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def charts(markup):
    return [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", markup, flags=re.S)]


def check_charts(markup):
    """Check that every chart is well-formed and has no point that is no number."""
    for chart in charts(markup):
        for element in chart.iter():
            assert not re.search(r"\b(nan|inf|None)\b", " ".join(element.attrib.values())), element.attrib


def rows_of(markup, section):
    """Text of each table row of a section."""
    part = re.search(rf'<section id="{section}">.*?</section>', markup, flags=re.S).group()
    cells = (re.sub(r"<[^>]+>", " ", row) for row in re.findall(r"<tr.*?</tr>", part, flags=re.S))
    return [re.sub(r"\s+", " ", row).strip() for row in cells]


@pytest.mark.parametrize("labels", [(0, 1), tuple(f"class {k}" for k in range(6))])
def test_the_page_needs_nothing_but_itself(tmp_path, labels):
    markup = report(tmp_path, two_splits(labels=labels))
    page = Page(markup)
    assert not re.search(r"https?://|url\(|@import", markup)
    assert not {"link", "script", "img", "iframe"} & set(page.tags)
    assert not {"src", "srcset"} & set(page.attributes)


@pytest.mark.parametrize(
    "made",
    [
        two_splits(),
        two_splits(only=1),
        two_splits(unlabelled=1.1),
        two_splits(unlabelled=0.5),
        two_splits(1),
        two_splits(0),
        two_splits(labels=("a", "b", "c")),
        two_splits(labels=("a", "b", "c"), only=2),
    ],
)
def test_every_chart_is_well_formed_and_has_no_point_that_is_no_number(tmp_path, made):
    markup = report(tmp_path, made)
    Page(markup)
    check_charts(markup)


def test_nothing_from_the_data_becomes_markup(tmp_path):
    made = two_splits(labels=("plain", HOSTILE, "other"))
    summary = made.data_summary
    for described in summary["splits"].values():
        described["numeric"][HOSTILE] = {**described["numeric"]["price"], "imputed": 5}
        described["texts"]["text"]["column"] = HOSTILE
        described["duplicate_ids"], described["duplicate_id_example"] = 1, HOSTILE
    values = slices(
        [HOSTILE] * 400,
        made.splits["test"].labels,
        made.splits["test"].probabilities,
        min_rows=1,
        threshold=None,
        class_labels=made.class_labels,
    )
    examples = Examples("test", [ConfidentError(HOSTILE, HOSTILE, HOSTILE, 0.9, HOSTILE)], {HOSTILE: values})
    made = replace(made, examples=examples)
    markup = report(
        tmp_path,
        replace(made, label_name=HOSTILE, run={"weights": HOSTILE}, hyperparameters={"text_name": HOSTILE}),
    )
    page = Page(markup)
    assert "script" not in page.tags
    assert page.text.count(HOSTILE) > 10
    assert rows_of(markup, "errors")[1].count("alert") == 4
    assert rows_of(markup, "values")[1].count("alert") == 2


def test_the_head_explains_the_main_metrics_with_their_baselines(tmp_path):
    made = two_splits(labels=("kept", "sent back"))
    text = Page(report(tmp_path, made)).text
    test = made.splits["test"]
    share = (test.labels == 1).mean()
    accuracy = ((test.probabilities[:, 1] >= 0.5) == test.labels).mean()
    assert f"{percent(share)} are of class sent back" in text
    assert f"The predicted class is right for {percent(accuracy)} of all records" in text
    assert f"Baseline: {max(share, 1 - share):.3f}" in text
    assert "the best by val/auroc (0.9, step 4 of 6)" in text


def test_an_undefined_metric_says_why(tmp_path):
    one_class = Page(report(tmp_path, two_splits(only=0))).text
    assert "No curves for test: all 400 labelled records are of class 0" in one_class
    assert (
        "Undefined on test: AUROC, Average precision, Recall, because all 400 labelled records are of class 0"
        in one_class
    )
    unlabelled = Page(report(tmp_path, two_splits(unlabelled=1.1))).text
    assert "Undefined on test: every metric, because no record has a label" in unlabelled


def test_the_threshold_table_shows_the_chosen_threshold_with_its_decisions(tmp_path):
    made = two_splits()
    rows = rows_of(report(tmp_path, made), "decisions")
    assert [row.split()[0] for row in rows if re.match(r"0\.\d ", row)][:9] == [f"0.{i}" for i in range(1, 10)]
    half = next(row for row in rows if row.startswith("0.5 in use ")).replace(" in use", "")
    test = made.splits["test"]
    hits = int(((test.probabilities[:, 1] >= 0.5) & (test.labels == 1)).sum())
    assert half.split()[5] == str(hits)
    assert sum("best F1 on val" in row for row in rows) == 2


@pytest.mark.parametrize("target_share", [None, 0.1])
def test_the_report_says_what_the_chosen_threshold_reaches_and_what_calibration_changed(tmp_path, target_share):
    made = two_splits()
    scores, labels = made.splits["test"].probabilities[:, 1], made.splits["test"].labels
    reached = {"test": decisions_at(0.7, labels, scores, target_share=target_share)}
    decision = Decision(
        "temperature",
        Temperature(1.5),
        fitted_on=400,
        threshold=Threshold(0.7, "precision>=0.9", met=False, reached=reached),
        prior=None if target_share is None else PriorShift(0.5, target_share),
    )
    softmax = {name: np.full((400, 2), 0.5) for name in made.splits}
    text = Page(report(tmp_path, replace(made, decision=decision, uncalibrated=softmax))).text
    assert "The threshold in use is 0.7, chosen on val for precision>=0.9" in text
    assert f"On test, it gives precision {percent(reached['test']['precision'])}" in text
    assert ("if class 1 has its target share" in text) == (target_share is not None)
    assert "No threshold reaches precision>=0.9 on val" in text
    assert "Brier score" in text
    assert " 0.2500 " in text  # of the softmax that says 0.5 to all
    assert "F1 of class 1 at 0.7" in text
    assert "threshold in use: 0.7" in text  # in the legend of the chart


@pytest.mark.parametrize(("chunks", "advice"), [(0, "increase max_sen_len"), (7, "increase max_total_chunks")])
def test_the_advice_about_cut_text_names_the_setting_that_cut_it(tmp_path, chunks, advice):
    made = two_splits()
    cut = {"truncated_records": 100, "cut_tokens": 4321, "cut_chunks": chunks}
    made.data_summary["splits"]["train"]["texts"]["text"].update(cut)
    assert f"To keep them, {advice}" in Page(report(tmp_path, made)).text


def test_what_was_cut_and_imputed_is_listed_with_its_share(tmp_path):
    made = two_splits()
    train = made.data_summary["splits"]["train"]
    train["texts"]["text"].update(truncated_records=100, cut_tokens=4321, without_emoji=50, unknown_tokens=77)
    train["numeric"]["price"].update(imputed=310, missing=310)
    made.data_summary["splits"]["test"]["categories"]["color"]["unseen_rows"] = 40
    markup = report(tmp_path, made)
    rows = "\n".join(rows_of(markup, "changed"))
    assert "price missing, imputed with 20.5 310 31.0%" in rows
    assert "chat records truncated 100 10.0%" in rows
    assert "chat emoji removed (emoji_remover) 50 5.0%" in rows
    assert "chat tokens unknown to the tokenizer 77" in rows
    assert "4,321" in rows
    text = Page(markup).text
    assert "chat was truncated in 10.0% of train" in text
    assert "Missing numbers were imputed: price in 31.0% of train" in text
    assert "Categories that do not occur in train: color in 10.0% of test" in text
    assert "None: no value was missing" in Page(report(tmp_path, two_splits())).text


def test_settings_that_differ_from_their_default_come_first(tmp_path):
    markup = report(tmp_path, two_splits())
    part = markup[markup.index('id="configuration"') :]
    changed, rest = part.split("<details>", 1)
    assert "<code>lr</code>" in changed
    assert "0.0003" in changed
    assert "2e-05" in changed
    assert "<code>batch_size</code>" not in changed
    assert "<code>batch_size</code>" in rest


def test_training_curves_mark_the_best_validation(tmp_path):
    markup = report(tmp_path, two_splits())
    assert "Best val/auroc: 0.9000 at step 4" in Page(markup).text
    assert markup.count("best, step 4") == 2


def test_of_validations_with_equal_values_that_of_the_saved_weights_is_marked(tmp_path):
    entries = [{**entry, "val/auroc": 0.7} if "val/auroc" in entry else entry for entry in history()]
    markup = report(tmp_path, replace(two_splits(), history=entries, best_step=6))
    assert "Best val/auroc: 0.7000 at step 6" in Page(markup).text


def test_a_history_with_gaps_is_drawn_and_none_is_said(tmp_path):
    made = two_splits()
    entries = history()
    entries[0]["train/loss"], entries[1]["val/auroc"] = float("nan"), None
    Page(report(tmp_path, replace(made, history=entries)))
    assert "There is no training log" in Page(report(tmp_path, replace(made, history=[]))).text


def test_precision_recall_curves_of_several_classes_are_steps(tmp_path):
    labels = ["a", "b", "c"]
    splits = {name: split(name, 40, labels=labels) for name in ("val", "test")}
    drawn = charts(report(tmp_path, evaluation(splits, labels=labels)))
    for kind, is_steps in (("Precision-recall curve, val", True), ("ROC curve, val", False)):
        (chart,) = (each for each in drawn if each.get("aria-label", "").startswith(kind))
        lines = [path.get("d") for path in chart.iter("path")]
        assert len(lines) >= 4, "three classes and their mean"
        assert {"L" not in line for line in lines} == {is_steps}


@pytest.mark.parametrize(("classes", "others"), [(50, 44), (120, 114)])
def test_of_many_classes_the_heat_map_has_the_fifty_with_the_most_errors(tmp_path, classes, others):
    labels = [f"reason {k:03d}" for k in range(classes)]
    splits = {name: split(name, 2000, labels=labels) for name in ("val", "test")}
    markup = report(tmp_path, evaluation(splits, labels=labels))
    cells = [element for chart in charts(markup) for element in chart.iter("rect") if "cell" in element.get("class")]
    assert len(cells) == 2 * 50 * 50
    assert f"{others} other classes" in markup
    assert ("Only the 50 of 120 classes with the most errors are shown." in markup) == (classes > 50)
    assert len(markup) < 60_000 * classes


def test_many_records_do_not_make_a_bigger_page(tmp_path):
    few, many = (len(report(tmp_path, two_splits(rows))) for rows in (2_000, 100_000))
    assert many < 1.5 * few


def with_aurocs(*, rows_of_val: int, rows_of_test: int, test: float, num_classes: int = 2) -> EvaluationInput:
    """Val with an AUROC of about 0.95 and test with a worse one: `test` is the distance of the classes' scores."""

    def made(name: str, rows: int, distance: float) -> SplitPredictions:
        found = split(name, rows, labels=[*range(num_classes)])
        noise = np.random.default_rng(rows).normal(size=found.probabilities.shape)
        logits = distance * np.eye(num_classes)[found.labels] + noise
        return replace(found, probabilities=np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True))

    splits = {"val": made("val", rows_of_val, 1.8), "test": made("test", rows_of_test, test)}
    return evaluation(splits, labels=[*range(num_classes)])


@pytest.mark.parametrize(
    ("given", "falls", "agree"),
    [
        ({"rows_of_val": 2000, "rows_of_test": 2000, "test": 1.2}, True, False),
        ({"rows_of_val": 40, "rows_of_test": 2000, "test": 1.2}, False, False),  # few rows of val
        ({"rows_of_val": 2000, "rows_of_test": 30, "test": 1.2}, False, False),
        ({"rows_of_val": 2000, "rows_of_test": 2000, "test": 1.8}, False, True),
        ({"rows_of_val": 30, "rows_of_test": 2000, "test": 0.2}, True, False),  # all of val are ranked right
        ({"rows_of_val": 60, "rows_of_test": 60, "test": 1.2, "num_classes": 3}, False, False),
        ({"rows_of_val": 2000, "rows_of_test": 2000, "test": 1.2, "num_classes": 3}, True, False),
        ({"rows_of_val": 2000, "rows_of_test": 2000, "test": 1.8, "num_classes": 3}, False, True),
    ],
)
def test_the_auroc_falls_if_the_difference_is_larger_than_the_error_of_both_splits(tmp_path, given, falls, agree):
    text = Page(report(tmp_path, with_aurocs(**given))).text
    assert ("by more than the sampling error of both" in text) == falls
    assert ("AUROC on val" in text and "agree." in text) == agree


def test_the_report_counts_rows_that_repeat_an_id(tmp_path):
    made = two_splits()
    described = made.data_summary["splits"]["val"]
    described["duplicate_ids"], described["duplicate_id_example"] = 2, "dup"
    assert "2 rows of val repeat the id of an earlier row, e.g. dup" in Page(report(tmp_path, made)).text


@pytest.mark.parametrize("what", ["ids", "groups"])
def test_the_report_counts_ids_and_groups_that_train_has_as_well(what, tmp_path):
    made = two_splits()
    made.data_summary["splits"]["test"][f"{what}_of_train"] = 7
    assert f"{what.capitalize()} of test that train has as well: 7." in Page(report(tmp_path, made)).text


def test_what_init_warned_of_is_a_finding(tmp_path):
    made = replace(two_splits(), init_warnings=["closed_on: predicts 100.0% of the labels alone."])
    assert "init warned: closed_on: predicts 100.0% of the labels alone." in Page(report(tmp_path, made)).text


def test_weighted_metrics_are_beside_the_others(tmp_path):
    made = two_splits()
    weighted = replace(made.splits["test"], weights=np.random.default_rng(0).random(400))
    text = report(tmp_path, replace(made, splits={**made.splits, "test": weighted}))
    assert "<th>test,<br>weighted</th>" in text
    assert "<th>val,<br>weighted</th>" not in text


def test_each_kind_of_column_has_its_own_colour_in_the_importance(tmp_path):
    kinds = ("text", "numeric", "date", "categorical")
    columns = tuple(Importance(kind, kind, 0.1, 0.01) for kind in kinds)
    explanation = Explanation("auroc", 0.9, 400, 3, 1.0, columns=columns, split="test")
    markup = report(tmp_path, replace(two_splits(), explanation=explanation))
    (legend,) = re.findall(r"Columns, shuffled</h3><ul.*?</ul>", markup)
    assert len(set(re.findall(r'class="(swatch [^"]*)"', legend))) == len(kinds)


def test_a_small_split_is_called_small(tmp_path):
    assert "test has fewer than 30 records of class" in Page(report(tmp_path, two_splits(24))).text
    assert "fewer than 30" not in Page(report(tmp_path, two_splits())).text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0%"), (1, "100%"), (0.123, "12.3%"), (0.0004, "0.04%"), (0.9996, "99.96%"), (0.00003, "<0.01%"),
        (0.99997, ">99.99%"), (-0.01, "-1.00%"), (1.5, "150.00%"),
    ],
)  # fmt: skip
def test_a_percentage_of_almost_all_is_not_100(share, text):
    assert percent(share) == text


@pytest.mark.parametrize(
    "values",
    [[], [0.0], [3.0, 3.0], [1e-5, 3e-4], [-2, 7], [0.881, 0.962], [0.991231, 0.991287], [1e6, 3e6]],
)
def test_an_axis_holds_its_values_and_its_ticks_read_apart(values):
    axis = number_axis("y", values)
    assert all(axis.low <= value <= axis.high for value in values)
    texts = [axis.text(tick) for tick in axis.ticks]
    assert len(set(texts)) == len(texts) >= 3


def test_a_page_says_that_class_weights_are_undone(tmp_path):
    decision = Decision("temperature", Temperature(1.2), 100, prior=ClassRatios((1.0, 0.5, 0.2)))
    made = replace(two_splits(labels=("a", "b", "c")), decision=decision)
    uncalibrated = {name: each.probabilities for name, each in made.splits.items()}
    page = Page(report(tmp_path, replace(made, uncalibrated=uncalibrated)))
    assert "fitted on val (100 records)" in page.text
    assert "optimistic there. In addition, the effect of class_weights is removed from the probabilities." in page.text


def test_a_page_names_what_was_chosen_out_of_fold(tmp_path):
    labels = [0, 1]
    splits = {name: split(name, 300, labels=labels) for name in ("val", "test", "out_of_fold")}
    threshold = Threshold(0.31, "auto_f1", gain=(0.021, 0.012, 0.03))
    made = evaluation(splits, labels=labels, best_step=None, decision=Decision(threshold=threshold))
    page = Page(report(tmp_path, made))
    assert "chosen out of fold for auto_f1: the best one changes the target by +0.0210 over 0.5" in page.text
    assert "(95 % interval +0.0120 to +0.0300)" in page.text
    assert "best F1 out of fold" in page.text
    assert "Thresholds on out of fold" in page.text
    assert "best F1 on val" not in page.text
    assert "no record chose its epoch" in page.text
    assert json.loads((tmp_path / "metrics.json").read_text())["best_f1_threshold"]["chosen_on"] == "out_of_fold"
