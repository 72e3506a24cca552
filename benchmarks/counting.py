"""Count a run's output as any ``read_committed`` consumer sees it. This module shares no code with the sinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import Message

_FETCH = 10_000
_TIMEOUT_S = 60.0


class WrongCountError(Exception):
    """The output differs from the expected output, so that run's times mean nothing."""


@dataclass
class Count:
    """The records that the reader found.

    Attributes:
        records: the number of records.
        first_ms: when the broker accepted the first record, in ms since 1970 UTC; -1 if the output has no records.
        last_ms: when the broker accepted the last record, in ms since 1970 UTC.
    """

    records: int = 0
    first_ms: int = -1
    last_ms: int = -1

    def rate(self, *, without: int = 0) -> float:
        """Compute the records per second from the first record to the last, which excludes the start of the writing system.

        Args:
            without: the number of records to leave out, unless the output has no more than that.
        """
        counted = self.records - without or self.records
        return 1000 * counted / max(1, self.last_ms - self.first_ms)


def transactional_ids(bootstrap_servers: str) -> set[str]:
    """Return all transactional ids that the brokers know, from the keys in their own transaction log."""
    return {
        _id_in(key) for key in (message.key() for message in _read(bootstrap_servers, "__transaction_state")) if key
    }


def _id_in(key: bytes) -> str:
    """Return the id in a key. A key has a version and a length of two bytes each, then the id (TransactionLogKey)."""
    length = int.from_bytes(key[2:4], "big")
    return key[4 : 4 + length].decode()


def count(bootstrap_servers: str, topic: str, *, expected: int, keyed: bool = True) -> Count:
    """Read and count all of a topic's records.

    Args:
        bootstrap_servers: the brokers' addresses.
        topic: the topic to which the run has written.
        expected: the expected number of records.
        keyed: whether the keys are consecutive numbers from 0, each of which must occur exactly once.

    Raises:
        WrongCountError: the topic has too many, too few or unexpected records.
    """
    found = Count()
    seen = bytearray(expected)
    for message in _read(bootstrap_servers, topic):
        _note(found, message)
        if keyed:
            _mark(seen, message, topic)
    absent = seen.count(0) if keyed else 0
    if found.records != expected or absent:
        raise WrongCountError(f"{topic} has {found.records} records instead of {expected}; {absent} keys are missing")
    return found


def _read(bootstrap_servers: str, topic: str) -> Iterator[Message]:
    """Yield every committed record of a topic.

    Raises:
        WrongCountError: the topic cannot be read to its end.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "count",  # librdkafka requires a group; no offset is ever committed
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 8_000_000,
        }
    )
    try:
        unread = set(consumer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in unread])
        while unread:
            messages = consumer.consume(_FETCH, 0.2) or consumer.consume(1, _TIMEOUT_S)
            if not messages:
                raise WrongCountError(f"{topic}: the broker does not answer")
            for message in messages:
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - a public constant
                    unread.discard(message.partition() or 0)
                else:
                    raise WrongCountError(f"{topic}: {error}")
    finally:
        consumer.close()


def _note(found: Count, message: Message) -> None:
    found.records += 1
    _, at_ms = message.timestamp()
    if found.first_ms < 0 or at_ms < found.first_ms:
        found.first_ms = at_ms
    found.last_ms = max(found.last_ms, at_ms)


def _mark(seen: bytearray, message: Message, topic: str) -> None:
    key = message.key()
    number = int(key) if key is not None else -1
    if not 0 <= number < len(seen) or seen[number]:
        raise WrongCountError(f"{topic} has the unexpected or repeated key {key!r}")
    seen[number] = 1
