"""The report's records with reasons: which are chosen, and how texts and columns are drawn."""

from typing import Any

import numpy as np
import pytest

from container.evaluation.evaluate import write_evaluation
from container.evaluation.explained import ExplainedRecord, chosen_records
from testing.evaluations import two_splits

SURE = np.array([0.99, 0.97, 0.95, 0.9, 0.02, 0.05, 0.1, 0.92, 0.08, 0.45, 0.55, 0.6, 0.7, 0.3])


def reasons(*parts: tuple[str, Any, float]) -> dict[str, Any]:
    contributions = [{"part": part, "value": value, "contribution": of} for part, value, of in parts]
    return {"class": 1, "logit": 1.0, "base": 0.5, "contributions": contributions}


def record(*parts: tuple[str, Any, float]) -> ExplainedRecord:
    return ExplainedRecord("confident and right", 7, 1, 1, 0.9, reasons(*parts), ("chat",))


def test_confident_right_confident_wrong_and_near_records_are_chosen():
    probabilities = np.column_stack([1 - SURE, SURE])
    decided = (SURE >= 0.5).astype(int)
    labels = decided.copy()
    labels[[7, 8]] = 1 - labels[[7, 8]]
    labels[0] = -100
    found = chosen_records(labels, decided, probabilities, threshold=0.5)
    groups: dict[str, list[int]] = {}
    for group, position in found:
        groups.setdefault(group, []).append(position)
    assert sorted(groups["confident and right"]) == [1, 2, 4, 5]  # two of each class
    assert sorted(groups["confident and wrong"]) == [7, 8]
    assert groups["near the threshold"] == [9, 10, 11, 12]


def test_without_a_label_no_record_is_chosen():
    probabilities = np.full((3, 2), 0.5)
    assert chosen_records(np.full(3, -100), np.zeros(3, int), probabilities, threshold=None) == []


def test_the_pieces_of_a_text_are_in_its_order_and_shaded_by_size():
    spans = record(("price", 3, 9.0), ("chat[10]", "end", -1.0), ("chat[0]", "so", 0.1), ("chat[2]", "mid", 2.0)).spans
    assert [(span.text, span.shade) for span in spans["chat"]] == [("so", 0), ("mid", 3), ("end", 2)]


def test_a_column_with_brackets_in_its_name_is_no_piece():
    bars = record(("size[1]", "L", 2.0), ("chat", None, 0.0)).bars
    assert [(bar.name, bar.value) for bar in bars] == [("size[1]", "L")]


def test_a_long_text_is_cut():
    (span,) = record(("chat", "x" * 4000, 1.0)).spans["chat"]
    assert len(span.text) == 1501


def test_bars_share_one_zero_and_a_text_has_the_sum_of_its_pieces():
    bars = record(("price", 3, 3.0), ("chat[0]", "so", -0.5), ("chat[1]", "so", -0.5), ("color", None, 0.0001)).bars
    assert [(bar.name, bar.value, bar.contribution) for bar in bars] == [("price", "3", 3.0), ("chat", "", -1.0)]
    assert [each for bar in bars for each in (bar.left, bar.width)] == pytest.approx([25.0, 75.0, 0.0, 25.0])


def test_the_report_shows_records_with_escaped_texts(tmp_path):
    shown = record(("chat[0]", "<b>broken</b>", -2.0), ("price", 3, 1.0))
    evaluation = two_splits(60)
    object.__setattr__(evaluation, "explained", (shown,))
    write_evaluation(tmp_path, evaluation)
    page = (tmp_path / "report.html").read_text()
    assert '<mark class="lowers shade3" title="-2.000">&lt;b&gt;broken&lt;/b&gt;</mark>' in page
    assert 'href="#reasons"' in page
    assert "<b>broken" not in page
