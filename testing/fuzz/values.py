"""Nasty cells, names and numbers."""

from random import Random

PLAIN_TEXTS = ("great item", "broken item", "never arrived", "works well", "the box was brown", "wo ist mein Paket?")
SMALL_TEXTS = (
    "", " ", "\t", "a,b", "a\tb", "two\nlines", "old\rmac", "dos\r\nlines", 'say "hi"', '"', '""', '"open', 'close"',
    "'", "`", "\\", "\\n", "\ufeffbom", "nul\0byte", "\x01\x02", "\x1b[31m", "\x7f", "\x85next", "\u2028line",
    "\u200b",
    "\u202eright to left", "e\u0301", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\ufffd",
    "\ufffe", "\U0010ffff", "\ue000", "日本語のテキスト", "ﷺ", "NaN", "nan", "None", "null", "NA", "N/A", "true", "-",
    "=1+1", "@cmd", "<b>", "</b", "<!--", "&", "&amp", "&#0;", "&#xD800;", "&#99999999999;", "[bom]", "[eom]",
    "[bom][eom]", "[eom][bom]", "[bom][bom]x[eom]", "${HOME}", "%s%n", "{}", "{0}", "../../etc/passwd", "[CLS]",
    "[PAD]",
    "##s", "1", "0", "-1", "1.10", "007",
)  # fmt: skip
SURROGATES = ("\ud800", "\udc00", "a\ud800b", "\ud83d\ude00", "\udfff\ud800")  # JSON can hold them, UTF-8 cannot
NUMBERS = (
    "1", "-1", "0", "-0", "+3", "++1", "--1", "+-1", "0x1", "0b1", "1e300", "-1e300", "1e400", "3.4e38", "3.5e38",
    "1e38",
    "1e-400", "NaN", "nan", "-nan", "inf", "-inf", "Infinity", "1_000", "1,000", "1,5", "1.", ".5", ".", "-", "+",
    "e5",
    "1e", "1e+", "1d5", "٣", "１", "½", "²", "\u22121", "true", "False", "None", "null", "NA", "N/A", "#N/A", "", " ",
    " 7 ", "7 8", "\u00a07", "7\u00a0", "$7", "7%", "1/2", "9007199254740993", "18446744073709551615",
    "0.1" + "0" * 400,
    "1" * 400, "9" * 5000, "1e99999999999", "0" * 5000, "0." + "0" * 5000 + "1",
)  # fmt: skip
IDS = (
    "", " ", "007", "7", "7.0", "a,b", "a\nb", "a\r\nb", 'a"b', '"a"', " padded ", "None", "nan", "NaN", "null",
    "true",
    "1e5", "0x10", "é", "\u200b", "\ufeff1", "nul\0", "=1+1", "-", "00000", "2026-01-01", "prob_class_0",
    "i" * 10_000,
    "9" * 400, "\U0001f468\u200d\U0001f469", "id\twith\ttabs", "'", "\\",
)  # fmt: skip
LABELS = (
    "", " ", "0", "1", "2", "-1", "0.0", "1.0", "1.00", "01", "1.5", "yes", "no", "Y", "N", "true", "false", "True",
    "None",
    "nan", "null", "NA", "1e0", "１", "é", "a,b", "x\ny", '"', "9" * 400, "l" * 5000, "nul\0",
)  # fmt: skip
NAMES = (
    "", " ", "a,b", "a\nb", 'a"b', "'", " price", "price ", "Price", "PRICE", "pricé", "\ufeffprice", "\u200b",
    "nul\0",
    "prob_class_0", "prob_class_1", "predicted_label", "row", "id", "raw_label", "label", "tabular", "text_tokens",
    "index",
    "__index_level_0__", "n" * 2000, "n" * 100_000, "None", "0", "1", "日本", "a/b", "../x", "{}", "%s", "color_code",
    "$$",
)  # fmt: skip


def text(rng: Random, *, surrogates: bool = False) -> str:
    """Return a text: mostly a short nasty one, sometimes a long one."""
    kind = rng.random()
    if surrogates and kind < 0.2:
        return rng.choice(SURROGATES)
    if kind < 0.75:
        return rng.choice(SMALL_TEXTS)
    if kind < 0.92:
        return "".join(rng.choice((*SMALL_TEXTS, *PLAIN_TEXTS)) for _ in range(rng.randint(2, 30)))
    return long_text(rng)


def long_text(rng: Random) -> str:
    """Return one part repeated thousands of times: what is quadratic, or deep, takes long."""
    parts = (
        "x", "x ", "a" * 50 + " ", "<", "<b>", "</b>", "<a href='", "&", "&amp;", "&lt;", "[bom]", "[eom]",
        "[bom]a[eom]",
        "\U0001f468\u200d", "\U0001f44d\U0001f3fd", "\u0301", "\u200d", "\ufe0f", " ", "\n", "\t", '"', "'", "0",
        "9" * 9,
        "é", "日", "\u202e", "<!--", "-->", "<script>", "\0", ".", "!?", "a.b", "http://a/", "{", "(", "\\",
    )  # fmt: skip
    size = rng.choice((2_000, 5_000, 20_000, 20_000, 100_000, 1_000_000))
    part = rng.choice(parts)
    repeated = part * (size // len(part))
    return rng.choice(("", "a", "<")) + repeated + rng.choice(("", "b", ">", ";"))


def json_number(rng: Random) -> str:
    """Return the text of a JSON number, valid or not."""
    return rng.choice(
        ("1", "-0", "1.10", "1E5", "1e400", "-1e400", "NaN", "Infinity", "-Infinity",
        "9" * 5000, "1" * 400, "0.1e-400",
         "01", "+1", ".5", "1.", "0x10", "1e", "-", "9007199254740993", "18446744073709551616", "1e308", "4.9e-324")
    )  # fmt: skip


def json_nesting(rng: Random) -> str:
    """Return the text of a deeply nested JSON value."""
    depth = rng.choice((2, 50, 990, 5_000, 200_000))
    opened, closed = rng.choice((("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")))
    return opened * depth + "1" + closed * (depth if rng.random() < 0.8 else 0)
