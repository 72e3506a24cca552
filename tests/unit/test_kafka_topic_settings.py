"""What a task does while the settings of a topic cannot be read. A real broker: ``tests/live/test_kafka_batches.py``."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.unit.test_kafka_writer import TASK
from twopc.errors import ConfigurationError, RetriableError
from twopc.sinks.kafka import KafkaSink, batch_size, old_rows, topic_settings
from twopc.sinks.kafka.batch_size import BatchSize
from twopc.sinks.kafka.writer import KafkaWriter

if TYPE_CHECKING:
    from collections.abc import Collection

SINK = KafkaSink(name="s", bootstrap_servers="b:1", timeout_ms=1000)
TIMEOUT = KafkaError(KafkaError._TIMED_OUT)
REFUSED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
ABSENT = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
WIDE = {"max.message.bytes": "2000000", "cleanup.policy": "delete"}
SHORT = {**WIDE, "message.timestamp.type": "CreateTime", "retention.ms": "86400000"}
_DAY_MS = 86_400_000


class Brokers:
    """Answers questions about topics, and counts the clients that ask."""

    def __init__(self) -> None:
        self.answer: KafkaError | dict[str, str] = TIMEOUT
        self.clients = 0
        self.now = 1000.0

    def connect(self, _config: object, **_: object) -> Any:
        self.clients += 1
        return SimpleNamespace(describe_configs=self._describe)

    def _describe(self, wanted: Collection[Any], **_: object) -> dict[Any, Any]:
        return {one: SimpleNamespace(result=self._result) for one in wanted}

    def _result(self) -> Any:
        if isinstance(self.answer, KafkaError):
            raise KafkaException(self.answer)
        return {name: SimpleNamespace(value=value) for name, value in self.answer.items()}


@pytest.fixture(autouse=True)
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers()
    monkeypatch.setattr(topic_settings, "AdminClient", made.connect)
    monkeypatch.setattr(topic_settings, "time", SimpleNamespace(monotonic=lambda: made.now))
    monkeypatch.setattr(batch_size, "_known", {})
    for name in ("_known", "_pauses"):
        monkeypatch.setattr(old_rows, name, {})
    for name in ("_warned", "_warned_unread"):
        monkeypatch.setattr(old_rows, name, set())
    return made


def learn_often(size: BatchSize) -> int:
    for _ in range(3):
        size.learn(["t"])
    return size.bytes


def test_a_failed_question_is_asked_again_later_and_makes_batches_small_only_until_then(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen: after one timeout, a process sent small batches for the whole run, and said nothing."""
    size = BatchSize(SINK)
    assert (learn_often(size), brokers.clients) == (16_384, 1)
    brokers.now += topic_settings._AFTER_FAILURE_S
    assert (learn_often(size), brokers.clients) == (16_384, 2)
    brokers.now += topic_settings._AFTER_FAILURE_S
    brokers.answer = WIDE
    assert (learn_often(size), brokers.clients) == (1_000_000, 3)
    [warning] = caplog.messages
    assert "sink 's': the settings of the topic t could not be read (" in warning
    assert "_TIMED_OUT" in warning and "at most 16384 bytes" in warning


