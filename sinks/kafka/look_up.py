"""Look up a topic again before rejecting a row, because the producer's metadata may be outdated.

librdkafka immediately rejects a topic or partition that it does not know, and refreshes its metadata only every five minutes
(``topic.metadata.refresh.interval.ms``). The Java producer refreshes its metadata as soon as it encounters an unknown
topic or partition.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException

from twopc.counted import counted

if TYPE_CHECKING:
    from twopc.sinks.kafka.records import Records

# ruff: noqa: SLF001 - librdkafka codes are public constants with an underscore
_UNKNOWN: Final = frozenset({KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC})
#: How long a broker may lag behind the controller that has added a partition.
_PATIENCE_S: Final = 1.0


class LookUp:
    """Looks up the topics of one producer's rejected rows."""

    def __init__(self, producer: Any, timeout_s: float) -> None:
        self._producer = producer
        self._timeout_s = timeout_s
        self._row = -1
        self._until = 0.0

    def helps(self, records: Records, row: int, error: KafkaError) -> bool:
        """Look up a rejected row's topic. Return whether to retry this row and all rows after it."""
        if error.code() not in _UNKNOWN or not records.stopped:
            return False
        if row != self._row:
            self._row, self._until = row, time.monotonic() + _PATIENCE_S
        elif time.monotonic() > self._until:
            return False
        return self._partitions(records.topic_of(row)) > 0

    def named(self, topic: str, error: KafkaError) -> str:
        """Return the topic name. If the error depends on the number of partitions, add that number."""
        count = self._partitions(topic) if error.code() == KafkaError._UNKNOWN_PARTITION else 0
        return f"{topic} ({topic} has {counted(count, 'partition')})" if count else topic

    def is_gone(self, topic: str) -> bool:
        """Ask a broker whether the topic is missing."""
        found = self._described(topic)
        if found is None:
            return True
        return not (isinstance(found, KafkaException) or _refused(found) or found.partitions)

    def refusal(self, topic: str) -> KafkaError | None:
        """Return the broker's error if this principal has no right to see the topic. Such a topic seems to have no partitions."""
        return _refused(self._described(topic))

    def _partitions(self, topic: str) -> int:
        """Ask a broker for the number of partitions. Return 0 if the topic does not exist or no broker responds."""
        return len(getattr(self._described(topic), "partitions", ()))

    def _described(self, topic: str) -> Any:
        """Return the topic's description, or None if the topic does not exist, or the exception if no broker responds."""
        try:
            return self._producer.list_topics(topic, timeout=self._timeout_s).topics.get(topic)
        except KafkaException as error:
            return error


def _refused(described: Any) -> KafkaError | None:
    error: KafkaError | None = getattr(described, "error", None)
    return error if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED else None
