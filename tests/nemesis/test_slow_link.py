"""A link, or a quota, that lets a batch take longer than a step may wait, while acknowledgements keep arriving."""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from tests.live.pipeline import create_topic
from tests.live.services import KafkaService
from tests.live.ways import BOTH, Way
from tests.nemesis.proxy import KafkaProxy
from tests.reader import records
from twopc.errors import CheckpointExpiredError
from twopc.sinks.kafka.driver_producer import DriverProducer
from twopc.sinks.kafka.plain_writer import release

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twopc.sinks.kafka.writer import KafkaWriter

SILENCE_MS = 1_000
BYTES_PER_S = 200_000
#: A request of this size takes a tenth of a second. All requests together take twice as long as a step may wait.
REQUEST_BYTES = 20_000
COUNT = 20


@pytest.fixture(scope="module")
def slow(kafka: KafkaService) -> Iterator[KafkaService]:
    quiet = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0, "transactional.id": "slow-link"}
    Producer(quiet).init_transactions(30)  # a new broker loads its coordinator for longer than a step may take here
    with KafkaProxy(kafka.bootstrap_servers, bytes_per_s=BYTES_PER_S) as proxy:
        yield KafkaService(proxy.bootstrap_servers)


def rows() -> pa.RecordBatch:
    values = [os.urandom(REQUEST_BYTES) for _ in range(COUNT)]
    return pa.record_batch({"key": pa.array([b"k"] * COUNT, pa.binary()), "value": pa.array(values, pa.binary())})


def way(slow: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool, **sink: Any) -> Way:
    options = {"kafka.batch.size": str(REQUEST_BYTES), **sink.pop("options", {})}
    return Way(slow, monkeypatch, native=native, timeout_ms=SILENCE_MS, options=options, **sink)


@BOTH
def test_a_batch_is_written_as_long_as_acknowledgements_keep_arriving(
    slow: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    """Caught mutation: the flush has one deadline, however much was acknowledged meanwhile."""
    ours, given = way(slow, monkeypatch, native=native), rows()
    ours.write([given])
    found = Counter(message.value() for message in records(slow.bootstrap_servers, ours.topics[0]))
    assert found == Counter(given.column("value").to_pylist())


@BOTH
def test_a_batch_that_outlives_its_transaction_fails_with_an_error_that_gives_the_reason(
    slow: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    """Caught mutation: acknowledgements renew the time forever."""
    ours = way(slow, monkeypatch, native=native, options={"kafka.transaction.timeout.ms": "2000"})
    kind, text = ours.error([rows()])
    assert kind is CheckpointExpiredError
    assert "the transaction timeout of 2000 ms" in text


@BOTH
@pytest.mark.parametrize("guarantee", ["EXACTLY_ONCE", "AT_LEAST_ONCE"])
@pytest.mark.parametrize("queue", ["100000", "4"], ids=["flush", "full queue"])
def test_a_writer_whose_vote_would_come_too_late_gives_up(
    slow: KafkaService, monkeypatch: pytest.MonkeyPatch, queue: str, guarantee: str, *, native: bool
) -> None:
    """Caught mutations: only the transaction's life ends the flush; nothing ends the wait for the queue."""
    options = {"kafka.queue.buffering.max.messages": queue}
    ours = way(slow, monkeypatch, native=native, options=options, guarantee=guarantee)
    writer = ours.writer(ends_at=time.monotonic() + 1)  # writing all rows takes twice as long
    with pytest.raises(CheckpointExpiredError, match="when the batch's time ran out"):
        write_and_vote(writer)
    writer.abort()


def write_and_vote(writer: KafkaWriter) -> None:
    writer.write(rows())
    writer.pre_commit()


@BOTH
def test_a_query_that_waits_for_no_acknowledgement_still_sends_everything_when_it_ends(
    slow: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    ours, given = way(slow, monkeypatch, native=native, guarantee="NONE"), rows()
    writer = ours.writer()
    writer.write_rows(given)
    writer.snapshot_state(0)
    writer.hand_over()
    writer.close()
    assert release(ours.sink) == []
    assert len(records(slow.bootstrap_servers, ours.topics[0])) == COUNT


def test_a_decision_with_many_parts_is_written_as_long_as_acknowledgements_keep_arriving(
    slow: KafkaService, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = way(slow, monkeypatch, native=False)
    ledger = create_topic(slow.bootstrap_servers, f"ledger-{uuid.uuid4().hex[:10]}", 2)
    object.__setattr__(ours.sink, "ledger_topic", ledger)
    driver = DriverProducer(ours.sink, {})
    parts = [(0, os.urandom(REQUEST_BYTES)) for _ in range(COUNT)]
    first, last = driver.write(parts, point=None)
    assert last - first == COUNT - 1
