"""Find the encoding of a text file: from its first bytes, from UTF-8's rules, else from the alphabets of languages.

Any bytes are text in several encodings of one byte a letter, with other letters. One fits if its letters are those of
one language; charset-normalizer ranks Polish texts as Western ones, so it is asked only where no such encoding fits.
"""

import codecs
import io
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from contracts.errors import ContractError, first_line, shown

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    *((mark, "utf-32") for mark in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)),
    *((mark, "utf-16") for mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)),
)
_WESTERN = (
    "äöüßé àâæçéèêëîïôœùûüÿ áéíóúüñ áâãàçéêíóôõúü àèéìíîòóùú æøåé åäöé áéèëïíóöúü àçéèíïóòúü áðéíóúýþæö"
).split()
_CYRILLIC = ("абвгдеёжзийклмнопрстуфхцчшщъыьэюя", "абвгґдеєжзиіїйклмнопрстуфхцчшщьюя")
# The letters beyond ASCII of the languages for which an encoding is used.
_ALPHABETS = {
    "cp1252": _WESTERN,
    "cp1250": ("ąćęłńóśźż", "áčďéěíňóřšťúůýž", "áäčďéíĺľňóôŕšťúýž", "áéíóöőúüű", "ăâîşţ", "čćđšž"),
    "cp1254": ("çğıöşüâîûi̇",),
    "cp1257": ("ąčęėįšųūž", "āčēģīķļņšūž", "äõöüšž"),
    "cp1251": _CYRILLIC,
    "koi8_r": _CYRILLIC,
    "cp866": _CYRILLIC,
    "cp1253": ("αβγδεζηθικλμνξοπρσςτυφχψωάέήίόύώϊϋΐΰ",),
    "cp850": _WESTERN,
    "mac_roman": _WESTERN,
}
_LATIN = frozenset("abcdefghijklmnopqrstuvwxyz")
_AFTER_LATIN = "\u0370"
_PUNCTUATION = frozenset("\xa0«»„“”‚‘’–—…€£§°©®™·•´¿¡ªº²³½¼¾±×")
_MOST = 0.95  # share of the words
_DIFFERENT = 0.05  # of charset-normalizer's chaos, from which the better one is taken
_SAMPLE = 1 << 18
_SHOWN_WORDS = 3
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Encoding:
    """An encoding, with a sentence about words that have other letters in another one that fits too."""

    name: str
    warning: str = ""


def find_encoding(
    path: Path, open_file: Callable[[], AbstractContextManager[io.BufferedIOBase]], *, named: str | None
) -> Encoding:
    """Return the encoding of a file.

    Args:
        open_file: opens it, decompressed.
        named: the encoding where neither a mark nor UTF-8's rules decide.

    Raises:
        ContractError: several encodings fit, or none.
    """
    with open_file() as file:
        start = file.read(1024)
        for mark, name in _MARKS:
            if start.startswith(mark):
                return Encoding(name)
        if wide := wide_encoding(start):
            return Encoding(wide)
        file.seek(0)
        is_utf8, other = _other_lines(file)
    if named is not None and not (is_utf8 and other):
        return Encoding(codecs.lookup(named).name)
    if is_utf8 or 2 * sum(map(_is_utf8, other)) > len(other):  # reading names the damaged cell
        return Encoding("utf-8")
    return _of_bytes(path, b"\n".join(other))


def wide_encoding(head: bytes) -> str | None:
    """Return the name of an encoding with several bytes per character, from its mark or from the zeros of ASCII."""
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-32" if head[2:4] == b"\0\0" else "utf-16"
    even, odd = head[::2], head[1::2]
    for name, zeros, others in (("utf-16le", odd, even), ("utf-16be", even, odd)):
        if zeros.count(0) * 2 > len(zeros) and not others.count(0):
            return name
    return None


