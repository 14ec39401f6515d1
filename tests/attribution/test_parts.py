"""A record is divided into parts, and the pieces of a text are the text."""

import random
from typing import Any

import pyarrow as pa
import pytest

from container.attribution.parts import LEVELS, MOST_PIECES, Question, check_pieces, parts_of
from container.errors import RecordTooLongError
from container.tables.table_file import Origin
from contracts.errors import ContractError
from testing.table_jobs import fit, table


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory):
    return fit(tmp_path_factory.mktemp("fit"), table(60))[0].fitted


def record(**values: Any) -> pa.Table:
    return pa.Table.from_pylist([{"text": "good", "x": 1.5, "y": 2, "c": "a", **values}])


def pieces(fitted: Any, level: Any, text: str) -> list[str]:
    parts = parts_of(record(text=text), 0, fitted, level)
    assert "".join(part.text or "" for part in parts) == text
    return [part.value for part in parts if part.column == "text"]


def test_the_parts_of_a_record_are_the_model_s_columns_with_their_values(fitted):
    parts = parts_of(record(c=None, x=float("nan")), 0, fitted, "column")
    assert [(part.name, part.value) for part in parts] == [("text", "good"), ("x", None), ("y", 2), ("c", None)]


def test_a_text_is_divided_into_sentences(fitted):
    text = 'Good shirt. "Late!" he said? Costs 1.50 euro...  Thank you\nBye'
    assert pieces(fitted, "text", text) == [
        "Good shirt.",
        '"Late!"',
        "he said?",
        "Costs 1.50 euro...",
        "Thank you",
        "Bye",
    ]


def test_a_text_with_messages_is_divided_into_messages(fitted):
    assert pieces(fitted, "text", "[bom]Hi. You?[eom] [BOM] [eom][bom]late[eom]") == ["Hi. You?", "late"]


def test_a_text_is_divided_into_words_and_markers_are_no_words(fitted):
    assert pieces(fitted, "word", "  good [bom] late  shirt [eom]") == ["good", "late", "shirt"]


def test_sentences_of_languages_without_blanks_are_divided(fitted):
    assert pieces(fitted, "text", "很好。不好！谢谢") == ["很好。", "不好！", "谢谢"]


@pytest.mark.parametrize("level", LEVELS)
def test_the_pieces_of_any_text_are_the_text(fitted, level):
    rng = random.Random(0)
    for _ in range(300):
        text = "".join(rng.choice(["a", ". ", "[bom]", "[eom]", " ", "\n", "!", "。", "<b>", "😀"]) for _ in range(20))
        if not text.isspace():
            pieces(fitted, level, text)


@pytest.mark.parametrize("missing", [None, "", " \n"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_missing_text_is_one_part_that_changes_nothing(fitted, missing, level):
    first, *_ = parts_of(record(text=missing), 0, fitted, level)
    assert (first.name, first.text) == ("text", None)


@pytest.mark.parametrize("level", ["text", "word"])
def test_a_text_of_too_many_pieces_is_refused_with_the_limit_and_its_record(fitted, level):
    found = pa.concat_tables([record(), record(text="late. " * (MOST_PIECES + 1))])
    with pytest.raises(RecordTooLongError, match=f"record 2: its texts have more than {MOST_PIECES} parts"):
        check_pieces(found, fitted, level, origin=Origin())
    check_pieces(found, fitted, "column", origin=Origin())
    check_pieces(record(text="late. " * MOST_PIECES), fitted, level, origin=Origin())


@pytest.mark.parametrize("value", ["columns", "", None, 1, ["text"]])
def test_an_unknown_level_is_named_with_the_known_ones(value):
    with pytest.raises(ContractError, match="(?s)level: .* is not known.*column, text, word"):
        Question(level=value)


@pytest.mark.parametrize("value", [0, -1, 1.5, "3", True])
def test_a_number_of_parts_that_is_none_is_named(value):
    with pytest.raises(ContractError, match="(?s)top: is .*at least 1"):
        Question(top=value)


@pytest.mark.parametrize("value", [0, 2, 5, "8"])
def test_permutations_come_in_two_pairs_or_more(value):
    with pytest.raises(ContractError, match="(?s)permutations: is .*an even number of at least 4"):
        Question(permutations=value)
