"""Write the labels of plots in characters that an installed font has."""

import functools
import logging
from pathlib import Path

import matplotlib
from matplotlib import font_manager

from container.evaluation.charts import shorten
from container.log_once import log_once

logger = logging.getLogger(__name__)

_BOXES = "Last Resort"  # matplotlib's font with a box for every character
_NO_FONT = (
    "plots: no installed font has every character of the labels; the images have escapes instead. Install a font with "
    "these characters, such as the Debian package fonts-wqy-microhei for Chinese."
)


def plot_label(text: object, length: int = 30) -> str:
    """Cut a text of the user, and add the fonts that it needs to matplotlib's; escape what no installed font has."""
    label = shorten(str(text), length)
    families = list(matplotlib.rcParams["font.family"])
    missing = set(label) - _characters(font_manager.findfont(font_manager.FontProperties(family=families)))
    for font in sorted(font_manager.fontManager.ttflist, key=lambda font: (font.name, font.fname)):
        if not missing:
            break
        found = missing & _characters(font.fname)
        if found and not font.name.startswith(_BOXES):
            missing -= found
            families += [] if font.name in families else [font.name]
    matplotlib.rcParams["font.family"] = families
    if missing:
        log_once(logger, logging.WARNING, _NO_FONT)
    return "".join(each.encode("unicode_escape").decode() if each in missing else each for each in label)


@functools.cache
def _characters(font: str) -> frozenset[str]:
    return frozenset(map(chr, font_manager.get_font(Path(font)).get_charmap()))
