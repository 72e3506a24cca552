"""Rule 5: one producer, one transaction, one epoch.

Without this rule, B retries COMMIT for N at (producer id, epoch) while A already writes N+1 there: half of N+1 is published.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.live.pipeline import Tasks, prepare_task
from tests.live.rules.batches import rows_of, seen
from tests.live.rules.schedules import Play, at, crash, work_of, writer_of
from twopc.errors import RetriableError
from twopc.sinks.kafka import producer_pool

if TYPE_CHECKING:
    from twopc.engine import Work
    from twopc.records import TaskReport
    from twopc.sinks.kafka.handle import KafkaHandle
    from twopc.sinks.kafka.producer_pool import ProducerPool


class FailsFirst(Tasks):
    """Keeps every handle; its first attempt at a batch fails."""

    def __init__(self, play: Play, batch: int, kept: list[KafkaHandle]) -> None:
        super().__init__(play, rows_of(batch))
        self._kept = kept

    def prepare(self, work: Work) -> list[TaskReport]:
        tasks = super().prepare(work)
        assert isinstance(self._query, Play)
        self._kept += self._query.handles(tasks)
        if self.prepared == 1:
            raise RetriableError("void")
        return tasks


def test_two_transactions_never_share_a_producer_id_and_epoch(play: Play) -> None:
    """One worker writes five batches of two tasks twice each: it reuses ids, but never epochs.

    Fails if a producer is kept after its transaction and used again at the same epoch.
    """
    kept: list[KafkaHandle] = []
    driver = play.driver()
    for batch in range(5):
        driver.process(play.batch(batch), FailsFirst(play, batch, kept))
    ids = {handle.transactional_id for handle in kept}
    assert len({(handle.producer_id, handle.producer_epoch) for handle in kept}) == len(kept) == 20
    assert len(ids) < len(kept), "no transactional id was reused, so nothing was tested"
    assert play.visible() == seen(5)


def test_a_late_commit_of_an_earlier_batch_does_not_affect_the_open_batch(play: Play) -> None:
    """Every earlier COMMIT is sent again while the next batch's transactions are open.

    Fails if a producer is used twice: the commit would succeed, and publish the rows that the batch has written so far.
    """
    sent: list[KafkaHandle] = []
    met = 0

    def send_again(_: int) -> None:
        nonlocal met
        opened = play.open_transactions()
        assert opened
        for handle in sent:
            if handle.transactional_id in opened:
                met += 1
                assert play.end(handle, commit=True) != "NONE"
            else:
                play.end(handle, commit=True)
        assert play.open_transactions() == opened

    driver = play.driver()
    for batch in range(5):
        driver.process(play.batch(batch), Tasks(play, rows_of(batch), between=send_again))
        sent += play.decided(batch)
        assert play.visible() == seen(batch + 1)
    assert met > 0, "no id had a new open transaction when an old commit arrived, so nothing was tested"


def test_a_late_commit_publishes_no_rows_from_an_undecided_batch(play: Play) -> None:
    """The driver dies before its decision, and the batch is written again. Fails if a producer is used twice."""
    driver = play.driver()
    for batch in range(4):
        driver.process(play.batch(batch), Tasks(play, rows_of(batch)))
    sent = [handle for batch in range(4) for handle in play.decided(batch)]
    crash(driver, play, 4, rows_of(4), "driver.confirmed")
    opened = play.open_transactions()
    assert {handle.transactional_id for handle in sent} & set(opened), (
        "no transactional id was reused, so nothing was tested"
    )
    for handle in sent:
        play.end(handle, commit=True)
    assert play.open_transactions() == opened
    assert play.visible() == seen(4)
    play.driver().process(play.batch(4), Tasks(play, rows_of(4)))
    assert play.visible() == seen(5)


def test_an_id_is_not_initialised_again_before_its_batch_is_proven(play: Play) -> None:
    """A worker takes batches that its driver has not proven yet: every prepared transaction stays unchanged.

    Fails if ids become free before their batch is proven: the next producer would abort a prepared transaction.
    """
    driver = play.driver()
    driver.recover(play.batch(0))
    handles = [
        prepare_task(play, work_of(play, batch, driver_epoch=driver.log_epoch), task, [f"{batch}{task}"])
        for batch in range(2)
        for task in range(3)
    ]
    play.forget_worker()  # and with it, the producers it was preparing
    for handle in handles:
        found = play.describe(handle.transactional_id)
        assert (found.state, found.producer_epoch) == ("Ongoing", handle.producer_epoch)


def test_producers_prepared_together_never_share_an_id(play: Play) -> None:
    """A worker whose pool has run out prepares several producers together, with ids whose batch is proven.

    Fails if the pool hands out an id twice before the first producer is ready: the second would fence the first.
    """
    driver = play.driver()
    driver.recover(play.batch(0))
    writer = writer_of(play, work_of(play, 0, driver_epoch=driver.log_epoch), 0)
    writer.begin_transaction()  # creates the pool
    pool: ProducerPool = producer_pool._pools[play.sink.place]
    for _ in range(2):
        pool.take(0, committed_through=-1)
    writer.abort()
    pool._first_batch = -1  # as if the worker had started in an earlier batch
    pool.replenish(committed_through=0)
    making = pool._making
    assert making is not None
    making.join()
    assert len({ready.transactional_id for ready in pool._ready}) == len(pool._ready) == 2
    driver.process(play.batch(0), Tasks(play, []))
    driver.process(play.batch(1), Tasks(play, [["a"], ["b"], ["c"]]))
    assert play.visible() == Counter("abc")


def test_a_worker_keeps_no_producer_for_a_new_driver_epoch(play: Play) -> None:
    """The same Python worker serves the next driver: its ids have the new driver epoch from the first task on.

    Fails if a pool is chosen by the sink's name only: the sweep of the previous driver, if it wakes, would abort them.
    """
    first, second = play.driver(), play.driver()
    first.process(play.batch(0), Tasks(play, rows_of(0)))
    with at("driver.confirmed", lambda: first.participants.committers[play.name].recover_and_abort([])):
        second.process(play.batch(1), Tasks(play, rows_of(1)))
    assert second.log_epoch > first.log_epoch
    for batch, driver in ((0, first), (1, second)):
        for handle in play.decided(batch):
            assert handle.transactional_id.startswith(f"{play.name}.{driver.log_epoch}.")
    assert play.plans() == ["write", "write"]
    assert play.visible() == seen(2)
