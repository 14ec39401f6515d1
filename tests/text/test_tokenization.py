"""From raw strings to chunks of token ids, for the three kinds of tokenizers."""

import dataclasses
import itertools
import json
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, processors

from container.text import chunk_tokenizer, tokenization
from container.text.chunk_tokenizer import ChunkTokenizer
from container.text.tokenization import (
    EncodedTexts,
    TextCounts,
    TextProcessor,
    clean_texts,
    fair_shares,
    pack_messages,
)
from contracts.errors import ContractError
from contracts.text_fields import FULL_TEXT_STEPS
from testing.hostile_texts import superlinear
from testing.tokenizers import CORPUS, KINDS, WORDS, field, trained

STRING_STEPS = FULL_TEXT_STEPS[:-2]


@cache
def tokenizer_of(kind: str) -> ChunkTokenizer:
    return ChunkTokenizer(Tokenizer.from_str(trained(kind)))


def chunks_of(encoded: EncodedTexts) -> list[list[list[int]]]:
    """Token ids per record and chunk, special tokens included."""
    tokens, lengths = iter(encoded.tokens.tolist()), iter(encoded.chunk_lengths.tolist())
    records = [[list(itertools.islice(tokens, next(lengths))) for _ in range(count)] for count in encoded.chunk_counts]
    assert not list(tokens), "chunk lengths cover every token"
    assert not list(lengths), "chunk counts cover every chunk"
    return records


def inner(chunks: list[list[int]], tokenizer: ChunkTokenizer) -> list[int]:
    """The text tokens of a record's chunks, end to end."""
    before, after = len(tokenizer.prefix), len(tokenizer.suffix)
    return [token for chunk in chunks for token in chunk[before : len(chunk) - after]]


messages = st.lists(st.sampled_from(WORDS.split()), min_size=1, max_size=30).map(" ".join)
chats = st.lists(messages, min_size=1, max_size=8).map(lambda parts: "".join(f"[bom]{part}[eom]" for part in parts))
wild_words = st.sampled_from(
    [*WORDS.split(), "[bom]", "[eom]", "<b>", "&amp;", "👍", "ﬁ", "\n", " ", "[SEP]", "é", "中文"]
)
wild = st.one_of(st.text(max_size=30), st.lists(wild_words, max_size=25).map(" ".join), st.none())


@pytest.mark.parametrize(("kind", "prefix", "suffix"), [("wordpiece", 2, 3), ("byte_level", 0, 2), ("metaspace", 0, 2)])
def test_special_tokens_around_a_chunk_are_the_tokenizers_own(kind: str, prefix: int, suffix: int) -> None:
    tokenizer = tokenizer_of(kind)
    assert (tokenizer.prefix, tokenizer.suffix) == ((prefix,), (suffix,))
    chunk = chunks_of(TextProcessor(field(), tokenizer).process(["the dress fits"]))[0][0]
    assert chunk == Tokenizer.from_str(trained(kind)).encode("the dress fits").ids


def test_a_tokenizer_without_special_tokens_has_none_around_its_chunks_and_one_in_an_empty_chunk() -> None:
    settings_of = json.loads(trained("wordpiece")) | {"post_processor": None}
    tokenizer = ChunkTokenizer(Tokenizer.from_str(json.dumps(settings_of)))
    assert (tokenizer.prefix, tokenizer.suffix) == ((), ())
    encoded = TextProcessor(field(), tokenizer).process(["the dress", ""])
    the_dress = Tokenizer.from_str(trained("wordpiece")).encode("the dress").ids[1:-1]
    assert chunks_of(encoded) == [[the_dress], [[0]]]
    assert encoded.counts.empty_records == 1


def test_truncation_and_padding_baked_into_a_tokenizer_are_off(tmp_path: Path) -> None:
    baked = Tokenizer.from_str(trained("wordpiece"))
    baked.enable_truncation(4)
    baked.enable_padding(length=64)
    baked.save(str(tmp_path / "tokenizer.json"))
    text = "the dress fits well and i love how soft it feels"
    assert ChunkTokenizer.from_folder(tmp_path).encode_batch([text]) == tokenizer_of("wordpiece").encode_batch([text])


