"""Cut long texts into parts, so that no call into C holds the interpreter for long."""

from collections.abc import Iterator


def text_parts(text: str, longest: int = 16_384, *, before: str = " \n、。", keep: bool = False) -> Iterator[str]:
    """Yield the consecutive parts of a text; each but the first begins with one of the characters `before`.

    Args:
        longest: the most characters of a part.
        keep: whether a part without such a character may be longer; otherwise it is cut after `longest` characters.
    """
    begin = 0
    while len(text) - begin > longest:
        end = max(text.rfind(character, begin + 1, begin + longest) for character in before)
        if end < 0:
            end = text.find(before, begin + longest) if keep else begin + longest
        if end < 0:
            break
        yield text[begin:end]
        begin = end
    yield text[begin:]
