"""Parts that the network schedules share: who sends which request, and two drivers, one of which the network blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.live.pipeline import Tasks
from tests.live.rules.batches import rows_of, seen
from tests.nemesis.frames import FENCED, Api
from twopc.errors import RetriableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.live.rules.schedules import Play
    from tests.nemesis.proxy import KafkaProxy
    from twopc.coordinator import Coordinator
    from twopc.engine import Work
    from twopc.records import TaskReport
    from twopc.sinks.kafka.handle import KafkaHandle


def of_tasks(play: Play) -> str:
    """The transactional ids of a query's tasks: ``<sink>.<driver_epoch>.<worker>.<sequence>``; the worker is a UUID."""
    return f"{play.name}.*.{'?' * 32}.*"


def of_driver(play: Play) -> str:
    """The transactional id of the query's drivers."""
    return f"{play.name}.driver"


def rivals(play: Play) -> tuple[Coordinator, Coordinator]:
    """A driver that owns the sink and will lose it, and its successor, which has done nothing yet."""
    loser, successor = play.driver(), play.driver()
    loser.recover(play.batch(0))
    return loser, successor


def process(
    driver: Coordinator, play: Play, batch: int, *, between: Callable[[int], None] = lambda _: None
) -> tuple[int, int]:
    """Process one batch. Return how often it was prepared, and how often it was only evaluated."""
    tasks = Tasks(play, rows_of(batch), between=between)
    driver.process(play.batch(batch), tasks)
    return tasks.prepared, tasks.evaluated


class VoidFirst(Tasks):
    """Fails its first attempt, which is then swept, and keeps that attempt's handles."""

    def __init__(self, play: Play, batch: int) -> None:
        super().__init__(play, rows_of(batch))
        self._play = play
        self.void: list[KafkaHandle] = []

    def prepare(self, work: Work) -> list[TaskReport]:
        tasks = super().prepare(work)
        if self.prepared == 1:
            self.void = self._play.handles(tasks)
            raise RetriableError("void")
        return tasks


def let_a_commit_arrive_late(play: Play, proxy: KafkaProxy) -> None:
    """A task's EndTxn of batch 0 is held, retried, answered; it arrives when its id serves a later batch, and does nothing."""
    held = proxy.on(Api.END_TXN, transactional_id=of_tasks(play)).hold()
    driver = play.driver()
    process(driver, play, 0)
    late = held.wait()
    [tid] = late.request.transactional_ids
    met = False

    def arrive(_: int) -> None:
        nonlocal met
        opened = play.open_transactions()
        if tid in opened and not met:
            met = True
            held.release()
            assert late.answer() in FENCED
            assert play.open_transactions() == opened

    for batch in (1, 2, 3, 4):
        process(driver, play, batch, between=arrive)
        assert play.visible() == seen(batch + 1)
    assert met, "the late commit's id was not reused, so nothing was tested"
