"""The demo's topics and records. Records are numbered: a reader sees which are missing, duplicated or out of order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from integration.services.errors import ServiceError

KEYS: Final = 1000
"""Number of keys. Record n has key ``n % KEYS`` and sequence number ``n // KEYS`` within it."""

_TIMEOUT_S: Final = 30
_POLL_EVERY: Final = 10_000


def record(number: int) -> tuple[bytes, bytes]:
    """Return key and value of a record. The value has its number and its sequence number within the key."""
    return b"key-%d" % (number % KEYS), b"%d,%d" % (number, number // KEYS)


@dataclass(frozen=True)
class Topics:
    """Source and output topic of one query."""

    bootstrap_servers: str
    source: str
    output: str
    _admin: AdminClient = field(init=False, repr=False, compare=False)
    _partitions: dict[str, list[int]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Connect."""
        object.__setattr__(self, "_admin", AdminClient(self._connection()))

    def _connection(self) -> dict[str, str | int | float | bool]:
        # librdkafka would log to the console; what matters raises an error.
        return {"bootstrap.servers": self.bootstrap_servers, "log_level": 0}

    def create(self, partitions: int) -> None:
        """Create both topics."""
        wanted = [NewTopic(name, partitions, 1) for name in (self.source, self.output)]
        for created in self._admin.create_topics(wanted).values():
            created.result(_TIMEOUT_S)

    def feed(self, first: int, end: int) -> None:
        """Write records ``first`` to ``end - 1`` to the source; return when the broker has all of them.

        Raises:
            ServiceError: it has more or fewer.
        """
        # Idempotent: retries of this producer must not duplicate records.
        producer = Producer({**self._connection(), "enable.idempotence": True, "linger.ms": 20})
        for number in range(first, end):
            key, value = record(number)
            while True:
                try:
                    producer.produce(self.source, value, key)
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % _POLL_EVERY == 0:
                producer.poll(0)
        producer.flush(_TIMEOUT_S)
        written = sum(self.ends(self.source).values())
        if written != end:
            raise ServiceError(f"The source topic {self.source} has {written} records instead of the {end} written")

    def ends(self, topic: str, *, committed: bool = False) -> dict[int, int]:
        """Return the end offset of each partition; with ``committed``, the last stable offset."""
        if topic not in self._partitions:
            self._partitions[topic] = sorted(
                self._admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions
            )
        futures = self._admin.list_offsets(
            {TopicPartition(topic, partition): OffsetSpec.latest() for partition in self._partitions[topic]},
            request_timeout=_TIMEOUT_S,
            isolation_level=IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED,
        )
        return {where.partition: future.result().offset for where, future in futures.items()}
