"""The string steps: what they take away, and that they take nothing else."""

import html
import itertools
import random
import sys
import threading
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import emoji
import pytest
from emoji import tokenizer as emoji_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from container.tables.column_types import replace_surrogates
from container.text.cleaning import (
    _CONTROL,
    _emoji_run,
    normalize_html,
    normalize_text,
    remove_emoji,
    run_string_step,
    split_dialogue,
)
from container.text.parts import text_parts
from testing.hostile_texts import FAMILIES, superlinear

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
        ("un<b>believ</b>able<br/>b<BR>c", "unbelievable b c"),
        ("<td>a</td><td>b</td>", " a  b "),
        ("<a href=\"x>y\" title='t' data-n=1 checked>link</a>", "link"),
        ("a<style>p {color: red}</style>b<script>if (a < b) {}</script>c<!-- no -->d", "a b c d"),
        ("the <style> of it", "the   of it"),
        ("an <!-- open comment", "an <!-- open comment"),
    ],
)
def test_html_goes_and_text_stays(text: str, clean: str) -> None:
    assert normalize_html(text) == clean


@pytest.mark.parametrize("step", STEPS)
def test_hostile_text_takes_linear_time(step: str) -> None:
    assert superlinear(lambda text: run_string_step(step, text), list(FAMILIES)) == []


def test_a_tag_longer_than_a_part_is_removed() -> None:
    tag = f'<img src="data:{"A" * 100_000} {"B" * 100_000}">'
    assert normalize_html(f"a{tag * 3}b &amp; {'c ' * 50_000}&lt;") == f"a   b & {'c ' * 50_000}<"


@pytest.mark.parametrize("digits", ["0" * 5_000 + "65", "9" * 5_000, "1" * 9, "0" * 5_000, "65"])
def test_a_decimal_entity_of_any_length_is_decoded(digits: str) -> None:
    assert normalize_html(f"&#{digits};") == html.unescape(f"&#{min(int(digits[-10:]), 10**9)};")


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


def test_threads_that_remove_the_first_emoji_at_the_same_time_remove_all() -> None:
    text = "\U0001f600 \U0001f9ff \U0001f6f8"
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    emoji_tokenizer._SEARCH_TREE.clear()  # as in a new process
    _emoji_run.cache_clear()
    try:
        together = threading.Barrier(8)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: (together.wait(), remove_emoji(text))[1], range(8)))
    finally:
        sys.setswitchinterval(interval)
    assert found == ["     "] * 8


EMOJI_PARTS = ["👨", "👩", "👧", "\u200d", "🏽", "\ufe0f", "❤", "🏳", "🌈", "🇩", "🇪", "🏴", "\U000e0067", "\U000e007f",
               "👍", "©", "か", "日", "a", " ", "1", "\u20e3"]  # fmt: skip


def assert_as_the_library(text: str) -> None:
    assert remove_emoji(text).split() == emoji.replace_emoji(text, " ").split()


@given(st.one_of(st.text(), st.lists(st.sampled_from(EMOJI_PARTS), max_size=40).map("".join)))
def test_removing_emoji_agrees_with_the_library(text: str) -> None:
    assert_as_the_library(text)


@pytest.mark.parametrize("separator", ["", " ", "a"])
def test_a_row_of_all_emoji_is_removed_as_by_the_library(separator: str) -> None:
    assert_as_the_library(separator.join(emoji.EMOJI_DATA))


@pytest.mark.parametrize("before", ["", "🎉", "👍🏽"])
def test_a_long_row_of_flags_is_removed(before: str) -> None:
    flags = [sequence for sequence in emoji.EMOJI_DATA if len(sequence) == 2 and "🇦" <= sequence[0] <= "🇿"]
    assert len(flags) > 250
    assert remove_emoji(before + "".join(flags)).strip() == ""


def test_text_is_normalized_without_losing_its_case() -> None:
    assert normalize_text("  Ｆｕｌｌ\twidth\r\n ﬁne\x00\u200b \u00adTEXT\u3000end ") == "Full width fine TEXT end"


