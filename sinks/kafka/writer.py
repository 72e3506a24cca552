"""Write a task's rows and marker in one transaction, and pre-commit it."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Final

from twopc.counted import counted
from twopc.errors import CheckpointExpiredError, ConfigurationError, RetriableError, UnavailableError
from twopc.sinks.kafka.acknowledged import flush_all
from twopc.sinks.kafka.batch_size import batch_size_of, pieces
from twopc.sinks.kafka.columns import require_exact, texts_of
from twopc.sinks.kafka.errors import (
    SLOW_DELIVERY,
    TOO_MUCH,
    cause_of,
    ledger_changed,
    ledger_gone,
    ledger_is_gone,
    on_ids,
    on_topic,
    translate_in_task,
    translated,
    wrong_clock,
)
from twopc.sinks.kafka.handle import KafkaHandle
from twopc.sinks.kafka.look_up import LookUp
from twopc.sinks.kafka.markers import encode_marker
from twopc.sinks.kafka.old_rows import warn_of_old_rows
from twopc.sinks.kafka.prepared_rows import records_of
from twopc.sinks.kafka.producer import drop_quietly, is_for_another
from twopc.sinks.kafka.producer_pool import PoolKey, pool_for
from twopc.sinks.kafka.records import OneByOne, has_failed, is_full
from twopc.sinks.kafka.sent import by_topic, ranges
from twopc.writer import SinkWriter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from confluent_kafka import KafkaError

    from twopc.attempt import TaskAttempt
    from twopc.errors import TwoPhaseCommitError
    from twopc.sinks.kafka.producer import ReadyProducer
    from twopc.sinks.kafka.producer_pool import ProducerPool
    from twopc.sinks.kafka.records import Records
    from twopc.sinks.kafka.settings import KafkaSettings

_ABORT_TIMEOUT_MS: Final = 5_000
#: How many times to look for an expected delivery report.
_LOOKS: Final = 20
#: The number of rows between checks of the delivery reports, for Python objects and for structures of 72 bytes.
_OBJECTS: Final = 1_000
_STRUCTURES: Final = 10_000
#: What Kafka adds to a dead letter: the batch's header (61 bytes), the record's other fields (librdkafka reserves 36 bytes), and
#: the lengths of a header's key and value (5 bytes each).
_LETTER_OVERHEAD_BYTES: Final = 61 + 36 + 2 * 5


class KafkaWriter(SinkWriter[KafkaHandle]):
    """See :class:`SinkWriter`. Rows have the columns of Spark's own Kafka writer, with the types that the engine passes.

    The columns are ``key`` and ``value`` (both binary, may be null), ``topic`` (string), ``partition`` (int32), ``headers``
    (list of struct ``key``, ``value``) and ``timestamp`` (int64, ms since the epoch). Only ``value`` is required. The writer
    rejects a row that librdkafka would silently change; see :func:`twopc.sinks.kafka.columns.require_exact`.
    """

    def __init__(self, task: TaskAttempt, settings: KafkaSettings) -> None:
        self._task = task
        self._settings = settings
        self._batch_size = batch_size_of(settings, task.driver_epoch)
        self._pool: ProducerPool | None = None
        self._topic = settings.topic
        self._require_topics = settings.require_topics
        self._ledger = settings.ledger
        self._timeout_s = settings.timeout_ms / 1000
        self._ready: ReadyProducer | None = None
        self._producer_bytes = 0  # the size of the largest batch that the producer sends on its own
        self._sent_bytes = 0  # the size of the largest batch that is sent now
        self._in_pieces = False  # whether the writer itself must limit batches to that size
        self._ends_at = task.ends_at
        self._rows = 0
        self._largest = 0
        self._dated = False  # whether the rows have a 'timestamp' column

    @property
    def _begun(self) -> ReadyProducer:
        if self._ready is None:
            raise AssertionError("begin_transaction() must be called first")
        return self._ready

    def begin_transaction(self) -> None:
        """See :class:`SinkWriter`."""
        settings = self._settings
        self._ready = self._take()
        lives_s = (settings.transaction_timeout_ms - settings.reserve_ms) / 1000
        self._ends_at = min(time.monotonic() + lives_s, self._task.ends_at)
        tid = self._ready.transactional_id
        with translated(f"beginning {tid}", translate_in_task, right=on_ids("Write", tid)):
            self._ready.producer.begin_transaction()

    def _take(self) -> ReadyProducer:
        """Acquire a producer whose batches do not exceed the known topics' limits."""
        settings, task = self._settings, self._task
        if self._topic is not None:
            self._batch_size.learn([self._topic])
        self._sent_bytes = self._producer_bytes = self._batch_size.bytes
        config = tuple(sorted(self._batch_size.applied_to(settings.producer_config()).items()))
        key = PoolKey(settings.place, task.driver_epoch, config, self._topic)
        self._pool = pool_for(key, timeout_ms=settings.timeout_ms)
        return self._pool.take(task.batch_id, task.committed_through)

    def write(self, rows: pa.RecordBatch) -> None:
        """See :class:`SinkWriter`. The size of librdkafka's queue limits memory use."""
        require_exact(rows)
        warn_of_old_rows(self._settings, rows, self._fit_batches(rows))
        ready = self._begun
        self._rows += rows.num_rows
        self._dated = "timestamp" in rows.schema.names
        at_once = _OBJECTS if ready.native is None else _STRUCTURES
        for start in range(0, rows.num_rows, at_once):
            some = rows.slice(start, at_once)
            for piece in pieces(some, self._sent_bytes) if self._in_pieces else [some]:
                records = records_of(ready, self._topic, piece)
                self._largest = max(self._largest, records.largest)
                self._enqueue_all(ready, records)
                self._serve(ready, 0)
                if self._in_pieces:
                    self._flush(ready)  # so that no batch has records from two pieces

    def letter_max_bytes(self) -> int:
        """See :class:`SinkWriter`.

        A dead letter must not exceed the client's limit. A batch that contains only this dead letter must not exceed the
        topic's limit.
        """
        most = self._settings.message_max_bytes
        if self._topic is not None:
            self._batch_size.learn([self._topic])
            most = min(most, self._batch_size.limit_of(self._topic))
        return most - _LETTER_OVERHEAD_BYTES

    def pre_commit(self) -> KafkaHandle:
        """See :class:`SinkWriter`. Vote only if no delivery failed, the queue is empty, and every row was sent (rule 2)."""
        ready = self._begun
        if ready.markers < 1:
            raise self._no_markers(ready)
        transaction = uuid.uuid4().hex
        marker = encode_marker(transaction, self._task, self._rows)
        marker_partition = 1 + self._task.partition % ready.markers
        self._enqueue_all(
            ready, OneByOne(ready.producer, [(self._ledger, marker, transaction.encode(), marker_partition)])
        )
        self._flush(ready)
        producer_id, producer_epoch = ready.identity
        return KafkaHandle(
            uuid=transaction,
            transactional_id=ready.transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            marker_partition=marker_partition,
            rows=self._rows,
            partitions=self._written_to(ready, marker_partition),
        )

    def hand_over(self) -> None:
        """See :class:`SinkWriter`. Drop the producer without an abort, so that the transaction stays prepared."""
        super().hand_over()
        self._ready = None

    def abort(self) -> None:
        """See :class:`SinkWriter`."""
        if self._ready is not None:
            drop_quietly(self._ready, _ABORT_TIMEOUT_MS)
            self._ready = None

    def close(self) -> None:
        """See :class:`SinkWriter`. The idle worker then prepares producers for its next tasks."""
        super().close()
        if self._pool is not None:
            self._pool.replenish(self._task.committed_through)

    def _fit_batches(self, rows: pa.RecordBatch) -> Sequence[str]:
        """Make sure that the rows' topics accept the producer's batches. Return the topics.

        Before the first row, replace the producer if needed. After that, all rows must be in the same transaction, so the writer
        gives the producer only as many rows at a time as fit in a batch.
        """
        if self._topic is not None:
            return [self._topic]
        # The column can be missing only from staged rows, because the sink has chosen the columns of all other rows.
        if "topic" not in rows.schema.names:
            raise ConfigurationError(
                f"sink {self._settings.name!r}: the staged rows of batch {self._task.batch_id} have no column 'topic', and "
                "the sink now has topic=None. When the rows were staged, the sink had a topic. Restore the sink's topic "
                "setting"
            )
        column = rows.column("topic")
        topics = texts_of(column.drop_null().unique())
        self._require_topics([*topics, *([None] if column.null_count else [])])
        self._batch_size.learn(topics)
        accepted = min(self._batch_size.bytes, self._producer_bytes)
        if self._rows:  # set both attributes again, because a limit that was unknown may be known now
            self._in_pieces, self._sent_bytes = accepted < self._producer_bytes, accepted
        elif accepted < self._producer_bytes:
            self._replace_producer()
        return topics

    def _replace_producer(self) -> None:
        """Before the first row, take another producer, whose batches are smaller."""
        self.abort()
        self.begin_transaction()

    def _enqueue_all(self, ready: ReadyProducer, records: Records) -> None:
        done, deadline = 0, None
        look_up = LookUp(ready.producer, self._timeout_s)
        while done < len(records):  # this loop needs no pauses, because serving the queue empties it
            accepted, error = records.enqueue(done)
            if error is None:
                return
            topic = records.topic_of(accepted)
            if not is_full(error):
                if look_up.helps(records, accepted, error):
                    done = accepted
                    self._serve(ready, 0.05)
                    continue
                self._serve(ready, 0)
                for _ in range(_LOOKS if has_failed(error) else 0):
                    self._serve(ready, 0.05)  # raises the error of the record that made the transaction fail
                gone = ledger_gone(error, topic) if topic == self._ledger else None
                doing = f"writing to {look_up.named(topic, error)}"
                raise gone or translate_in_task(error, doing, on_topic("Write", topic))
            # The full queue bounds the task's memory. Wait until the broker has accepted some records.
            if deadline is None or accepted > done:
                deadline = time.monotonic() + self._timeout_s
            done = accepted
            self._serve(ready, 0.05)
            if time.monotonic() >= self._ends_at:
                raise self._expired(f"{ready.transactional_id}: the queue of records for {topic} was still full")
            if time.monotonic() > deadline:
                took = f"the topic {topic} accepted no record for {self._timeout_s:.0f} s"
                raise UnavailableError(f"{took}: {SLOW_DELIVERY}{ready.log.said()}")

    def _flush(self, ready: ReadyProducer) -> None:
        """Wait until every record has a report, or one record has failed. Each acknowledgement restarts the timeout.

        Raises:
            UnavailableError: no report arrived in time.
            CheckpointExpiredError: reports arrived, but the time ran out before every record had a report.
            BadRecordError, RetriableError: a record was not delivered.
        """

        def flush(wait_s: float) -> int:
            with translated(self._doing(ready), translate_in_task):
                left = ready.producer.flush(wait_s)
            # After a record has failed, librdkafka may keep later records until the transaction ends.
            self._serve(ready, 0)
            return left

        left = flush_all(flush, silence_s=self._timeout_s, until=self._ends_at)
        if not left:
            return
        if LookUp(ready.producer, self._timeout_s).is_gone(self._ledger):
            raise ledger_is_gone(self._ledger)
        open_ones = f"{ready.transactional_id}: {min(left, self._rows)} of {counted(self._rows, 'record')} were not acknowledged"
        if time.monotonic() >= self._ends_at:
            raise self._expired(open_ones)
        raise UnavailableError(
            f"{open_ones}, and no acknowledgement arrived for {self._timeout_s:.0f} s: {SLOW_DELIVERY}{ready.log.said()}"
        )

    def _no_markers(self, ready: ReadyProducer) -> TwoPhaseCommitError:
        """Build the error for a ledger that had no marker partition when the producer connected."""
        look_up = LookUp(ready.producer, self._timeout_s)
        refused = look_up.refusal(self._ledger)
        if refused is not None:
            return translate_in_task(refused, f"writing to {self._ledger}", on_topic("Write", self._ledger))
        if look_up.is_gone(self._ledger):
            return ledger_is_gone(self._ledger)
        return RetriableError(
            f"{ready.transactional_id}: the broker to which this producer connected did not know the ledger "
            f"{self._ledger}, as can happen while a broker starts. No part of this attempt is visible. The next "
            "attempt will use another producer"
        )

    def _expired(self, what: str) -> CheckpointExpiredError:
        """Build the error for a vote that would be too late. ``what`` names the unfinished work."""
        if self._ends_at >= self._task.ends_at:
            return CheckpointExpiredError(f"{what} when the batch's time ran out: {TOO_MUCH}")
        return CheckpointExpiredError(
            f"{what} when the transaction timeout of {self._settings.transaction_timeout_ms} ms had almost passed. "
            "No part of this attempt is visible or decided. Raise kafka.transaction.timeout.ms and the brokers' "
            f"transaction.max.timeout.ms. Also {TOO_MUCH}"
        )

    def _serve(self, ready: ReadyProducer, wait_s: float) -> None:
        """Serve delivery reports, and raise the error if a record was not delivered."""
        with translated(self._doing(ready), translate_in_task):
            ready.producer.poll(wait_s)
            for _ in range(_LOOKS):
                if not ready.failures or not all(map(is_for_another, ready.failures.values())):
                    break
                ready.producer.poll(0.05)  # the report on the record that caused the failure follows
        self._require_no_errors(ready)

    def _require_no_errors(self, ready: ReadyProducer) -> None:
        if ready.failures:
            doing = f"{ready.transactional_id}: writing to"
            look_up = LookUp(ready.producer, self._timeout_s)
            blamed = {topic: error for topic, error in ready.failures.items() if not is_for_another(error)}
            errors = [
                self._translated(
                    ready, error, topic, f"{doing} {look_up.named(topic, error)} (of {counted(self._rows, 'row')})"
                )
                for topic, error in sorted((blamed or ready.failures).items())
            ]
            lasting = next((error for error in errors if not error.retriable), errors[0])
            raise type(lasting)("; ".join(map(str, errors)))

    def _translated(self, ready: ReadyProducer, error: KafkaError, topic: str, doing: str) -> TwoPhaseCommitError:
        error = cause_of(ready.producer, error)
        is_ledger = topic == self._ledger
        by_ledger = (ledger_gone(error, topic) or ledger_changed(error, topic, doing)) if is_ledger else None
        refused = by_ledger or self._batch_size.refusal(error, topic, self._sent_bytes, self._largest, doing)
        by_clock = None if self._dated and not is_ledger else wrong_clock(error, doing)
        return refused or by_clock or translate_in_task(error, doing, on_topic("Write", topic))

    def _doing(self, ready: ReadyProducer) -> str:
        return f"{ready.transactional_id}: writing (of {counted(self._rows, 'row')})"

    def _written_to(self, ready: ReadyProducer, marker_partition: int) -> tuple[str, ...]:
        """List the partitions that received the rows and the marker, according to the delivery reports."""
        sent = by_topic(ready.delivered)
        if not self._covers(sent, marker_partition):
            raise RetriableError(
                f"{ready.transactional_id}: librdkafka reports fewer records than the {self._rows} that it received from the task"
            )
        return tuple(f"{topic}:{ranges(sorted(counts))}" for topic, counts in sorted(sent.items()))

    def _covers(self, sent: Mapping[str, Mapping[int, int]], marker_partition: int) -> bool:
        count = sum(sum(counts.values()) for counts in sent.values())
        return count > self._rows and marker_partition in sent.get(self._ledger, {})
