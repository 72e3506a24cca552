"""The protocol on a real broker without Spark: real sinks, a real coordinator, tasks that run one after another."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic

from tests.reader import committed
from tests.tasks import attempt_of, prepare, prepare_all
from twopc.batch import Batch
from twopc.coordinator import Coordinator
from twopc.engine import Publish
from twopc.files import LocalFiles
from twopc.records import TaskReport
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from twopc.engine import StagedRows, Work
    from twopc.integration.spark.staging import Staging
    from twopc.settings import Settings


def create_topic(
    bootstrap_servers: str, name: str, partitions: int = 4, config: Mapping[str, str] | None = None
) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(name, partitions, 1, config=dict(config or {}))])[name].result()
    while name not in admin.list_topics(timeout=30).topics:  # the broker may be behind the controller
        pass
    return name


def record_batch(rows: Sequence[str]) -> pa.RecordBatch:
    """Rows as a Kafka writer receives them; both key and value are the row."""
    values = pa.array([row.encode() for row in rows], pa.binary())
    return pa.record_batch({"key": values, "value": values})


#: The drivers that a test has opened. They are closed after the test, because a dropped driver keeps its sockets open.
opened: list[Coordinator] = []


class Query:
    """A query's checkpoint and output, over any number of runs (drivers)."""

    def __init__(self, bootstrap_servers: str, root: Path, **sink_arguments: Any) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.root = root
        self.name = f"q{uuid.uuid4().hex[:10]}"
        self.query_id = f"query-{self.name}"
        self.topic = create_topic(bootstrap_servers, f"{self.name}-out")
        self.sink = KafkaSink(
            name=self.name,
            bootstrap_servers=bootstrap_servers,
            **{"topic": self.topic, "timeout_ms": 10_000, **sink_arguments},
        )
        self.offsets: dict[int, tuple[str, ...]] = {}

    def driver(self, settings: Settings | None = None, staging: StagedRows | None = None) -> Coordinator:
        """A new run. It fences the previous run when it processes its first batch."""
        opened.append(Coordinator([self.sink], LocalFiles(self.root / "twopc"), settings=settings, staging=staging))
        return opened[-1]

    def batch(self, batch: int, *, offsets: tuple[str, ...] | None = None, query_id: str | None = None) -> Batch:
        """A batch of this query as its engine would present it. The offsets are remembered."""
        self.offsets[batch] = offsets or self.offsets.get(batch) or (f"offset-{batch}",)
        return Batch(query_id or self.query_id, batch, self.offsets[batch], self.offsets.get)

    def visible(self) -> Counter[str]:
        """The output as readers see it."""
        return committed(self.bootstrap_servers, self.topic)


class Tasks:
    """An engine with the given rows per task, or with those that are staged.

    It writes the rows to ``sinks``, by default to the query's own sinks. ``between`` is called with a task's partition
    when the task has its handles, before the next task runs.
    """

    def __init__(
        self,
        query: Query,
        rows: Sequence[Sequence[str]],
        *,
        sinks: Sequence[KafkaSink] = (),
        between: Callable[[int], None] = lambda _: None,
        stage: Callable[[int, Sequence[str]], str] | None = None,
        staging: Staging | None = None,
    ) -> None:
        self._query = query
        self._rows = rows
        self._sinks = sinks
        self._between = between
        self._stage = stage
        self._staging = staging
        self.prepared = 0
        self.evaluated = 0

    def prepare(self, work: Work) -> list[TaskReport]:
        if self._staging is not None and isinstance(work.mode, Publish):
            return [self._publish(self._staging, work, decided) for decided in work.mode.tasks]
        self.prepared += 1
        return [self._task(work, partition, rows) for partition, rows in enumerate(self._rows)]

    def evaluate(self) -> None:
        self.evaluated += 1

    def _publish(self, staging: Staging, work: Work, decided: TaskReport) -> TaskReport:
        rows = list(staging.read(str(decided.staged), self._query.name))
        handles = prepare_all(self._sinks or [self._query.sink], work, decided.partition, rows)
        return msgspec.structs.replace(decided, handles=handles)

    def _task(self, work: Work, partition: int, rows: Sequence[str]) -> TaskReport:
        handles = prepare_all(self._sinks or [self._query.sink], work, partition, [record_batch(rows)])
        self._between(partition)
        staged = self._stage(partition, rows) if self._stage else None
        return TaskReport(
            partition=partition, rows=len(rows), checksum=checksum_of(rows), handles=handles, staged=staged
        )


def prepare_task(query: Query, work: Work, partition: int, rows: Sequence[str]) -> Any:
    """Run one task attempt up to its handle and drop the producer, as a worker does."""
    return prepare(query.sink, attempt_of(work, query.name, partition), [record_batch(rows)])


def checksum_of(rows: Sequence[str]) -> int:
    """A sum of 64-bit hashes, which is the same in every process."""
    hashes = (uuid.uuid5(uuid.NAMESPACE_OID, row).bytes[:8] for row in rows)
    return sum(int.from_bytes(found, "big") for found in hashes) % 2**64
