"""A handle names every written partition, though librdkafka reports its statistics late and in pieces (rule 3)."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sinks.kafka import KafkaSink
from sinks.kafka.plain_writer import PlainWriter
from sinks.kafka.producer import ReadyProducer
from sinks.kafka.settings import KafkaSettings
from sinks.kafka.writer import KafkaWriter
from twopc.attempt import Attempt, TaskAttempt
from twopc.errors import ConfigurationError, RetriableError

LEDGER = "twopc-ledger-s"
MARKER_PARTITION = 2
TASK = TaskAttempt(query_id="a", batch_id=0, attempt=Attempt(1, 1), partition=1, driver_epoch=1, committed_through=-1)
WHOLE = {"out": {0: 2, 1: 1}, LEDGER: {MARKER_PARTITION: 1}}


def statistics(sent: dict[str, dict[int, int]], queued: int = 0) -> str:
    topics = {
        topic: {"partitions": {str(number): {"txmsgs": count} for number, count in counts.items()}}
        for topic, counts in sent.items()
    }
    return json.dumps({"msg_cnt": queued, "topics": topics})


class Reporting:
    """A producer that reports one of its statistics per poll."""

    def __init__(self, *reports: str) -> None:
        self._reports = list(reports)
        self.received: list[str] = []

    def poll(self, _timeout_s: float) -> int:
        if self._reports:
            self.received[:] = [self._reports.pop(0)]
        return 0


def partitions_by_reports(delivered: dict[tuple[str, int], int]) -> tuple[str, ...]:
    """The partitions that a writer of three rows reports by the delivery reports of each of its records."""
    producer: Any = SimpleNamespace(delivered=delivered)
    ready = ReadyProducer(producer, "s.1.w.0", 0, {}, native=producer)
    return writer_of_three()._written_to(ready, MARKER_PARTITION)


def writer_of_three(timeout_ms: int = 10_000) -> KafkaWriter:
    settings = KafkaSettings(name="s", bootstrap_servers="b:1", topic="out", timeout_ms=timeout_ms)
    writer = KafkaWriter(TASK, settings)
    writer._rows = 3
    return writer


def partitions_of(*reports: str, timeout_ms: int = 10_000) -> tuple[str, ...]:
    """The partitions that a writer of three rows reports."""
    producer: Any = Reporting(*reports)
    ready = ReadyProducer(producer, "s.1.w.0", 0, {}, _statistics=producer.received)
    return writer_of_three(timeout_ms)._written_to(ready, MARKER_PARTITION)


@pytest.mark.parametrize(
    "early",
    [
        {},
        {"out": {0: 2}},
        {"out": {0: 2}, LEDGER: {MARKER_PARTITION: 1}},
        {"out": {0: 4}, LEDGER: {MARKER_PARTITION: 1}},
        {"out": {0: 4, 1: 0}, LEDGER: {MARKER_PARTITION: 1}},
        {"out": {0: 4}},
    ],
    ids=["nothing", "some rows", "a row is missing", "sent twice", "sent twice, one not yet", "no marker"],
)
def test_statistics_that_do_not_cover_the_transaction_are_not_used(early: dict[str, dict[int, int]]) -> None:
    found = partitions_of(statistics(early, queued=1), statistics(WHOLE))
    assert found == ("out:0-1", f"{LEDGER}:{MARKER_PARTITION}")


def test_the_writer_waits_for_its_marker_to_be_transmitted() -> None:
    """Rows that were sent twice make up the number."""
    found = partitions_of(statistics({"out": {0: 4, 1: 1}}), statistics(WHOLE))
    assert found == ("out:0-1", f"{LEDGER}:{MARKER_PARTITION}")


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
def test_delivery_reports_that_do_not_cover_the_transaction_prevent_the_vote(
    delivered: dict[tuple[str, int], int],
) -> None:
    with pytest.raises(RetriableError, match="fewer records than the 3"):
        partitions_by_reports(delivered)


def test_delivery_reports_name_the_partitions_without_waiting() -> None:
    found = partitions_by_reports({("out", 1): 1, ("out", 0): 1, ("out", 7): 1, (LEDGER, MARKER_PARTITION): 1})
    assert found == ("out:0-1,7", f"{LEDGER}:{MARKER_PARTITION}")


def test_statistics_that_never_cover_the_transaction_prevent_the_vote() -> None:
    with pytest.raises(RetriableError, match="fewer records than the 3"):
        partitions_of(statistics({"out": {0: 2}, LEDGER: {MARKER_PARTITION: 1}}), timeout_ms=20)


@pytest.mark.parametrize("guarantee", ["exactly-once", "AT_MOST_ONCE", "", None])
def test_an_unknown_guarantee_is_refused(guarantee: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"give one of EXACTLY_ONCE, AT_LEAST_ONCE, NONE"):
        KafkaSink(name="s", bootstrap_servers="b:1", guarantee=guarantee)


@pytest.mark.parametrize("timeout_ms", [0, -1, None, "30 s", True, float("nan"), float("inf")])
def test_what_is_no_time_is_refused_by_name(timeout_ms: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"timeout_ms={timeout_ms!r}\) is no time"):
        KafkaSink(name="s", bootstrap_servers="b:1", timeout_ms=timeout_ms)


def test_only_transactions_limit_a_batch_and_a_repair_has_one_whatever_the_guarantee() -> None:
    exact, weaker = (KafkaSink(name="s", bootstrap_servers="b:1", guarantee=name) for name in ("EXACTLY_ONCE", "NONE"))
    assert exact.prepare_timeout_ms is not None and weaker.prepare_timeout_ms is None
    assert "transaction.timeout.ms" not in weaker.plain_config()
    assert isinstance(weaker.create_writer(TASK), PlainWriter)
    assert type(weaker.create_writer(replace(TASK, is_repair=True))) is KafkaWriter
    assert type(exact.create_writer(TASK)) is KafkaWriter
