"""A Hugging Face fast tokenizer reduced to what packing needs: ids without special tokens, padding or truncation."""

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from contracts.errors import ContractError

_LOCAL_PRE_TOKENIZERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit", "ByteLevel", "Metaspace"}
_LOCAL_NORMALIZERS = {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents"}
_ASCII_NORMALIZERS = _LOCAL_NORMALIZERS | {"Precompiled", "Replace", "Strip"}
_MAX_NEW = 0.4  # a word alone costs the tokenizer two to three times what it costs inside a text
_MAX_REMEMBERED = 1_000_000  # characters + ids; 8 million cost 90 MB more over a million reviews


class ChunkTokenizer:
    """Encodes text to ids. Picklable.

    How many threads the library uses is up to the environment variable TOKENIZERS_PARALLELISM; a process that is one
    of several sets it to false.

    Attributes:
        prefix: ids that open a chunk, e.g. [CLS].
        suffix: ids that close it, e.g. [SEP].
        vocab_size: number of ids, added tokens counted.
        separator: what goes before a message that follows another one, so that messages encoded one by one give what
            their joined text would: byte-level vocabularies mark the start of a word by the space before it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._words = _WordCache(tokenizer)
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)
        self.prefix, self.suffix = _special_tokens(tokenizer)
        joined, first, second, spaced = self.encode_batch(["a b", "a", "b", " b"])
        self.separator = "" if joined == first + second != first + spaced else " "
        self._continues = _continuing_tokens(tokenizer)

    @classmethod
    def from_folder(cls, folder: Path) -> "ChunkTokenizer":
        """The tokenizer of `folder`/tokenizer.json; ContractError where it is missing or no tokenizer."""
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise ContractError(
                f"tokenizer: {path} is missing", "Put the encoder's tokenizer.json there, or choose another encoder."
            )
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise ContractError(
                f"tokenizer: {path} is not a tokenizer: {error}", "Copy the file again from where the encoder is from."
            ) from None
        return cls(tokenizer)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, without special tokens."""
        return self._words.encode_batch(texts)

    def encode_with_starts(self, text: str) -> tuple[list[int], list[int]]:
        """Token ids of a text, and the index of the character that each token starts at."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, [start for start, _ in encoding.offsets]

    def starts_word(self, token: int) -> bool:
        """Whether the vocabulary marks this token as the beginning of a word."""
        return token not in self._continues

    def __getstate__(self) -> dict[str, Any]:
        return {"tokenizer": self._tokenizer.to_str()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(Tokenizer.from_str(state["tokenizer"]))


def _special_tokens(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    whole, inner = (tokenizer.encode("a", add_special_tokens=special).ids for special in (True, False))
    for start in range(len(whole) - len(inner) + 1):
        if whole[start : start + len(inner)] == inner:
            return tuple(whole[:start]), tuple(whole[start + len(inner) :])
    raise ContractError(
        "tokenizer: encodes 'a' differently with and without special tokens",
        "Use a tokenizer that puts its special tokens before and after the text.",
    )


def _continuing_tokens(tokenizer: Tokenizer) -> frozenset[int]:
    """Ids that go on with a word: ## in WordPiece, no leading space in byte-level and Metaspace vocabularies."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    prefix = getattr(tokenizer.model, "continuing_subword_prefix", None)
    if prefix:
        return frozenset(index for token, index in vocabulary.items() if token.startswith(prefix))
    return frozenset(index for token, index in vocabulary.items() if not token.startswith(("Ġ", "▁", " ")))


class _WordCache:
    """Encodes texts word by word and remembers the words: the same ids as encoding whole texts, several times faster.

    Text repeats its words, so most lookups hit. It holds only where no step of the tokenizer looks across a single
    space, which is known for the components listed above; any other tokenizer, and text with other white space, goes
    to the tokenizer whole.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._normalizers = {component["type"] for component in _components(tokenizer.normalizer)}
        self._usable = _words_are_independent(tokenizer)
        self._ascii_only = not self._normalizers <= _LOCAL_NORMALIZERS
        self._first: dict[str, list[int]] = {}  # ids of a word that opens a text
        self._later: dict[str, list[int]] = {}  # ids of a word after a space
        self._remembered = 0

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        words = [self._words(text) for text in texts]
        if not self._remember([parts for parts in words if parts]):
            return self._encode(texts)
        whole = iter(self._encode([text for text, parts in zip(texts, words) if not parts]))
        first, later = self._first.__getitem__, self._later.__getitem__
        return [
            [*first(parts[0]), *chain.from_iterable(map(later, parts[1:]))] if parts else next(whole) for parts in words
        ]

    def _words(self, text: str) -> list[str] | None:
        """The words of a text with single spaces between them and perhaps one before; None for any other text."""
        if not self._usable or (self._ascii_only and not text.isascii()):
            return None
        words = text.split(" ")
        plain = text.split()
        return words if plain == words or (words[0] == "" and plain == words[1:]) else None

    def _remember(self, texts: list[list[str]]) -> bool:
        """Learn the new words of these texts; False, and nothing is learned, where too many are new to be worth it."""
        first = {parts[0] for parts in texts}.difference(self._first)
        later = set().union(*(parts[1:] for parts in texts)).difference(self._later)
        if _MAX_NEW * sum(map(len, texts)) < len(first) + len(later):
            return False
        if self._remembered > _MAX_REMEMBERED:
            self._first.clear()
            self._later.clear()
            self._remembered = 0
            return self._remember(texts)
        for cache, space, new in ((self._first, "", list(first)), (self._later, " ", list(later))):
            for word, ids in zip(new, self._encode([space + word for word in new])):
                cache[word] = ids
                self._remembered += len(word) + len(ids)
        return True

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        # "fast" leaves out the offsets, which nobody reads here
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def _components(part: Any) -> list[dict[str, Any]]:
    """The settings of a normalizer or pre-tokenizer; those of its members for a sequence."""
    if part is None:
        return []
    settings = json.loads(part.__getstate__())
    if settings["type"] == "Sequence":
        return settings.get("normalizers") or settings.get("pretokenizers") or []
    return [settings]


def _words_are_independent(tokenizer: Tokenizer) -> bool:
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
