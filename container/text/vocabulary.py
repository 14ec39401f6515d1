"""Learn a reproducible WordPiece vocabulary from the training text, for from_scratch encoders."""

import json
import logging
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from container.text.encoder_config import scratch_config
from container.text.parts import text_parts
from contracts.errors import ContractError
from contracts.settings.encoder import ENCODER_SIZES

logger = logging.getLogger(__name__)

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_IN_CONFIG = {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
SPECIAL_IDS = {name: SPECIAL_TOKENS.index(token) for name, token in _IN_CONFIG.items()}  # as in config.json
_PREFIX = "##"
_LONGEST_WORD = 100  # WordPiece's limit: longer words are [UNK]
_ALPHABET = 1000  # letters; more if they cover less than _COVERED of the text
_COVERED = 0.999
_MIN_VOCABULARY = 64
_READ_IN_FULL = 1_000_000  # texts; of later ones a decreasing share is read
_MAX_WORDS = 2_000_000  # distinct words counted at a time, about 200 MB
_MAX_TRAINING_WORDS = 4_000_000  # words that the trainer reads; more hardly change the vocabulary


def vocabulary_limit(encoder_config: Mapping[str, Any]) -> int:
    """Return the maximum size of a learned vocabulary; raise ContractError if letters alone need more."""
    limit = encoder_config.get("vocab_size", ENCODER_SIZES["vocab_size"])
    if not isinstance(limit, int) or limit < _MIN_VOCABULARY:
        raise ContractError(
            f"encoder_config: vocab_size is {limit!r}, too small for the letters alone",
            f"Set it to {_MIN_VOCABULARY} or more; {ENCODER_SIZES['vocab_size']} is the default.",
        )
    return limit


def learn_vocabulary(
    texts: Iterable[str],
    target: Path,
    *,
    encoder_config: Mapping[str, Any],
    seed: int,
    max_sen_len: int = 512,
    length_setting: str = "max_sen_len",
    tokenizer_setting: str = "tokenizer",
    where: str = "the text of train",
) -> None:
    """Learn a vocabulary and write tokenizer.json, tokenizer_config.json and config.json to `target`.

    Read `texts` once, in bounded memory: count distinct words, and drop the rarest when there are too many. The same
    texts in the same order result in the same bytes.

    Args:
        texts: cleaned pieces of text.
        encoder_config: the encoder's sizes; vocab_size is the maximum size of the vocabulary.
        seed: of the random sample of texts after the first million.
        max_sen_len: tokens of the longest chunk.
        length_setting, tokenizer_setting: the hyperparameters with `max_sen_len` and from_scratch, for errors.
        where: the source of `texts`, for errors.

    Raises:
        ContractError: no text, a vocab_size too small, or an encoder_config that scratch_config rejects.
    """
    limit = vocabulary_limit(encoder_config)
    tokenizer = _empty_tokenizer()
    counts = _count_words(_thin(texts, seed=seed), tokenizer)
    if not counts:
        raise ContractError(
            f"{tokenizer_setting}: from_scratch learns its vocabulary from {where}, and there is none",
            f"Check the name of the text column, or set {tokenizer_setting} to a pretrained encoder.",
        )
    vocabulary = _learn(counts, limit)
    tokenizer.model = models.WordPiece(vocabulary, unk_token="[UNK]", continuing_subword_prefix=_PREFIX)
    tokenizer.decoder = decoders.WordPiece(prefix=_PREFIX)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
    assert all(vocabulary[token] == place for place, token in enumerate(SPECIAL_TOKENS))
    config = scratch_config(
        encoder_config,
        vocab_size=len(vocabulary),
        special_ids=SPECIAL_IDS,
        max_sen_len=max_sen_len,
        setting=length_setting,
    )
    target.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(target / "tokenizer.json"))
    _write_json(target / "config.json", config)
    _write_json(
        target / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **{f"{token.strip('[]').lower()}_token": token for token in SPECIAL_TOKENS},
            "model_max_length": max_sen_len,
        },
    )


def _empty_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece({}, unk_token="[UNK]", continuing_subword_prefix=_PREFIX))
    # Accents and marks stay: without them, words of many languages are equal. NFC: a letter is one character.
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.BertNormalizer(lowercase=True, strip_accents=False)]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def _thin(texts: Iterable[str], *, seed: int) -> Iterator[str]:
    """Yield the first million texts, and text number n after them with probability million / n."""
    draw = random.Random(seed)
    for number, text in enumerate(texts, start=1):
        if number <= _READ_IN_FULL or draw.random() * number < _READ_IN_FULL:
            yield text


def _count_words(texts: Iterable[str], tokenizer: Tokenizer) -> Counter[str]:
    """Count the words of the texts, split as the tokenizer splits them."""
    raw: Counter[str] = Counter()
    rare = 1
    for text in texts:
        raw.update(text.split())
        while len(raw) > _MAX_WORDS:
            raw = Counter({word: count for word, count in raw.items() if count > rare})
            rare += 1
    words: Counter[str] = Counter()
    for text, count in raw.items():
        for part in text_parts(text):
            for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(part)):
                if len(word) <= _LONGEST_WORD:
                    words[word] += count
    return words


def _learn(counts: Mapping[str, int], limit: int) -> dict[str, int]:
    """Return the vocabulary of at most `limit` tokens: special tokens, letters, merges.

    The library's trainer numbers the continuing letters (##a) in the order of a hash map, which differs between
    processes, and breaks ties between merges by number. Passing them as special tokens fixes their numbers. This needs
    a separate tokenizer, because they are not special in the text.
    """
    letters: Counter[str] = Counter()
    for word, count in counts.items():
        for letter in word:
            letters[letter] += count
    most_common = sorted(letters, key=lambda letter: (-letters[letter], letter))
    covered = np.cumsum([letters[letter] for letter in most_common]) / letters.total()
    needed = max(_ALPHABET, int(np.searchsorted(covered, _COVERED)) + 1)
    alphabet = sorted(most_common[: min(needed, (limit - len(SPECIAL_TOKENS)) // 2)])
    unknown = 1 - covered[len(alphabet) - 1]
    if unknown > 1 - _COVERED:
        logger.warning(
            f"from_scratch: the vocabulary has {len(alphabet)} of {len(letters)} letters; {100 * unknown:.1f} % of the "
            f"letters of the text are unknown to the encoder. Raise vocab_size in encoder_config (now {limit})."
        )
    continuing = sorted({letter for word in counts for letter in word[1:]}.intersection(alphabet))
    trainer = trainers.WordPieceTrainer(
        vocab_size=limit,
        min_frequency=2,
        special_tokens=[*SPECIAL_TOKENS, *(_PREFIX + letter for letter in continuing)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix=_PREFIX,
        show_progress=False,
    )
    share = min(1.0, _MAX_TRAINING_WORDS / sum(counts.values()))
    learner = Tokenizer(models.WordPiece(unk_token="[UNK]", continuing_subword_prefix=_PREFIX))
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    learner.train_from_iterator(
        (f"{word} " * round(count * share) for word, count in sorted(counts.items())), trainer=trainer
    )
    return learner.get_vocab(with_added_tokens=True)
