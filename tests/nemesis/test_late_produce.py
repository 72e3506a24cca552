"""Records that arrive when their transaction has ended. On an old broker they would hold readers back forever.

KAFKA-14402: a record that arrives after the abort begins a transaction that no coordinator knows. Kafka 3.6 and newer ask
the coordinator first (KIP-890, part 1). On older brokers only the epoch protects: the abort must have bumped it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.live.pipeline import Tasks, record_batch
from tests.live.rules.batches import rows_of, seen
from tests.live.rules.schedules import Play, until, writer_of
from tests.live.services import KafkaService, chosen
from tests.nemesis.frames import NONE, Api
from tests.nemesis.schedules import of_driver, of_tasks, process
from twopc.errors import RetriableError, TwoPhaseCommitError
from twopc.integration.services.kafka import LocalKafka
from twopc.sinks.kafka import writer as kafka_writer
from twopc.sinks.kafka.reader import offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.nemesis.proxy import KafkaProxy
    from twopc.engine import Work
    from twopc.records import TaskReport
    from twopc.sinks.kafka.writer import KafkaWriter


#: Whether `make matrix` has chosen the broker. It runs all of these tests on each broker.
CHOSEN = "TWOPC_KAFKA" in os.environ
MARKS = [] if CHOSEN else [pytest.mark.whole]


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaService]:
    """A broker that verifies no transaction, unless another is chosen."""
    if chosen() != "local":
        pytest.skip("this test starts a broker of a chosen version")
    with LocalKafka(version=None if CHOSEN else "3.5.2") as broker:
        yield KafkaService(broker.bootstrap_servers)


def held_back(play: Play, topic: str, partitions: int) -> list[int]:
    """The partitions of a topic whose readers wait for a transaction to end."""
    admin = AdminClient({"bootstrap.servers": play.bootstrap_servers})
    ends, stable = (
        offsets(admin, topic, range(partitions), OffsetSpec.latest(), timeout_ms=10_000, committed=committed)
        for committed in (False, True)
    )
    return [partition for partition in ends if stable[partition] < ends[partition]]


class GivesUpFirst(Tasks):
    """The first attempt has one task, which ends while its records are on their way."""

    def __init__(self, play: Play, batch: int, end: Callable[[KafkaWriter], None]) -> None:
        super().__init__(play, rows_of(batch))
        self._play = play
        self._end = end

    def prepare(self, work: Work) -> list[TaskReport]:
        if self.prepared:
            return super().prepare(work)
        self.prepared += 1
        writer = writer_of(self._play, work, 0)
        writer.write_rows(record_batch(["never", "ever"]))
        self._end(writer)
        raise RetriableError("the task gave up")


@pytest.mark.parametrize("dies", [False, pytest.param(True, marks=MARKS)], ids=["it_aborts", "it_dies"])
def test_records_of_an_ended_task_that_arrive_late_are_refused(
    play: Play,
    proxy: KafkaProxy,
    monkeypatch: pytest.MonkeyPatch,
    dies: bool,  # noqa: FBT001
) -> None:
    """Either way the driver has to sweep its transaction, which bumps the epoch. Caught mutation: the abort purges records.

    Then Kafka 3.5 took them, hid all later ones of their partitions, and published them with the producer's next transaction.
    """
    monkeypatch.setattr(kafka_writer, "_ABORT_TIMEOUT_MS", 500)  # the abort cannot succeed
    driver = play.driver()
    process(driver, play, 0)
    held = proxy.on(Api.PRODUCE, transactional_id=of_tasks(play), times=float("inf")).hold()
    writers: list[KafkaWriter] = []

    def end(writer: KafkaWriter) -> None:
        held.wait()
        writers.append(writer) if dies else writer.close()
        held.disarm()

    driver.process(play.batch(1), GivesUpFirst(play, 1, end))
    held.release()
    assert {exchange.answer() for exchange in held.hits}.isdisjoint({NONE})
    for batch in (2, 3, 4):
        process(driver, play, batch)
    assert play.visible() == seen(5)
    assert until(lambda: play.open_transactions() == ())
    assert held_back(play, play.topic, 4) == []


@pytest.mark.parametrize("acquired", [pytest.param(False, marks=MARKS), pytest.param(True, marks=MARKS)])
def test_a_decision_that_arrives_after_its_driver_has_given_up_decides_nothing(
    play: Play,
    proxy: KafkaProxy,
    acquired: bool,  # noqa: FBT001
) -> None:
    """It arrives before its driver's successor has acquired the sink, or afterwards."""
    driver, successor = play.driver(), play.driver()
    process(driver, play, 0)
    held = proxy.on(Api.PRODUCE, transactional_id=of_driver(play), times=float("inf")).hold()
    with pytest.raises(TwoPhaseCommitError):
        process(driver, play, 1)
    held.disarm()
    if acquired:
        successor.recover(play.batch(1))
    held.release()
    for exchange in held.hits:
        exchange.wait()
    assert process(successor, play, 1) == (1, 0)
    process(successor, play, 2)
    assert [decision.batch_id for decision in play.decisions()] == [0, 1, 2]
    assert play.visible() == seen(3)
    assert held_back(play, play.sink.ledger, 9) == []
