"""Test a sink's writers: many writes, duplicate task attempts, column order, and tasks that wake up too late."""

# ruff: noqa: D102 - the names of tests are their claims

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twopc.attempt import Attempt, Evidence, TaskAttempt
from twopc.errors import RetriableError
from twopc.testing.contract.drivers import QUERY_ID, Driver, opened, run_task

if TYPE_CHECKING:
    from twopc.testing.contract.case import Case
    from twopc.writer import SinkWriter

ROWS = [1, 2, 3, 4, 5]
_WRITES, _ROWS_PER_WRITE = 3, 100


class WriterContract:
    """See :class:`twopc.testing.contract.SinkContract`."""

    def test_the_rows_of_every_write_become_visible(self, case: Case) -> None:
        """Spark passes a task's rows in several writes."""
        driver = Driver(case.sink)
        scan_start = driver.begin()
        writer = _open(case, driver)
        for number in range(_WRITES):
            first = number * _ROWS_PER_WRITE
            writer.write_rows(case.rows(range(first, first + _ROWS_PER_WRITE)))
        assert driver.commit([_vote(writer)], scan_start) == [Evidence.COMMITTED]
        assert case.visible() == list(range(_WRITES * _ROWS_PER_WRITE))

    def test_a_killed_task_and_its_retry_have_identical_task_attempts_and_write_their_rows_once(
        self, case: Case
    ) -> None:
        driver = Driver(case.sink)
        scan_start = driver.begin()
        _open(case, driver).write_rows(case.rows(ROWS))  # nothing closes this writer, as if its process had been killed
        handle = run_task(case.sink, _task(driver), case.rows(ROWS))
        assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
        driver.committer.recover_and_abort([handle])  # some stores hide all rows that follow an open transaction
        assert case.visible() == ROWS

    def test_a_tasks_columns_may_be_in_any_order(self, case: Case) -> None:
        rows = case.rows(ROWS)
        rows = rows.select(rows.schema.names[::-1])
        chosen = case.sink.choose_columns(rows.schema)
        rows = rows.select([column.source for column in chosen]).rename_columns([column.name for column in chosen])
        driver = Driver(case.sink)
        scan_start = driver.begin()
        assert driver.commit([driver.prepare(rows)], scan_start) == [Evidence.COMMITTED]
        assert case.visible() == ROWS

    def test_a_transaction_without_a_record_in_the_store_is_not_reported_as_committed(self, case: Case) -> None:
        """The store may come from a backup that is older than the transaction. The transaction's rows are then lost."""
        driver = Driver(case.sink)
        scan_start = driver.begin()
        aborted = driver.prepare(case.rows([11, 12]))
        driver.committer.abort([aborted])
        newer_start = driver.begin()
        driver.commit([driver.prepare(case.rows(ROWS))], newer_start)
        driver.committer.forget(newer_start)
        assert driver.committer.commit([aborted], scan_start)[aborted] is not Evidence.COMMITTED
        assert driver.committer.prove([aborted], scan_start)[aborted] is not Evidence.COMMITTED
        assert case.visible() == ROWS

    def test_a_swept_task_that_votes_late_is_refused_or_has_all_its_rows(self, case: Case) -> None:
        driver = Driver(case.sink)
        scan_start = driver.begin()
        writer = _open(case, driver)
        writer.write_rows(case.rows(ROWS))
        driver.committer.recover_and_abort([])
        try:
            found = driver.commit([_vote(writer)], scan_start)
        except RetriableError:
            found = []
        assert case.visible() == (ROWS if found == [Evidence.COMMITTED] else [])


def _task(driver: Driver) -> TaskAttempt:
    return TaskAttempt(QUERY_ID, 0, Attempt(driver.driver_epoch, 1), 0, driver.driver_epoch, -1)


def _open(case: Case, driver: Driver) -> SinkWriter[Any]:
    writer = case.sink.create_writer(_task(driver))
    opened.append(writer)
    return writer


def _vote(writer: SinkWriter[Any]) -> Any:
    handle = writer.snapshot_state(0)
    writer.hand_over()
    return handle
