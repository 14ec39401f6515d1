"""The string steps: what they take away, and that they take nothing else."""

import time
import unicodedata

import emoji
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.tables.column_types import replace_surrogates
from container.text.cleaning import (
    normalize_html,
    normalize_text,
    remove_emoji,
    run_string_step,
    split_dialogue,
)

STEPS = ["dialogue_splitter", "html_normalizer", "emoji_remover", "text_normalizer"]


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("[bom]hi[eom][bom]you there?[eom]", ["hi", "you there?"]),
        ("[BOM]hi[Eom] [bOm]you[EOM]", ["hi", "you"]),
        ("before [bom]hi[eom] between [bom]open end", ["before", "hi", "between", "open end"]),
        ("closed only[eom]rest", ["closed only", "rest"]),
        ("[bom] [eom][bom]\n[eom][bom]x[eom]", ["x"]),
        ("plain text, no [markers]", ["plain text, no [markers]"]),
    ],
)
def test_a_dialogue_is_split_at_every_marker_and_keeps_all_text(text: str, messages: list[str]) -> None:
    assert split_dialogue(text) == messages


@given(st.lists(st.sampled_from(["[bom]", "[EOM]", " ", "word", "a[b]c", "ü"])).map("".join))
def test_a_dialogue_loses_nothing_but_markers_and_white_space(text: str) -> None:
    without = text.replace("[bom]", "").replace("[EOM]", "").replace(" ", "")
    assert "".join(split_dialogue(text)).replace(" ", "") == without


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("a < b and c > d", "a < b and c > d"),
        ("I <3 it", "I <3 it"),
        ("price<cost, so I left", "price<cost, so I left"),
        ("mail <jo@example.com> or <https://example.com/a>", "mail <jo@example.com> or <https://example.com/a>"),
        ("dear <order_id>, <b it's", "dear <order_id>, <b it's"),
        ("AT&T &amp; co &lt;b&gt;", "AT&T & co <b>"),
        ("caf&eacute; &#128512; &nbsp;x", "café 😀 \xa0x"),
        ("<p>one</p><p>two</p>", " one  two "),
        ("un<b>believ</b>able", "unbelievable"),
        ("a<br/>b<BR>c", "a b c"),
        ("<td>a</td><td>b</td>", " a  b "),
        ("<a href=\"x>y\" title='t' data-n=1 checked>link</a>", "link"),
        ("a<style>p {color: red}</style>b<script>if (a < b) {}</script>c<!-- no -->d", "a b c d"),
        ("the <style> of it", "the   of it"),
        ("an <!-- open comment", "an <!-- open comment"),
    ],
)
def test_html_goes_and_text_stays(text: str, clean: str) -> None:
    assert normalize_html(text) == clean


@pytest.mark.parametrize("unit", ["<!--", "<script>", "<a ", "<a x='", '<a "', "<a x=", "<style></style "])
def test_hostile_html_takes_linear_time(unit: str) -> None:
    start = time.perf_counter()
    normalize_html(unit * 20_000)
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("good👍bad", "good bad"),
        ("heart❤️and👩‍👩‍👧family🏴󠁧󠁢󠁥󠁮󠁧󠁿", "heart and family "),
        ("room 1️⃣2", "room  2"),
        ("12 #1 * it’s café 日本語 naïve", "12 #1 * it’s café 日本語 naïve"),
    ],
)
def test_emoji_become_a_space_and_nothing_else_changes(text: str, clean: str) -> None:
    assert remove_emoji(text) == clean


def test_every_emoji_that_the_library_knows_is_removed() -> None:
    assert [sequence for sequence in emoji.EMOJI_DATA if remove_emoji(f"a{sequence}b") != "a b"] == []


@given(st.text())
def test_removing_emoji_agrees_with_the_library(text: str) -> None:
    kept = "".join(remove_emoji(text).split())
    assert kept == "".join(emoji.replace_emoji(text, " ").split())


def test_text_is_normalized_without_losing_its_case() -> None:
    assert normalize_text("  Ｆｕｌｌ\twidth\r\n ﬁne\x00\u200b \u00adTEXT\u3000end ") == "Full width fine TEXT end"


@given(st.text())
def test_normalizing_text_twice_changes_nothing_more(text: str) -> None:
    once = normalize_text(text)
    assert normalize_text(once) == once
    assert once == " ".join(once.split())
    assert unicodedata.is_normalized("NFKC", once)


def test_surrogates_of_broken_json_become_text_that_can_be_encoded() -> None:
    assert replace_surrogates("ok \ud83d\ude00 \ud83d!") == "ok 😀 \ufffd!"


@pytest.mark.parametrize("step", STEPS)
@given(text=st.text())
def test_a_step_never_yields_a_blank_piece(step: str, text: str) -> None:
    assert all(piece.strip() for piece in run_string_step(step, text))
