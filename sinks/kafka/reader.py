"""Reads a partition under ``read_committed``, from an offset up to a record that is known to be there."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from sinks.kafka.errors import translate
from twopc.errors import ConfigurationError, RetriableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from confluent_kafka.admin import AdminClient, OffsetSpec


#: One request for offsets takes this part of the time at most: librdkafka waits for a dead leader even when there is a new
#: one.
_REQUESTS: Final = 8
_SHORTEST_REQUEST_S: Final = 1.0


class Row(NamedTuple):
    """A committed record."""

    offset: int
    key: bytes | None
    value: bytes


def offsets(  # noqa: PLR0913 - the parts of a ListOffsets request
    admin: AdminClient,
    topic: str,
    partitions: Iterable[int],
    spec: OffsetSpec,
    *,
    timeout_ms: float,
    committed: bool = False,
) -> dict[int, int]:
    """The earliest or latest offset of each partition; with ``committed``, latest is the last stable offset.

    Raises:
        TwoPhaseCommitError: the brokers did not respond, or refused.
    """
    wanted = {TopicPartition(topic, partition): spec for partition in partitions}
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    request_s = min(timeout_ms / 1000, max(_SHORTEST_REQUEST_S, timeout_ms / 1000 / _REQUESTS))

    def request() -> dict[int, int]:
        requested = admin.list_offsets(wanted, request_timeout=request_s, isolation_level=level)
        try:
            found = {where.partition: future.result().offset for where, future in requested.items()}
        except KafkaException as error:
            raise translate(error, f"requesting the offsets of {topic}") from error
        if min(found.values(), default=0) < 0:  # librdkafka reports no error when the broker did not respond
            raise RetriableError(f"requesting the offsets of {topic}: no answer within {timeout_ms:.0f} ms")
        return found

    def look_for_leaders(_: object) -> None:
        # By itself librdkafka does so only after NOT_LEADER_OR_FOLLOWER and LEADER_NOT_AVAILABLE. After silence or
        # FENCED_LEADER_EPOCH it keeps to the same broker (2.16; rd_kafka_ListOffsets_handle_result in rdkafka_admin.c).
        # All topics, because a request for one topic could create it.
        with contextlib.suppress(KafkaException):
            admin.list_topics(timeout=request_s)

    # A new topic has leaders in the metadata before they know it themselves (NOT_LEADER_FOR_PARTITION).
    retrying = Retrying(
        stop=stop_after_delay(timeout_ms / 1000),
        wait=wait_fixed(0.05),
        retry=retry_if_exception_type(RetriableError),
        before_sleep=look_for_leaders,
        reraise=True,
    )
    return retrying(request)


class CommittedReader:
    """One consumer without a group, assigned to one partition at a time."""

    def __init__(self, connection: Mapping[str, Any]) -> None:
        self._consumer = Consumer(
            {
                **connection,
                "group.id": "twopc",  # librdkafka requires one; nothing is ever committed under it
                "enable.auto.commit": "false",
                "auto.offset.reset": "error",  # a deleted record is not an absent one
                "isolation.level": "read_committed",
                "enable.partition.eof": "true",
                "fetch.wait.max.ms": "10",  # the records are there; do not wait for more
                "fetch.error.backoff.ms": "50",
            }
        )

    def read(  # noqa: PLR0913 - the parts of a fetch
        self,
        topic: str,
        partition: int,
        start: int,
        last: Callable[[Row], bool] | None,
        *,
        timeout_ms: float,
        end: int = 0,
    ) -> list[Row] | None:
        """Committed records from ``start`` on.

        Args:
            topic: the topic.
            partition: its partition.
            start: the first offset.
            last: whether to stop at a record, which is included; None stops at the last stable offset.
            timeout_ms: how long to wait for that record, or for ``end``.
            end: a last stable offset seen before: a broker that has less is behind, so reading continues. Only without
                ``last``.

        Returns:
            the records; None if time ran out, or if the record at ``start`` was deleted.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        rows: list[Row] = []
        self._consumer.assign([TopicPartition(topic, partition, start)])
        try:
            # Not a retry: poll() waits, and each call gives the next record.
            while (left := deadline - time.monotonic()) > 0:
                message = self._consumer.poll(min(left, 0.5))
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    row = Row(message.offset() or 0, message.key(), message.value() or b"")
                    rows.append(row)
                    if last is not None and last(row):
                        return rows
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - a public constant
                    if last is None and (message.offset() or 0) >= end:
                        return rows
                elif error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:  # noqa: SLF001
                    return None
                elif isinstance(translated := translate(error, f"reading {topic}"), ConfigurationError):
                    raise translated  # librdkafka retries everything else by itself
            return None
        finally:
            self._consumer.unassign()

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()
