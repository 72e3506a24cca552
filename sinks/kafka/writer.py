"""Pre-commit: a task's rows and its marker in one transaction of a producer that is used once and then dropped."""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException

from sinks.kafka.errors import translate_in_task, translated
from sinks.kafka.handle import KafkaHandle
from sinks.kafka.markers import encode_marker
from sinks.kafka.producer import drop_quietly
from twopc.crash_points import crash_point
from twopc.errors import RetriableError
from twopc.writer import SinkWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from sinks.kafka.producer import ReadyProducer
    from sinks.kafka.producer_pool import ProducerPool
    from sinks.kafka.settings import KafkaSettings
    from twopc.attempt import TaskAttempt

_ABORT_TIMEOUT_MS: Final = 5_000
_POLL_EVERY_ROWS: Final = 1_000


class KafkaWriter(SinkWriter[KafkaHandle]):
    """See :class:`SinkWriter`. Rows have the columns of Spark's own Kafka writer, in the engine's types.

    ``key``, ``value`` (binary, may be null), ``topic`` (string), ``partition`` (int32), ``headers``
    (list of struct ``key``, ``value``), ``timestamp`` (int64, ms since the epoch); only ``value`` is required.
    """

    def __init__(self, task: TaskAttempt, pool: ProducerPool, settings: KafkaSettings) -> None:
        self._task = task
        self._pool = pool
        self._topic = settings.topic
        self._require_topics = settings.require_topics
        self._ledger = settings.ledger
        self._timeout_s = settings.timeout_ms / 1000
        self._ready: ReadyProducer | None = None
        self._rows = 0

    @property
    def _begun(self) -> ReadyProducer:
        if self._ready is None:
            raise AssertionError("begin_transaction comes first")
        return self._ready

    def begin_transaction(self) -> None:
        """See :class:`SinkWriter`."""
        self._ready = self._pool.take(self._task.batch_id, self._task.committed_through)
        with translated(f"beginning {self._ready.transactional_id}", translate_in_task):
            self._ready.producer.begin_transaction()
        crash_point("task.began")

    def write(self, rows: pa.RecordBatch) -> None:
        """See :class:`SinkWriter`. Memory is bounded by librdkafka's queue."""
        ready = self._begun
        self._rows += rows.num_rows
        for done, (topic, fields) in enumerate(self._messages(rows), start=1):
            self._enqueue(ready, topic, fields)
            if done % _POLL_EVERY_ROWS == 0:
                self._serve(ready, 0)
        self._serve(ready, 0)

    def pre_commit(self) -> KafkaHandle:
        """See :class:`SinkWriter`. A vote needs no delivery error, an empty queue, and every row transmitted (rule 2)."""
        ready = self._begun
        crash_point("task.written")
        transaction = uuid.uuid4().hex
        marker = encode_marker(transaction, self._task, self._rows)
        marker_partition = 1 + self._task.partition % ready.markers
        self._enqueue(
            ready, self._ledger, {"key": transaction.encode(), "value": marker, "partition": marker_partition}
        )
        with translated(self._doing(ready), translate_in_task):
            left = ready.producer.flush(self._timeout_s)
        self._require_no_errors(ready)
        if left:
            raise RetriableError(
                f"{ready.transactional_id}: {left} of {self._rows} records were not acknowledged within {self._timeout_s:.0f} s"
            )
        crash_point("task.flushed")
        producer_id, producer_epoch = ready.identity()
        handle = KafkaHandle(
            uuid=transaction,
            transactional_id=ready.transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            marker_partition=marker_partition,
            rows=self._rows,
            partitions=self._written_to(ready, marker_partition),
        )
        crash_point("task.prepared")
        return handle

    def hand_over(self) -> None:
        """See :class:`SinkWriter`. Dropping the producer sends no abort: the transaction stays prepared."""
        super().hand_over()
        self._ready = None

    def abort(self) -> None:
        """See :class:`SinkWriter`."""
        if self._ready is not None:
            drop_quietly(self._ready, _ABORT_TIMEOUT_MS)
            self._ready = None

    def close(self) -> None:
        """See :class:`SinkWriter`. The idle worker then makes producers ready for its next tasks."""
        super().close()
        self._pool.replenish(self._task.committed_through)

    def _messages(self, rows: pa.RecordBatch) -> Any:
        names = [name for name in ("key", "value", "partition", "headers", "timestamp") if name in rows.schema.names]
        columns = [rows.column(name).to_pylist() for name in names]
        if self._topic is None:
            topics = rows.column("topic").to_pylist()
            self._require_topics(set(topics))
        else:
            topics = [self._topic] * rows.num_rows
        if names == ["key", "value"]:
            for topic, key, value in zip(topics, *columns, strict=True):
                yield topic, {"key": key, "value": value}
            return
        for topic, *values in zip(topics, *columns, strict=True):
            fields = {name: value for name, value in zip(names, values, strict=True) if value is not None}
            if "headers" in fields:
                fields["headers"] = [(header["key"], header["value"]) for header in fields["headers"]]
            yield topic, fields

    def _enqueue(self, ready: ReadyProducer, topic: str, fields: dict[str, Any]) -> None:
        deadline = None
        while True:  # not a retry with pauses: serving the queue is what makes room
            try:
                ready.producer.produce(topic, **fields)
            except BufferError:
                # The queue is full, which bounds the task's memory. Wait until the broker has taken something.
                deadline = deadline or time.monotonic() + self._timeout_s
                self._serve(ready, 0.05)
                if time.monotonic() > deadline:
                    raise RetriableError(f"the topic {topic} took no record for {self._timeout_s:.0f} s") from None
            except KafkaException as error:
                self._require_no_errors(ready)
                raise translate_in_task(error, f"writing to {topic}") from error
            else:
                return

    def _serve(self, ready: ReadyProducer, wait_s: float) -> None:
        """Serve delivery reports and statistics; a record that was not delivered raises."""
        with translated(self._doing(ready), translate_in_task):
            ready.producer.poll(wait_s)
        self._require_no_errors(ready)

    def _require_no_errors(self, ready: ReadyProducer) -> None:
        if ready.failures:
            doing = f"{ready.transactional_id}: writing to"
            errors = [
                translate_in_task(error, f"{doing} {topic} (of {self._rows} rows)")
                for topic, error in sorted(ready.failures.items())
            ]
            lasting = next((error for error in errors if not error.retriable), errors[0])
            raise type(lasting)("; ".join(map(str, errors)))

    def _doing(self, ready: ReadyProducer) -> str:
        return f"{ready.transactional_id}: writing (of {self._rows} rows)"

    def _written_to(self, ready: ReadyProducer, marker_partition: int) -> tuple[str, ...]:
        """The partitions that librdkafka has transmitted to, once its statistics cover the whole transaction.

        The marker is sent last: statistics that show it transmitted and nothing queued cover every row before it.
        """
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:  # not a retry: serving is what calls back with the statistics
            statistics = ready.statistics or {}
            sent = _transmitted(statistics)
            complete = sum(count for ranges in sent.values() for count in ranges.values()) > self._rows
            if complete and statistics.get("msg_cnt") == 0 and marker_partition in sent.get(self._ledger, {}):
                return tuple(f"{topic}:{_ranges(sorted(counts))}" for topic, counts in sorted(sent.items()))
            self._serve(ready, 0.01)
        raise RetriableError(
            f"{ready.transactional_id}: librdkafka reports fewer records than the {self._rows} it was given"
        )


def _transmitted(statistics: dict[str, Any]) -> dict[str, dict[int, int]]:
    sent: dict[str, dict[int, int]] = defaultdict(dict)
    for topic, facts in statistics.get("topics", {}).items():
        for number, partition in facts.get("partitions", {}).items():
            if partition.get("txmsgs", 0) > 0 and int(number) >= 0:
                sent[topic][int(number)] = partition["txmsgs"]
    return sent


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers as ``0-3,7``."""
    pieces: list[list[int]] = []
    for number in numbers:
        if pieces and number == pieces[-1][-1] + 1:
            pieces[-1] = [pieces[-1][0], number]
        else:
            pieces.append([number])
    return ",".join("-".join(map(str, piece)) for piece in pieces)
