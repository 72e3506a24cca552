"""What the network schedules have in common: whose requests are whose, and two drivers, one of which is kept waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.live.pipeline import Tasks
from tests.live.rules.batches import rows_of

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


def rivals(play: Play) -> tuple[Coordinator, Coordinator]:
    """Who will lose, and has taken over; and its successor, which has not done anything yet."""
    loser, successor = play.driver(), play.driver()
    loser.initialize_state(play.checkpoint(0))
    return loser, successor


def process(
    driver: Coordinator, play: Play, batch: int, *, between: Callable[[int], None] = lambda _: None
) -> tuple[int, int]:
    """One batch; returns how often it was prepared and how often it was evaluated into nothing."""
    tasks = Tasks(play, rows_of(batch), between=between)
    driver.process(play.checkpoint(batch), tasks)
    return tasks.prepared, tasks.evaluated
