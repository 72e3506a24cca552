"""Read a partition with ``read_committed``, from an offset up to a record that must exist."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition

from twopc.errors import ConfigurationError, RetriableError, TwoPhaseCommitError, UnavailableError
from twopc.sinks.kafka.asking import ask, request_s
from twopc.sinks.kafka.errors import error_of, on_topic, translate, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

    from confluent_kafka.admin import AdminClient, OffsetSpec

    Requested = Mapping[TopicPartition, Any]  # one future per partition


class Row(NamedTuple):
    """A committed record."""

    offset: int
    key: bytes | None
    value: bytes


def request_offsets(  # noqa: PLR0913 - the parts of a ListOffsets request
    admin: AdminClient,
    topic: str,
    partitions: Iterable[int],
    spec: OffsetSpec,
    *,
    timeout_ms: float,
    committed: bool = False,
) -> Requested:
    """Request each partition's earliest or latest offset.

    With ``committed``, the latest offset is the last stable offset.
    """
    wanted = {TopicPartition(topic, partition): spec for partition in partitions}
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    return admin.list_offsets(wanted, request_timeout=request_s(timeout_ms), isolation_level=level)


def answered(requested: Requested, topic: str, *, timeout_ms: float) -> dict[int, int]:
    """Wait for the requested offsets, and return them.

    Raises:
        RetriableError, ConfigurationError: see :func:`translate`.
    """
    with translated(f"requesting the offsets of {topic}", _translate, right=on_topic("Describe", topic)):
        found = {where.partition: future.result().offset for where, future in requested.items()}
    if min(found.values(), default=0) < 0:  # librdkafka reports no error if the broker does not respond
        raise UnavailableError(f"requesting the offsets of {topic}: no response within {timeout_ms:.0f} ms")
    return found


def _translate(error: KafkaException | SystemError, doing: str, right: str) -> TwoPhaseCommitError:
    """Like :func:`translate`, but for a topic that exists. A partition's leader may not know the topic yet."""
    if error_of(error).code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return RetriableError(
            f"{doing}: a broker does not know the topic ({error_of(error).name()}). The topic was created moments ago, or "
            "it was deleted while the query was running. Restart the query"
        )
    return translate(error, doing, right)


def offsets(  # noqa: PLR0913 - the parts of a ListOffsets request
    admin: AdminClient,
    topic: str,
    partitions: Iterable[int],
    spec: OffsetSpec,
    *,
    timeout_ms: float,
    committed: bool = False,
) -> dict[int, int]:
    """Repeat :func:`request_offsets` until a response arrives."""

    def request() -> dict[int, int]:
        requested = request_offsets(admin, topic, partitions, spec, timeout_ms=timeout_ms, committed=committed)
        return answered(requested, topic, timeout_ms=timeout_ms)

    # The metadata lists a new topic's leaders before those brokers learn of it (NOT_LEADER_FOR_PARTITION, or
    # UNKNOWN_TOPIC_OR_PART).
    return ask(admin, request, timeout_ms=timeout_ms)


#: With these options, a consumer without a group reads existing committed records.
COMMITTED: Final = {
    "group.id": "twopc",  # librdkafka requires a group, but no offsets are committed for it
    "enable.auto.commit": "false",
    "auto.offset.reset": "error",  # a deleted record must not be treated as one that never existed
    "isolation.level": "read_committed",
    "enable.partition.eof": "true",
    "fetch.wait.max.ms": "10",  # do not wait for more records
}


class CommittedReader:
    """Reads one partition at a time, with a consumer that has no group."""

    def __init__(self, connection: Mapping[str, Any]) -> None:
        self._consumer = Consumer({**connection, **COMMITTED, "fetch.error.backoff.ms": "50"})
        self._walk: object = None
        self._is_connected = False

    def rows(  # noqa: PLR0913 - the parts of a fetch
        self,
        topic: str,
        partition: int,
        start: int,
        last: Callable[[Row], bool] | None,
        *,
        timeout_ms: float,
        end: int = 0,
    ) -> Generator[Row]:
        """Yield committed records, starting at ``start``, as they arrive.

        Args:
            topic: the topic.
            partition: the partition.
            start: the first offset.
            last: returns whether to stop after a record. If None, reading stops at the last stable offset.
            timeout_ms: how long to wait for the next record, or for ``end``.
            end: a last stable offset that a broker has reported before, for calls without ``last``. If a broker reports a
                lower offset, that broker lags, so reading continues.

        Raises:
            RetriableError: time ran out, or the record at ``start`` was deleted. The records yielded so far are incomplete.
            ConfigurationError: a permission is missing.
        """
        self._walk = walk = object()
        deadline = time.monotonic() + timeout_ms / 1000
        self._connect(topic, timeout_ms)
        self._consumer.assign([TopicPartition(topic, partition, start)])
        try:
            # This loop is not a retry: poll() waits, and each call returns the next record.
            while (left := deadline - time.monotonic()) > 0:
                message = self._consumer.poll(min(left, 0.5))
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    row = Row(message.offset() or 0, message.key(), message.value() or b"")
                    yield row
                    if last is not None and last(row):
                        return
                    deadline = time.monotonic() + timeout_ms / 1000
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - a public constant
                    if last is None and (message.offset() or 0) >= end:
                        return
                elif error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:  # noqa: SLF001
                    raise RetriableError(f"{topic}/{partition}: the record at offset {start} was deleted")
                elif lasting := _lasting(error, topic):
                    raise lasting
            until = "its end" if last is None else "the expected record"
            raise UnavailableError(
                f"{topic}/{partition} could not be read up to {until}: no record arrived for {timeout_ms:.0f} ms. "
                "Either a broker does not respond, or an open transaction hides the records"
            )
        finally:
            if self._walk is walk:  # an abandoned read may end after the next read has begun
                self._consumer.unassign()

    def _connect(self, topic: str, timeout_ms: float) -> None:
        """Send a request immediately.

        Without this request, a new consumer that has been idle looks for a broker only once a second.

        A query's consumer is idle from the query's start to its first batch (``tests/live/test_kafka_reader.py``).
        Every read sends this request, until a broker has responded once. The request may take only part of the timeout,
        because the read needs the rest.
        """
        if not self._is_connected:
            with contextlib.suppress(KafkaException):  # the next request fails in the same way, with a better message
                self._consumer.list_topics(topic, timeout=request_s(timeout_ms))
                self._is_connected = True

    def close(self) -> None:
        """Close the consumer."""
        self._walk = None  # an abandoned read may end later
        self._consumer.close()


def _lasting(error: KafkaError, topic: str) -> ConfigurationError | None:
    """Translate an error that stops a reader.

    Return None if librdkafka retries, or if the error concerns a consumer group.
    """
    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return None
    found = translate(error, f"reading {topic}", on_topic("Read", topic))
    return found if isinstance(found, ConfigurationError) else None
