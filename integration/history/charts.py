"""Draw the page's charts, SVG images without scripts: durations by phase, and rows per second. All text is escaped."""

from __future__ import annotations

from html import escape
from math import floor, log10
from typing import TYPE_CHECKING, Final

from twopc.counted import counted
from twopc.progress import seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twopc.progress import Checkpoint

#: The phases in order, each with its own color. The phases of a start share one color.
PHASES: Final = ("recover", "prepare", "confirm", "decide", "commit", "evaluate", "finish")
_RECOVERY: Final = frozenset({"connect", "inspect", "acquire", "recover", "check"})
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 960, 260, 64, 24, 26
_RATE_HEIGHT: Final = 140
#: A bar is cut off at this multiple of the 90th percentile.
_CUT: Final = 3
_WIDEST_BAR: Final = 48
#: If a bar is narrower than this, no gap separates it from the next bar.
_NARROW: Final = 3
#: The width of the label above a bar that is cut off.
_LABEL: Final = 52
#: The largest number of points on a line that people can tell apart.
_DOTS: Final = 60
#: The possible maximum values of an axis, each to be multiplied by a power of ten. Half of each value is also a short
#: number.
_ENDS: Final = (1.0, 1.2, 1.6, 2.0, 2.4, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


def timeline(shown: Sequence[Checkpoint]) -> str:
    """Draw a bar for each checkpoint. Its sections show the phases' durations. A failed checkpoint is marked."""
    took = sorted(one.took_ms for one in shown) or [1.0]
    # A checkpoint that waited for ten minutes must not dwarf all others. Therefore, its bar is cut off and labeled with
    # its duration.
    highest = _end(min(took[-1], _CUT * took[round(0.9 * (len(took) - 1))]))
    parts = [_axis(_HEIGHT, highest, seconds)]
    labels = _labelled(shown, highest)
    for number, one in enumerate(shown):
        middle, y = _middle(number, shown), float(_HEIGHT - _BOTTOM)
        width = _each(shown) if _each(shown) < _NARROW else min(_WIDEST_BAR, 0.85 * _each(shown))
        up = (_HEIGHT - _TOP - _BOTTOM) / max(highest, one.took_ms)
        bars = []
        for phase, ms in _stack(one):
            y -= ms * up
            place = f'x="{middle - width / 2:.2f}" y="{y:.2f}" width="{width:.2f}" height="{ms * up:.2f}"'
            bars.append(f'<rect class="p-{phase}" {place}/>')
        if one.cause is not None:
            top = y - 2
            points = f"{middle:.1f},{top:.1f} {middle - 5:.1f},{top - 9:.1f} {middle + 5:.1f},{top - 9:.1f}"
            bars.append(f'<polygon class="mark" points="{points}"/>')
        if number in labels:
            bars.append(
                f'<text x="{labels[number]:.1f}" y="12" text-anchor="middle">{escape(seconds(one.took_ms))}</text>'
            )
        parts.append(f"<g>{''.join(bars)}<title>{escape(_tip(one))}</title></g>")
    return _svg(_HEIGHT, "Duration of each checkpoint by phase", [*parts, *_ids(shown, _HEIGHT)])


def rates(shown: Sequence[Checkpoint]) -> str:
    """Draw rows per second. A checkpoint's time is the time from its trigger to its end, plus the pause before the trigger."""
    values = [
        0.0 if one.cause is not None else one.rows * 1000 / max(1.0, one.took_ms + (one.pause_ms or 0.0))
        for one in shown
    ]
    highest = _end(max(values, default=0.0))
    up = (_RATE_HEIGHT - _TOP - _BOTTOM) / highest
    points = [(_middle(number, shown), _RATE_HEIGHT - _BOTTOM - value * up) for number, value in enumerate(values)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts = [_axis(_RATE_HEIGHT, highest, lambda value: f"{value:,.0f}"), f'<polyline class="rate" points="{line}"/>']
    if len(points) <= _DOTS:  # a line with a single point would be invisible
        parts += [f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in points]
    return _svg(_RATE_HEIGHT, "Rows per second", [*parts, *_ids(shown, _RATE_HEIGHT)])


def _stack(one: Checkpoint) -> list[tuple[str, float]]:
    """Return a checkpoint's phases in order. All steps before the first attempt are treated as one phase."""
    merged = dict.fromkeys(PHASES, 0.0)
    for phase, ms in one.phases.items():
        name = "recover" if phase in _RECOVERY else phase
        merged[name if name in merged else "finish"] += ms
    return [(phase, ms) for phase, ms in merged.items() if ms > 0]


def _labelled(shown: Sequence[Checkpoint], highest: float) -> dict[int, float]:
    """Choose the truncated bars to label, and the labels' positions.

    Start with the longest bars, and stop when labels would overlap.
    """
    cut = [number for number, one in enumerate(shown) if one.took_ms > highest]
    found: dict[int, float] = {}
    for number in sorted(cut, key=lambda number: -shown[number].took_ms):
        x = min(_WIDTH - _LABEL / 2, max(_LEFT + _LABEL / 2, _middle(number, shown)))
        if all(abs(x - other) >= _LABEL for other in found.values()):
            found[number] = x
    return found


def _each(shown: Sequence[Checkpoint]) -> float:
    return (_WIDTH - _LEFT) / max(1, len(shown))


def _middle(number: int, shown: Sequence[Checkpoint]) -> float:
    return _LEFT + (number + 0.5) * _each(shown)


def _end(highest: float) -> float:
    if highest <= 1:
        return 1.0
    power = 10.0 ** floor(log10(highest))
    return next((end * power for end in _ENDS if end * power >= highest), 10 * power)


def _axis(height: int, highest: float, text: Callable[[float], str]) -> str:
    lines = []
    for share in (0.0, 0.5, 1.0):
        y = height - _BOTTOM - share * (height - _TOP - _BOTTOM)
        lines.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(text(share * highest))}</text>')
    return "".join(lines)


def _ids(shown: Sequence[Checkpoint], height: int) -> list[str]:
    step = max(1, -(-len(shown) // 10))
    return [
        f'<text x="{_middle(number, shown):.1f}" y="{height - 6}" text-anchor="middle">{shown[number].batch_id}</text>'
        for number in range(0, len(shown), step)
    ]


def _svg(height: int, title: str, parts: Sequence[str]) -> str:
    inner = "".join(parts)
    drawing = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">{inner}</svg>'
    return f'<div class="scroll">{drawing}</div>'


def _tip(one: Checkpoint) -> str:
    phases = ", ".join(f"{phase} {seconds(ms)}" for phase, ms in one.phases.items())
    cause = "" if one.cause is None else f": {one.cause.error}"
    way = f", {one.way}" if one.way else ""
    return f"{one.batch_id} {one.outcome}{cause}\n{seconds(one.took_ms)}, {counted(one.rows, 'row')}{way}\n{phases}"
