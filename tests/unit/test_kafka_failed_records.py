"""The record that is to blame is named, although librdkafka reports it after others, or refuses others because of it (rule 2)."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.unit.test_kafka_writer import writer_of_three
from twopc.errors import BadRecordError, ConfigurationError, RetriableError
from twopc.sinks.kafka.client_log import ClientLog
from twopc.sinks.kafka.producer import ReadyProducer, _note, new_producer
from twopc.sinks.kafka.records import OneByOne

if TYPE_CHECKING:
    from collections.abc import Sequence

PURGED = KafkaError(KafkaError._PURGE_QUEUE)
BESIDE = KafkaError(KafkaError._INVALID_DIFFERENT_RECORD)
INVALID = KafkaError(KafkaError.INVALID_RECORD)
TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)


@pytest.fixture(autouse=True)
def _nobody_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error asks the brokers for a topic's limit; here there are none."""
    monkeypatch.setattr("twopc.sinks.kafka.topic_settings._REQUEST_S", 0.01)


def reporting(*reports: Sequence[tuple[str, KafkaError]], cause: KafkaError | None = None) -> ReadyProducer:
    """A producer that reports one of these groups of failed records each time it is asked."""
    left = list(reports)
    failures: dict[str, KafkaError] = {}

    def poll(_timeout: float) -> int:
        for topic, error in left.pop(0) if left else ():
            _note(failures, topic, error)
        return 0

    def produce(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._STATE))

    def begin_transaction() -> None:
        raise KafkaException(cause or KafkaError(KafkaError._STATE))

    producer: Any = SimpleNamespace(poll=poll, produce=produce, begin_transaction=begin_transaction)
    return ReadyProducer(producer, "s.1.w.0", 0, failures)


@pytest.mark.parametrize(
    "reports",
    [
        [[("out", PURGED), ("out", TOO_LARGE)]],
        [[("out", TOO_LARGE), ("out", PURGED)]],
        [[("ledger", PURGED)], [], [("out", TOO_LARGE)]],
        [[("out", PURGED)], [("out", TOO_LARGE)]],
        [[("out", BESIDE), ("out", INVALID)]],
    ],
    ids=["after it", "before it", "at a later look, another topic", "at a later look", "in the same request"],
)
def test_a_purged_record_does_not_hide_the_one_that_failed(
    reports: list[list[tuple[str, KafkaError]]],
) -> None:
    with pytest.raises(BadRecordError, match="writing to out") as caught:
        writer_of_three()._serve(reporting(*reports), 0)
    assert "Purged" not in str(caught.value) and "same batch" not in str(caught.value)


def serve(ready: ReadyProducer) -> None:
    """Behave like a writer that has begun its transaction with this producer."""
    writer = writer_of_three()
    writer._ready = ready
    writer._serve(ready, 0)


def test_purged_records_alone_prevent_the_vote() -> None:
    with pytest.raises(RetriableError, match="Purged in queue"):
        serve(reporting([("out", PURGED)]))


def test_the_transactions_own_error_is_reported_rather_than_the_purged_record() -> None:
    cause = KafkaError(KafkaError.INVALID_PRODUCER_ID_MAPPING, "the mapping", txn_requires_abort=True)
    with pytest.raises(RetriableError, match=r"the mapping.*transactional\.id\.expiration\.ms") as caught:
        serve(reporting([("out", PURGED)], cause=cause))
    assert "Purged" not in str(caught.value)


def test_an_error_caused_by_an_earlier_record_identifies_that_record() -> None:
    ready = reporting([], [], [("out", TOO_LARGE)])
    with pytest.raises(BadRecordError, match="writing to out"):
        writer_of_three()._enqueue_all(ready, OneByOne(ready.producer, [("other", b"v")]))


def test_a_record_refused_without_a_report_is_still_an_error() -> None:
    ready = reporting()
    with pytest.raises(RetriableError, match=r"writing to other: .*_STATE"):
        writer_of_three()._enqueue_all(ready, OneByOne(ready.producer, [("other", b"v")]))


def test_the_flush_ends_as_soon_as_a_record_has_failed() -> None:
    """Later records are not sent until the transaction ends, so waiting for them would take the whole time."""
    ready = reporting([], [("out", TOO_LARGE)])
    waited_s: list[float] = []
    ready.producer.flush = lambda timeout: waited_s.append(timeout) or 1  # type: ignore[method-assign, func-returns-value]
    with pytest.raises(BadRecordError, match="writing to out"):
        writer_of_three()._flush(ready)
    assert len(waited_s) == 2
    assert sum(waited_s) <= 1


@pytest.mark.parametrize(
    ("topic", "dated", "kind"),
    [
        ("out", False, ConfigurationError),
        ("out", True, BadRecordError),
        ("twopc-ledger-s", True, ConfigurationError),
    ],
    ids=["a row without a time", "a row with a time", "a marker"],
)
def test_this_hosts_clock_is_blamed_for_the_times_that_it_has_set(
    topic: str,
    dated: bool,  # noqa: FBT001
    kind: type[Exception],
) -> None:
    writer = writer_of_three()
    writer._dated = dated
    blamed = "the 'timestamp' column" if kind is BadRecordError else "This host's clock"
    with pytest.raises(kind, match=blamed):
        writer._serve(reporting([(topic, KafkaError(KafkaError.INVALID_TIMESTAMP))]), 0)


def test_a_rejected_time_is_recognized_if_the_broker_rejects_a_batch_of_several_records() -> None:
    """The error of each record is INVALID_RECORD, and only the transaction's error says why."""
    cause = KafkaError(KafkaError.INVALID_TIMESTAMP, "the time", txn_requires_abort=True)
    with pytest.raises(ConfigurationError, match=r"the time.*This host's clock"):
        serve(reporting([("out", INVALID)], cause=cause))


def test_a_rejected_record_keeps_its_own_error_if_the_transaction_failed_because_of_another() -> None:
    cause = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "another record", txn_requires_abort=True)
    with pytest.raises(BadRecordError, match="set a key if the topic is compacted"):
        serve(reporting([("out", INVALID)], cause=cause))


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [(INVALID, ConfigurationError, r"cleanup\.policy=delete"), (TOO_LARGE, RetriableError, "was probably lowered")],
)
def test_a_refused_marker_is_not_blamed_on_a_row(error: KafkaError, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said) as caught:
        serve(reporting([("twopc-ledger-s", error)]))
    assert caught.type is kind


def test_a_record_that_failed_before_it_had_a_partition_is_reported_as_a_failed_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seen when the brokers had forgotten the transactional id: an AssertionError hid the cause."""
    monkeypatch.setattr("twopc.sinks.kafka.producer.librdkafka.library", lambda: None)
    failures: dict[str, KafkaError] = {}
    config = {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": "50", "log_level": 0}
    producer, _ = new_producer({**config, "enable.idempotence": "false"}, failures, Counter(), ClientLog())
    OneByOne(producer, [("out", b"v")]).enqueue(0)
    assert producer.flush(30) == 0
    assert failures["out"].code() == KafkaError._MSG_TIMED_OUT
