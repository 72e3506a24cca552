"""Run the groups that ``make bench`` names: print each case, keep the results, and draw their charts."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import TYPE_CHECKING

from benchmarks.charts import draw
from benchmarks.groups import GROUPS
from benchmarks.machine import has_changes, heading, in_words
from benchmarks.measured import Missing, MissingError, Results
from benchmarks.report import comparison, console, facts_table, show
from benchmarks.settings import packed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.groups import Group
    from benchmarks.measured import Case
    from benchmarks.settings import Settings


def chosen(only: Sequence[str], settings: Settings) -> list[tuple[Group, tuple[str, ...]]]:
    """Choose the groups to run, each with the requested prefixes of case names.

    Args:
        only: ``group`` or ``group:prefix``. Empty: the groups that run by default, or with ``settings.whole`` all groups.
        settings: the settings for the run.

    Raises:
        ValueError: no group has this name, or none of the group's cases has a name with this prefix.
    """
    wanted: dict[str, list[str]] = {}
    for one in only:
        group, _, part = one.partition(":")
        wanted.setdefault(group, []).extend([packed(part)] if part else [])
    unknown = sorted(set(wanted) - {group.name for group in GROUPS})
    if unknown:
        raise ValueError(f"no group {unknown[0]!r}: the groups are {', '.join(group.name for group in GROUPS)}")
    if not only:
        return [(group, ()) for group in GROUPS if settings.whole or group.by_default]
    found = [(group, tuple(wanted[group.name])) for group in GROUPS if group.name in wanted]
    for known, parts in found:
        for part in parts:
            _require_case(known, part, settings)
    return found


def _require_case(group: Group, part: str, settings: Settings) -> None:
    """Raise a ValueError if the group has no case whose name begins with ``part``."""
    names = group.cases(settings)
    if any(map(replace(settings, only=(part,)).wants, names)):
        return
    longer = [name for name in group.cases(replace(settings, whole=True)) if name not in names]
    raise ValueError(
        f"group {group.name!r} has no case that begins with {part!r}. Nothing was measured. Its cases are: {'; '.join(names)}"
        + (f". With --whole, they are also: {'; '.join(longer)}" if longer else "")
    )


def run_groups(only: Sequence[str], settings: Settings, directory: Path) -> list[Results]:
    """Run the chosen groups, and keep each group's results and charts in ``directory``.

    Raises:
        ValueError: ``only`` names no group or no case; see :func:`chosen`.
        WrongCountError: an output differs from the written records.
    """
    groups = chosen(only, settings)
    head = heading(settings.exactly_once)
    console.print(in_words(head), highlight=False)
    if has_changes(head):
        console.print("There are uncommitted changes, so --pages will refuse these results.", highlight=False)
    found = []
    for group, parts in groups:
        began = time.monotonic()
        of_group = replace(settings, only=parts, rounds=min(settings.rounds, group.rounds))
        # Use a separate process, so that the group has a new JVM and fresh memory.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            results = process.submit(run_group, group, of_group, head).result()
        console.print(comparison(results.title, results.cases))
        for table in filter(None, [facts_table(results.cases)]):
            console.print(table)
        for missing in results.missing:
            console.print(f"missing: {missing.name}: {missing.reason}", highlight=False, markup=False)
        results.write(directory)
        draw(results, directory)
        console.print(f"{group.name}: {time.monotonic() - began:.0f} s", highlight=False)
        found.append(results)
    return found


def run_group(group: Group, settings: Settings, head: dict[str, object]) -> Results:
    """Run one group. List cases that cannot be set up as missing."""
    logging.getLogger("sinks").setLevel(logging.ERROR)  # each start warns that a single broker has no second replica
    cases: list[Case] = []
    missing: list[Missing] = []
    try:
        for case in group.measure(settings):
            if isinstance(case, Missing):
                missing.append(case)
            else:
                show(case)
                cases.append(case)
    except MissingError as error:
        missing.append(Missing(name=group.name, reason=str(error)))
    return Results(
        group=group.name,
        title=group.title,
        heading=dict(head),
        rounds=settings.rounds,
        cases=cases,
        x_label=group.x_label,
        missing=missing,
    )
