"""Write the kept results into the marked blocks in the pages.

A block begins with ``<!-- bench:NAME -->`` and ends with ``<!-- /bench -->``. NAME is a group, ``goals``, ``planning``,
``trigger_iceberg`` or ``trigger_delta``. After ``<!-- bench:NAME brief -->``, a group shows only its times.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks import machine
from benchmarks.charts import charts_of, described
from benchmarks.goals import Verdict, verdicts
from benchmarks.groups import GROUPS
from benchmarks.measured import read_results
from benchmarks.planning import planning_table
from benchmarks.report import COLUMNS, fact_rows, lines, markdown
from benchmarks.trigger import BLOCKS, trigger_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.measured import Results

_ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = _ROOT / "benchmarks" / "results"
PAGES: Final = tuple(_ROOT / "docs" / f"{page}.md" for page in ("performance", "results", "iceberg", "delta"))
_BLOCK: Final = re.compile(r"(<!-- bench:(\w+)( brief)? -->\n).*?(<!-- /bench -->)", re.DOTALL)


class ChangedRunError(ValueError):
    """A new run measured uncommitted changes, so its figures belong on no page."""


def write_pages(results: Path = RESULTS, pages: Sequence[Path] = PAGES) -> list[Path]:
    """Rewrite the blocks, and return the files that have changed.

    Raises:
        ChangedRunError: a run measured uncommitted changes, and the pages do not show this run yet. No page has changed.
    """
    texts = {page: page.read_text() for page in pages}
    _require_committed(texts.values(), partial(read_results, results))
    new = {page: filled(text, results) for page, text in texts.items()}
    changed = [page for page, text in texts.items() if new[page] != text]
    for page in changed:
        page.write_text(new[page])
    return changed


def _require_committed(texts: Iterable[str], read: Callable[[str], Results | None]) -> None:
    """Refuse a new run of uncommitted changes. A run that is already on the pages stays until its group is measured again."""
    blocks = [block for text in texts for block in _BLOCK.finditer(text)]
    for group in GROUPS:
        found = read(group.name)
        if found is None or not machine.has_changes(found.heading):
            continue
        run = machine.measured_when(found.heading, found.rounds)
        shown = [block[0] for block in blocks if block[2] == group.name]
        if not shown or any(run not in block for block in shown):
            raise ChangedRunError(
                f"nobody can repeat the results of group {group.name!r}, because no commit contains the code that was measured. "
                f'{run} No page has changed. Commit the code, and run make bench ARGS="--only {group.name}" again'
            )


def filled(text: str, results: Path = RESULTS) -> str:
    """Return the text with its blocks filled from the results. A text without blocks stays unchanged."""
    read = partial(read_results, results)
    return _BLOCK.sub(lambda found: f"{found[1]}{_block(found[2], found[3], read, results)}\n{found[4]}", text)


def _block(name: str, brief: str | None, read: Callable[[str], Results | None], directory: Path) -> str:
    if name == "goals":
        return _goals(read)
    if name == "planning":
        return planning_table(read("many"), read("decision"))
    if name in BLOCKS:
        return trigger_rule(read("smallfiles"), name)
    if name not in {group.name for group in GROUPS}:
        raise ValueError(f"<!-- bench:{name} -->: no group has this name")
    found = read(name)
    if found is None:
        return _absent(name)
    return _brief(found) if brief else _group(found, directory)


def _absent(group: str) -> str:
    return f'*Not measured yet:* `make bench ARGS="--only {group}"`.'


def _goals(read: Callable[[str], Results | None]) -> str:
    rows = [
        (goal.says, figure, f"**{verdict.value}**" if verdict is Verdict.MISSED else verdict.value)
        for goal, figure, verdict in verdicts(read)
    ]
    return markdown(("goal", "median (min-max)", ""), rows)


def _brief(results: Results) -> str:
    return f"{machine.measured_when(results.heading, results.rounds)}\n\n{_times(results)}"


def _times(results: Results) -> str:
    return markdown(COLUMNS, [cells for case in results.cases for cells in lines(case)])


def _group(results: Results, directory: Path) -> str:
    parts = [f"{machine.measured_when(results.heading, results.rounds)} {machine.in_words(results.heading)}"]
    if results.cases:
        parts.append(_times(results))
    facts = fact_rows(results.cases)
    if facts:
        parts.append(markdown(("other figures", "side", *(case.name for case in results.cases)), facts))
    parts += [f"{missing.name} was not measured: {missing.reason}" for missing in results.missing]
    parts += [
        f"![{described(results, chart)}](results/{chart.name}.svg)"
        for chart in charts_of(results)
        if (directory / f"{chart.name}.svg").exists()
    ]
    return "\n\n".join(parts)
