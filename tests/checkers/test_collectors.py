"""The collectors report everything on a real broker, including records that no reader can see."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.live.pipeline import Tasks, create_topic
from tests.live.rules.schedules import playing, until
from twopc.attempt import Attempt
from twopc.records import Decision, Repair, TaskReport
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.handle import KafkaHandle
from twopc.testing.checkers.aborted_reads import aborted_reads
from twopc.testing.checkers.history import Kind, Position, Producer, Row
from twopc.testing.checkers.log_dump import dump
from twopc.testing.checkers.open_transactions import left_open, states_of
from twopc.testing.checkers.stall import stalled
from twopc.testing.checkers.verdict import _holding, verdict
from twopc.testing.checkers.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.live.rules.schedules import Play
    from tests.live.services import KafkaService


@pytest.fixture
def topic(kafka: KafkaService) -> str:
    return create_topic(kafka.bootstrap_servers, f"watched-{uuid.uuid4().hex}", partitions=2)


@pytest.fixture
def play(kafka: KafkaService, tmp_path: Path) -> Iterator[Play]:
    with playing(kafka, tmp_path) as play:
        yield play


def producer_of(kafka: KafkaService, transactional_id: str) -> KafkaProducer:
    producer = KafkaProducer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": transactional_id, "log_level": 0}
    )
    producer.list_topics(timeout=10)
    producer.init_transactions(10)
    return producer


def write(producer: KafkaProducer, topic: str, value: str) -> None:
    producer.begin_transaction()
    for partition in (0, 1):
        producer.produce(topic, value, key="k", partition=partition, headers={"from": b"here"})
    assert producer.flush(10) == 0


def test_the_watcher_reads_committed_records_and_the_dump_contains_the_others_too(
    kafka: KafkaService, topic: str
) -> None:
    producer = producer_of(kafka, topic)
    with Watcher(kafka.bootstrap_servers, topic) as watcher:
        write(producer, topic, "committed")
        producer.commit_transaction(10)
        assert until(lambda: [row.value for row in watcher.catch_up()] == [b"committed"] * 2)
        write(producer, topic, "aborted")
        producer.abort_transaction(10)
        write(producer, topic, "open")
        observed = watcher.catch_up()
    assert {(row.position, row.key, row.headers) for row in observed} == {
        (Position(partition, 0), b"k", (("from", b"here"),)) for partition in (0, 1)
    }
    log = dump(kafka.bootstrap_servers, topic)
    of_first = [entry for entry in log if entry.position.partition == 0]
    assert [entry.kind for entry in of_first] == [Kind.ROW, Kind.COMMIT, Kind.ROW, Kind.ABORT, Kind.ROW]
    assert len({entry.producer for entry in log}) == 1
    assert isinstance(log[0].producer, Producer)
    assert log[0].producer.producer_id >= 0
    assert aborted_reads(observed, log, observed) == []
    assert [violation.what for violation in left_open(states_of(kafka.bootstrap_servers, topic))] == [
        f"{topic} is Ongoing"
    ]
    producer.abort_transaction(10)
    assert until(lambda: left_open(states_of(kafka.bootstrap_servers, topic)) == [])


def test_the_watcher_measures_how_long_readers_are_held_back(kafka: KafkaService, topic: str) -> None:
    producer = producer_of(kafka, topic)
    with Watcher(kafka.bootstrap_servers, topic) as watcher:
        write(producer, topic, "waiting")
        began = time.monotonic()
        assert until(lambda: stalled(watcher.stable_offsets, bound_s=0.5) != [])
        assert time.monotonic() - began >= 0.5
        producer.commit_transaction(10)
        watcher.catch_up()
        assert until(lambda: bool(watcher.stable_offsets) and watcher.stable_offsets[-1].stable == 2)


def test_a_watcher_that_missed_records_raises_an_error(kafka: KafkaService, topic: str) -> None:
    """Records deleted by retention before they were read are not an empty history."""
    producer = producer_of(kafka, topic)
    write(producer, topic, "gone")
    producer.commit_transaction(10)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for deleted in admin.delete_records([TopicPartition(topic, 0, 1)]).values():  # the commit marker may arrive later
        deleted.result()
    watcher = Watcher(kafka.bootstrap_servers, topic)
    with pytest.raises(AssertionError, match="lost records before they were read"), watcher:
        watcher.catch_up()


ROWS = {Position(0, number): Row(b"0:%d" % number, b"0:%d" % number) for number in range(4)}


def rows_of(batch: int) -> list[list[str]]:
    return [[f"0:{2 * batch}"], [f"0:{2 * batch + 1}"]]


def test_a_correct_run_has_no_violations(kafka: KafkaService, play: Play) -> None:
    with Watcher(kafka.bootstrap_servers, play.topic) as watcher:
        driver = play.driver()
        for batch in (0, 1):
            driver.process(play.batch(batch), Tasks(play, rows_of(batch)))
        play.forget_worker()
        assert verdict(play.sink, kafka.bootstrap_servers, watcher, ROWS, stall_bound_s=5) == []


def test_a_foreign_row_and_an_open_transaction_are_found_in_a_real_run(kafka: KafkaService, play: Play) -> None:
    """The collectors supply what the checkers need; comparing counts would find none of these."""
    with Watcher(kafka.bootstrap_servers, play.topic) as watcher:
        driver = play.driver()
        for batch in (0, 1):
            driver.process(play.batch(batch), Tasks(play, rows_of(batch)))
        stranger = producer_of(kafka, f"{play.name}.stranger")
        stranger.begin_transaction()
        stranger.produce(play.topic, "0:0", key="0:0")
        stranger.commit_transaction(10)
        orphan = producer_of(kafka, f"{play.name}.orphan")
        write(orphan, play.sink.ledger, "0:1")
        found = verdict(play.sink, kafka.bootstrap_servers, watcher, ROWS, stall_bound_s=5)
        assert {(violation.checker, violation.what) for violation in found} == {
            ("equality", "duplicated"),
            ("ledger", "these rows are visible, but no decision contains them"),
            ("open transactions", f"{play.name}.orphan is Ongoing"),
        }
        orphan.abort_transaction(10)


def test_a_repair_replaces_the_listed_transactions() -> None:
    sink = KafkaSink(name="s", bootstrap_servers="nowhere:1", topic="out")

    def task(number: int, uuid: str, *, is_repair: bool = False) -> TaskReport:
        handle = KafkaHandle(uuid, f"s.1.{uuid}.0", 7, number, 1, 3, ("out:0",))
        handles = {"s": sink.encode_handle(handle)}
        return TaskReport(partition=number, rows=3, checksum=0, handles=handles, is_repair=is_repair)

    decision = Decision(
        query_id="q",
        batch_id=0,
        attempt=Attempt(0, 1),
        offsets=(),
        tasks=(task(0, "a"), task(1, "b")),
        scan_start={},
    )
    repair = Repair(
        query_id="q",
        batch_id=0,
        attempt=Attempt(0, 2),
        tasks=(task(2, "c", is_repair=True),),
        replaces=(("other", 0), ("s", 1)),
    )
    assert [one.uuid for one in _holding(sink, [decision, repair])] == ["a", "c"]
