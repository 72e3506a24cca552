"""Rule 6: one writer, one end.

A worker may abort its own transaction before it hands over its handle; afterward it ends no transaction. Without this
rule, a generator's `finally: abort()` aborts a decided transaction. Also, two attempts at one task never share an id.
"""

from __future__ import annotations

import gc
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.live.pipeline import Tasks, prepare_task, record_batch
from tests.live.rules.batches import ROWS, VISIBLE
from tests.live.rules.schedules import Play, at, until, work_of, writer_of
from twopc.records import TaskReport

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from twopc.engine import Work
    from twopc.sinks.kafka.handle import KafkaHandle


def first_work(play: Play) -> Work:
    driver = play.driver()
    driver.recover(play.batch(0))
    return work_of(play, 0, driver_epoch=driver.log_epoch)


def test_a_writer_ends_no_transaction_after_the_handover_no_matter_how_it_is_closed(play: Play) -> None:
    """Fails if `hand_over` changes nothing: `close` would abort."""
    work = first_work(play)
    writer = writer_of(play, work, 0)
    writer.write_rows(record_batch(["a"]))
    handle = writer.snapshot_state(0)
    assert handle is not None
    writer.hand_over()
    writer.close()
    writer.close()
    writer.abort()
    del writer
    gc.collect()
    play.forget_worker()
    assert play.describe(handle.transactional_id).state == "Ongoing"
    assert play.end(handle, commit=True) == "NONE"
    assert play.visible() == Counter("a")


@pytest.mark.parametrize("voted", [False, True], ids=["rows_written", "handle_made"])
def test_a_writer_closed_before_the_handover_aborts_its_own_transaction(play: Play, *, voted: bool) -> None:
    """The task failed or was cancelled, and must not hold back readers. Fails if `close` leaves the transaction open."""
    work = first_work(play)
    writer = writer_of(play, work, 0)
    writer.write_rows(record_batch(["a"]))
    tid = writer._begun.transactional_id
    if voted:
        assert writer.snapshot_state(0) is not None
    else:
        writer._begun.producer.flush(10)
    assert play.describe(tid).state == "Ongoing"
    writer.close()
    assert until(lambda: play.describe(tid).state == "CompleteAbort")
    assert play.visible() == Counter()


class Generators(Tasks):
    """Each task is a generator, as in Spark's Python worker; it may be closed long after it has returned its handle."""

    def __init__(self, play: Play, rows: Sequence[Sequence[str]]) -> None:
        super().__init__(play, rows)
        self.running: list[Generator[KafkaHandle, None, None]] = []

    def prepare(self, work: Work) -> list[TaskReport]:
        reports = []
        for partition, rows in enumerate(self._rows):
            running = self._run(work, partition, rows)
            handles = {self._query.name: self._query.sink.encode_handle(next(running))}
            self.running.append(running)
            reports.append(TaskReport(partition=partition, rows=len(rows), checksum=0, handles=handles))
        return reports

    def _run(self, work: Work, partition: int, rows: Sequence[str]) -> Generator[KafkaHandle, None, None]:
        assert isinstance(self._query, Play)
        writer = writer_of(self._query, work, partition)
        try:
            writer.write_rows(record_batch(rows))
            handle = writer.snapshot_state(work.batch.batch_id)
            assert handle is not None
            writer.hand_over()
            yield handle
            raise AssertionError("the generator must not be resumed")
        finally:
            writer.close()

    def close(self) -> None:
        for running in self.running:
            running.close()


def test_a_task_closed_after_the_decision_aborts_no_transaction(play: Play) -> None:
    """Fails if `hand_over` changes nothing: the batch would be lost between decision and commit, and rewritten."""
    tasks = Generators(play, ROWS)
    with at("driver.decided", tasks.close):
        play.driver().process(play.batch(0), tasks)
    assert play.plans() == ["write"]
    assert play.visible() == VISIBLE


class Speculative(Tasks):
    """Every task runs twice, in two workers at the same time; the first attempt's report is accepted."""

    def __init__(self, play: Play, rows: Sequence[Sequence[str]]) -> None:
        super().__init__(play, rows)
        self.losers: list[KafkaHandle] = []

    def prepare(self, work: Work) -> list[TaskReport]:
        assert isinstance(self._query, Play)
        self._query.forget_worker()
        accepted = super().prepare(work)
        self._query.forget_worker()
        self.losers += [prepare_task(self._query, work, partition, rows) for partition, rows in enumerate(self._rows)]
        self._query.forget_worker()
        return accepted


def test_of_two_attempts_of_a_task_only_the_accepted_one_becomes_visible(play: Play) -> None:
    """Speculation. Fails if ids are not unique per worker.

    The second attempt would initialise the first one's id, and abort its prepared transaction.
    """
    tasks = Speculative(play, ROWS)
    with at("driver.decided", lambda: len(play.open_transactions()) == 4 or pytest.fail("an attempt was ended")):
        play.driver().process(play.batch(0), tasks)
    assert tasks.prepared == 1
    winners = play.decided(0)
    assert len({handle.transactional_id for handle in [*winners, *tasks.losers]}) == 4
    assert play.open_transactions() == ()
    assert play.visible() == VISIBLE
    for loser in tasks.losers:
        assert play.end(loser, commit=True) != "NONE"
    assert play.visible() == VISIBLE
