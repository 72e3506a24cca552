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
from benchmarks.machine import heading, in_words
from benchmarks.measured import Missing, MissingError, Results
from benchmarks.report import comparison, console, facts_table, show

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.groups import Group
    from benchmarks.measured import Case
    from benchmarks.settings import Settings


def chosen(only: Sequence[str], *, whole: bool = False) -> list[tuple[Group, tuple[str, ...]]]:
    """Choose the groups to run, each with the requested prefixes of case names.

    Args:
        only: ``group`` or ``group:prefix``. Empty: the groups that run by default.
        whole: whether an empty ``only`` means all groups.

    Raises:
        ValueError: no group has this name.
    """
    wanted: dict[str, list[str]] = {}
    for one in only:
        group, _, part = one.partition(":")
        wanted.setdefault(group, []).extend([part.replace(" ", "")] if part else [])
    unknown = sorted(set(wanted) - {group.name for group in GROUPS})
    if unknown:
        raise ValueError(f"no group {unknown[0]!r}: the groups are {', '.join(group.name for group in GROUPS)}")
    if not only:
        return [(group, ()) for group in GROUPS if whole or group.by_default]
    return [(group, tuple(wanted[group.name])) for group in GROUPS if group.name in wanted]


def run_groups(only: Sequence[str], settings: Settings, directory: Path) -> list[Results]:
    """Run the chosen groups, and keep each group's results and charts in ``directory``.

    Raises:
        WrongCountError: an output differs from the written records.
    """
    head = heading(settings.exactly_once)
    console.print(in_words(head), highlight=False)
    found = []
    for group, parts in chosen(only, whole=settings.whole):
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
