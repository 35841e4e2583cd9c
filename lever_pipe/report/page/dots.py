"""A summary's plot as inline SVG: a row per label, a dot with an interval per mark, an axis with round ticks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from lever_pipe.base.sums import sum_in_order
from lever_pipe.report.catalogue import Translator
from lever_pipe.report.cells import Estimate
from lever_pipe.report.summaries import Summary, SummaryRow

WIDTH, PLOT_HEIGHT, PAD = 372, 168, 14
"""Sizes in the drawing's own units; a page shows about one pixel per unit, so that text keeps its size."""
N_TICKS = 5
WIDE_CHARACTER, CHARACTER = 13.0, 7.2  # width at 13 units
MOST_LABEL = 150
SPREAD = 4.5  # half the distance between two marks of a row


@dataclass(frozen=True, slots=True)
class PlotAxis:
    """A scale from values to x positions, with its ticks."""

    low: float
    high: float
    left: float
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """Return the x position of a value."""
        return self.left + (value - self.low) / (self.high - self.low) * (WIDTH - PAD - self.left)


def plot(summary: Summary, translator: Translator) -> Markup:
    """Return the plot of a summary; empty without rows."""
    numbers = [number for row in summary.rows for _, number in row.marks]
    if not numbers:
        return Markup()
    labels = [translator.text(row.label) for row in summary.rows]
    axis = axis_of(numbers, left=14 + min(MOST_LABEL, max(map(_width, labels))))
    has_keys = len(summary.keys) > 1
    height = PLOT_HEIGHT + (60 if has_keys else 44)
    name = escape(translator.text(summary.title))
    parts = [f'<svg class="dots" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{name}">']
    parts += _grid(axis)
    step = PLOT_HEIGHT / len(summary.rows)
    for i, (row, label) in enumerate(zip(summary.rows, labels, strict=True)):
        parts += _row(row, label, axis, 6 + (i + 0.5) * step, translator)
    middle = (axis.left + WIDTH - PAD) / 2
    if summary.axis is not None:
        # A long title must not leave the drawing.
        where = min(middle, WIDTH - PAD - _width(translator.text(summary.axis)) * 0.46)
        parts.append(_text(where, PLOT_HEIGHT + 38, translator.text(summary.axis), "soft middle"))
    parts += _keys(summary, translator) if has_keys else []
    return Markup("".join([*parts, "</svg>"]))


def axis_of(numbers: Sequence[Estimate], *, left: float) -> PlotAxis:
    """Return the axis from tick to tick that contains every number with its interval.

    Steps are 1, 2 or 5 times a power of ten.
    """
    ends = [end for n in numbers for end in (n.value, n.low, n.high) if not math.isnan(end)]
    low, high = min(ends), max(ends)
    if low <= 0 <= high or min(abs(low), abs(high)) < 0.5 * (high - low):
        low, high = min(low, 0.0), max(high, 0.0)
    span = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / N_TICKS))
    step = next(power * times for times in (1, 2, 5, 10) if span / (power * times) <= N_TICKS)
    # The tolerance absorbs rounding: an end that is a tick must not add another one.
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    # Two ticks at least, so that the scale has a length.
    last += last == first
    return PlotAxis(first * step, last * step, left, tuple(i * step for i in range(first, last + 1)))


def _grid(axis: PlotAxis) -> Iterator[str]:
    for tick in axis.ticks:
        x, is_zero = axis.at(tick), tick == 0 and axis.low < 0
        yield f'<line class="{"zero" if is_zero else "grid"}" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{PLOT_HEIGHT + 6}"/>'
        yield _text(x, PLOT_HEIGHT + 21, f"{tick:g}".replace("-", "−"), "soft middle")


def _row(row: SummaryRow, label: str, axis: PlotAxis, y: float, translator: Translator) -> Iterator[str]:
    yield _text(axis.left - 9, y + 4, label, "end")
    for index, (kind, number) in enumerate(row.marks):
        x, height = axis.at(number.value), y + SPREAD * (2 * index - len(row.marks) + 1)
        text = f"{label}: {translator.text(number)}"
        trace = f' data-e="{number.line}"' if number.line else ""
        yield f'<g class="mark-{kind}"{trace}><title>{escape(text)}</title>'
        if not math.isnan(number.low):
            low, high = axis.at(number.low), axis.at(number.high)
            yield f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{height:.1f}" y2="{height:.1f}"/>'
        yield f"{_dot(kind, x, height)}</g>"


def _dot(kind: str, x: float, y: float) -> str:
    if kind == "b":
        return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'


def _keys(summary: Summary, translator: Translator) -> Iterator[str]:
    texts = [(kind, translator.text(text)) for kind, text in summary.keys]
    x = (WIDTH - sum_in_order(_width(text) + 34 for _, text in texts)) / 2
    for kind, text in texts:
        y = PLOT_HEIGHT + 52
        yield f'<g class="mark-{kind}">{_dot(kind, x + 6, y)}</g>{_text(x + 16, y + 4, text, "soft")}'
        x += _width(text) + 34


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _width(text: str) -> float:
    # CJK characters are full-width.
    return sum_in_order(WIDE_CHARACTER if ord(c) > 0x2E80 else CHARACTER for c in text)
