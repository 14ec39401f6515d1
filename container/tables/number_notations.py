"""Read numbers as people write them: separators of thousands, decimal commas, currencies, percent signs."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NULL = r"\N"  # of databases; missing in every column
# Texts in lower case that stand for no number and no date; in a category, NA may be a country.
MISSING_NUMBERS = (
    "",
    NULL.lower(),
    *"na n/a n.a. k.a. <na> null none nan - -- ? #n/a #div/0! #value! #ref! #name? #num! #null!".split(),
)
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_SEPARATORS = {None: " .", "1,234.5": ",.", "1.234,5": ".,"}  # of thousands, and of decimals
_BLANKS = r"[ \x{a0}\x{2009}\x{202f}'\x{2019}]"
# ISO 4217, without funds, metals and tests.
_CODES = (
    "AED|AFN|ALL|AMD|ANG|AOA|ARS|AUD|AWG|AZN|BAM|BBD|BDT|BGN|BHD|BIF|BMD|BND|BOB|BRL|BSD|BTN|BWP|BYN|BZD|CAD|CDF|CHF|"
    "CLF|CLP|CNY|COP|CRC|CUC|CUP|CVE|CZK|DJF|DKK|DOP|DZD|EGP|ERN|ETB|EUR|FJD|FKP|GBP|GEL|GHS|GIP|GMD|GNF|GTQ|GYD|HKD|"
    "HNL|HRK|HTG|HUF|IDR|ILS|INR|IQD|IRR|ISK|JMD|JOD|JPY|KES|KGS|KHR|KMF|KPW|KRW|KWD|KYD|KZT|LAK|LBP|LKR|LRD|LSL|LYD|"
    "MAD|MDL|MGA|MKD|MMK|MNT|MOP|MRU|MUR|MVR|MWK|MXN|MYR|MZN|NAD|NGN|NIO|NOK|NPR|NZD|OMR|PAB|PEN|PGK|PHP|PKR|PLN|PYG|"
    "QAR|RON|RSD|RUB|RWF|SAR|SBD|SCR|SDG|SEK|SGD|SHP|SLE|SLL|SOS|SRD|SSP|STN|SVC|SYP|SZL|THB|TJS|TMT|TND|TOP|TRY|TTD|"
    "TWD|TZS|UAH|UGX|USD|UYU|UZS|VED|VES|VND|VUV|WST|XAF|XCD|XOF|XPF|YER|ZAR|ZMW|ZWL"
)
_LETTERS = rf"(?:{_CODES}|z\x{{142}}|K\x{{10d}}|Ft|kr\.?|Fr\.|Rs\.?)"
_SIGN = r"(?:(?:US|CA|AU|NZ|HK|SG|NT|MX|[ACRS])?\$|\p{Sc})"
_NAMES = {"\u20ac": "EUR", "\xa3": "GBP", "US$": "USD", "R$": "BRL", "\u20b9": "INR", "z\u0142": "PLN"}
# What stands around the digits; letters touch digits only if these have a separator: TOP10 is no amount in pa'anga.
_BEFORE = rf"^([+-]?)(?:{_SIGN}{_BLANKS}*|{_LETTERS}{_BLANKS}+)([+-]?[0-9.,])"
_TOUCHING = rf"^([+-]?){_LETTERS}([0-9]+[.,][0-9])"
_AFTER = rf"([0-9.,]){_BLANKS}*(?:{_SIGN}|{_LETTERS}|%)$"
_UNIT = rf"^(?:{_SIGN}|{_LETTERS}|%)$"
_TWO_UNITS = rf"^[+-]?(?:{_SIGN}|{_LETTERS}).*(?:{_SIGN}|{_LETTERS}|%)$"
_DECORATED = r"[^+\-0-9.,]|.-"
_SIGNS = "%$\u20ac\xa3\xa5"  # the usual units; all others take several passes
_NO_UNIT = "-+0123456789.,() \xa0\u2009\u202f'\u2019\u2212"


class Numbers(NamedTuple):
    """A column of numbers.

    Attributes:
        values: NaN where there is no number. [R] float64
        unread: the rows whose text is neither a number nor missing. [R] bool
    """

    values: np.ndarray
    unread: np.ndarray


def _plain(text: pa.Array, written: str, *, strict: bool = False) -> pa.Array:
    """Return trimmed texts of which those that are numbers in a notation are written as 1234.5. [R] string

    A number may have one currency or a percent sign, and a minus before, behind or as brackets. Its thousands are in
    groups of three digits, of which the first one does not begin with 0.

    Args:
        strict: with a decimal comma, 12.5 is no number, but 1.25e+01 is.
    """
    thousands, decimal = _SEPARATORS[written]
    plain = replaced(text, _DECORATED, _bare)
    for separator in (f"[{thousands}]", _BLANKS):
        grouped = rf"^[+-]?[1-9][0-9]{{0,2}}(?:{separator}[0-9]{{3}})+(?:[{decimal}][0-9]*)?$"
        remove = partial(pc.replace_substring_regex, pattern=separator, replacement="")
        plain = replaced(plain, grouped, remove)
    if decimal == ",":
        if strict:
            plain = pc.replace_substring_regex(plain, pattern=r"^([^eE]*)\.([^eE]*)$", replacement=r"\1?\2")
        plain = pc.replace_substring_regex(plain, pattern=r"^([+-]?[0-9]*),([0-9]+)$", replacement=r"\1.\2")
    is_code = pc.and_(pc.match_substring_regex(plain, pattern="^[+-]?0[0-9]"), pc.not_equal(plain, text))
    return pc.if_else(is_code, text, plain)  # 007 with a currency is a code


def _bare(text: pa.Array) -> pa.Array:
    """Return texts without a currency or percent sign, with a minus before them; those with two units as they are."""
    plain = pc.replace_substring(text, "\u2212", "-")
    for pattern, replacement in (
        (r"^(.*[0-9])[.,](?:--?|\x{2013})([^0-9]*)$", r"\1\2"),  # 125.- and 16,-- have no cents
        (r"^([^-]*[0-9.,])-$", r"-\1"),
        (r"^([^-()]*)\(([^-()]*)\)$", r"-\1\2"),
        (_AFTER, r"\1"),
        (_BEFORE, r"\1\2"),
        (_TOUCHING, r"\1\2"),
    ):
        plain = pc.replace_substring_regex(plain, pattern=pattern, replacement=replacement)
    return pc.if_else(pc.match_substring_regex(text, pattern=_TWO_UNITS), text, plain)


def replaced(text: pa.Array, pattern: str, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Return texts of which those with a pattern are converted. [R] string"""
    found = pc.fill_null(pc.match_substring_regex(text, pattern=pattern), False)
    return pc.replace_with_mask(text, found, convert(text.filter(found))) if pc.any(found).as_py() else text


