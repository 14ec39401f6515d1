"""Compile the locales of languages whose months have other names, without the system's package of locales.

eval "$(python -m testing.locales FOLDER NUMBER)"
"""

import subprocess
import sys
from pathlib import Path

MONTHS = {
    "tr_TR": "Oca Şub Mar Nis May Haz Tem Ağu Eyl Eki Kas Ara",
    "de_DE": "Jan Feb Mär Apr Mai Jun Jul Aug Sep Okt Nov Dez",
    "ja_JP": "1月 2月 3月 4月 5月 6月 7月 8月 9月 10月 11月 12月",
}
_DAYS = "1 2 3 4 5 6 7"


def locale_environment(folder: Path, language: str) -> dict[str, str]:
    """Return the variables of a caller whose dates are in a language of MONTHS; the locale is written to `folder`."""
    months = MONTHS[language].split()
    letters = sorted({*map(chr, range(128)), *"".join(months)})
    codes = [f"<U{ord(letter):04X}> {''.join(f'/x{byte:02x}' for byte in letter.encode())} X" for letter in letters]
    head = ["<code_set_name> UTF-8", "<comment_char> %", "<escape_char> /", "<mb_cur_min> 1", "<mb_cur_max> 6"]
    names = {"abday": _DAYS.split(), "day": _DAYS.split(), "abmon": months, "mon": months}
    formats = {"d_t_fmt": ["%d.%m.%Y %T"], "d_fmt": ["%d.%m.%Y"], "t_fmt": ["%T"]}
    formats |= {"am_pm": ["a", "p"], "t_fmt_ampm": ["%I:%M:%S %p"]}
    lines = [f"{key} {';'.join(map(_quoted, values))}" for key, values in {**names, **formats}.items()]
    charmap, source = folder / "charmap", folder / "source"
    charmap.write_text("\n".join([*head, "CHARMAP", *codes, "END CHARMAP", ""]))
    source.write_text("\n".join(["comment_char %", "escape_char /", "LC_TIME", *lines, "END LC_TIME", ""]))
    # -c: also without the other categories, which the C library has by itself.
    command = ["localedef", "-c", "-f", charmap, "-i", source, folder / f"{language}.UTF-8"]
    subprocess.run(command, check=False, capture_output=True)
    assert (folder / f"{language}.UTF-8" / "LC_TIME").exists(), "localedef of the C library wrote no locale"
    return {"LOCPATH": str(folder), "LC_TIME": f"{language}.UTF-8"}


def _quoted(text: str) -> str:
    return '"' + "".join(f"<U{ord(letter):04X}>" for letter in text) + '"'


if __name__ == "__main__":
    chosen = list(MONTHS)[int(sys.argv[2]) % len(MONTHS)]
    for variable, value in locale_environment(Path(sys.argv[1]), chosen).items():
        print(f"export {variable}={value}")
