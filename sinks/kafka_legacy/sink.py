"""Define a Kafka sink that only flushes each batch, without transactions or idempotence."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException, Producer

from twopc.counted import counted
from twopc.errors import RetriableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from confluent_kafka import KafkaError
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

_ROOM_S: Final = 0.05


@dataclass(frozen=True, kw_only=True)
class AtLeastOnceKafkaSink:
    """A ``foreachBatch`` function of the kind that teams used before brokers had transactions (Kafka 0.10).

    If Spark crashes after the flush and before it records the batch as done, it writes the batch again, and the rows are
    duplicated. A crash during the flush duplicates the rows that were already sent. On brokers without transactions, no client
    can prevent these duplicates.

    Attributes:
        bootstrap_servers: a broker's host:port, or several separated by commas.
        topic: the topic for every row.
        options: librdkafka options, without a prefix.
        timeout_ms: how long the flush at the end of a task may take.
    """

    bootstrap_servers: str
    topic: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # the value may contain passwords
    timeout_ms: int = 60_000

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write a batch, and return when the brokers have acknowledged every row. Spark calls this method."""
        logger.warning(
            "batch %d is written only with at-least-once guarantees, so a crash may duplicate its rows", batch_id
        )
        names = [name for name in ("key", "value") if name in batch.columns]
        batch.selectExpr(*(f"CAST({name} AS BINARY)" for name in names)).foreachPartition(self.write)

    def write(self, rows: Iterable[Any]) -> None:
        """Write one task's rows with a separate producer, and flush the producer.

        Raises:
            RetriableError: a row was not acknowledged. The task's other rows stay in the topic.
        """
        errors: list[KafkaError] = []
        producer = Producer(self._config())
        for row in rows:
            self._enqueue(producer, row.asDict(), lambda error, _: errors.append(error) if error else None)
            producer.poll(0)
        left = producer.flush(self.timeout_ms / 1000)
        if errors or left:
            cause = KafkaException(errors[0]) if errors else None
            raise RetriableError(
                f"{self.topic}: {counted(len(errors), 'row')} failed, and {left} were not acknowledged"
            ) from cause

    def _enqueue(self, producer: Producer, fields: dict[str, Any], report: Callable[[Any, Any], None]) -> None:
        key, value = (None if fields.get(name) is None else bytes(fields[name]) for name in ("key", "value"))
        while True:
            try:
                producer.produce(self.topic, value, key, on_delivery=report)
            except BufferError:  # the queue is full; wait until the broker has accepted some rows
                producer.poll(_ROOM_S)
            else:
                return

    def _config(self) -> dict[str, Any]:
        return {
            "acks": "all",
            # Producers for Kafka 0.10 used the Java partitioner.
            "partitioner": "murmur2_random",
            **self.options,
            "bootstrap.servers": self.bootstrap_servers,
            "enable.idempotence": False,
            # This keeps a key's rows in order, as careful pipelines did.
            "max.in.flight": 1,
        }
