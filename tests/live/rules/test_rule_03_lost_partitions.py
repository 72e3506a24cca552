"""Rules 3 and 4: a transaction whose partitions have lost its rows is not committed.

A coordinator does not know what the partitions contain. If an administrator recreates the output topic, or aborts a decided
transaction in one partition, the coordinator still reports the transaction as open, and still returns NONE to EndTxn.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.live.broker_changes import delete_topic
from tests.live.pipeline import Tasks, checksum_of, create_topic, record_batch
from tests.live.rules.batches import ROWS, VISIBLE
from tests.live.rules.schedules import Play, abort_in_one_partition, at, crash, die, playing, until
from tests.reader import consumer_of, read_to_end
from tests.tasks import attempt_of, prepare, prepare_all
from twopc.records import Repair, TaskReport
from twopc.settings import Settings
from twopc.testing.crash_points import InjectedFault

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.live.services import KafkaService
    from twopc.engine import Work


def recreate(play: Play, partitions: int = 4) -> None:
    """What an administrator does with kafka-topics.sh."""
    delete_topic(play.bootstrap_servers, play.topic)
    create_topic(play.bootstrap_servers, play.topic, partitions)


@pytest.mark.parametrize("point", ["driver.confirmed", "driver.deciding", "driver.decided"])
def test_a_batch_is_written_again_if_its_output_topic_is_recreated_before_the_commit(play: Play, point: str) -> None:
    """Fails if the driver commits without comparing the topics' ids: no row would be visible."""
    driver = play.driver()
    with at(point, lambda: recreate(play)):
        driver.process(play.batch(0), Tasks(play, ROWS))
    assert play.plans() == ["write", "rewrite"]
    driver.process(play.batch(1), Tasks(play, [["d"]]))
    assert play.visible() == VISIBLE + Counter("d")
    assert play.open_transactions() == ()


def test_a_restart_writes_a_batch_again_if_its_output_topic_was_recreated_after_a_crash(play: Play) -> None:
    """Fails if recovery relies on the coordinator."""
    crash(play.driver(), play, 0, ROWS, "driver.decided")
    recreate(play)
    driver = play.driver()
    driver.process(play.batch(0), Tasks(play, ROWS))
    driver.process(play.batch(1), Tasks(play, [["d"]]))
    assert play.visible() == VISIBLE + Counter("d")
    assert play.open_transactions() == ()


class ByColumn(Tasks):
    """Tasks whose rows name their topic."""

    def _task(self, work: Work, partition: int, rows: Sequence[str]) -> TaskReport:
        batch = record_batch(rows).append_column("topic", pa.array([self._query.topic] * len(rows)))
        handles = prepare_all([self._query.sink], work, partition, [batch])
        return TaskReport(partition=partition, rows=len(rows), checksum=checksum_of(rows), handles=handles)


def test_a_restart_writes_rows_again_whose_partitions_no_longer_exist(kafka: KafkaService, tmp_path: Path) -> None:
    """Fails if only partitions with a leader are judged: EndTxn returns NONE, because coordinators skip unknown partitions.

    Without a topic of its own, the sink knows no topic id from before the batch.
    """
    with playing(kafka, tmp_path / "checkpoint", topic=None, timeout_ms=5_000) as play:
        driver = play.driver()
        with pytest.raises(InjectedFault), at("driver.decided", die):
            driver.process(play.batch(0), ByColumn(play, [["a"], ["b"], ["c"]]))
        assert any(f"{play.topic}:0" not in one.topic_partitions() for one in play.decided(0)), "no row can be lost"
        recreate(play, partitions=1)
        driver = play.driver()
        driver.process(play.batch(0), ByColumn(play, [["a"], ["b"], ["c"]]))
        driver.process(play.batch(1), ByColumn(play, [["d"]]))
        assert play.visible() == VISIBLE + Counter("d")
        assert play.open_transactions() == ()


def test_a_batch_is_not_decided_if_its_output_topic_is_recreated_between_its_tasks(play: Play) -> None:
    """Fails if the ids are compared only before the commit: a decision with lost rows may not be repairable."""
    tasks = Tasks(play, ROWS, between=lambda task: recreate(play) if task == 0 and tasks.prepared == 1 else None)
    play.driver(Settings(max_attempts=2)).process(play.batch(0), tasks)
    assert play.plans() == ["write"]
    assert tasks.prepared == 2
    assert play.visible() == VISIBLE


class Halves(Tasks):
    """One task with two rows in the same partition. In the first attempt, the topic is recreated between the two rows."""

    def __init__(self, play: Play) -> None:
        super().__init__(play, [["a", "a"]])
        self._play = play

    def prepare(self, work: Work) -> list[TaskReport]:
        self.prepared += 1
        handle = prepare(self._play.sink, attempt_of(work, self._play.name, 0), self._halves())
        assert handle is not None
        handles = {self._play.name: self._play.sink.encode_handle(handle)}
        return [TaskReport(partition=0, rows=2, checksum=checksum_of(["a", "a"]), handles=handles)]

    def _halves(self) -> Iterator[pa.RecordBatch]:
        yield record_batch(["a"])
        if self.prepared == 1:
            assert until(self._has_a_row)
            recreate(self._play)
        yield record_batch(["a"])

    def _has_a_row(self) -> bool:
        reader = consumer_of(self._play.bootstrap_servers, isolation="read_uncommitted")
        try:
            return bool(read_to_end(reader, self._play.topic))
        finally:
            reader.close()


def test_a_batch_is_not_decided_if_its_output_topic_is_recreated_between_two_rows_of_a_task(play: Play) -> None:
    """The new topic accepts the second half in the same transaction, so only the topic's id shows the loss."""
    tasks = Halves(play)
    play.driver(Settings(max_attempts=2)).process(play.batch(0), tasks)
    assert play.plans() == ["write"]
    assert tasks.prepared == 2
    assert play.visible() == {"a": 2}


def test_a_restart_repairs_a_decided_transaction_that_was_aborted_in_one_partition(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if recovery does not ask the partitions: EndTxn returns NONE, so the rows of that partition would be missing."""
    crash(play.driver(), play, 0, ROWS, "driver.decided")
    torn, _ = play.decided(0)
    abort_in_one_partition(play, torn)
    with caplog.at_level(logging.ERROR):
        play.driver().process(play.batch(0), Tasks(play, ROWS))
    assert f"the decided transaction {torn.transaction} has lost rows" in caplog.text
    assert play.visible() == VISIBLE
    (repair,) = [record for record in play._records() if isinstance(record, Repair)]
    assert [part.index for task in repair.tasks for part in task.by_part] == [0]
    assert play.open_transactions() == ()
