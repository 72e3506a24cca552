"""Reading a partition under ``read_committed``, from an offset up to a record that is known to be there."""

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


#: One question for offsets takes this part of the time there is for them: librdkafka waits for a leader that died, and
#: goes on waiting when there is another.
_QUESTIONS: Final = 8
_SHORTEST_QUESTION_S: Final = 1.0


class Row(NamedTuple):
    """A committed record."""

    offset: int
    key: bytes | None
    value: bytes


def offsets(  # noqa: PLR0913 - what a ListOffsets request says
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
        TwoPhaseCommitError: the brokers did not answer, or refused.
    """
    wanted = {TopicPartition(topic, partition): spec for partition in partitions}
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    question_s = min(timeout_ms / 1000, max(_SHORTEST_QUESTION_S, timeout_ms / 1000 / _QUESTIONS))

    def ask() -> dict[int, int]:
        asked = admin.list_offsets(wanted, request_timeout=question_s, isolation_level=level)
        try:
            found = {where.partition: future.result().offset for where, future in asked.items()}
        except KafkaException as error:
            raise translate(error, f"asking for the offsets of {topic}") from error
        if min(found.values(), default=0) < 0:  # so librdkafka answers, without an error, what the broker did not
            raise RetriableError(f"asking for the offsets of {topic}: no answer within {timeout_ms:.0f} ms")
        return found

    def look_for_leaders(_: object) -> None:
        # librdkafka does so by itself only after NOT_LEADER_OR_FOLLOWER and LEADER_NOT_AVAILABLE; after silence or
        # FENCED_LEADER_EPOCH it asks the same broker for ever (2.16; rd_kafka_ListOffsets_handle_result in rdkafka_admin.c).
        # All topics: to ask for one could create it.
        with contextlib.suppress(KafkaException):
            admin.list_topics(timeout=question_s)

    # A topic that was just created has leaders in the metadata before they know it (NOT_LEADER_FOR_PARTITION).
    again = Retrying(
        stop=stop_after_delay(timeout_ms / 1000),
        wait=wait_fixed(0.05),
        retry=retry_if_exception_type(RetriableError),
        before_sleep=look_for_leaders,
        reraise=True,
    )
    return again(ask)


class CommittedReader:
    """One consumer without a group, assigned to one partition at a time."""

    def __init__(self, connection: Mapping[str, Any]) -> None:
        self._consumer = Consumer(
            {
                **connection,
                "group.id": "twopc",  # librdkafka wants one; nothing is ever committed under it
                "enable.auto.commit": "false",
                "auto.offset.reset": "error",  # deleted is not absent
                "isolation.level": "read_committed",
                "enable.partition.eof": "true",
                "fetch.wait.max.ms": "10",  # the reader waits for records that are there
                "fetch.error.backoff.ms": "50",
            }
        )

    def read(  # noqa: PLR0913 - what a fetch asks for
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
            last: tells the record to stop at (it is included); None stops at the last stable offset.
            timeout_ms: how long to wait for that record, or for ``end``.
            end: a last stable offset that was seen: a broker that has less is behind, and is asked on. Only without ``last``.

        Returns:
            the records; None when the time ran out, or when ``start`` is no longer there.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        rows: list[Row] = []
        self._consumer.assign([TopicPartition(topic, partition, start)])
        try:
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
                    raise translated  # anything else passes, and librdkafka goes on by itself
            return None
        finally:
            self._consumer.unassign()

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()
