"""Create a Kafka topic, and read it as any ``read_committed`` consumer does."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from twopc import KafkaSink, TwoPhaseCommitError
from twopc.integration.demo.stores.store import Output, Store
from twopc.integration.services import ServiceError
from twopc.integration.services.server import wait_until
from twopc.integration.topic_reader import read_topic
from twopc.testing.kill_loop import KafkaTopic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from confluent_kafka import Message
    from pyspark.sql import DataFrame

KEYS: Final = 1000
"""The number of keys in the demo's records. Record n has the value n and the key ``key-<n % KEYS>``."""

_TIMEOUT_S: Final = 30
_READABLE_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True)
class KafkaStore(Store):
    """The demo's broker, which also stores the source topic.

    Attributes:
        bootstrap_servers: the broker's address.
    """

    bootstrap_servers: str

    @classmethod
    @contextlib.contextmanager
    def started(cls, directory: Path, bootstrap_servers: str) -> Iterator[KafkaStore]:
        """See :class:`Store`."""
        del directory  # the broker is already running
        yield cls(bootstrap_servers)

    def output(self, name: str, partitions: int) -> KafkaOutput:
        """See :class:`Store`."""
        return KafkaOutput(self.bootstrap_servers, f"{name}-output", partitions)


@dataclass(frozen=True)
class KafkaOutput(Output):
    """A Kafka topic.

    Attributes:
        bootstrap_servers: the broker's address.
        topic: the topic name.
        partitions: the number of partitions in the topic.
    """

    title = "Kafka"
    has_order = True
    columns = ("key", "value")

    bootstrap_servers: str
    topic: str
    partitions: int

    def create(self) -> None:
        """See :class:`Output`."""
        KafkaTopic(self.bootstrap_servers, self.topic, self.partitions).create()

    def sink(self) -> KafkaSink:
        """See :class:`Output`."""
        return KafkaSink(name="demo", bootstrap_servers=self.bootstrap_servers, topic=self.topic)

    def append(self, batch: DataFrame) -> None:
        """See :class:`Output`."""
        options = {"kafka.bootstrap.servers": self.bootstrap_servers, "topic": self.topic}
        batch.selectExpr(*self.columns).write.format("kafka").options(**options).save()

    def written(self) -> int:
        """See :class:`Output`."""
        return sum(self._ends(IsolationLevel.READ_UNCOMMITTED).values())

    def unfinished(self) -> int:
        """Wait until commits have reached every partition, and return the number of offsets that readers cannot reach."""
        wait_until(lambda: not self._hidden(), _READABLE_TIMEOUT_S)
        return self._hidden()

    def numbers(self, rows: int, on_progress: Callable[[int], object] = lambda _: None) -> Iterator[int]:
        """See :class:`Output`."""
        ends = self._ends(IsolationLevel.READ_COMMITTED)
        starts = dict.fromkeys(ends, 0)
        count = 0
        try:
            for messages in read_topic(self._connection(), self.topic, starts, ends, timeout_ms=_TIMEOUT_S * 1000):
                for message in messages:
                    yield _number(message, rows)
                count += len(messages)
                on_progress(count)
        except TwoPhaseCommitError as error:
            raise ServiceError(str(error)) from error

    def _hidden(self) -> int:
        return self.written() - sum(self._ends(IsolationLevel.READ_COMMITTED).values())

    def _ends(self, isolation_level: IsolationLevel) -> dict[int, int]:
        admin = AdminClient(self._connection())  # the client must live until the responses have arrived
        futures = admin.list_offsets(
            {TopicPartition(self.topic, partition): OffsetSpec.latest() for partition in range(self.partitions)},
            request_timeout=_TIMEOUT_S,
            isolation_level=isolation_level,
        )
        return {where.partition: future.result().offset for where, future in futures.items()}

    def _connection(self) -> dict[str, str | int | float | bool]:
        # Without this log level, librdkafka would log to the console. Every relevant problem raises an error anyway.
        return {"bootstrap.servers": self.bootstrap_servers, "log_level": 0}


def _number(message: Message, rows: int) -> int:
    """Compare a record's key and value with the source's key and value, and return the record's number."""
    key, value = message.key(), message.value() or b""
    number = int(value) if value.isdigit() else -1
    if not 0 <= number < rows or (key, value) != (b"key-%d" % (number % KEYS), b"%d" % number):
        raise ServiceError(
            "The output contains a record that is not in the source: "
            f"{message.topic()}[{message.partition()}]@{message.offset()}, key {key!r}, value {value!r}"
        )
    return number