def test_messages_are_joined_the_way_the_tokenizer_marks_words() -> None:
    assert tokenizer_of("byte_level").separator == " "
    settings_of = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "model": {
            "type": "BPE",
            "vocab": {"▁": 0, "a": 1, "b": 2, "▁a": 3, "▁b": 4},
            "merges": [["▁", "a"], ["▁", "b"]],
        },
    }
    assert ChunkTokenizer(Tokenizer.from_str(json.dumps(settings_of))).separator == ""


@pytest.mark.parametrize("content", [None, "{", '{"version": "1.0"}'])
def test_a_missing_or_broken_tokenizer_file_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ContractError, match=r"tokenizer\.json"):
        ChunkTokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (models.WordPiece({"[CLS]": 0, "[SEP]": 1, "ж": 2}, unk_token="[UNK]"), r"tokenizer\.json .*Missing \[UNK\]"),
        (models.BPE({"[CLS]": 0, "[SEP]": 1, "ж": 2}, []), "encodes 'a' as no token"),
    ],
)
def test_a_tokenizer_without_a_token_for_unknown_text_is_refused(tmp_path: Path, model: Any, message: str) -> None:
    tokenizer = Tokenizer(model)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 1), ("[CLS]", 0))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ContractError, match=message):
        ChunkTokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(wild, max_size=6))
@example(texts=["wide    gaps   count", " wide", "a\tb\u3000c ", "\n"])
def test_remembered_words_give_the_ids_of_whole_texts(kind: str, texts: list[str | None]) -> None:
    present = [text.encode("utf-8", "ignore").decode() for text in texts if text is not None] + ["the dress"] * 40
    direct = Tokenizer.from_str(trained(kind)).encode_batch(present, add_special_tokens=False)
    tokenizer = tokenizer_of(kind)
    assert tokenizer.encode_batch(present) == [encoding.ids for encoding in direct]
    assert tokenizer._words._ids.later, "the words were looked up, not only passed on"


@pytest.mark.parametrize("kind", [*KINDS, "whole_text"])
def test_the_parts_of_a_long_text_give_the_ids_of_the_whole(kind: str) -> None:
    words = random.Random(0).choices([*WORDS.split(), "naïve", "日本語", "👍🏽", "[SEP]"], k=40_000)
    text = " ".join(words)
    assert len(text) > 2 * chunk_tokenizer._LONGEST_PART
    whole = Tokenizer.from_str(trained(kind)).encode(text, add_special_tokens=False)
    tokenizer = ChunkTokenizer(Tokenizer.from_str(trained(kind)))
    assert tokenizer.encode_batch(["the dress", text, ""])[1] == whole.ids


@pytest.mark.parametrize("kind", [*KINDS, "whole_text"])
def test_hostile_text_is_encoded_and_chunked_in_linear_time(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # waiting threads take processor time
    tokenizer = ChunkTokenizer(Tokenizer.from_str(trained(kind)))
    processor = TextProcessor(field("dialogue_chunker", max_sen_len=16), tokenizer)
    families = ["one word", "punctuation", "blanks", "ideographs", "alternating marks", "words", "long words"]
    assert superlinear(lambda text: processor.process([text]), families) == []


def test_threads_that_share_a_tokenizer_get_the_ids_of_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_tokenizer, "_MAX_REMEMBERED", 200)  # the cache is emptied all the time
    tokenizer, expected = tokenizer_of("wordpiece"), Tokenizer.from_str(trained("wordpiece"))
    batches = [[" ".join([f"{word}{i}"] * 9)] * 3 for i in range(60) for word in WORDS.split()]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(tokenizer.encode_batch, batches))
    assert found == [[expected.encode(text, add_special_tokens=False).ids for text in batch] for batch in batches]


