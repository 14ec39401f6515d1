"""Texts in letters that the tokenizer does not know are a warning of train."""

import pytest

from container.preprocessing.data_summary import log_split
from container.text.tokenization import TextCounts


@pytest.mark.parametrize(("split", "unknown", "warns"), [("train", 35, True), ("train", 5, False), ("test", 35, False)])
def test_many_unknown_tokens_of_train_are_a_warning_with_their_share(split, unknown, warns, caplog):
    counts = TextCounts(records=9, chunks=9, tokens=100, unknown_tokens=unknown).to_dict()
    lengths = {"p50": 9, "p99": 9, "max": 9}
    texts = {"text": {"column": "note", **counts, "tokens_per_record": lengths}}
    log_split(split, {"rows": 9, "classes": {}, "ids_of_train": 0, "numeric": {}, "categories": {}, "texts": texts})
    sentence = "train: text 'note': 35% of the tokens are unknown to the tokenizer"
    assert (sentence in caplog.text and "multilingual" in caplog.text) == warns
