"""Draw charts as inline SVG <figure>s; the page's CSS classes colour them for light mode, dark mode and print.

Marks have tooltips. All text is escaped.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from markupsafe import Markup

from contracts.spelling import shorten

_WIDTH, _HEIGHT = 480, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 16, 12, 46


@dataclass(frozen=True)
class Axis:
    """A scale with ticks; `to_unit` maps a value of [low, high] to [0, 1]."""

    label: str
    low: float
    high: float
    ticks: tuple[float, ...]
    text: Callable[[float], str]
    to_unit: Callable[[float], float] = field(default=lambda unit: unit)

    def unit(self, value: float) -> float:
        return self.to_unit((value - self.low) / (self.high - self.low))


@dataclass(frozen=True)
class Series:
    """A line, dots, or both; `style` is a CSS class that colours it. Gaps where a value is not finite.

    Attributes:
        name: empty for a series that is not in the legend.
        steps: the line goes up or down, then to the right.
        whiskers: the ends of a vertical line through each point.
        radii, tips: of each dot; without them, dots are equal and their tooltips have the values.
    """

    name: str
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    style: str
    dots: bool = False
    steps: bool = False
    line: bool = True
    whiskers: Sequence[tuple[float, float]] = ()
    radii: Sequence[float] = ()
    tips: Sequence[str] = ()


@dataclass(frozen=True)
class LineChart:
    """Lines over two axes."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    note: str = ""

    def __html__(self) -> Markup:
        """Return the chart as markup, which a template inserts as it is."""
        frame = _Frame(self.x, self.y)
        parts = frame.axes()
        for entry in self.series:
            for a, (low, high) in zip(entry.x, entry.whiskers):
                (at, bottom), (_, top) = frame.point(a, low), frame.point(a, high)
                parts.append(_tag("line", style=f"whisker {entry.style}", x1=at, x2=at, y1=top, y2=bottom))
            if entry.line:
                parts.append(_tag("path", style=f"line {entry.style}", d=frame.path(entry)))
            for i, (a, b) in enumerate(zip(entry.x, entry.y) if entry.dots else ()):
                if math.isfinite(b):
                    at, height = frame.point(a, b)
                    tip = entry.tips[i] if entry.tips else f"{entry.name}: {b:.4g} at {a:.4g}"
                    radius = entry.radii[i] if entry.radii else 3.2
                    parts.append(_tag("circle", style=f"dot {entry.style}", cx=at, cy=height, r=radius, title=tip))
        legend = [(entry.style, entry.name) for entry in self.series if entry.name]
        return _figure(self.title, parts, legend=legend, note=self.note)


@dataclass(frozen=True)
class Bar:
    """A named bar from 0 to `value`, with a whisker of `spread` on either side of its end."""

    name: str
    value: float
    style: str
    spread: float | None = None


def percent(share: float) -> str:
    """Format as 12.3%, 0.04% or <0.01%; only 0 and 1 become 0% and 100%."""
    value = 100 * share
    if value in (0, 100):
        return f"{value:.0f}%"
    if 0 < value < 0.005:
        return "<0.01%"
    if 99.995 <= value < 100:
        return ">99.99%"
    return f"{value:.1f}%" if 1 <= value <= 99 else f"{value:.2f}%"


def mark(name: str, x: float, y: Axis) -> Series:
    """Return a vertical line."""
    return Series(name, (x, x), (y.low, y.high), "reference")


def share_axis(label: str) -> Axis:
    """Return an axis from 0 to 100 %."""
    return Axis(label, 0.0, 1.0, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0), lambda share: f"{100 * share:.0f}%")


