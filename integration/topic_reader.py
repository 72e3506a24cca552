"""A whole topic, as any consumer would read it under ``read_committed``, between two sets of offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

from sinks.kafka.errors import translate
from twopc.errors import RetriableError

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
    """Committed records, some thousand at a time.

    Args:
        connection: librdkafka's options of the connection.
        topic: the topic.
        starts: by partition, the first offset.
        ends: by partition, the offset to stop before; at most the last stable offset.
        timeout_ms: how long the brokers may be silent.

    Raises:
        TwoPhaseCommitError: they were silent, refused, or deleted what was to be read.
    """
    pending = {partition: end for partition, end in ends.items() if end > starts[partition]}
    if not pending:
        return
    consumer = Consumer(
        {
            **connection,
            "log_level": 0,
            "group.id": "twopc",  # librdkafka wants one; nothing is ever committed under it
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",  # a silent jump would pass over records
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,  # what is read is there
            "queued.max.messages.kbytes": 16_384,  # the default of 64 MiB is more than all else here
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, starts[partition]) for partition in pending])
        while pending:
            # A full fetch is cheap for each record; where few are left, the first one is waited for instead.
            messages = consumer.consume(_FETCH, 0.2) or consumer.consume(1, timeout_ms / 1000)
            if not messages:
                raise RetriableError(f"no answer from the brokers in {timeout_ms:.0f} ms while reading {topic}")
            if records := _within(messages, pending, topic):
                yield records
    finally:
        consumer.close()


def _within(messages: list[Message], pending: dict[int, int], topic: str) -> list[Message]:
    """The records before their partition's end; a partition that has reached it is no longer pending."""
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
            # The last offset before the end is mostly the end of a transaction, which is no record. An earlier end is that of
            # a broker that is behind: the records up to the wanted one are still to come.
            if end is not None and (message.offset() or 0) >= end:
                del pending[partition]
        elif error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:  # noqa: SLF001
            raise RetriableError(
                f"{topic}[{partition}]: records were deleted while they were read (retention). Start again, or lengthen "
                "retention.ms while you verify"
            )
        else:
            raise translate(error, f"reading {topic}[{partition}]")
    return records
