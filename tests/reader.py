"""Read a topic up to its end, as any consumer does. This shares no code with the product, whose output it judges."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from confluent_kafka import Message

_ANSWER_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.1


def consumer_of(bootstrap_servers: str, *, isolation: str = "read_committed") -> Consumer:
    """A consumer for :func:`read_to_end`; the caller closes it."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "verify",  # librdkafka requires one; no offset is ever committed
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,  # the records are already there
        }
    )


def partitions_of(consumer: Consumer, topic: str) -> list[int]:
    """The partitions of a topic, once each has a leader. Until a broker knows a new topic, reads find nothing."""
    deadline = time.monotonic() + _ANSWER_TIMEOUT_S
    while time.monotonic() < deadline:
        found = consumer.list_topics(topic, timeout=_ANSWER_TIMEOUT_S).topics[topic].partitions
        if found and all(partition.leader >= 0 for partition in found.values()):
            return sorted(found)
        time.sleep(_POLL_S)
    raise AssertionError(f"not every partition of {topic} has a leader")


def read_to_end(consumer: Consumer, topic: str, partitions: Sequence[int] | None = None) -> Iterator[Message]:
    """Every record of a topic up to its end, ordered within each partition. ``read_committed`` ends at the stable offset.

    Args:
        consumer: a consumer from :func:`consumer_of`, which may be reused afterward.
        topic: the topic.
        partitions: read only these; all by default.
    """
    unread = set(partitions_of(consumer, topic) if partitions is None else partitions)
    consumer.assign([TopicPartition(topic, number, 0) for number in unread])
    while unread:
        message = consumer.poll(_ANSWER_TIMEOUT_S)
        assert message is not None, "the broker did not respond"
        error = message.error()
        if error is None:
            yield message
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            unread.discard(message.partition() or 0)
    consumer.unassign()


def records(bootstrap_servers: str, topic: str, *, isolation: str = "read_committed") -> list[Message]:
    """Every record of a topic, ordered within each partition."""
    with closing(consumer_of(bootstrap_servers, isolation=isolation)) as consumer:
        return list(read_to_end(consumer, topic))


def counted(messages: Iterable[Message]) -> Counter[str]:
    """Each value with its number of occurrences."""
    return Counter((message.value() or b"").decode() for message in messages)


def committed(bootstrap_servers: str, topic: str, *, isolation: str = "read_committed") -> Counter[str]:
    """A topic up to its end as an independent reader sees it: each value with its number of occurrences."""
    return counted(records(bootstrap_servers, topic, isolation=isolation))