@pytest.mark.parametrize("kind", KINDS)
@given(chat=chats, max_sen_len=st.integers(4, 40))
def test_chunks_lose_no_token_and_keep_the_budget(kind: str, chat: str, max_sen_len: int) -> None:
    tokenizer = tokenizer_of(kind)
    encoded = TextProcessor(field(max_sen_len=max_sen_len), tokenizer).process([chat])
    joined = " ".join(chat.removeprefix("[bom]").removesuffix("[eom]").split("[eom][bom]"))
    chunks = chunks_of(encoded)[0]
    assert inner(chunks, tokenizer) == Tokenizer.from_str(trained(kind)).encode(joined, add_special_tokens=False).ids
    assert encoded.chunk_lengths.max() <= max_sen_len
    assert encoded.counts.cut_tokens == encoded.counts.cut_chunks == encoded.counts.truncated_records == 0
    for chunk in chunks:
        assert (chunk[0], chunk[-1]) == (*tokenizer.prefix, *tokenizer.suffix)


@given(lengths=st.lists(st.integers(0, 30), max_size=12), budget=st.integers(1, 12), word_length=st.integers(1, 15))
def test_packing_keeps_messages_whole_while_they_fit(lengths: list[int], budget: int, word_length: int) -> None:
    encoded = [[(index, place) for place in range(length)] for index, length in enumerate(lengths)]
    chunks = pack_messages(encoded, budget, starts_word=lambda token: token[1] % word_length == 0)
    assert list(itertools.chain(*chunks)) == list(itertools.chain(*encoded))
    assert all(len(chunk) <= budget for chunk in chunks)
    for before, after in itertools.pairwise(filter(None, chunks)):
        index, place = after[0]
        if place:
            assert len(encoded[index]) > budget
            assert place % word_length == 0 or word_length > budget // 2, "cut inside a word though one began in time"
        else:
            assert len(before) + len(encoded[index]) > budget, "the message would have fitted into the chunk before"


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_message_is_cut_between_words(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    words = tokenizer.encode_batch(["unbelievably", " unbelievably", " soft"])
    chunks = chunks_of(TextProcessor(field(max_sen_len=20), tokenizer).process(["unbelievably soft " * 10]))[0]
    assert len(chunks) > 1
    for chunk in chunks:
        assert any(chunk[1 : 1 + len(word)] == word for word in words), "begins with a whole word"


def test_without_a_chunker_each_message_is_a_chunk_cut_at_max_sen_len() -> None:
    tokenizer = tokenizer_of("wordpiece")
    long, short = "the dress fits well and i love how soft it feels", "short"
    encoded = TextProcessor(field("dialogue_splitter", max_sen_len=8), tokenizer).process(
        [f"[bom]{long}[eom][bom]{short}[eom]"]
    )
    whole = tokenizer.encode_batch([long, short])
    assert [chunk[1:-1] for chunk in chunks_of(encoded)[0]] == [whole[0][:6], whole[1]]
    assert encoded.counts.cut_tokens == len(whole[0]) - 6
    assert encoded.counts.truncated_records == 1
    assert encoded.counts.cut_chunks == 0


def test_chunks_beyond_max_chunks_are_cut_from_the_end_and_counted() -> None:
    tokenizer = tokenizer_of("wordpiece")
    text = "the dress fits well and i love how soft it feels"
    everything = TextProcessor(field(max_sen_len=6), tokenizer).process([text, "short"])
    encoded = TextProcessor(field(max_sen_len=6, max_chunks=2), tokenizer).process([text, "short"])
    all_chunks = chunks_of(everything)[0]
    assert chunks_of(encoded)[0] == all_chunks[:2]
    assert encoded.counts.cut_chunks == len(all_chunks) - 2
    assert encoded.counts.cut_tokens == sum(len(chunk) - 2 for chunk in all_chunks[2:])
    assert encoded.counts.truncated_records == 1
    assert encoded.counts.records == 2


@pytest.mark.parametrize("blank", [None, "", " \n", "[bom][eom]", "<p></p>", "👍", "\u200b"])
def test_a_record_without_text_is_one_chunk_of_the_special_tokens(blank: str | None) -> None:
    encoded = TextProcessor(field(), tokenizer_of("wordpiece")).process([blank])
    assert chunks_of(encoded) == [[[2, 3]]]
    removed = {"without_emoji": blank == "👍", "without_html": blank == "<p></p>"}
    assert encoded.counts == TextCounts(records=1, chunks=1, tokens=2, empty_records=1, **removed)


def test_a_message_without_tokens_makes_no_chunk_beside_others() -> None:
    encoded = TextProcessor(field("dialogue_splitter"), tokenizer_of("wordpiece")).process(
        ["[bom]\u200b[eom][bom]the dress[eom]"]
    )
    assert len(encoded.chunk_lengths) == 1


def test_no_records_give_empty_arrays() -> None:
    encoded = TextProcessor(field(), tokenizer_of("wordpiece")).process([])
    assert [len(array) for array in (encoded.tokens, encoded.token_counts, encoded.chunk_lengths)] == [0, 0, 0]
    assert encoded.counts == TextCounts()


def test_arrays_have_the_promised_types() -> None:
    encoded = TextProcessor(field(), tokenizer_of("wordpiece")).process(["the dress", None])
    assert [encoded.tokens.dtype, encoded.chunk_lengths.dtype] == [np.int32, np.int32]
    assert [encoded.token_counts.dtype, encoded.chunk_counts.dtype] == [np.int64, np.int64]
    assert encoded.token_counts.tolist() == [len(chunks[0]) for chunks in chunks_of(encoded)]


@pytest.mark.parametrize("kind", KINDS)
@given(
    texts=st.lists(wild, min_size=1, max_size=5),
    order=st.tuples(st.permutations(STRING_STEPS), st.integers(1, 4), st.sampled_from([[], ["dialogue_chunker"]])).map(
        lambda drawn: [*drawn[0][: drawn[1]], *drawn[2]]
    ),
    max_sen_len=st.integers(4, 24),
    max_chunks=st.sampled_from([None, 1, 3]),
)
def test_a_record_is_encoded_the_same_alone_and_in_a_batch_in_any_order_of_steps(
    kind: str, texts: list[str | None], order: list[str], max_sen_len: int, max_chunks: int | None
) -> None:
    tokenizer = tokenizer_of(kind)
    processor = TextProcessor(field(*order, max_sen_len=max_sen_len, max_chunks=max_chunks), tokenizer)
    batch = processor.process(texts)
    alone = [processor.process([text]) for text in texts]
    assert chunks_of(batch) == [chunks_of(single)[0] for single in alone]
    assert batch.counts == sum((single.counts for single in alone), TextCounts())
    assert batch.counts.tokens == len(batch.tokens) == batch.token_counts.sum()
    assert batch.counts.records == len(texts) == len(batch.chunk_counts)
    assert batch.chunk_counts.min() >= 1
    assert batch.chunk_lengths.max() <= max_sen_len


def test_the_tokenizer_alone_sees_the_raw_text() -> None:
    tokenizer = tokenizer_of("byte_level")
    processor = TextProcessor(dataclasses.replace(field(), steps=("tokenizer",)), tokenizer)
    text = "[bom]<b>x</b>  y[eom]"
    assert inner(chunks_of(processor.process([text]))[0], tokenizer) == tokenizer.encode_batch([text])[0]


def test_a_budget_without_room_for_text_is_refused() -> None:
    with pytest.raises(ContractError, match="max_sen_len of .body.: 2"):
        TextProcessor(field(max_sen_len=2), tokenizer_of("wordpiece"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_processor_does_the_same_after_pickling(kind: str) -> None:
    processor = TextProcessor(field(max_sen_len=8), tokenizer_of(kind))
    texts = [*CORPUS[:4], None, "[bom]Ünï 👍[eom]"]
    copy = pickle.loads(pickle.dumps(processor))
    assert chunks_of(copy.process(texts)) == chunks_of(processor.process(texts))


def test_clean_texts_are_what_the_string_steps_leave() -> None:
    raw = ["[bom]<b>Hi</b>  there 👍[eom][bom]&amp; <br/>[eom]", None, ""]
    assert clean_texts(field(), raw) == [["Hi there", "&"], [], []]


def test_counts_add_up_field_by_field() -> None:
    ones = TextCounts(1, 2, 3, 4, 5, 6, 7)
    assert (ones + ones).to_dict() == {name: 2 * value for name, value in ones.to_dict().items()}


class Counting:
    """A tokenizer that counts the characters that it encodes."""

    def __init__(self, tokenizer: ChunkTokenizer) -> None:
        self._tokenizer = tokenizer
        self.characters = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._tokenizer, name)

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        self.characters += sum(map(len, texts))
        return self._tokenizer.encode_batch(texts)


LONG = {
    "one message": " ".join(CORPUS * 5),
    "no space": "!?" * 12_000,
    "messages": "".join(f"[bom]{text}[eom]" for text in CORPUS * 2),
    "one long message last": "[bom]hello[eom]" * 3 + "[bom]" + " ".join(CORPUS * 5) + "[eom]",
    "a long word first": "a" * 12_000 + " " + " ".join(CORPUS * 5),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [(), ("dialogue_splitter",)])
def test_a_truncated_record_keeps_its_chunks_when_only_its_beginning_is_encoded(monkeypatch, kind, steps) -> None:
    monkeypatch.setattr(tokenization, "_SEGMENT", 4096)
    counting = Counting(tokenizer_of(kind))
    processor = TextProcessor(field(*steps, max_sen_len=24, max_chunks=4), counting)
    for name, text in LONG.items():
        whole = processor.process([text, "short"])
        everything, counting.characters = counting.characters, 0
        beginning = processor.process([text, "short"], max_tokens=100)
        assert chunks_of(beginning) == chunks_of(whole), name
        assert counting.characters < everything, name
        counting.characters = 0


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_record_with_too_many_tokens_more_than_the_limit_are_encoded_but_not_all(monkeypatch, kind) -> None:
    monkeypatch.setattr(tokenization, "_SEGMENT", 4096)
    processor = TextProcessor(field(max_sen_len=24), tokenizer_of(kind))
    for name, text in LONG.items():
        whole = processor.process([text]).token_counts[0]
        assert 200 < processor.process([text], max_tokens=200).token_counts[0] < whole, name
        assert processor.process([text], max_tokens=whole).token_counts[0] == whole, name


def test_texts_that_are_encoded_in_parts_are_the_texts_encoded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = TextProcessor(field(max_sen_len=24, max_chunks=2), tokenizer_of("wordpiece"))
    texts = [None, *CORPUS[:50], "", CORPUS[3] * 20]
    together = processor.process(texts)
    monkeypatch.setattr(tokenization, "_PART_CHARACTERS", 300)
    parts = processor.process(texts)
    assert chunks_of(parts) == chunks_of(together)
    assert parts.counts == together.counts


def test_a_cut_inside_a_long_word_does_not_count_as_more_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenization, "_SEGMENT", 4096)
    text = "a" * 90 + " " + ("a" * 4095 + " ") * 10  # a word is [UNK], but its last 90 characters are tokens
    processor = TextProcessor(field(max_sen_len=24), tokenizer_of("wordpiece"))
    whole = processor.process([text])
    assert whole.token_counts[0] < 200
    assert chunks_of(processor.process([text], max_tokens=200)) == chunks_of(whole)


def joined(
    tokenizer: ChunkTokenizer, *texts: str | None, steps: tuple[str, ...] = (), **limits: Any
) -> tuple[list[list[int]], TextCounts]:
    """The chunks of one record of as many columns, without special tokens, and the counts."""
    others = tuple(f"column {i}" for i in range(1, len(texts)))
    processor = TextProcessor(dataclasses.replace(field(*steps, **limits), joined=others), tokenizer)
    encoded = processor.process(*([text] for text in texts))
    (chunks,) = chunks_of(encoded)
    return [inner([chunk], tokenizer) for chunk in chunks], encoded.counts


@pytest.mark.parametrize("kind", KINDS)
def test_joined_texts_are_one_chunk_with_the_tokenizers_separator_between_them(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    (separator,) = tokenizer.suffix
    titles, reviews = tokenizer.encode_batch(["the dress", "i love how soft it feels"])
    assert joined(tokenizer, "the dress", "i love how soft it feels")[0] == [[*titles, separator, *reviews]]


def test_a_tokenizer_without_special_tokens_has_a_line_break_between_joined_texts() -> None:
    settings_of = json.loads(trained("byte_level")) | {"post_processor": None}
    tokenizer = ChunkTokenizer(Tokenizer.from_str(json.dumps(settings_of)))
    assert tokenizer.between == tokenizer.encode_batch(["\n"])[0] != []


def test_a_missing_one_of_joined_texts_leaves_its_separator_so_that_the_others_keep_their_meaning() -> None:
    tokenizer = tokenizer_of("wordpiece")
    (separator,) = tokenizer.suffix
    (dress,) = tokenizer.encode_batch(["the dress"])
    assert joined(tokenizer, None, "the dress", " ")[0] == [[separator, *dress, separator]]
    chunks, counts = joined(tokenizer, None, "")
    assert (chunks, counts.empty_records) == ([[]], 1)


@pytest.mark.parametrize(
    ("lengths", "total", "shares"),
    [([3, 50, 60], 43, [3, 20, 20]), ([9, 9], 7, [4, 3]), ([2, 3], 9, [2, 3]), ([0, 8], 5, [0, 5])],
)
def test_short_texts_stay_whole_and_long_ones_share_the_rest(lengths: list[int], total: int, shares: list[int]) -> None:
    assert fair_shares(lengths, total) == shares


@pytest.mark.parametrize("steps", [FULL_TEXT_STEPS[:-1], ("text_normalizer",)])
def test_no_joined_text_vanishes_where_chunks_are_limited(steps: tuple[str, ...]) -> None:
    tokenizer = tokenizer_of("wordpiece")
    (separator,) = tokenizer.suffix
    long = "the dress fits well and i love how soft it feels " * 9
    (chunk,), counts = joined(tokenizer, long, "i love it", long, steps=steps, max_sen_len=24, max_chunks=1)
    first, second, third = (list(part) for is_text, part in itertools.groupby(chunk, separator.__ne__) if is_text)
    assert second == tokenizer.encode_batch(["i love it"])[0]
    assert len(chunk) == 24 - 2
    assert 0 <= len(first) - len(third) <= 1
    assert counts.truncated_records == 1
    assert counts.cut_tokens == 2 * len(tokenizer.encode_batch([long])[0]) - len(first) - len(third)


@pytest.mark.parametrize(("kind", "unknown"), [("wordpiece", 2), ("byte_level", 0)])
def test_what_steps_remove_and_what_the_tokenizer_does_not_know_is_counted(kind: str, unknown: int) -> None:
    texts = ["the dress 👍", "<b>the</b> dress", "the 中 dress 文", None]
    encoded = TextProcessor(field(), tokenizer_of(kind)).process(texts)
    counts = (encoded.counts.without_emoji, encoded.counts.without_html, encoded.counts.unknown_tokens)
    assert counts == (1, 1, unknown)
    kept = TextProcessor(dataclasses.replace(field(), steps=("tokenizer",)), tokenizer_of(kind)).process(texts)
    assert (kept.counts.without_emoji, kept.counts.without_html) == (0, 0)


def test_joined_texts_without_a_limit_keep_every_token_and_fill_their_chunks() -> None:
    tokenizer = tokenizer_of("wordpiece")
    (separator,) = tokenizer.suffix
    long = "the dress fits well and i love how soft it feels " * 9
    chunks, _ = joined(tokenizer, "the dress", long, max_sen_len=24)
    title, review = tokenizer.encode_batch(["the dress", long])
    assert list(itertools.chain(*chunks)) == [*title, separator, *review]
    assert len(chunks[0]) > len(title) + 9, "the review begins in the chunk of the title"


def test_max_sen_len_without_room_for_a_token_of_each_joined_text_is_an_error() -> None:
    with pytest.raises(ContractError) as error:
        joined(tokenizer_of("wordpiece"), "a", "b", "c", max_sen_len=6)
    assert error.value.cause.startswith("max_sen_len of 'body + column 1 + column 2': 6 leaves no room")
    assert error.value.fix == "Set it to 7 or more."
