"""Labels of plots have the characters that an installed font has, and escapes of the others."""

import warnings

import matplotlib
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from container.evaluation.plots import plot_label
from container.job.log_once import log_once

RARE = "\U0010fffd"  # for private use: no font has it


@pytest.fixture(autouse=True)
def own_fonts(monkeypatch):
    monkeypatch.setattr(font_manager.fontManager, "ttflist", list(font_manager.fontManager.ttflist))
    with matplotlib.rc_context():
        yield


def drawn(label, folder):
    """Draw a legend with the label; a character without a glyph is an error."""
    figure = Figure()
    axes = figure.add_subplot()
    axes.plot([0, 1], label=label)
    axes.legend()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FigureCanvasAgg(figure).print_png(folder / "plot.png")


def install_font(folder, character):
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    pen.lineTo((0, 900))
    pen.lineTo((900, 0))
    pen.closePath()
    font = FontBuilder(1000)
    font.setupGlyphOrder([".notdef", "rare"])
    font.setupCharacterMap({ord(character): "rare"})
    font.setupGlyf(dict.fromkeys((".notdef", "rare"), pen.glyph()))
    font.setupHorizontalMetrics(dict.fromkeys((".notdef", "rare"), (1000, 0)))
    font.setupHorizontalHeader(ascent=900, descent=-100)
    font.setupNameTable({"familyName": "Rare", "styleName": "Regular"})
    font.setupOS2()
    font.setupPost()
    font.save(folder / "rare.ttf")
    font_manager.fontManager.addfont(folder / "rare.ttf")


def test_a_character_that_no_font_has_is_escaped_with_a_warning(tmp_path, caplog):
    log_once.cache_clear()
    label = plot_label(f"caf\u00e9 {RARE}")
    assert label == "caf\u00e9 \\U0010fffd"
    assert plot_label(RARE * 2) == "\\U0010fffd" * 2
    assert len(caplog.messages) == 1
    assert "no installed font has every character of the labels" in caplog.text
    drawn(label, tmp_path)


def test_a_character_is_drawn_with_the_font_that_has_it(tmp_path, caplog):
    install_font(tmp_path, RARE)
    label = plot_label(f"caf\u00e9 {RARE}")
    assert label == f"caf\u00e9 {RARE}"
    assert matplotlib.rcParams["font.family"] == ["sans-serif", "Rare"]
    assert not caplog.records
    drawn(label, tmp_path)


def test_a_label_of_common_characters_needs_no_other_font():
    assert plot_label("x" * 40) == "x" * 29 + "\u2026"
    assert matplotlib.rcParams["font.family"] == ["sans-serif"]
