"""A handle names every written partition, by the delivery report of each record (rule 3)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer

from twopc.attempt import Attempt, TaskAttempt
from twopc.errors import ConfigurationError, RetriableError
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.plain_writer import PlainWriter
from twopc.sinks.kafka.producer import ReadyProducer
from twopc.sinks.kafka.settings import KafkaSettings
from twopc.sinks.kafka.writer import KafkaWriter

LEDGER = "twopc-ledger-s"
MARKER_PARTITION = 2
TASK = TaskAttempt(query_id="a", batch_id=0, attempt=Attempt(1, 1), partition=1, driver_epoch=1, committed_through=-1)


def partitions_by_reports(delivered: dict[tuple[str, int], int]) -> tuple[str, ...]:
    """The partitions that a writer of three rows reports by the delivery reports of each of its records."""
    producer: Any = None
    ready = ReadyProducer(producer, "s.1.w.0", 0, {}, delivered=Counter(delivered))
    return writer_of_three()._written_to(ready, MARKER_PARTITION)


def writer_of_three(timeout_ms: int = 10_000) -> KafkaWriter:
    settings = KafkaSettings(name="s", bootstrap_servers="b:1", topic="out", timeout_ms=timeout_ms)
    writer = KafkaWriter(TASK, settings)
    writer._rows = 3
    return writer


@pytest.mark.parametrize(
    "delivered",
    [
        {},
        {("out", 0): 3},
        {("out", 0): 4},
        {("out", 0): 2, (LEDGER, MARKER_PARTITION): 1},
        {("out", 0): 3, (LEDGER, 1): 1},
    ],
    ids=["nothing", "no marker", "too many rows, no marker", "a row is missing", "another marker"],
)
def test_delivery_reports_for_only_a_part_of_the_transaction_prevent_the_vote(
    delivered: dict[tuple[str, int], int],
) -> None:
    with pytest.raises(RetriableError, match="fewer records than the 3"):
        partitions_by_reports(delivered)


def test_delivery_reports_supply_the_partitions_without_waiting() -> None:
    found = partitions_by_reports({("out", 1): 1, ("out", 0): 1, ("out", 7): 1, (LEDGER, MARKER_PARTITION): 1})
    assert found == ("out:0-1,7", f"{LEDGER}:{MARKER_PARTITION}")


@pytest.mark.parametrize("guarantee", ["exactly-once", "AT_MOST_ONCE", "", None])
def test_an_unknown_guarantee_is_refused(guarantee: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"guarantee must be one of EXACTLY_ONCE, AT_LEAST_ONCE, NONE"):
        KafkaSink(name="s", bootstrap_servers="b:1", guarantee=guarantee)


@pytest.mark.parametrize("timeout_ms", [0, -1, None, "30 s", True, float("nan"), float("inf")])
def test_an_invalid_time_is_rejected_with_an_error_that_identifies_it(timeout_ms: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"timeout_ms={timeout_ms!r}\): timeout_ms must be a positive number"):
        KafkaSink(name="s", bootstrap_servers="b:1", timeout_ms=timeout_ms)


def test_only_exactly_once_limits_the_time_of_a_batch_and_a_repair_always_uses_transactions() -> None:
    exact, weaker = (KafkaSink(name="s", bootstrap_servers="b:1", guarantee=name) for name in ("EXACTLY_ONCE", "NONE"))
    assert exact.prepare_timeout_ms is not None and weaker.prepare_timeout_ms is None
    assert weaker.transactions_expire  # an earlier run may have decided them
    assert "transaction.timeout.ms" not in weaker.plain_config()
    assert isinstance(weaker.create_writer(TASK), PlainWriter)
    assert type(weaker.create_writer(replace(TASK, is_repair=True))) is KafkaWriter
    assert type(exact.create_writer(TASK)) is KafkaWriter


MIB = 1 << 20


def large(**options: str) -> KafkaSink:
    return KafkaSink(name="s", bootstrap_servers="b:1", topic="t", options=options)


def test_a_record_of_any_permitted_size_fits_into_the_queue() -> None:
    """If a record is larger than the queue, librdkafka reports a full queue, and the task would wait for room forever."""
    config = large(**{"kafka.message.max.bytes": str(64 * MIB)}).producer_config()
    producer = Producer({**config, "transactional.id": "", "enable.idempotence": False, "log_level": 0})
    producer.produce("t", b"x" * (63 * MIB))
    assert len(producer) > 0
    producer.purge()
    assert large().producer_config()["queue.buffering.max.kbytes"] == "32768"


def test_a_queue_too_small_for_one_record_is_rejected() -> None:
    options = {"kafka.message.max.bytes": str(2 * MIB), "kafka.queue.buffering.max.kbytes": "2047"}
    with pytest.raises(ConfigurationError, match=r"kafka\.queue\.buffering\.max\.kbytes'=2047.*at least 2048"):
        large(**options)
    large(**{**options, "kafka.queue.buffering.max.kbytes": "2048"})


class Ledger:
    """A producer whose metadata shows the ledger with this many partitions."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    def list_topics(self, topic: str, timeout: float) -> Any:
        del timeout
        described = SimpleNamespace(partitions=dict.fromkeys(range(self._partitions)), error=None)
        return SimpleNamespace(topics={topic: described})


@pytest.mark.parametrize(("partitions", "kind"), [(0, ConfigurationError), (9, RetriableError)])
def test_only_a_ledger_that_is_still_missing_counts_as_deleted(partitions: int, kind: type[Exception]) -> None:
    """A broker that is starting may not know the ledger when the producer connects."""
    writer = writer_of_three()
    producer: Any = Ledger(partitions)
    writer._ready = ReadyProducer(producer, "s.1.w.0", 0, {}, markers=-1)
    with pytest.raises(kind, match="the ledger twopc-ledger-s"):
        writer.pre_commit()
