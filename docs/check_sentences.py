"""Name the sentences of the Markdown pages that have more than 25 words, except those of long_sentences.txt.

Code, headings and tables are not sentences. A code span, a link and a quotation count as the words that a reader sees.

    python docs/check_sentences.py [PAGE ...]
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXCEPTIONS = Path(__file__).with_name("long_sentences.txt")  # lines: the page, a colon, the beginning of the sentence
LIMIT = 25
NOT_TEXT = re.compile(r"^ *(```|~~~).*?^ *\1|<!--.*?-->", re.DOTALL | re.MULTILINE)
ENDS = re.compile(r"(?<=[.!?:])[)\"*]*\s+(?=[\"'(\[*`]*[A-Z0-9`])|(?<=[.!?])\s+|:\s+")
ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|vs|etc|approx|No)\.")


def blocks(page: str) -> Iterator[str]:
    """Yield the paragraphs and list items of a page, each as one line, without markup."""
    block: list[str] = []
    for line in [*NOT_TEXT.sub("\n", page).splitlines(), ""]:
        text = line.strip()
        item = re.match(r"([-*+]|\d+\.) ", text)
        if not text or item or text[0] in "#|":
            if block:
                yield " ".join(block)
            block = []
        if text and text[0] not in "#|":
            block.append(text[item.end() :] if item else text)


def sentences(page: str) -> Iterator[str]:
    """Yield the sentences of a page; a colon ends one."""
    for block in blocks(page):
        plain = re.sub(r"`[^`]+`", "CODE", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", block))
        yield from (each for each in ENDS.split(ABBREVIATIONS.sub(r"\1", plain)) if each)


def main(pages: list[Path]) -> int:
    """Print the long sentences and the exceptions that are no longer needed; return the exit code."""
    exceptions = set(EXCEPTIONS.read_text(encoding="utf-8").splitlines())
    unused = set(exceptions)
    found = 0
    for page in pages:
        name = page.resolve().relative_to(ROOT).as_posix()
        for sentence in sentences(page.read_text(encoding="utf-8")):
            words = len([word for word in sentence.split() if re.search(r"\w", word)])
            known = {each for each in exceptions if f"{name}: {sentence}".startswith(each)}
            unused -= known
            if words > LIMIT and not known:
                print(f"{name}: {words} words: {sentence}")
                found += 1
    stale = [each for each in sorted(unused) if (ROOT / each.split(":")[0]) in [page.resolve() for page in pages]]
    for each in stale:
        print(f"{EXCEPTIONS.name}: no such long sentence: {each}")
    return int(bool(found or stale))


if __name__ == "__main__":
    named = [Path(each) for each in sys.argv[1:]]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "hyperparams/README.md"]
    sys.exit(main(named or sorted(pages)))
