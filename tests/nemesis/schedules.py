"""What the network schedules have in common: whose requests are whose, and batches that tell their rows apart."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.live.pipeline import Tasks

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.live.rules.schedules import Play
    from twopc.coordinator import Coordinator


def of_tasks(play: Play) -> str:
    """The transactional ids of a query's tasks: ``<sink>.<incarnation>.<worker>.<k>``, a worker being a UUID."""
    return f"{play.name}.*.{'?' * 32}.*"


def of_driver(play: Play) -> str:
    """The transactional id of its drivers."""
    return f"{play.name}.driver"


def rows_of(batch: int) -> list[list[str]]:
    """Two tasks, three rows."""
    return [[f"{batch}a", f"{batch}b"], [f"{batch}c"]]


def seen(batches: int) -> Counter[str]:
    """What readers see of that many batches."""
    return Counter(row for batch in range(batches) for task in rows_of(batch) for row in task)


def process(
    driver: Coordinator, play: Play, batch: int, *, between: Callable[[int], None] = lambda _: None
) -> tuple[int, int]:
    """One batch; returns how often it was prepared and how often it was evaluated into nothing."""
    tasks = Tasks(play, rows_of(batch), between=between)
    driver.process(play.checkpoint(batch), tasks)
    return tasks.prepared, tasks.evaluated
