"""The text steps that work on strings: dialogue_splitter, html_normalizer, emoji_remover, text_normalizer."""

import html
import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import cache

import emoji

_MARKER = re.compile(r"\[(?:bom|eom)\]", re.IGNORECASE)

# What a page does not show, each with the pattern of its end.
_UNSEEN = tuple(
    (re.compile(begin + ".*?" + end, re.IGNORECASE | re.DOTALL), re.compile(end, re.IGNORECASE))
    for begin, end in (
        ("<!--", "-->"),
        (r"<script\b[^<>]*>", r"</script\s*>"),
        (r"<style\b[^<>]*>", r"</style\s*>"),
    )
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

_KEYCAP = re.compile("[0-9#*]\ufe0f?\u20e3")

# What no reader sees and no vocabulary holds. Zero-width joiners stay: Persian and Indic spelling needs them.
_CONTROL = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)


def split_dialogue(text: str) -> list[str]:
    """The messages of a chat written as `[bom]...[eom][bom]...[eom]`, markers in any case.

    Every marker is a boundary, so text outside of markers and after an unclosed one is a message, too, and text
    without markers is one message. Blank messages are left out.
    """
    if "[" not in text:
        return [text]
    parts = _MARKER.split(text)
    return [text] if len(parts) == 1 else [part.strip() for part in parts if part and not part.isspace()]


def normalize_html(text: str) -> str:
    """Text without HTML tags, comments, scripts and style sheets, and with its entities decoded.

    Tags that end a line or a cell become a space, tags inside a sentence vanish. What is no closed tag is text:
    `a < b`, `I <3 it`, `price<cost`, `<jo@example.com>`. (A parser would build a tree that drops whatever follows
    an unclosed tag and moves or joins cells outside of a table; stripping needs no tree.)
    """
    if "<" in text:
        text = _TAG.sub(_tag_replacement, _drop_unseen(text))
    return html.unescape(text) if "&" in text else text


def _drop_unseen(text: str) -> str:
    for whole, end in _UNSEEN:
        # Beyond the last end nothing is closed, and before it everything is: so no search runs in vain twice.
        last = max((match.end() for match in end.finditer(text)), default=0)
        text = whole.sub(" ", text[:last]) + text[last:] if last else text
    return text


def _tag_replacement(match: re.Match[str]) -> str:
    return "" if match[1] and _INLINE_TAG.fullmatch(match[1]) else " "


def remove_emoji(text: str) -> str:
    """Text with a space in place of its emoji, so that no two words become one."""
    if text.isascii():
        return text
    if "\u20e3" in text:
        text = _KEYCAP.sub(" ", text)
    return _emoji_run().sub(lambda run: emoji.replace_emoji(run[0], " "), text)


@cache
def _emoji_run() -> re.Pattern[str]:
    """Runs of characters that may belong to an emoji: replace_emoji walks all it gets in Python, so it gets little.

    A few wide ranges, because a set of 1,400 characters would be searched one by one.
    """
    points = sorted({ord(character) for sequence in emoji.EMOJI_DATA for character in sequence} - set(range(128)))
    gaps = [place for place in range(1, len(points)) if points[place] - points[place - 1] > 4096]
    ranges = zip([0, *gaps], [*gaps, len(points)])
    return re.compile("[" + "".join(f"{chr(points[a])}-{chr(points[b - 1])}" for a, b in ranges) + "]+")


def normalize_text(text: str) -> str:
    """Text in Unicode form NFKC, control characters removed, white space collapsed and trimmed; case is kept."""
    if not (text.isascii() and text.isprintable()):
        text = unicodedata.normalize("NFKC", _CONTROL.sub("", text))
    return " ".join(text.split())


_SPLITS: dict[str, Callable[[str], list[str]]] = {"dialogue_splitter": split_dialogue}
_MAPS: dict[str, Callable[[str], str]] = {
    "html_normalizer": normalize_html,
    "emoji_remover": remove_emoji,
    "text_normalizer": normalize_text,
}


def run_string_step(step: str, text: str) -> list[str]:
    """What a step makes of one piece of text: no piece, one or several; never a blank one."""
    texts: Iterable[str] = _SPLITS[step](text) if step in _SPLITS else (_MAPS[step](text),)
    return [piece for piece in texts if piece and not piece.isspace()]