def number_axis(label: str, values: Sequence[float] | np.ndarray, *, from_zero: bool = False) -> Axis:
    """Return an axis with round ticks around the finite values."""
    finite = np.asarray(values, float)
    finite = finite[np.isfinite(finite)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    low = min(low, 0.0) if from_zero else low
    if high - low < 1e-12 * max(1.0, abs(high)):
        low, high = low - (abs(low) * 0.1 or 0.5) * (not from_zero or low != 0), high + (abs(high) * 0.1 or 0.5)
    step = _round_step((high - low) / 4)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(i * step for i in range(first, last + 1))
    return Axis(label, ticks[0], ticks[-1], ticks, _tick_text(step, max(abs(ticks[0]), abs(ticks[-1]))))


def mirrored_histogram(groups: Sequence[tuple[str, np.ndarray, str]], *, title: str, x: str, note: str = "") -> Markup:
    """Draw the shares of each group's records per bin on a square-root scale, the first group up, the second down.

    Args:
        groups: one or two names, with the records of each bin and the style.
    """
    shares = [counts / counts.sum() for _, counts, _ in groups]
    frame = _Frame(share_axis(x), _root_axis(max(float(share.max()) for share in shares), both=len(groups) > 1))
    parts = frame.axes()
    for sign, (name, counts, style), share in zip((1, -1), groups, shares):
        width, total = 1 / len(share), int(counts.sum())
        for i in np.flatnonzero(counts):
            (left, base), (right, end) = frame.point(i * width, 0.0), frame.point((i + 1) * width, sign * share[i])
            interval = f"{i * width:.3f} to {(i + 1) * width:.3f}"
            tip = f"{name}: {int(counts[i]):,} of {total:,} records score {interval}"
            box = (left + 0.5, min(base, end), right - left - 1, max(0.8, abs(end - base)))
            parts.append(_rect(*box, style=f"bar {style}", title=tip))
    (x0, zero), (x1, _) = frame.point(0, 0), frame.point(1, 0)
    parts.append(_tag("line", style="zero", x1=x0, x2=x1, y1=zero, y2=zero))
    return _figure(title, parts, legend=[(f"{style} block", name) for name, _, style in groups], note=note)


def bar_chart(
    bars: Sequence[Bar], *, title: str, x: str, legend: Sequence[tuple[str, str]] = (), note: str = ""
) -> Markup:
    """Draw horizontal bars, one below the other, in the order given; values may be negative."""
    reach = [bar.value + sign * (bar.spread or 0) for bar in bars for sign in (-1, 1)]
    axis = number_axis(x, reach, from_zero=True)
    row, left, bottom = 26, 170, 42
    height = _TOP + row * len(bars) + bottom

    def at(value: float) -> float:
        return left + axis.unit(value) * (_WIDTH - left - _RIGHT - 14)

    parts = []
    for tick in axis.ticks:
        parts.append(_tag("line", style="grid", x1=at(tick), x2=at(tick), y1=_TOP, y2=height - bottom))
        parts.append(
            _tag("text", axis.text(tick), style="tick", x=at(tick), y=height - bottom + 17, text_anchor="middle")
        )
    for i, bar in enumerate(bars):
        middle = _TOP + row * (i + 0.5)
        spread = "" if bar.spread is None else f" ± {bar.spread:.4f}"
        tip = f"{bar.name}: {bar.value:.4f}{spread}"
        begin, end = sorted((at(0.0), at(bar.value)))
        name = shorten(bar.name, 24)
        parts.append(_tag("text", name, style="tick", x=left - 8, y=middle, text_anchor="end", dy="0.35em", title=tip))
        parts.append(_rect(begin, middle - 8, max(0.8, end - begin), 16, style=f"bar {bar.style}", title=tip))
        if bar.spread:
            low, high = at(bar.value - bar.spread), at(bar.value + bar.spread)
            parts.append(_tag("line", style="zero", x1=low, x2=high, y1=middle, y2=middle))
    parts.append(_tag("line", style="zero", x1=at(0.0), x2=at(0.0), y1=_TOP, y2=height - bottom))
    parts.append(_tag("text", x, style="axis", x=(left + _WIDTH - _RIGHT) / 2, y=height - 5, text_anchor="middle"))
    blocks = [(f"{style} block", name) for style, name in legend]
    return _figure(title, parts, legend=blocks, note=note, size=(_WIDTH, height))


def heat_map(matrix: np.ndarray, labels: Sequence[int | str], *, supports: np.ndarray, title: str, note: str) -> Markup:
    """Draw a confusion matrix: rows are labels, columns predictions, shades the shares of the row. [K, K]

    Args:
        supports: records of each label; more than in its row if the matrix has some of the classes only. [K]
    """
    num_classes = len(labels)
    cell = min(100.0, max(13.0, 420 / num_classes))
    names = [shorten(str(label), 22) for label in labels]
    longest = 6.4 * max(len(name) for name in names)
    margin, turn = 26 + max(longest, 14), longest > cell - 6
    middle = margin + cell * num_classes / 2
    size = math.ceil(margin + cell * num_classes + 2)
    parts = [
        _tag("text", "predicted", style="axis", x=middle, y=12.0, text_anchor="middle"),
        _tag("text", "label", style="axis", transform=f"translate(12 {middle:.1f}) rotate(-90)", text_anchor="middle"),
    ]
    for i, name in enumerate(names):
        at, edge = margin + (i + 0.5) * cell, margin - 6
        above = {"transform": f"translate({at:.1f} {edge:.1f}) rotate(-90)", "dy": "0.35em"}
        if not turn:
            above = {"x": at, "y": edge, "text_anchor": "middle"}
        parts.append(_tag("text", name, style="tick", x=edge, y=at, text_anchor="end", dy="0.35em", title=labels[i]))
        parts.append(_tag("text", name, style="tick", title=labels[i], **above))
        support = int(supports[i])
        for j in range(num_classes):
            count = int(matrix[i, j])
            share = count / support if support else 0.0
            left, top = margin + j * cell, margin + i * cell
            tip = f"label {labels[i]}, predicted {labels[j]}: {count:,} of {support:,} ({percent(share)})"
            style, shade = f"cell {'right' if i == j else 'wrong'}", f"{0.8 * share**0.6:.3f}"  # a few percent show
            box = (left + 0.5, top + 0.5, cell - 1, cell - 1)
            parts.append(_rect(*box, style=style, title=tip, fill_opacity=shade))
            if cell >= 38 and count:
                at_center = {"x": left + cell / 2, "y": top + cell / 2, "text_anchor": "middle", "dy": "0.35em"}
                shown = f"{count:,}" if count < 10_000 else f"{count / 1000:.0f}k"
                parts.append(_tag("text", shown, style="count", **at_center))
    legend = [("right block", "correct"), ("wrong block", "wrong")]
    return _figure(title, parts, legend=legend, note=note, wide=num_classes > 8, size=(size, size), width=size)


def thin_line(x: Sequence[float], y: Sequence[float], points: int = 400) -> tuple[list[float], list[float]]:
    """Average equal runs of points, to at most `points`."""
    if len(x) <= points:
        return list(x), list(y)
    parts = np.array_split(np.arange(len(x)), points)
    return [float(np.mean(np.take(x, part))) for part in parts], [float(np.mean(np.take(y, part))) for part in parts]


@dataclass(frozen=True)
class _Frame:
    """A plotting area with two axes."""

    x: Axis
    y: Axis

    def point(self, x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + self.x.unit(x) * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - self.y.unit(y) * (_HEIGHT - _TOP - _BOTTOM),
        )

    def path(self, series: Series) -> str:
        commands, pen_down = [], False
        for a, b in zip(series.x, series.y):
            if not (math.isfinite(a) and math.isfinite(b)):
                pen_down = False
                continue
            at, height = self.point(float(a), float(b))
            if pen_down and series.steps:
                commands.append(f"V{height:.1f}H{at:.1f}")
            else:
                commands.append(f"{'L' if pen_down else 'M'}{at:.1f} {height:.1f}")
            pen_down = True
        return "".join(commands)

    def axes(self) -> list[Markup]:
        right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        parts = []
        for tick in self.y.ticks:
            _, at = self.point(self.x.low, tick)
            parts.append(_tag("line", style="grid", x1=_LEFT, x2=right, y1=at, y2=at))
            name = self.y.text(tick)
            parts.append(_tag("text", name, style="tick", x=_LEFT - 7, y=at, text_anchor="end", dy="0.35em"))
        for tick in self.x.ticks:
            at, _ = self.point(tick, self.y.low)
            parts.append(_tag("line", style="grid", x1=at, x2=at, y1=_TOP, y2=bottom))
            parts.append(_tag("text", self.x.text(tick), style="tick", x=at, y=bottom + 17, text_anchor="middle"))
        middle, turned = (_LEFT + right) / 2, f"translate(12 {(_TOP + bottom) / 2}) rotate(-90)"
        parts.append(_tag("text", self.x.label, style="axis", x=middle, y=_HEIGHT - 7, text_anchor="middle"))
        parts.append(_tag("text", self.y.label, style="axis", transform=turned, text_anchor="middle"))
        return parts


def _root_axis(top: float, *, both: bool) -> Axis:
    """Return an axis of shares up to `top` on a square-root scale, in both directions or upwards only."""
    wanted = (0.01, 0.05, 0.2, 0.4, 0.7, 1.0) if top > 0.15 else (0.01, 0.03, 0.06, 0.1)
    ticks = [tick for tick in wanted if tick <= top * 1.02]
    low = -top if both else 0.0

    def to_unit(unit: float) -> float:
        value = low + unit * (top - low)
        root = math.copysign(math.sqrt(abs(value) / top), value)
        return (root + 1) / 2 if both else root

    signed = (*(-tick for tick in reversed(ticks) if both), 0.0, *ticks)
    return Axis("share of the group", low, top, signed, lambda share: f"{100 * abs(share):.0f}%", to_unit)


def _tag(name: str, content: str = "", *, style: str = "", title: object = None, **attributes: object) -> Markup:
    """Return an SVG element; `style` is its CSS class, `title` its tooltip. Everything but Markup is escaped."""
    if style:
        attributes = {"class": style, **attributes}
    written = Markup("").join(
        Markup(' {}="{}"').format(
            key if key == "viewBox" else key.replace("_", "-"),
            f"{value:.1f}" if isinstance(value, float) else value,
        )
        for key, value in attributes.items()
    )
    hover = Markup("<title>{}</title>").format(title) if title is not None else ""
    return Markup("<{0}{1}>{2}{3}</{0}>").format(Markup(name), written, hover, content)


def _rect(x: float, y: float, width: float, height: float, *, style: str, title: str, **attributes: str) -> Markup:
    return _tag("rect", style=style, title=title, x=x, y=y, width=width, height=height, **attributes)


def _figure(
    title: str,
    parts: Sequence[Markup],
    *,
    legend: Sequence[tuple[str, str]],
    note: str = "",
    wide: bool = False,
    size: tuple[int, int] = (_WIDTH, _HEIGHT),
    **attributes: Any,
) -> Markup:
    view = f"0 0 {size[0]} {size[1]}"
    svg = _tag("svg", Markup("").join(parts), viewBox=view, **attributes, role="img", aria_label=title)
    swatches = Markup("").join(
        Markup('<li><i class="swatch {}"></i>{}</li>').format(style, name) for style, name in legend
    )
    return Markup("<figure{}><figcaption><h3>{}</h3><ul class=legend>{}</ul></figcaption>{}{}</figure>").format(
        Markup(" class=wide") if wide else "",
        title,
        swatches,
        svg,
        Markup("<p class=note>{}</p>").format(note) if note else "",
    )


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _tick_text(step: float, largest: float) -> Callable[[float], str]:
    """Return a formatter with enough digits for distinct ticks, and with powers of ten below 0.01."""
    if 0 < largest < 0.01:
        power = math.floor(math.log10(largest))
        return lambda value: f"{value / 10.0**power:.3g}e{power}" if value else "0"
    digits = next((d for d in range(16) if abs(round(step, d) - step) < 1e-9 * step), 16)
    return lambda value: f"{value:,.{digits}f}"
