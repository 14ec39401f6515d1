"""Texts that take superlinear time in some implementations of text steps and tokenizers."""

import gc
import time
from collections.abc import Callable
from functools import partial

# A family is a beginning and a unit that is repeated to the wanted size.
FAMILIES: dict[str, tuple[str, str]] = {
    "joiners": ("", "👨\u200d"),
    "family of emoji": ("", "👨\u200d👩\u200d👧\u200d"),
    "skin tones": ("", "👍🏽"),
    "skin tones alone": ("", "🏽\u200d"),
    "flags": ("", "🇩🇪"),
    "regional indicator": ("", "🇦"),
    "tag characters": ("🏴", "\U000e0067"),
    "unclosed tag flags": ("", "🏴\U000e0067"),
    "keycaps": ("", "1\ufe0f\u20e3"),
    "variation selectors": ("❤", "\ufe0f"),
    "alternating marks": ("a", "\u0301\u0316"),
    "equal marks": ("a", "\u0301"),
    "marks that decompose": ("a", "\u0344\u0316"),
    "Hangul letters": ("", "\u1100\u1161\u11a8"),
    "ligatures": ("", "\ufdfa"),
    "accents on letters": ("", "e\u0301\u0323 "),
    "entities": ("", "&amp;"),
    "ampersands": ("", "&"),
    "open entities": ("", "&#"),
    "long decimal entity": ("&#", "9"),
    "long hexadecimal entity": ("&#x", "f"),
    "long named entity": ("&", "notin"),
    "less-than signs": ("", "<"),
    "open tags": ("", "<a "),
    "open attributes": ("", "<a b='"),
    "one tag with attributes": ("<a", " b=c"),
    "one tag with blanks": ("<a", " "),
    "open comments": ("", "<!--"),
    "open comments, closed once": ("-->", "<!--"),
    "open scripts": ("", "<script>"),
    "open closing tags": ("", "</script "),
    "scripts and styles": ("", "<script><style></script>"),
    "square brackets": ("", "["),
    "open markers": ("", "[bo"),
    "markers": ("", "[bom]"),
    "messages": ("", "[bom]a[eom]"),
    "one word": ("", "x"),
    "digits": ("", "7"),
    "punctuation": ("", "!"),
    "words": ("", "a b "),
    "long words": ("", "unbelievably" * 9 + " "),
    "blanks": ("", " "),
    "lines": ("", "\n"),
    "blanks and lines": ("", " \n\t"),
    "addresses": ("", "a@"),
    "URLs": ("", "http://"),
    "right-to-left": ("", "\u0627\u200f"),
    "zero-width": ("", "\u200b\u200d"),
    "ideographs": ("", "日"),
    "kana with marks": ("", "か\u3099"),
    "control characters": ("", "\x00\x7f"),
}


def hostile_text(family: str, num_bytes: int) -> str:
    """Return a text of a family of about `num_bytes` bytes in UTF-8."""
    begin, unit = FAMILIES[family]
    return begin + unit * (num_bytes // len(unit.encode()))


def processor_seconds(run: Callable[[], object]) -> float:
    """Return the processor time of a call, of all threads of this process, without garbage collection."""
    gc.disable()  # a collection takes longer in a process with more objects
    try:
        began = time.process_time()
        run()
        return time.process_time() - began
    finally:
        gc.enable()


def superlinear(run: Callable[[str], object], families: list[str]) -> list[str]:
    """Return the families that take 30 times as long, or longer, at ten times the size, in each of three attempts.

    Quadratic time would be a hundred times as long. Times below 2 milliseconds count as 2.
    """

    def is_superlinear(family: str) -> bool:
        small, large = (processor_seconds(partial(run, hostile_text(family, size))) for size in (10_000, 100_000))
        return large >= 30 * max(small, 0.002)

    return [family for family in families if all(is_superlinear(family) for _ in range(3))]
