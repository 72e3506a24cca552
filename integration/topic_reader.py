"""Read the part of a topic between two sets of offsets, as any ``read_committed`` consumer would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

from twopc.errors import RetriableError, UnavailableError
from twopc.sinks.kafka.errors import on_topic, translate
from twopc.sinks.kafka.reader import COMMITTED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from confluent_kafka import Message

_FETCH: Final = 10_000


def read_topic(
    connection: Mapping[str, Any],
    topic: str,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    *,
    timeout_ms: float,
) -> Iterator[list[Message]]:
    """Yield committed records, in lists of up to 10,000.

    Args:
        connection: librdkafka connection options.
        topic: the topic.
        starts: the first offset for each partition.
        ends: for each partition, the first offset that is not read. This offset is at most the last stable offset.
        timeout_ms: the longest time to wait for a response, in milliseconds.

    Raises:
        TwoPhaseCommitError: the brokers did not respond or rejected the request, or records were deleted during the read.
    """
    pending = {partition: end for partition, end in ends.items() if end > starts[partition]}
    if not pending:
        return
    # The default queue size, 64 MiB, would need more memory than the rest of the process.
    consumer = Consumer({**connection, **COMMITTED, "log_level": 0, "queued.max.messages.kbytes": 16_384})
    try:
        consumer.assign([TopicPartition(topic, partition, starts[partition]) for partition in pending])
        while pending:
            # In a large list, each record costs little. If no record is ready within 0.2 s, wait for a single record.
            messages = consumer.consume(_FETCH, 0.2) or consumer.consume(1, timeout_ms / 1000)
            if not messages:
                raise UnavailableError(
                    f"the brokers did not respond within {timeout_ms:.0f} ms while {topic} was being read"
                )
            if records := _within(messages, pending, topic):
                yield records
    finally:
        consumer.close()


def _within(messages: list[Message], pending: dict[int, int], topic: str) -> list[Message]:
    """Return the records that come before their partition's end, and remove finished partitions from ``pending``."""
    records = []
    for message in messages:
        error, partition = message.error(), message.partition() or 0
        end = pending.get(partition)
        if error is None:
            offset = message.offset() or 0
            if end is not None and offset < end:
                records.append(message)
            if end is not None and offset >= end - 1:
                del pending[partition]
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - a public constant
            # Usually the last offset is a transaction's end marker, not a record. If the reported end is lower, the broker lags,
            # and more records will follow.
            if end is not None and (message.offset() or 0) >= end:
                del pending[partition]
        elif error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:  # noqa: SLF001
            raise RetriableError(
                f"{topic}[{partition}]: retention deleted records before they were read. Run the command or the query "
                "again. If the error remains, raise the topic's retention.ms until the command or the batch has finished"
            )
        elif (
            error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED
        ):  # a missing permission on the group is harmless, because this reader does not need the group
            raise translate(error, f"reading {topic}[{partition}]", on_topic("Read", topic))
    return records