def test_a_missing_permission_makes_batches_small_for_the_whole_run_and_is_no_failure(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    brokers.answer = REFUSED
    size = BatchSize(SINK)
    for _ in range(3):
        brokers.now += 3600
        assert (learn_often(size), brokers.clients) == (16_384, 1)
    assert caplog.messages == []


def test_a_topic_that_does_not_exist_yet_costs_one_question_within_a_pause(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen: each Arrow batch created a client, for as long as the topic did not exist."""
    brokers.answer = ABSENT
    size = BatchSize(SINK)
    assert (learn_often(size), brokers.clients) == (1_000_000, 1)
    brokers.now += topic_settings._AFTER_ABSENCE_S
    brokers.answer = {"max.message.bytes": "65536"}
    assert (learn_often(size), brokers.clients) == (65_536, 2)
    assert caplog.messages == []


def test_a_batch_that_is_refused_while_the_limit_cannot_be_read_fails_only_the_attempt(brokers: Brokers) -> None:
    """The next attempt may be able to read the limit."""
    too_large = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
    found = BatchSize(SINK).refusal(too_large, "t", 1_000_000, 100, "writing")
    assert type(found) is RetriableError
    assert "its limit could not be read (" in str(found) and "_TIMED_OUT" in str(found)
    brokers.answer = REFUSED
    assert type(BatchSize(SINK).refusal(too_large, "t", 1_000_000, 100, "writing")) is ConfigurationError


@pytest.mark.parametrize(
    ("sink", "sent_bytes"),
    [(SINK, 16_384), (KafkaSink(name="s", bootstrap_servers="b:1", options={"kafka.batch.size": 65_536}), 65_536)],
    ids=["smallest batches", "the user's batch size"],
)
def test_a_refused_batch_fails_the_query_if_no_smaller_batch_would_follow(sink: KafkaSink, sent_bytes: int) -> None:
    """Seen: brokers that can never answer the question made Spark repeat the same attempt forever."""
    too_large = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
    found = BatchSize(sink).refusal(too_large, "t", sent_bytes, 100, "writing")
    assert type(found) is ConfigurationError
    assert "cannot read its limit (" in str(found) and "_TIMED_OUT" in str(found)
    assert "Set kafka.batch.size" in str(found) and "DescribeConfigs" not in str(found)


def test_another_thread_that_asks_for_no_limits_finds_them(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a thread does not wait for the lock."""
    brokers.answer = {"max.message.bytes": "65536"}
    size, seen = BatchSize(SINK), []
    really = size._pauses.note

    def note(topic: str, answer: object) -> None:
        seen.append(size.bytes)
        really(topic, answer)

    monkeypatch.setattr(size._pauses, "note", note)
    size.learn(["t"])
    assert seen == [65_536]


def test_a_task_sends_large_batches_again_once_the_limit_is_read(brokers: Brokers) -> None:
    """Each piece waits for the broker, so a long task would be slow to its end."""
    writer, rows = KafkaWriter(TASK, SINK), pa.record_batch({"topic": ["t"]})
    writer._sent_bytes = writer._producer_bytes = 1_000_000
    writer._rows = 1
    writer._fit_batches(rows)
    assert (writer._in_pieces, writer._sent_bytes) == (True, 16_384)
    brokers.now += topic_settings._AFTER_FAILURE_S
    brokers.answer = WIDE
    writer._fit_batches(rows)
    assert (writer._in_pieces, writer._sent_bytes) == (False, 1_000_000)


def warnings_of_old_rows(caplog: pytest.LogCaptureFixture, topics: Collection[str] = ("t",)) -> list[str]:
    caplog.clear()
    rows = pa.record_batch({"timestamp": pa.array([int(time.time() * 1000) - 2 * _DAY_MS], pa.int64())})
    for _ in range(3):
        old_rows.warn_of_old_rows(SINK, rows, topics)
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    return caplog.messages


@pytest.mark.parametrize(
    ("error", "remedy"),
    [(TIMEOUT, "Check the brokers"), (REFUSED, "Allow DescribeConfigs on the topic t")],
    ids=["a failure", "a missing permission"],
)
def test_old_rows_of_a_topic_whose_retention_cannot_be_read_cause_one_warning(
    error: KafkaError, remedy: str, brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen: nothing warned of such rows. Later, each of a hundred topics caused a warning."""
    brokers.answer = error
    [warning] = warnings_of_old_rows(caplog, ["t", "u"])
    assert "2.0 days old, but the sink could not read how long the topic t keeps records (" in warning
    assert error.name() in warning and remedy in warning
    brokers.now += topic_settings._AFTER_FAILURE_S
    assert warnings_of_old_rows(caplog, ["t", "u"]) == []
    assert brokers.clients == (1 if error is REFUSED else 2)


@pytest.mark.parametrize("error", [TIMEOUT, ABSENT], ids=["a failure", "no topic"])
def test_the_retention_is_read_later_if_it_could_not_be_read_at_once(
    error: KafkaError, brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    brokers.answer = error
    assert len(warnings_of_old_rows(caplog)) == (error is TIMEOUT)
    assert brokers.clients == 1
    brokers.now += topic_settings._AFTER_FAILURE_S
    brokers.answer = SHORT
    [warning] = warnings_of_old_rows(caplog)
    assert "the topic t keeps records for only 1.0 days" in warning
    assert brokers.clients == 2
