"""Define the input records of a query, which come from files or from a Kafka topic. Record numbers start at 0.

Record n has the columns ``number`` (BIGINT, n), ``key`` (STRING, one of ten keys) and ``value`` (STRING, n in decimal).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from twopc.integration.services import ServiceError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

KEYS: Final = 10
#: The number of tasks that read a batch. The kill in the middle of a batch needs two tasks.
TASKS: Final = 2
SCHEMA: Final = "number BIGINT, key STRING, value STRING"
_TIMEOUT_S: Final = 30
#: A producer's queue holds 100,000 records.
_QUEUED: Final = 50_000
#: Spark reads files in the order of their modification times, which here do not depend on a clock.
_EPOCH_S: Final = 1_600_000_000


def key_of(number: int, keys: int = KEYS) -> str:
    """Return the key of a record."""
    return f"key-{number % keys}"


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Describes how Spark reads the source. Each run of the query receives this object as JSON.

    Attributes:
        format: the format of ``readStream``.
        options: the options of ``readStream``.
        columns: SQL expressions for the three columns.
    """

    format: str
    options: dict[str, str]
    columns: tuple[str, ...] = ("number", "key", "value")


class Source(Protocol):
    """A source that a query reads."""

    def feed(self, numbers: range) -> None:
        """Add these records as one batch with :data:`TASKS` tasks."""

    def reader(self, batch_rows: int) -> Reader:
        """Return how Spark reads the source, with at most this number of records per batch."""


@dataclass
class Files:
    """A directory of JSON files, with two files per batch."""

    directory: Path
    _count: int = 0

    def feed(self, numbers: range) -> None:
        """See :class:`Source`."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for part in range(TASKS):
            lines = [
                json.dumps({"number": number, "key": key_of(number), "value": str(number)})
                for number in numbers[part::TASKS]
            ]
            hidden = self.directory / f".{self._count:06d}"
            hidden.write_text("".join(f"{line}\n" for line in lines))
            os.utime(hidden, (_EPOCH_S + self._count,) * 2)
            hidden.rename(self.directory / f"{self._count:06d}.json")  # Spark never sees an incomplete file
            self._count += 1

    def reader(self, batch_rows: int) -> Reader:
        """See :class:`Source`."""
        del batch_rows
        return Reader(format="json", options={"path": str(self.directory), "maxFilesPerTrigger": str(TASKS)})


@dataclass
class KafkaTopic:
    """A topic that is created when it first receives records. Record n is in partition ``n % keys % partitions``."""

    bootstrap_servers: str
    topic: str
    partitions: int = TASKS
    keys: int = KEYS
    #: More producer options. The producer is idempotent, because its retries must not write a record twice.
    producer: ClassVar[Mapping[str, object]] = {"enable.idempotence": True}
    _created: bool = field(default=False, repr=False)

    def feed(self, numbers: range) -> None:
        """See :class:`Source`.

        Raises:
            ServiceError: the broker did not accept every record.
        """
        from confluent_kafka import Producer  # noqa: PLC0415 - files do not need Kafka

        self.create()
        refused: list[object] = []
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "log_level": 0, **self.producer})
        for number in numbers:
            producer.produce(
                self.topic,
                str(number),
                key_of(number, self.keys),
                partition=number % self.keys % self.partitions,
                on_delivery=lambda error, _: refused.append(error) if error else None,
            )
            while len(producer) >= _QUEUED:
                producer.poll(0.1)
        if producer.flush(_TIMEOUT_S) or refused:
            raise ServiceError(
                f"{self.bootstrap_servers} did not accept every record for the topic {self.topic}: {refused[:1]}"
            )

    def reader(self, batch_rows: int) -> Reader:
        """See :class:`Source`."""
        options = {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(batch_rows),
        }
        value = "CAST(value AS STRING)"
        columns = (f"CAST({value} AS BIGINT) AS number", "CAST(key AS STRING) AS key", f"{value} AS value")
        return Reader(format="kafka", options=options, columns=columns)

    def create(self) -> None:
        """Create the topic, unless this object has already created it."""
        from confluent_kafka.admin import AdminClient, NewTopic  # noqa: PLC0415 - files do not need Kafka

        if not self._created:
            admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
            admin.create_topics([NewTopic(self.topic, self.partitions, -1)])[self.topic].result(_TIMEOUT_S)
        self._created = True
