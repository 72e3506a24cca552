"""A sink's writer in its two ways: rows that are never Python objects (*native*), and ``produce()`` for each row."""

from __future__ import annotations

import math
import re
import uuid
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.broker_changes import alter_topic
from tests.live.pipeline import create_topic
from tests.reader import records
from twopc.attempt import Attempt, TaskAttempt
from twopc.sinks.kafka import KafkaSink, librdkafka
from twopc.sinks.kafka.prepared import await_visible
from twopc.sinks.kafka.transactions import TransactionClient

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from tests.live.services import KafkaService
    from twopc.sinks.kafka.handle import KafkaHandle
    from twopc.sinks.kafka.writer import KafkaWriter

BOTH = pytest.mark.parametrize("native", [True, False], ids=["native", "produce"])


class Way:
    """A sink that writes in one of the two ways, into separate topics."""

    def __init__(
        self, kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool, topic: bool = True, **sink: Any
    ) -> None:
        self.native = native
        self.servers = kafka.bootstrap_servers
        self.name = f"w{uuid.uuid4().hex[:10]}"
        self.topics = [create_topic(self.servers, f"{self.name}-{number}") for number in range(3)]
        create_topic(self.servers, f"twopc-ledger-{self.name}", 3)
        chosen = self.topics[0] if topic else None
        self.sink = KafkaSink(
            name=self.name, bootstrap_servers=self.servers, topic=chosen, **{"timeout_ms": 30_000, **sink}
        )
        self._monkeypatch = monkeypatch

    def change(self, topic: str, config: Mapping[str, str | None]) -> None:
        alter_topic(self.servers, topic, config)

    def writer(self, *, ends_at: float = math.inf) -> KafkaWriter:
        self._monkeypatch.setattr(
            "twopc.sinks.kafka.producer.librdkafka.library", librdkafka.library if self.native else lambda: None
        )
        task = TaskAttempt(
            query_id="q",
            batch_id=0,
            attempt=Attempt(1, 1),
            partition=0,
            driver_epoch=1,
            committed_through=-1,
            ends_at=ends_at,
        )
        writer = self.sink.create_writer(task)
        writer.begin_transaction()
        assert (writer._begun.native is not None) == self.native
        return writer

    def write(self, batches: Sequence[pa.RecordBatch]) -> KafkaHandle:
        """Write the rows and commit the transaction."""
        writer = self.writer()
        try:
            for rows in batches:
                writer.write(rows)
            handle = writer.pre_commit()
            writer.hand_over()
        finally:
            writer.close()
        client = TransactionClient(self.sink.committing_config())
        assert client.end([handle.identity]) == {handle.transactional_id: "NONE"}
        await_visible(
            client, [handle], timeout_ms=30_000
        )  # the response may arrive before the commit has reached every partition
        client.close()
        return handle

    def error(self, batches: Sequence[pa.RecordBatch]) -> tuple[type[Exception], str]:
        """The error of a task, without the names that differ."""
        with pytest.raises(Exception, match=r".") as caught:
            self.write(batches)
        found = re.sub(rf"{self.name}\.1\.\w+\.\d+", "ID", str(caught.value)).replace(self.name, "NAME")
        return caught.type, found

    def found(self) -> list[Any]:
        """The records of every topic; those with a key in the order of their partitions."""
        result: list[Any] = []
        for number, topic in enumerate(self.topics):
            ordered, anywhere = defaultdict(list), []
            for message in records(self.servers, topic):
                kind, stamp = message.timestamp()
                row = (message.key(), message.value(), message.headers(), kind, stamp if stamp < 10**12 else "now")
                if message.key() is None:
                    anywhere.append(row)  # librdkafka chooses any partition
                else:
                    ordered[message.partition()].append(row)
            result.append((number, dict(ordered), sorted(anywhere, key=repr)))
        return result