def _other_lines(file: io.BufferedIOBase) -> tuple[bool, list[bytes]]:
    """Return whether the whole file is UTF-8, and its first lines with other bytes than ASCII."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    lines: list[bytes] = []
    size, is_utf8, rest = 0, True, b""
    while is_utf8 or size < _SAMPLE:
        block = file.read(1 << 20)
        with suppress(UnicodeDecodeError):
            if is_utf8:
                is_utf8 = False
                decoder.decode(block, not block)
                is_utf8 = True
        if not block:
            break
        if size < _SAMPLE:
            *whole, rest = (rest + block).split(b"\n") if not block.isascii() else (rest, block[-_SAMPLE:])
            rest = rest[-_SAMPLE:]
            found = [line for line in whole if not line.isascii()]
            lines += found
            size += sum(map(len, found))
    return is_utf8, lines if rest.isascii() else [*lines, rest]


def _is_utf8(line: bytes) -> bool:
    with suppress(UnicodeDecodeError):
        line.decode()
        return True
    return False


def _of_bytes(path: Path, sample: bytes) -> Encoding:
    fitting = _fitting(sample, _ALPHABETS)
    if not fitting:  # names from several countries
        fitting = _fitting(sample, {name: ("".join(alphabets),) for name, alphabets in _ALPHABETS.items()})
    if not fitting:
        return _by_frequency(path, sample)
    best, *others = fitting
    if not others:
        return Encoding(best)
    words = _differing(fitting[best], fitting[others[0]])
    said = f"is not UTF-8, and {best} and {others[0]} both fit: {words}"
    if best != "cp1252":
        raise ContractError(f"{path}: {said}", f"Name the encoding, e.g. --encoding {best}.")
    return Encoding(best, f"{said}. It is read as {best}; --encoding changes it")


def _fitting(sample: bytes, alphabets: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return the texts that are words of a language, each with the first encoding that reads it."""
    fitting: dict[str, str] = {}
    for name, letters in alphabets.items():
        with suppress(UnicodeDecodeError):
            text = sample.decode(name)
            if _fits(text, letters) and text not in fitting.values():
                fitting[name] = text
    return fitting


def _fits(text: str, alphabets: tuple[str, ...]) -> bool:
    """Return whether nearly all words with other letters than ASCII are words of one language, as they are spelled.

    A sign inside a word is no letter of it, a capital follows no small letter, and only Latin letters mix with ASCII.
    """
    words = [word for word in re.findall(r"[^\W\d_]+(?:[\x80-\uffff]+[^\W\d_]+)*", text) if not word.isascii()]
    spelled = [
        set(word.lower()) - _LATIN if max(word) < _AFTER_LATIN or not _LATIN & set(word.lower()) else {""}
        for word in words
        if word in (word.lower(), word.upper(), word.capitalize())
    ]
    most = max((sum(letters <= set(alphabet) for letters in spelled) for alphabet in alphabets), default=0)
    signs = sum(not sign.isascii() and not sign.isalpha() and sign not in _PUNCTUATION for sign in text)
    return most >= _MOST * len(words) and signs <= (1 - _MOST) * sum(map(len, words))


def _by_frequency(path: Path, sample: bytes) -> Encoding:
    fix = "Name the encoding, e.g. --encoding cp932."
    try:
        from charset_normalizer import from_bytes
    except ImportError:
        fix += " The extra text-table-trainer[files] has charset-normalizer, which finds more encodings."
        raise ContractError(f"{path}: is not UTF-8, and no Western encoding fits", fix) from None
    found = [match for match in from_bytes(sample) if match.encoding != "utf_8"]
    if not found:
        raise ContractError(f"{path}: is not UTF-8, and no other encoding fits", fix)
    best, *others = found
    for other in others:
        if str(other) != str(best) and other.chaos < best.chaos + _DIFFERENT:
            words = _differing(str(best), str(other))
            raise ContractError(
                f"{path}: is not UTF-8, and {best.encoding} and {other.encoding} both fit: {words}",
                f"Name the encoding, e.g. --encoding {best.encoding}.",
            )
    return Encoding(best.encoding)


def _differing(text: str, other: str) -> str:
    """Return the first words that differ, for messages."""
    pairs: dict[str, str] = {}
    for line, of_line in zip(text.split("\n"), other.split("\n")):
        for word, of_word in zip(_WORD.findall(line), _WORD.findall(of_line)):
            if word != of_word:
                pairs.setdefault(word, of_word)
        if len(pairs) >= _SHOWN_WORDS:
            break
    return ", ".join(f"{shown(word)} or {shown(of_word)}" for word, of_word in list(pairs.items())[:_SHOWN_WORDS])


class Stream(Protocol):
    """A file that is open for reading."""

    def readinto(self, buffer: memoryview, /) -> int: ...


def fill(stream: Stream, buffer: np.ndarray) -> int:
    """Read until the buffer is full or the stream ends; return the number of bytes."""
    size = 0
    while size < len(buffer) and (count := stream.readinto(buffer[size:].data)):
        size += count
    return size


class Recoded:
    """A stream of text in another encoding, read as UTF-8."""

    def __init__(self, stream: io.BufferedIOBase, encoding: str, *, place: str) -> None:
        self._stream, self._place, self._encoding = stream, place, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._rest = memoryview(b"")

    def readinto(self, buffer: memoryview, /) -> int:
        while not self._rest:
            block = self._stream.read(1 << 20)
            try:
                self._rest = memoryview(self._decoder.decode(block, not block).encode())
            except UnicodeError as error:
                raise ContractError(
                    f"{self._place}: is not {self._encoding}: {first_line(error)}", "Correct --encoding."
                ) from None
            if not block:
                break
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
