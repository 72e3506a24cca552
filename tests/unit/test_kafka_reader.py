"""A read succeeds only if it reached the record that it was looking for (rule 4)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from twopc.errors import ConfigurationError, RetriableError
from twopc.sinks.kafka import reader as kafka_reader
from twopc.sinks.kafka.reader import CommittedReader, Row, offsets

if TYPE_CHECKING:
    from collections.abc import Iterator

ROW = Row(3, b"k", b"v")
BARRIER = Row(5, None, b"barrier")
END = KafkaError._PARTITION_EOF
DELETED = KafkaError._AUTO_OFFSET_RESET
TIMEOUT_MS = 30


class Consumer:
    """Returns these messages one after another, then nothing."""

    messages: tuple[Row | int, ...] = ()
    config: dict[str, Any]
    at = 3

    def __init__(self, config: dict[str, Any]) -> None:
        type(self).config = config
        self._left = list(self.messages)

    def list_topics(self, _topic: str, timeout: float) -> None:
        del timeout
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def assign(self, _: object) -> None: ...

    def unassign(self) -> None: ...

    def poll(self, _timeout_s: float) -> Any:
        if not self._left:
            return None
        given = self._left.pop(0)
        if isinstance(given, int):
            return SimpleNamespace(error=lambda: KafkaError(given), offset=lambda: self.at)
        self.at = given.offset + 1
        return SimpleNamespace(
            error=lambda: None, offset=lambda: given.offset, key=lambda: given.key, value=lambda: given.value
        )


@pytest.fixture(autouse=True)
def _fake_consumer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kafka_reader, "Consumer", Consumer)
    yield
    Consumer.messages = ()


def read(*messages: Row | int, up_to: Row | None = BARRIER, end: int = 0) -> list[Row]:
    Consumer.messages = messages
    last = None if up_to is None else (lambda row: row == up_to)
    return list(CommittedReader({}).rows("t", 1, 3, last, timeout_ms=TIMEOUT_MS, end=end))


def test_a_reader_requests_its_topics_metadata_once_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, a consumer that was idle waits for its timer (`tests/live/test_kafka_reader.py`, where not all of them do)."""
    calls: list[str] = []
    monkeypatch.setattr(Consumer, "list_topics", lambda *_, **_timeout: calls.append("list_topics"))
    monkeypatch.setattr(Consumer, "assign", lambda *_: calls.append("assign"))
    Consumer.messages = (BARRIER, BARRIER)
    reader = CommittedReader({})
    for _ in range(2):
        assert list(reader.rows("t", 1, 3, lambda row: row == BARRIER, timeout_ms=TIMEOUT_MS)) == [BARRIER]
    assert calls == ["list_topics", "assign", "assign"]


def test_a_reader_whose_first_request_fails_asks_again_and_leaves_time_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def silent(_: Consumer, _topic: str, timeout: float) -> None:
        asked.append(timeout)
        if len(asked) == 1:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    monkeypatch.setattr(Consumer, "list_topics", silent)
    Consumer.messages = (BARRIER, BARRIER, BARRIER)
    reader = CommittedReader({})
    for _ in range(3):
        assert list(reader.rows("t", 1, 3, lambda row: row == BARRIER, timeout_ms=16_000)) == [BARRIER]
    assert asked == [2.0, 2.0]


def test_a_reader_reads_committed_records_and_never_skips_deleted_ones() -> None:
    read(BARRIER)
    assert Consumer.config["isolation.level"] == "read_committed"
    assert Consumer.config["auto.offset.reset"] == "error"


def test_a_read_ends_with_the_requested_record_and_not_before() -> None:
    assert read(ROW, END, BARRIER, ROW) == [ROW, BARRIER]


def test_a_read_without_a_requested_record_ends_at_the_end_of_the_partition() -> None:
    assert read(ROW, END, BARRIER, up_to=None) == [ROW]


def test_an_end_offset_below_the_known_one_is_attributed_to_a_lagging_broker() -> None:
    assert read(ROW, END, BARRIER, END, up_to=None, end=6) == [ROW, BARRIER]
    with pytest.raises(RetriableError, match="up to its end"):
        read(ROW, END, up_to=None, end=6)


@pytest.mark.parametrize("messages", [(), (ROW,), (ROW, END)], ids=["silence", "a part", "the end"])
def test_an_incomplete_read_raises_an_error(messages: tuple[Row | int, ...]) -> None:
    with pytest.raises(RetriableError, match="up to the expected record"):
        read(*messages)


@pytest.mark.parametrize("gone", [DELETED, KafkaError.OFFSET_OUT_OF_RANGE])
@pytest.mark.parametrize("up_to", [BARRIER, None])
def test_a_deleted_start_is_not_an_empty_partition(gone: int, up_to: Row | None) -> None:
    with pytest.raises(RetriableError, match="the record at offset 3 was deleted"):
        read(gone, BARRIER, END, up_to=up_to)


def test_a_transient_error_is_ignored_and_a_permanent_one_raised() -> None:
    assert read(KafkaError._ALL_BROKERS_DOWN, BARRIER) == [BARRIER]
    with pytest.raises(ConfigurationError):
        read(KafkaError.TOPIC_AUTHORIZATION_FAILED, BARRIER)


def test_an_unanswered_request_for_offsets_raises() -> None:
    """The client then returns the offset -1001, without an error."""

    def list_offsets(wanted: dict[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Any]:
        answer = SimpleNamespace(result=lambda: SimpleNamespace(offset=-1001))
        return dict.fromkeys(wanted, answer)

    admin: Any = SimpleNamespace(list_offsets=list_offsets, list_topics=lambda **_: None)
    with pytest.raises(RetriableError, match="no response"):
        offsets(admin, "t", [1], OffsetSpec.earliest(), timeout_ms=TIMEOUT_MS)
