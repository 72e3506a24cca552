"""Create a run's topics, fill them with distinct records, and delete them once they have been counted."""

from __future__ import annotations

import time
import uuid

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

_TIMEOUT_S = 60


class Topics:
    """The topics of one broker."""

    def __init__(self, bootstrap_servers: str, partitions: int) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._partitions = partitions
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})

    def create(self, partitions: int | None = None) -> str:
        """Create a topic, and return its name. The broker stamps each record with the time at which it accepts the record."""
        name = f"bench-{uuid.uuid4().hex[:8]}"
        config = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": "2000000"}
        topic = NewTopic(name, partitions or self._partitions, 1, config=config)
        self._admin.create_topics([topic])[name].result()
        deadline = time.monotonic() + _TIMEOUT_S
        while not self._is_served(name) and time.monotonic() < deadline:
            time.sleep(0.01)
        return name

    def fill(self, rows: int, *, value_bytes: int = 100, partitions: int | None = None) -> str:
        """Create a topic with this number of records, and return its name. Each record's key is its number."""
        name = self.create(partitions)
        producer = Producer(
            {"bootstrap.servers": self.bootstrap_servers, "linger.ms": 20, "message.max.bytes": 1_500_000}
        )
        value = b"x" * value_bytes
        for number in range(rows):
            while True:
                try:
                    producer.produce(name, value, b"%d" % number)
                    break
                except BufferError:
                    producer.poll(0.1)
        if producer.flush(_TIMEOUT_S):
            raise AssertionError(f"{name} could not be filled within {_TIMEOUT_S} s")
        return name

    def partition_count(self, name: str) -> int:
        """Return a topic's number of partitions; 0 if the topic does not exist."""
        found = self._admin.list_topics(timeout=_TIMEOUT_S).topics.get(name)
        return len(found.partitions) if found else 0

    def partition_counts(self, prefix: str) -> dict[str, int]:
        """Return the number of partitions for each topic whose name begins with the prefix."""
        found = self._admin.list_topics(timeout=_TIMEOUT_S).topics
        return {name: len(topic.partitions) for name, topic in found.items() if name.startswith(prefix)}

    def delete(self, *names: str) -> None:
        """Delete topics, so that a long run does not fill the disk."""
        for future in self._admin.delete_topics(list(names)).values():
            future.result()

    def _is_served(self, name: str) -> bool:
        found = self._admin.list_topics(timeout=_TIMEOUT_S).topics.get(name)
        return found is not None and bool(found.partitions) and all(p.leader >= 0 for p in found.partitions.values())