def units(text: pa.Array) -> pa.Array:
    """Return the currency, or the percent sign, of trimmed texts of numbers; "" is none. [R] string"""
    unit = pc.utf8_trim(text, characters=_NO_UNIT)
    unit = pc.if_else(pc.match_substring_regex(unit, pattern=_UNIT), unit, "")
    for sign, name in _NAMES.items():
        unit = pc.if_else(pc.equal(unit, sign), name, unit)
    return unit


def units_of(column: pa.Array, values: np.ndarray) -> dict[str, int]:
    """Return how many of the texts that are numbers have each unit; "" is none. [R], [R] float64"""
    numbers = trimmed(column.filter(pa.array(np.isfinite(values))))
    found = pc.value_counts(pc.utf8_trim(numbers, characters=_NO_UNIT))
    counts: dict[str, int] = {}
    for unit, count in zip(units(found.field("values")).to_pylist(), found.field("counts").to_pylist()):
        counts[unit] = counts.get(unit, 0) + count
    return counts


def trimmed(column: pa.Array) -> pa.Array:
    """Return a column as texts without white space around. [R] string"""
    return pc.utf8_trim_whitespace(pc.cast(column, pa.string()))


def is_missing(text: pa.Array, words: Sequence[str]) -> pa.Array:
    """Return which trimmed texts are one of the words, in lower case. [R] bool"""
    return pc.is_in(pc.utf8_lower(text), value_set=pa.array(words, pa.string()))


def read_numbers(
    column: pa.Array, written: str | None, *, missing: Sequence[str] = (), strict: bool = False
) -> Numbers:
    """Read a column of texts. [R]

    Args:
        written, missing: as for `numbers` of values.py. strict: with a decimal comma, 12.5 is no number.
    """
    text, written = trimmed(column), written or None  # "" is no notation, as in PLAIN
    is_usual = pc.fill_null(pc.match_substring_regex(text, pattern=_usual(written)), False)
    others = ~is_usual.to_numpy(zero_copy_only=False)
    values, unread = np.empty(len(text)), np.zeros(len(text), bool)
    values[~others] = _usual_numbers(text.filter(is_usual), written)
    if others.any():
        values[others], unread[others] = _other_numbers(text.filter(pa.array(others)), written, missing, strict=strict)
    return Numbers(values, unread)


@lru_cache
def _usual(written: str | None) -> str:
    """Return the pattern of the texts that a notation reads without further checks."""
    thousands, decimal = _SEPARATORS[written]
    if not written:
        return r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?$"
    digits = rf"(?:0|[1-9][0-9]*|[1-9][0-9]{{0,2}}(?:[{thousands}][0-9]{{3}})+)(?:[{decimal}][0-9]+)?"
    return rf"^(?:-?{digits}(?:[ \x{{a0}}]?[{_SIGNS}])?|[{_SIGNS[1:]}]{digits})$"


def _usual_numbers(text: pa.Array, written: str | None) -> np.ndarray:
    """Return the values of texts that have the pattern of _usual. [R] -> [R] float64"""
    thousands, decimal = _SEPARATORS[written]
    if written:
        text = pc.replace_substring(pc.utf8_trim(text, characters=f" \xa0{_SIGNS}"), thousands, "")
    if decimal != ".":
        text = pc.replace_substring(text, decimal, ".")
    return pc.cast(text, pa.float64()).to_numpy(zero_copy_only=False)


def _other_numbers(text: pa.Array, written: str | None, missing: Sequence[str], *, strict: bool) -> Numbers:
    words = is_missing(text, (*MISSING_NUMBERS, *missing))
    text = pc.if_else(words, pa.scalar(None, pa.string()), text)
    if written:
        text = _plain(text, written, strict=strict)
    text = replaced(
        text, "(?i)^(?:true|false)$", lambda found: pc.if_else(pc.match_substring_regex(found, "^[tT]"), "1", "0")
    )
    wrong = pc.fill_null(pc.invert(pc.match_substring_regex(text, pattern=_NUMBER)), False)
    text = pc.if_else(wrong, pa.scalar(None, pa.string()), pc.utf8_ltrim(text, characters="+"))  # Arrow parses no plus
    values = pc.cast(text, pa.float64()).to_numpy(zero_copy_only=False)
    return Numbers(values.astype(np.float64, copy=False), wrong.to_numpy(zero_copy_only=False))
