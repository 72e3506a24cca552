"""The history as one HTML page that needs nothing else. Every text in it is escaped; it has no script."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from twopc.progress import seconds, utc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from integration.history.diagnose import Diagnosis
    from integration.history.reader import History
    from twopc.progress import Checkpoint

#: The phases in their order, each with a colour of its own; recovery's three are one.
_PHASES: Final = ("recover", "prepare", "confirm", "decide", "commit", "evaluate", "finish")
_RECOVERY: Final = frozenset({"connect", "inspect", "acquire", "recover"})
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 960, 260, 64, 24, 26
_RATE_HEIGHT: Final = 140
#: A bar is cut at so many times what nine of ten checkpoints stay below.
_CUT: Final = 3
_STYLE: Final = """
:root { color-scheme: light dark; --page: #ffffff; --text: #1f2328; --dim: #59636e; --line: #d1d9e0; --card: #f6f8fa;
  --bad: #cf222e; --rate: #0969da; --recover: #8250df; --prepare: #0969da; --confirm: #1b7c83; --decide: #bf8700;
  --commit: #1a7f37; --evaluate: #6e7781; --finish: #bc4c00 }
@media (prefers-color-scheme: dark) { :root { --page: #0d1117; --text: #e6edf3; --dim: #9198a1; --line: #3d444d;
  --card: #151b23; --bad: #ff7b72; --rate: #58a6ff; --recover: #d2a8ff; --prepare: #58a6ff; --confirm: #39c5cf;
  --decide: #e3b341; --commit: #56d364; --evaluate: #8b949e; --finish: #ffa657 } }
body { background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem;
  padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.dim { color: var(--dim) } .bad { color: var(--bad) } code { overflow-wrap: anywhere }
.cards { display: flex; flex-wrap: wrap; gap: .75rem } .card { background: var(--card); border: 1px solid var(--line);
  border-radius: 6px; padding: .5rem 1rem } .card b { display: block; font-size: 1.3rem }
svg { width: 100%; height: auto } svg text { fill: var(--dim); font-size: 12px } .axis { stroke: var(--line) }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin: 0 .3em 0 .9em }
.mark { fill: var(--bad) } .rate { fill: none; stroke: var(--rate); stroke-width: 1.5 }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .3rem .6rem; vertical-align: top;
  border-bottom: 1px solid var(--line) } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
.scroll { overflow-x: auto } li { margin-bottom: .7rem }
"""


def page(history: History, findings: Sequence[Diagnosis], *, last: int) -> str:
    """The page, of the newest ``last`` checkpoints."""
    shown = history.checkpoints[-last:]
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(f'Checkpoints of {history.location}')}</title><style>{_styles()}</style></head><body>",
            f"<h1>Checkpoints of <code>{escape(history.location)}</code></h1>",
            f'<p class="dim">{escape(_span(shown))}</p>',
            _cards(history, shown),
            "<h2>What slows or fails them</h2>",
            _findings(findings),
            "<h2>Timeline</h2>",
            _legend(),
            _timeline(shown),
            "<h2>Rows per second</h2>",
            _rates(shown),
            "<h2>Failures</h2>",
            _failures(shown),
            "<h2>Checkpoints</h2>",
            _table(shown),
            "</body></html>\n",
        ]
    )


def _styles() -> str:
    return _STYLE + "".join(f".p-{phase} {{ fill: var(--{phase}); background: var(--{phase}) }}\n" for phase in _PHASES)


def _span(shown: Sequence[Checkpoint]) -> str:
    if not shown:
        return "None has ended."
    first, last = shown[0], shown[-1]
    return f"{len(shown)} checkpoints from {utc(first.triggered_ms)} to {utc(last.triggered_ms + last.took_ms)}."


def _cards(history: History, shown: Sequence[Checkpoint]) -> str:
    took = sorted(one.took_ms for one in shown if one.cause is None)
    failed = sum(one.cause is not None for one in shown)
    facts = [
        ("completed", f"{len(shown) - failed:,}", ""),
        ("failed", f"{failed:,}", "bad" if failed else ""),
        ("median", seconds(took[len(took) // 2]) if took else "none", ""),
        ("p95", seconds(took[round(0.95 * (len(took) - 1))]) if took else "none", ""),
        ("rows", f"{sum(one.rows for one in shown if one.cause is None):,}", ""),
    ]
    if history.planned is not None:
        facts.append(("not done yet", f"{history.planned.batch_id}", ""))
    if history.skipped:
        facts.append(("torn lines", f"{len(history.skipped)}", "bad"))
    cards = (f'<div class="card {style}"><b>{escape(value)}</b>{escape(name)}</div>' for name, value, style in facts)
    return f'<div class="cards">{"".join(cards)}</div>'


def _findings(findings: Iterable[Diagnosis]) -> str:
    items = [
        f"<li><b>{escape(one.cause)}</b><br>{escape(one.evidence)}<br><span>{escape(one.advice)}</span></li>"
        for one in findings
    ]
    return f"<ol>{''.join(items)}</ol>" if items else '<p class="dim">Nothing found.</p>'


def _legend() -> str:
    keys = (f'<span class="key p-{phase}"></span>{phase}' for phase in _PHASES)
    return f'<p class="dim">{"".join(keys)} <span class="bad">&#9660;</span> failed</p>'


def _stack(one: Checkpoint) -> list[tuple[str, float]]:
    """Its phases in their order; recovery's steps as one."""
    merged = dict.fromkeys(_PHASES, 0.0)
    for phase, ms in one.phases.items():
        name = "recover" if phase in _RECOVERY else phase
        merged[name if name in merged else "finish"] += ms
    return [(phase, ms) for phase, ms in merged.items() if ms > 0]


def _timeline(shown: Sequence[Checkpoint]) -> str:
    took = sorted(one.took_ms for one in shown) or [1.0]
    # One that waited for ten minutes must not hide all others: it is cut, and says how long it took.
    highest = max(1.0, min(took[-1], _CUT * took[round(0.9 * (len(took) - 1))]))
    each = (_WIDTH - _LEFT) / max(1, len(shown))
    parts = [_axis(_HEIGHT, highest, seconds)]
    for number, one in enumerate(shown):
        x, y = _LEFT + number * each, float(_HEIGHT - _BOTTOM)
        up = (_HEIGHT - _TOP - _BOTTOM) / max(highest, one.took_ms)
        bars = []
        for phase, ms in _stack(one):
            y -= ms * up
            size = f'width="{max(0.5, each * 0.85):.2f}" height="{ms * up:.2f}"'
            bars.append(f'<rect class="p-{phase}" x="{x:.2f}" y="{y:.2f}" {size}/>')
        if one.cause is not None:
            middle, top = x + each * 0.42, y - 2
            points = f"{middle:.1f},{top:.1f} {middle - 5:.1f},{top - 9:.1f} {middle + 5:.1f},{top - 9:.1f}"
            bars.append(f'<polygon class="mark" points="{points}"/>')
        if one.took_ms > highest:
            bars.append(f'<text x="{x:.1f}" y="12" text-anchor="middle">{escape(seconds(one.took_ms))}</text>')
        parts.append(f"<g>{''.join(bars)}<title>{escape(_tip(one))}</title></g>")
    return _svg(_HEIGHT, "Duration of each checkpoint, by phase", [*parts, *_ids(shown, each, _HEIGHT)])


def _rates(shown: Sequence[Checkpoint]) -> str:
    """Rows by the time from a checkpoint's trigger to its end, with the pause before it."""
    values = [
        0.0 if one.cause is not None else one.rows * 1000 / max(1.0, one.took_ms + (one.pause_ms or 0.0))
        for one in shown
    ]
    highest = max(values, default=0.0) or 1.0
    each = (_WIDTH - _LEFT) / max(1, len(shown))
    up = (_RATE_HEIGHT - _TOP - _BOTTOM) / highest
    points = " ".join(
        f"{_LEFT + (number + 0.42) * each:.1f},{_RATE_HEIGHT - _BOTTOM - value * up:.1f}"
        for number, value in enumerate(values)
    )
    axis = _axis(_RATE_HEIGHT, highest, lambda value: f"{value:,.0f}")
    line = f'<polyline class="rate" points="{points}"/>'
    return _svg(_RATE_HEIGHT, "Rows per second", [axis, line, *_ids(shown, each, _RATE_HEIGHT)])


def _axis(height: int, highest: float, text: Callable[[float], str]) -> str:
    lines = []
    for share in (0.0, 0.5, 1.0):
        y = height - _BOTTOM - share * (height - _TOP - _BOTTOM)
        lines.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(text(share * highest))}</text>')
    return "".join(lines)


def _ids(shown: Sequence[Checkpoint], each: float, height: int) -> list[str]:
    step = max(1, len(shown) // 10)
    return [
        f'<text x="{_LEFT + number * each:.1f}" y="{height - 6}">{shown[number].batch_id}</text>'
        for number in range(0, len(shown), step)
    ]


def _svg(height: int, title: str, parts: Sequence[str]) -> str:
    inner = "".join(parts)
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">{inner}</svg>'


def _tip(one: Checkpoint) -> str:
    phases = ", ".join(f"{phase} {seconds(ms)}" for phase, ms in one.phases.items())
    cause = "" if one.cause is None else f": {one.cause.error}"
    return f"{one.batch_id} {one.outcome}{cause}\n{seconds(one.took_ms)}, {one.rows:,} rows\n{phases}"


def _failures(shown: Sequence[Checkpoint]) -> str:
    rows = [
        f'<tr><td class="n">{one.batch_id}</td><td>{escape(utc(one.triggered_ms + one.took_ms))}</td>'
        f'<td class="bad">{escape(one.outcome)}</td><td>{escape(one.cause.phase)}</td>'
        f"<td><b>{escape(one.cause.error)}</b><br>{escape(one.cause.message)}</td></tr>"
        for one in shown
        if one.cause is not None
    ]
    if not rows:
        return '<p class="dim">None.</p>'
    head = '<tr><th class="n">id</th><th>ended</th><th>outcome</th><th>phase</th><th>cause</th></tr>'
    return f'<div class="scroll"><table>{head}{"".join(rows)}</table></div>'


def _table(shown: Sequence[Checkpoint]) -> str:
    rows = []
    for one in reversed(shown):
        slowest = f"{one.slowest[0].partition}: {seconds(one.slowest[0].took_ms)}" if one.slowest else ""
        numbers = (seconds(one.took_ms), f"{one.rows:,}", f"{one.size_bytes / 1e6:,.1f}", f"{one.tasks:,}", slowest)
        cells = "".join(f'<td class="n">{escape(value)}</td>' for value in numbers)
        style = "bad" if one.cause is not None else ""
        rows.append(
            f'<tr><td class="n">{one.batch_id}</td><td>{escape(utc(one.triggered_ms))}</td>'
            f'<td class="{style}">{escape(one.outcome)}</td><td>{escape(one.way)}</td>{cells}</tr>'
        )
    titles = ("took", "rows", "MB", "tasks", "slowest task")
    head = '<tr><th class="n">id</th><th>triggered</th><th>outcome</th><th>way</th>'
    head += "".join(f'<th class="n">{title}</th>' for title in titles) + "</tr>"
    return f'<div class="scroll"><table>{head}{"".join(rows)}</table></div>'
