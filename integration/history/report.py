"""Render the history as one self-contained HTML page without scripts. All text is escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from twopc.counted import counted
from twopc.integration.history.charts import PHASES, rates, timeline
from twopc.progress import seconds, utc

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from twopc.integration.history.diagnose import Diagnosis
    from twopc.integration.history.reader import History
    from twopc.progress import Checkpoint

#: The page does not run scripts or send requests.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE: Final = """
:root { color-scheme: light dark; --page: #ffffff; --text: #1f2328; --dim: #59636e; --line: #d1d9e0; --card: #f6f8fa;
  --bad: #cf222e; --watch: #9a6700; --rate: #0969da; --recover: #8250df; --prepare: #0969da; --confirm: #1b7c83;
  --decide: #bf8700; --commit: #1a7f37; --evaluate: #6e7781; --finish: #bc4c00 }
@media (prefers-color-scheme: dark) { :root { --page: #0d1117; --text: #e6edf3; --dim: #9198a1; --line: #3d444d;
  --card: #151b23; --bad: #ff7b72; --watch: #d29922; --rate: #58a6ff; --recover: #d2a8ff; --prepare: #58a6ff;
  --confirm: #39c5cf; --decide: #e3b341; --commit: #56d364; --evaluate: #8b949e; --finish: #ffa657 } }
body { background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem;
  padding: 0 1rem; overflow-wrap: anywhere }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem } h3 { font-size: 1rem; margin: 1.5rem 0 .5rem }
.dim { color: var(--dim) } .bad { color: var(--bad) } .watch { color: var(--watch) }
.cards { display: flex; flex-wrap: wrap; gap: .75rem } .card { background: var(--card); border: 1px solid var(--line);
  border-radius: 6px; padding: .5rem 1rem } .card b { display: block; font-size: 1.3rem }
svg { display: block; width: 100%; min-width: 44rem; height: auto } svg text { fill: var(--dim); font-size: 12px }
.axis { stroke: var(--line) } .legend { display: flex; flex-wrap: wrap; gap: 0 1rem }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .3em }
.mark { fill: var(--bad) } .rate { fill: none; stroke: var(--rate); stroke-width: 1.5 } .dot { fill: var(--rate) }
table { border-collapse: collapse; width: 100%; overflow-wrap: normal } td, th { text-align: left; padding: .3rem .6rem;
  vertical-align: top; border-bottom: 1px solid var(--line); white-space: nowrap }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
td.long { white-space: normal; overflow-wrap: anywhere; min-width: 14rem } .lines { white-space: pre-line }
.scroll { overflow-x: auto } .scroll + .scroll { margin-top: 1rem } ul, ol { padding-left: 1.5rem }
li { margin-bottom: .7rem }
"""


def page(history: History, findings: Sequence[Diagnosis], sinks: str, *, last: int) -> str:
    """Build the page for the newest checkpoints (at most ``last``). ``sinks`` is the HTML for the cluster's section."""
    shown = history.checkpoints[-last:]
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(f'Checkpoints of {history.location}')}</title><style>{_styles()}</style></head><body>",
            f"<h1>Checkpoints of <code>{escape(history.location)}</code></h1>",
            f'<p class="dim">{escape(_span(shown))}</p>',
            _cards(history, shown),
            section("What slows checkpoints down or makes them fail", _findings(findings)),
            section("Sinks", sinks),
            section("Timeline", f"{_legend()}\n{timeline(shown)}"),
            section("Rows per second", rates(shown)),
            section("Failures", _failures(shown)),
            section("Checkpoints", _checkpoints(shown)),
            "</body></html>\n",
        ]
    )


def section(title: str, inner: str) -> str:
    """Build a section of the page. The section's id is the title's first word."""
    return f'<section id="{title.partition(" ")[0].lower()}"><h2>{escape(title)}</h2>\n{inner}</section>'


def cards(facts: Iterable[tuple[str, str, str]]) -> str:
    """Build one card for each main figure, which has a name, a value and a style."""
    each = (f'<div class="card {style}"><b>{escape(value)}</b>{escape(name)}</div>' for name, value, style in facts)
    return f'<div class="cards">{"".join(each)}</div>'


def table(titles: Sequence[str], rows: Iterable[Sequence[tuple[str, str]]]) -> str:
    """Build a table.

    A cell has a style and a text. The style ``n`` is for numbers. A heading has this style if the first cell below the
    heading has it.
    """
    rows = list(rows)
    is_number = [style == "n" for style, _ in rows[0]] if rows else [False] * len(titles)
    head = "".join(
        f'<th class="{"n" if number else ""}">{escape(title)}</th>'
        for number, title in zip(is_number, titles, strict=True)
    )
    body = ("".join(f'<td class="{style}">{escape(text)}</td>' for style, text in row) for row in rows)
    lines = "\n".join(f"<tr>{cells}</tr>" for cells in body)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{lines}</tbody></table></div>'


def none(text: str) -> str:
    """Build the placeholder for an empty section."""
    return f'<p class="dim">{escape(text)}</p>'


def _styles() -> str:
    return _STYLE + "".join(f".p-{phase} {{ fill: var(--{phase}); background: var(--{phase}) }}\n" for phase in PHASES)


def _span(shown: Sequence[Checkpoint]) -> str:
    if not shown:
        return "No checkpoint has finished yet."
    first, last = shown[0], shown[-1]
    count = counted(len(shown), "checkpoint")
    return f"{count} from {utc(first.triggered_ms)} to {utc(last.triggered_ms + last.took_ms)}."


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
    if history.in_progress is not None:
        facts.append(("is not done yet", f"batch {history.in_progress.batch_id}", ""))
    if history.skipped:
        facts.append(("torn lines", f"{len(history.skipped)}", "bad"))
    return cards(facts)


def _findings(findings: Iterable[Diagnosis]) -> str:
    items = [
        f"<li><b>{escape(one.cause)}</b><br>{escape(one.evidence)}<br><span>{escape(one.advice)}</span></li>"
        for one in findings
    ]
    return f"<ol>{''.join(items)}</ol>" if items else none("Nothing found.")


def _legend() -> str:
    keys = (f'<span><span class="key p-{phase}"></span>{phase}</span>' for phase in PHASES)
    return f'<p class="dim legend">{"".join(keys)}<span><span class="bad">&#9660;</span> failed</span></p>'


def _failures(shown: Sequence[Checkpoint]) -> str:
    items = [
        f'<li><b class="bad">{one.batch_id} {escape(one.outcome)}</b> in {escape(one.cause.phase or "start")}, '
        f"{escape(utc(one.triggered_ms + one.took_ms))}<br>"
        f'<span class="lines">{escape(one.cause.error)}: {escape(one.cause.message)}</span></li>'
        for one in shown
        if one.cause is not None
    ]
    return f"<ul>{''.join(items)}</ul>" if items else none("None.")


def _checkpoints(shown: Sequence[Checkpoint]) -> str:
    rows = []
    for one in reversed(shown):
        slowest = f"{one.slowest[0].partition}: {seconds(one.slowest[0].took_ms)}" if one.slowest else ""
        numbers = (seconds(one.took_ms), f"{one.rows:,}", f"{one.size_bytes / 1e6:,.1f}", f"{one.tasks:,}", slowest)
        rows.append(
            [
                ("n", f"{one.batch_id}"),
                ("", utc(one.triggered_ms)),
                ("bad" if one.cause is not None else "", one.outcome),
                ("", one.way),
                *(("n", number) for number in numbers),
            ]
        )
    titles = ("id", "triggered", "outcome", "way", "took", "rows", "MB", "tasks", "slowest task")
    return table(titles, rows)
