"""A pretrained encoder's text is encoded as AutoTokenizer encodes it, whichever file states a fact."""

import json
import logging
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from container.text.chunk_tokenizer import ChunkTokenizer
from container.text.encoder_source import write_encoder_files
from contracts.errors import ContractError
from testing.tokenizer_folders import ADDED, FACTS, FAMILIES, change, mixed_texts, write_family, write_minilm

TEXTS = mixed_texts(1000)


def converted(source: Path) -> Path:
    """The encoder's folder as a job writes it."""
    target = source.with_name(f"{source.name} of the job")
    shutil.rmtree(target, ignore_errors=True)
    write_encoder_files(source, target)
    return target


def ids_of(folder: Path, texts: list[str]) -> list[list[int]]:
    """The ids of training and of a served model."""
    tokenizer = ChunkTokenizer.from_folder(folder)
    return [[*tokenizer.prefix, *ids, *tokenizer.suffix] for ids in tokenizer.encode_batch(texts)]


def assert_as_autotokenizer(source: Path) -> None:
    """Compare the ids of the job, and AutoTokenizer's from the files of the job, with AutoTokenizer's from `source`."""
    target = converted(source)
    expected = AutoTokenizer.from_pretrained(source)(TEXTS)["input_ids"]
    assert ids_of(target, TEXTS) == expected, source.name
    assert AutoTokenizer.from_pretrained(target)(TEXTS)["input_ids"] == expected, source.name


@pytest.mark.slow
@pytest.mark.parametrize("family", ["minilm", *FAMILIES])
def test_the_ids_of_a_job_are_those_of_autotokenizer_over_its_source_and_over_its_model(tmp_path, family):
    original = tmp_path / "original"
    if family == "minilm":
        write_minilm(original)
    else:
        write_family(original, family)
    for fact, add in FACTS.items():
        source = shutil.copytree(original, tmp_path / fact)
        add(source)
        assert_as_autotokenizer(source)


def test_a_fact_that_changes_the_ids_of_tokenizer_json_is_logged(tmp_path, caplog):
    write_family(tmp_path / "bert", "bert cased")
    with caplog.at_level(logging.WARNING):
        converted(tmp_path / "bert")
        assert caplog.messages == []
        change(tmp_path / "bert" / "tokenizer_config.json", do_lower_case=True)
        converted(tmp_path / "bert")
    (message,) = caplog.messages
    assert "'Good café, 12 DAYS!' becomes ['[CLS]', 'g'" in message
    assert "with tokenizer.json alone ['[CLS]', 'G'" in message
    assert "set tokenizer_class in" in message


def test_a_token_that_a_file_names_and_the_encoder_lacks_is_an_error(tmp_path: Path) -> None:
    write_family(tmp_path / "bert", "bert uncased")
    change(tmp_path / "bert" / "tokenizer_config.json", additional_special_tokens=[ADDED])
    config = json.loads((tmp_path / "bert" / "config.json").read_text())
    change(tmp_path / "bert" / "config.json", vocab_size=(size := config["vocab_size"] - 4))
    with pytest.raises(ContractError, match=rf"the token '\[ENT\]' has id {size}, but vocab_size .* is {size}\n"):
        converted(tmp_path / "bert")
    change(tmp_path / "bert" / "config.json", vocab_size=size + 1)
    converted(tmp_path / "bert")


def test_a_default_token_of_the_class_that_the_encoder_lacks_is_left_out(tmp_path: Path) -> None:
    source = tmp_path / "bert"
    write_family(source, "bert uncased")
    tokenizer = source / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"[MASK]"', '"masked"'))
    (source / "tokenizer_config.json").unlink()
    change(source / "config.json", vocab_size=Tokenizer.from_file(str(tokenizer)).get_vocab_size())
    assert AutoTokenizer.from_pretrained(source).mask_token == "[MASK]"
    target = converted(source)
    assert AutoTokenizer.from_pretrained(target).mask_token is None
    texts = [text for text in TEXTS if "[MASK]" not in text]
    assert ids_of(target, texts) == AutoTokenizer.from_pretrained(source)(texts)["input_ids"]


@pytest.mark.parametrize(
    ("family", "file", "values", "problem"),
    [
        ("roberta", "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"},
         "tokenizer.json is of the kind BPE, but AutoTokenizer loads it as BertTokenizer, of the kind WordPiece"),
        ("bert cased", "tokenizer_config.json", {"split_special_tokens": True}, "split_special_tokens is true"),
        ("bert cased", "config.json", {"model_type": "unheard-of"}, "model type `unheard-of`"),
    ],
)  # fmt: skip
def test_files_that_contradict_each_other_are_an_error(tmp_path, family, file, values, problem):
    write_family(tmp_path / "encoder", family)
    change(tmp_path / "encoder" / file, **values)
    with pytest.raises(ContractError) as raised:
        converted(tmp_path / "encoder")
    assert f"the files in {tmp_path / 'encoder'}" in raised.value.cause
    assert problem in raised.value.cause


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_a_damaged_file_is_named(tmp_path: Path, file: str) -> None:
    write_family(tmp_path / "encoder", "bert cased")
    (tmp_path / "encoder" / file).write_text("{")
    with pytest.raises(ContractError, match=rf"encoder/{file} is damaged"):
        converted(tmp_path / "encoder")
