"""Text steps on strings: dialogue_splitter, html_normalizer, emoji_remover, text_normalizer."""

import html
import re
import threading
import unicodedata
from collections.abc import Callable, Iterable
from functools import cache

import emoji

from container.text.parts import text_parts

DIALOGUE_MARKER = re.compile(r"\[[be]om\]", re.IGNORECASE)

# Parts that a browser does not show, each with the pattern of its end.
_HIDDEN = tuple(
    (re.compile(begin + ".*?" + end, re.IGNORECASE | re.DOTALL), re.compile(end, re.IGNORECASE))
    for begin, end in (("<!--", "-->"), *((rf"<{tag}\b[^<>]*>", rf"</{tag}\s*>") for tag in ("script", "style")))
)

# An HTML tag as CommonMark defines it (https://spec.commonmark.org/0.31.2/#raw-html), and the doctype. Quantifiers
# are possessive, so that hostile text costs linear time.
_TAG = re.compile(
    r"""< (?: /?([a-z][a-z0-9:-]*+)(?=[\s/>])
              (?: \s*+ [a-z_:][\w.:-]*+ (?: \s*+=\s*+ (?: "[^"<]*+" | '[^'<]*+' | [^\s"'=<>`]++ ) )?+ )*+ \s*+ /?
            | !doctype\b[^<>]*+ ) >""",
    re.IGNORECASE | re.VERBOSE,
)
_INLINE_TAG = re.compile(
    "a|abbr|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|ins|kbd|mark|q|s|samp|small|span|strike|strong|sub|sup|time|"
    "tt|u|var|wbr",
    re.IGNORECASE,
)

# A number longer than 8 digits is no code point. int() refuses more than 4,300 digits.
_LONG_ENTITY = re.compile("&#0*([0-9]{1,8})[0-9]*")

_KEYCAP = re.compile("[0-9#*]\ufe0f?\u20e3")

# Characters that continue an emoji: joiner, variation selector, keycap, skin tones, tags.
_CONTINUES = "[\u200d\ufe0f\u20e3\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]"
_FLAG_LETTER = "[\U0001f1e6-\U0001f1ff]"

# Invisible characters, without zero-width joiners: Persian and Indic spelling needs those.
_CONTROL = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)

_MOST_MARKS = 30
_MAYBE_MARKS = re.compile(rf"[^\w\s!-~]{{{_MOST_MARKS + 1},}}")  # no combining mark is a letter, a digit or ASCII
_GRAPHEME_JOINER = "\u034f"


def split_dialogue(text: str) -> list[str]:
    """Return the messages of a chat written as `[bom]...[eom][bom]...[eom]`, without blank ones.

    Markers, in any case, only separate messages: text outside or without markers is a message too.
    """
    if "[" not in text:
        return [text]
    parts = DIALOGUE_MARKER.split(text)
    return [text] if len(parts) == 1 else [part.strip() for part in parts if part and not part.isspace()]


def normalize_html(text: str) -> str:
    """Return text without HTML tags, comments, scripts and style sheets, and with decoded entities.

    Inline tags are removed; other tags become a space. Anything but a closed tag is text: `a < b`, `I <3 it`,
    `price<cost`, `<jo@example.com>`. (A parser would drop the text after an unclosed tag, and move or join cells
    outside a table.)
    """
    if "<" in text:
        parts = text_parts(_drop_hidden(text), before="<", keep=True)
        text = "".join(_TAG.sub(_tag_replacement, part) for part in parts)
    if "&" in text:
        parts = text_parts(text, before="&", keep=True)
        text = "".join(html.unescape(_LONG_ENTITY.sub(r"&#\1", part)) for part in parts)
    return text


def _drop_hidden(text: str) -> str:
    for whole, end in _HIDDEN:
        # Search only up to the last end, where every begin is closed, for linear time.
        last = max((match.end() for match in end.finditer(text)), default=0)
        text = whole.sub(" ", text[:last]) + text[last:] if last else text
    return text


def _tag_replacement(match: re.Match[str]) -> str:
    return "" if match[1] and _INLINE_TAG.fullmatch(match[1]) else " "


def remove_emoji(text: str) -> str:
    """Return text with a space in place of each emoji, so that no two words become one."""
    if text.isascii():
        return text
    if "\u20e3" in text:
        text = _KEYCAP.sub(" ", text)
    return _emoji_run().sub(lambda run: emoji.replace_emoji(run[0], " "), text)


_FILLING = threading.Lock()


@cache
def _emoji_run() -> re.Pattern[str]:
    """Return a pattern of runs that may contain emoji, so that replace_emoji, a slow loop in Python, reads only those.

    The pattern has a few wide ranges, because a set of 1,400 characters is searched one by one. A run has at most 127
    characters, because replace_emoji takes quadratic time. It ends between two emoji; only a sequence of more than 64
    joined characters is cut, and a row of flags after an even number of letters.
    """
    with _FILLING:  # the first call fills a table of the library, and another thread would use the incomplete one
        emoji.replace_emoji("")
    points = sorted({ord(character) for sequence in emoji.EMOJI_DATA for character in sequence} - set(range(128)))
    gaps = [i for i in range(1, len(points)) if points[i] - points[i - 1] > 4096]
    ranges = zip([0, *gaps], [*gaps, len(points)])
    any_part = "[" + "".join(f"{chr(points[a])}-{chr(points[b - 1])}" for a, b in ranges) + "]"
    joined = f"{_CONTINUES}|(?<=\u200d){any_part}|(?<={_FLAG_LETTER}){_FLAG_LETTER}"
    return re.compile(f"(?:{_FLAG_LETTER}|(?:(?!{_FLAG_LETTER}){any_part}){{1,64}})(?:{joined}){{0,63}}")


def normalize_text(text: str) -> str:
    """Return text in Unicode form NFKC without control characters, with white space collapsed and trimmed.

    After 30 combining marks in a row, a combining grapheme joiner follows, as in Unicode's Stream-Safe Text Format
    (https://unicode.org/reports/tr15/#Stream_Safe_Text_Format): sorting a longer run takes quadratic time.
    """
    parts = [" "]
    for part in text_parts(text):
        # The dots keep white space at the ends, which one of two neighbours loses.
        collapsed = " ".join(f".{_normal_form(part)}.".split())[1:-1]
        parts.append(collapsed.removeprefix(" ") if parts[-1][-1] == " " else collapsed)
        if not parts[-1]:
            parts.pop()
    return "".join(parts).strip()


def _normal_form(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    text = _MAYBE_MARKS.sub(_limit_marks, _CONTROL.sub("", text))
    return unicodedata.normalize("NFKC", text)


def _limit_marks(run: re.Match[str]) -> str:
    kept: list[str] = []
    marks = 0
    for character in run[0]:
        marks = marks + 1 if unicodedata.combining(character) else 0
        if marks > _MOST_MARKS:
            kept.append(_GRAPHEME_JOINER)
            marks = 1
        kept.append(character)
    return "".join(kept)


_SPLITS: dict[str, Callable[[str], list[str]]] = {"dialogue_splitter": split_dialogue}
_MAPS: dict[str, Callable[[str], str]] = {
    "html_normalizer": normalize_html,
    "emoji_remover": remove_emoji,
    "text_normalizer": normalize_text,
}


def run_string_step(step: str, text: str) -> list[str]:
    """Return the pieces, none of them blank, that a step makes of one piece of text."""
    texts: Iterable[str] = _SPLITS[step](text) if step in _SPLITS else (_MAPS[step](text),)
    return [piece for piece in texts if piece and not piece.isspace()]
