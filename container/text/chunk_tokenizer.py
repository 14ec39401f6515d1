"""Wrap a Hugging Face fast tokenizer for packing: ids without special tokens, padding or truncation."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from container.text.parts import text_parts
from contracts.errors import ContractError

_LOCAL_PRE_TOKENIZERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit", "ByteLevel", "Metaspace"}
_LOCAL_NORMALIZERS = {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents"}
_ASCII_NORMALIZERS = _LOCAL_NORMALIZERS | {"Precompiled", "Replace", "Strip"}
_MAX_NEW = 0.4  # encoding a word alone takes two to three times as long as inside a text
_LONGEST_PART = 65_536  # characters of a text encoded at a time
_LARGEST_GROUP = 262_144  # characters of several texts encoded at a time
_MAX_REMEMBERED = 1_000_000  # characters + ids; 8 million take 90 MB more over a million reviews


class ChunkTokenizer:
    """Encode text to ids. Picklable and thread-safe.

    Parts of a long text are encoded separately, so that no call holds the interpreter for long. The ids are those of
    the whole text, except where a part begins inside a word of more than 65,536 characters.

    The environment variable TOKENIZERS_PARALLELISM controls the library's threads; worker processes set it to false.

    Attributes:
        prefix: ids at the beginning of a chunk, e.g. [CLS].
        suffix: ids at its end, e.g. [SEP].
        blank: ids between them in a chunk without text: none, or id 0, mostly [PAD], without prefix and suffix. A chunk
            without a token would have no vector.
        between: ids between two texts that are joined: the last one of the suffix, e.g. [SEP], or else a line break.
        vocab_size: number of ids, including added tokens.
        unknown: id of text that the vocabulary lacks; None without one.
        separator: text before each message except the first, so that messages encoded one by one have the ids of their
            joined text: byte-level vocabularies mark the start of a word by the space before it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._words = _WordCache(tokenizer)
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)
        named = (getattr(tokenizer.model, "unk_token", None), "<unk>", "[UNK]")
        known = (tokenizer.token_to_id(name) for name in named if name)
        self.unknown: int | None = next((token for token in known if token is not None), None)
        self.prefix, self.suffix = _special_tokens(tokenizer)
        self.blank: list[int] = [] if self.prefix or self.suffix else [0]
        self.between: list[int] = list(self.suffix[-1:]) or self._words.encode_batch(["\n"])[0]
        joined, first, second, spaced = self._words.encode_batch(["a b", "a", "b", " b"])
        self.separator = "" if joined == first + second != first + spaced else " "
        self._continues = _continuing_tokens(tokenizer)

    @classmethod
    def from_folder(cls, folder: Path) -> "ChunkTokenizer":
        """Load `folder`/tokenizer.json; raise ContractError where it is missing or not a tokenizer."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ContractError(
                f"tokenizer: {path} is missing", "Put the encoder's tokenizer.json there, or choose another encoder."
            )
        try:
            return cls(Tokenizer.from_file(str(path)))
        except ContractError:
            raise
        except Exception as error:  # the library raises bare Exception, also if a token for unknown words is missing
            raise ContractError(
                f"tokenizer: {path} is not a tokenizer: {error}", "Copy the file again from the source of the encoder."
            ) from None

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without special tokens."""
        parts = list(map(self._parts, texts))
        encoded = chain.from_iterable(map(self._words.encode_batch, _groups(chain.from_iterable(parts))))
        return [_joined(islice(encoded, len(cut))) for cut in parts]

    def _parts(self, text: str) -> list[str]:
        parts = list(text_parts(text, _LONGEST_PART, before=" "))
        # Without the space that messages do not have either.
        return parts if self.separator else [parts[0], *(part.removeprefix(" ") for part in parts[1:])]

    def starts_word(self, token: int) -> bool:
        """Return whether the vocabulary marks this token as the beginning of a word."""
        return token not in self._continues

    def __getstate__(self) -> dict[str, Any]:
        return {"tokenizer": self._tokenizer.to_str()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(Tokenizer.from_str(state["tokenizer"]))


def _special_tokens(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    whole, inner = (tokenizer.encode("a", add_special_tokens=special).ids for special in (True, False))
    if not inner:
        raise ContractError(
            "tokenizer: encodes 'a' as no token, so text with unknown letters would be lost",
            "Use a tokenizer with a token for unknown text, such as [UNK].",
        )
    for start in range(len(whole) - len(inner) + 1):
        if whole[start : start + len(inner)] == inner:
            return tuple(whole[:start]), tuple(whole[start + len(inner) :])
    raise ContractError(
        "tokenizer: encodes 'a' differently with and without special tokens",
        "Use a tokenizer that puts its special tokens before and after the text.",
    )


def _continuing_tokens(tokenizer: Tokenizer) -> frozenset[int]:
    """Return ids inside a word: ## in WordPiece, no leading space in byte-level and Metaspace vocabularies."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    if prefix := getattr(tokenizer.model, "continuing_subword_prefix", None):
        return frozenset(index for token, index in vocabulary.items() if token.startswith(prefix))
    return frozenset(index for token, index in vocabulary.items() if not token.startswith(("Ġ", "▁", " ")))


def _groups(parts: Iterable[str]) -> Iterator[list[str]]:
    """Yield lists of consecutive parts, of a limited number of characters in total."""
    group: list[str] = []
    size = 0
    for part in parts:
        if size + len(part) > _LARGEST_GROUP and group:
            yield group
            group, size = [], 0
        group.append(part)
        size += len(part)
    yield group


def _joined(parts: Iterable[list[int]]) -> list[int]:
    ids = next(parts := iter(parts))
    for part in parts:
        ids += part
    return ids


@dataclass(frozen=True)
class _Ids:
    """Ids of words."""

    first: dict[str, list[int]] = field(default_factory=dict)  # of a word that opens a text
    later: dict[str, list[int]] = field(default_factory=dict)  # of a word after a space


class _WordCache:
    """Encode texts word by word with a cache: the same ids as encoding whole texts, several times faster.

    This is valid only if no step of the tokenizer depends on text across a single space, as for the components listed
    above. Other tokenizers, and text with other white space, encode whole texts.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._usable = _words_are_independent(tokenizer)
        self._ascii_only = not {part["type"] for part in _components(tokenizer.normalizer)} <= _LOCAL_NORMALIZERS
        self._ids = _Ids()
        self._remembered = 0

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        words = [self._words(text) for text in texts]
        if self._remembered > _MAX_REMEMBERED:
            self._ids = _Ids()  # other threads may be reading the old one
            self._remembered = 0
        ids = self._ids
        if not self._remember([parts for parts in words if parts], ids):
            return self._encode(texts)
        whole = iter(self._encode([text for text, parts in zip(texts, words) if not parts]))
        first, later = ids.first.__getitem__, ids.later.__getitem__
        return [
            [*first(parts[0]), *chain.from_iterable(map(later, parts[1:]))] if parts else next(whole) for parts in words
        ]

    def _words(self, text: str) -> list[str] | None:
        """Return the words of a text with single spaces between them and at most one before; None for other text."""
        if not self._usable or (self._ascii_only and not text.isascii()):
            return None
        words = text.split(" ")
        plain = text.split()
        return words if plain == words or (words[0] == "" and plain == words[1:]) else None

    def _remember(self, texts: list[list[str]], ids: _Ids) -> bool:
        """Add the new words of these texts to `ids` and return True; return False where too many words are new."""
        first = {parts[0] for parts in texts}.difference(ids.first)
        later = set().union(*(parts[1:] for parts in texts)).difference(ids.later)
        if _MAX_NEW * sum(map(len, texts)) < len(first) + len(later):
            return False
        for cache, space, new in ((ids.first, "", list(first)), (ids.later, " ", list(later))):
            for word, word_ids in zip(new, self._encode([space + word for word in new])):
                cache[word] = word_ids
                self._remembered += len(word) + len(word_ids)
        return True

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        # "fast" omits the offsets
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def _components(part: Any) -> list[dict[str, Any]]:
    """Return the settings of a normalizer or pre-tokenizer, or of the members of a sequence."""
    if part is None:
        return []
    settings = json.loads(part.__getstate__())
    if settings["type"] == "Sequence":
        return settings.get("normalizers") or settings.get("pretokenizers") or []
    return [settings]


def _words_are_independent(tokenizer: Tokenizer) -> bool:
    """Return whether each word has the same ids alone as inside a text."""
    pre_tokenizers = _components(tokenizer.pre_tokenizer)
    normalizers = _components(tokenizer.normalizer)
    return (
        bool(pre_tokenizers)
        and all(component["type"] in _LOCAL_PRE_TOKENIZERS for component in pre_tokenizers)
        and all(component.get("use_regex", True) and component.get("split", True) for component in pre_tokenizers)
        and all(component["type"] in _ASCII_NORMALIZERS for component in normalizers)
        and all(_keeps_single_spaces(component) for component in normalizers)
        and not any(
            token.rstrip or any(map(str.isspace, token.content))
            for token in tokenizer.get_added_tokens_decoder().values()
        )
        and getattr(tokenizer.model, "dropout", None) is None
    )


def _keeps_single_spaces(normalizer: dict[str, Any]) -> bool:
    if normalizer["type"] == "Strip":
        return not normalizer["strip_left"]
    if normalizer["type"] == "Replace":
        pattern = normalizer["pattern"]
        return pattern == {"Regex": " {2,}"} or ("String" in pattern and not any(map(str.isspace, pattern["String"])))
    return True
