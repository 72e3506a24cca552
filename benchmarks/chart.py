"""Draw charts as SVG: curves on logarithmic axes, readable on light and dark pages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.measured import Spread

_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 44, 84
_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #24292f }
  .title { font-size: 14px; font-weight: 600 }
  .grid { stroke: #d0d7de }
  .s0 { --c: #0969da } .s1 { --c: #cf222e } .s2 { --c: #1a7f37 } .s3 { --c: #8250df } .s4 { --c: #9a6700 }
  path { fill: none; stroke: var(--c); stroke-width: 2 }
  circle, .key { fill: var(--c); stroke: none }
  .range { stroke: var(--c); stroke-opacity: .5 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .grid { stroke: #3d444d }
    .s0 { --c: #58a6ff } .s1 { --c: #ff7b72 } .s2 { --c: #56d364 } .s3 { --c: #d2a8ff } .s4 { --c: #e3b341 }
  }
"""
_COLOURS = 5


@dataclass(frozen=True)
class Series:
    """One curve, with its name and a spread for each ``x``."""

    name: str
    points: Sequence[tuple[float, Spread]]


@dataclass(frozen=True)
class _Axis:
    """A logarithmic axis from 10**``low`` to 10**``high``. It begins at the pixel ``start`` and is ``length`` pixels long."""

    low: int
    high: int
    start: float
    length: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, length: float) -> _Axis:
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return cls(low, max(high, low + 1), start, length)

    def at(self, value: float) -> float:
        return self.start + self.length * (math.log10(value) - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def drawable(series: Sequence[Series]) -> list[Series]:
    """Remove the points that a logarithmic axis cannot show, such as 0, and return the curves that still have points."""
    shown = [Series(one.name, [(x, y) for x, y in one.points if x > 0 and y.low > 0]) for one in series]
    return [one for one in shown if one.points]


def curves(title: str, x_label: str, y_label: str, series: Sequence[Series]) -> str:
    """Draw a chart of the positive values; return "" if no value is positive."""
    shown = drawable(series)
    if not shown:
        return ""
    xs = [x for one in shown for x, _ in one.points]
    ys = [value for one in shown for _, y in one.points for value in (y.low, y.high)]
    across = _Axis.over(xs, _LEFT, _WIDTH - _LEFT - _RIGHT)
    up = _Axis.over(ys, _HEIGHT - _BOTTOM, -(_HEIGHT - _TOP - _BOTTOM))
    parts = [
        f'<text class="title" x="{_LEFT}" y="20">{escape(title)}</text>',
        f'<text x="{_LEFT}" y="36">{escape(y_label)}</text>',
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - _BOTTOM + 34}" text-anchor="end">{escape(x_label)}</text>',
        *(_horizontal(up.at(tick), tick) for tick in up.ticks()),
        *(_vertical(across.at(tick), tick) for tick in across.ticks()),
    ]
    for number, one in enumerate(shown):
        parts += _curve(number, one, across, up)
    body = "\n".join(parts)
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<style>{_STYLE}</style>\n{body}\n</svg>\n'


def _horizontal(y: float, tick: float) -> str:
    line = f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f'{line}<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_power(tick)}</text>'


def _vertical(x: float, tick: float) -> str:
    bottom = _HEIGHT - _BOTTOM
    line = f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>'
    return f'{line}<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{_power(tick)}</text>'


def _power(tick: float) -> str:
    return f"{tick:,.0f}" if tick >= 1 else f"{tick:g}"


def _curve(number: int, one: Series, across: _Axis, up: _Axis) -> list[str]:
    places = [(across.at(x), y) for x, y in sorted(one.points, key=lambda point: point[0])]
    path = " L".join(f"{x:.1f} {up.at(y.median):.1f}" for x, y in places)
    key_x, key_y = _LEFT + 190 * (number % 3), _HEIGHT - 26 + 18 * (number // 3)
    return [
        f'<g class="s{number % _COLOURS}">',
        f'<path d="M{path}"/>',
        *(f'<circle cx="{x:.1f}" cy="{up.at(y.median):.1f}" r="3"/>' for x, y in places),
        *(
            f'<line class="range" x1="{x:.1f}" x2="{x:.1f}" y1="{up.at(y.low):.1f}" y2="{up.at(y.high):.1f}"/>'
            for x, y in places
        ),
        f'<rect class="key" x="{key_x}" y="{key_y}" width="10" height="10"/>',
        "</g>",
        f'<text x="{key_x + 15}" y="{key_y + 9}">{escape(one.name)}</text>',
    ]