@given(st.text())
def test_normalizing_text_twice_changes_nothing_more(text: str) -> None:
    once = normalize_text(text)
    assert normalize_text(once) == once
    assert once == " ".join(once.split())
    assert unicodedata.is_normalized("NFKC", once)


REVIEWS = [
    "Sehr schöne Qualität, paßt perfekt – gerne wieder! 😀 ½ Preis, 20 °C",
    "Très déçue : la taille ne correspond pas… n’achetez pas",
    "とても気に入りました。ｻｲｽﾞも丁度良く、カ\u3099ッカリしません。①②③",
    "质量很好，物流也快，五星好评！！！",
    "정말 마음에 들어요 \u1112\u1161\u11ab\u1100\u1173\u11af ㅋㅋㅋ",
    "جودة ممتازة وتوصيل سريع\u200f، شكرًا لكم",
    "चमक अच्छी है, क\u094d\u200dषमा कपड़ा मुलायम",
    "Chất lượng tuyệt vời, Vie\u0323\u0302t Nam, ａｂｃ",
    "כותנה נעימה מאוד, שָׁלוֹם",
    "ผ้านิ่มมาก ที่นี่ดีมาก น้ำหนักเบา",
    "Отличное платье, ё е\u0308 й и\u0306",
    "Ζ\u0301α\u0301λγο " + "x" + "".join(map(chr, range(0x300, 0x31E))) + "y",
]
combining = st.characters(categories=["Mn", "Mc", "Lm", "Lo"])
scripts = st.lists(st.one_of(st.sampled_from(REVIEWS), st.text(), st.text(combining, max_size=30)), max_size=8)


def normalize_without_a_bound(text: str) -> str:
    """normalize_text before long runs of marks were cut and texts were divided."""
    return " ".join(unicodedata.normalize("NFKC", _CONTROL.sub("", text)).split())


@given(scripts.map(" ".join))
def test_text_with_up_to_30_marks_in_a_row_has_its_normal_form(text: str) -> None:
    assert normalize_text(text) == normalize_without_a_bound(text)


@pytest.mark.parametrize("blank", [" ", "  ", "\n", " \u3000\t ", "\x00 "])
def test_a_long_text_has_the_normal_form_of_the_whole(blank: str) -> None:
    rng = random.Random(1)
    words = [word for review in REVIEWS for word in review.split()]
    text = blank.join(rng.choices(words, k=20_000))
    assert len(text) > 5 * 16_384
    assert normalize_text(text) == normalize_without_a_bound(text)


def test_a_joiner_follows_every_30_combining_marks() -> None:
    marks = "\u0316\u0301" * 30
    in_order = "\u0316" * 15 + "\u0301" * 15
    assert normalize_text(f"x{marks[:30]}") == f"x{in_order}"
    assert normalize_text(f"x{marks}") == f"x{in_order}\u034f{in_order}"


@pytest.mark.parametrize("keep", [False, True])
@given(text=st.text(st.sampled_from("ab <"), max_size=40), longest=st.integers(2, 9))
def test_the_parts_of_a_text_are_the_text(text: str, longest: int, keep: bool) -> None:
    parts = list(text_parts(text, longest, before="<", keep=keep))
    assert "".join(parts) == text
    assert all(part[0] == "<" or (not keep and len(before) == longest) for before, part in itertools.pairwise(parts))
    assert all(len(part) <= longest or (keep and "<" not in part[1:]) for part in parts)


def test_surrogates_of_broken_json_become_text_that_can_be_encoded() -> None:
    assert replace_surrogates("ok \ud83d\ude00 \ud83d!") == "ok 😀 \ufffd!"


@pytest.mark.parametrize("step", STEPS)
@given(text=st.text())
def test_a_step_never_yields_a_blank_piece(step: str, text: str) -> None:
    assert all(piece.strip() for piece in run_string_step(step, text))
