"""Provide the two-phase trial with a stand-in's clients and transactions, and remove the stand-in at the end."""

from __future__ import annotations

import logging
import uuid
from array import array
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec
from tenacity import wait_fixed

from twopc.attempt import Attempt, Claim, TaskAttempt
from twopc.errors import ConfigurationError, RetriableError, TwoPhaseCommitError
from twopc.retry import retrying
from twopc.sinks.kafka.errors import is_retriable, translated
from twopc.sinks.kafka.handle import ProducerIdentity, id_prefix
from twopc.sinks.kafka.ledger_topic import describe
from twopc.sinks.kafka.prepared import fence
from twopc.sinks.kafka.reader import offsets
from twopc.sinks.kafka.transactions import TransactionClient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twopc.sinks.kafka import KafkaSink
    from twopc.sinks.kafka.decision_log import KafkaDecisionLog
    from twopc.sinks.kafka.handle import KafkaHandle
    from twopc.sinks.kafka.writer import KafkaWriter

logger = logging.getLogger(__name__)

QUERY_ID: Final = "twopc preflight"
_VALUE: Final = QUERY_ID.encode()
#: This partition comes after the partitions that contain the tasks' markers.
_FIRST_ROW_PARTITION: Final = 5


class Trial:
    """A stand-in's clients and transactions.

    Attributes:
        original: the sink that the stand-in replaces. The trial does not use this sink.
        sink: the stand-in.
        client: the client that commits, aborts and describes transactions.
        log: the first driver's decision log.
        admin: the client that creates and deletes the topic.
        scan_start: the offset at which the tasks' markers start.
        handles: the handle of each task.
        decided_at: the offset of the decision.
    """

    def __init__(self, original: KafkaSink, stand_in: KafkaSink) -> None:
        self.original = original
        self.sink = stand_in
        self.timeout_ms = stand_in.timeout_ms
        self.client = TransactionClient(self.sink.committing_config())
        self.log = self.sink.create_decision_log()
        self.admin, self._ledger = self.log.admin, self.log.topic  # a closed log no longer has these attributes
        self.scan_start: Mapping[str, int] = {}
        self.handles: dict[int, KafkaHandle] = {}
        self.decided_at = -1
        self._is_making = False
        self._logs = [self.log]
        self._writers: list[KafkaWriter] = []

    @property
    def topic(self) -> str:
        """The only topic that the trial writes to."""
        return self.sink.ledger

    def make_topic(self) -> None:
        """Create the topic in the same way as the ledger."""
        self._is_making = True
        try:
            self._ledger.ensure()
        except TwoPhaseCommitError:
            self._is_making = False
            raise
        self._is_making = False

    def acquire(self, log: KafkaDecisionLog) -> int:
        """Acquire the stand-in as a driver does, and return the driver epoch."""
        return log.acquire(Claim(query_id=QUERY_ID, run=uuid.uuid4().hex, deciding_log=self.topic))

    def another_driver(self) -> KafkaDecisionLog:
        """Create a second driver for the same sink, which fences the first driver. Return the second driver's log."""
        log = self.sink.create_decision_log()
        self._logs.append(log)
        self.acquire(log)
        return log

    def prepare(self, task: int) -> KafkaHandle:
        """Run a task up to the end of its pre-commit. The task writes one row, to a partition that no other task uses."""
        attempt = TaskAttempt(
            query_id=QUERY_ID,
            batch_id=0,
            attempt=Attempt(self.log.driver_epoch, 1),
            partition=task,
            driver_epoch=self.log.driver_epoch,
            committed_through=-1,
        )
        writer = self.sink.create_writer(attempt)
        self._writers.append(writer)
        writer.write_rows(_row(self.row_partition(task)))
        handle = writer.snapshot_state(attempt.batch_id)
        writer.hand_over()
        if handle is None:
            raise AssertionError("a task with a row has a handle")
        return handle

    def row_partition(self, task: int) -> int:
        """Return the partition that the task writes its row to."""
        return _FIRST_ROW_PARTITION + task

    def is_visible(self, task: int) -> bool:
        """Whether a ``read_committed`` reader sees the task's row now.

        Raises:
            RetriableError: the reader did not reach the last stable offset.
        """
        walk = self.log.reader.rows(self.topic, self.row_partition(task), 0, None, timeout_ms=self.timeout_ms)
        return len(list(walk)) > 0

    def await_stable(self, task: int) -> None:
        """Wait until readers can read past the task's rows, which shows that the task's transaction has ended in every partition.

        Raises:
            RetriableError: readers cannot read past the rows in time.
        """
        partition = self.row_partition(task)

        def end(*, committed: bool) -> int:
            latest, timeout_ms = OffsetSpec.latest(), self.timeout_ms
            return offsets(self.admin, self.topic, [partition], latest, timeout_ms=timeout_ms, committed=committed)[
                partition
            ]

        def require_stable() -> None:
            if (stable := end(committed=True)) < end(committed=False):
                raise RetriableError(f"{self.topic}/{partition}: readers cannot read past offset {stable}")

        retrying(is_retriable, timeout_s=self.timeout_ms / 1000, backoff=wait_fixed(0.05))(require_stable)

    def delete(self, partition: int, *, before: int) -> None:
        """Send DeleteRecords, as the driver does when it truncates its ledger.

        Raises:
            ConfigurationError: a permission is missing.
            RetriableError: the broker did not respond.
        """
        where = TopicPartition(self.topic, partition, before)

        def request() -> None:
            (future,) = self.admin.delete_records([where], request_timeout=self.timeout_ms / 1000).values()
            with translated(f"deleting records from {self.topic}"):
                future.result()

        retrying(is_retriable, timeout_s=self.timeout_ms / 1000, backoff=wait_fixed(0.05))(request)

    def clean_up(self) -> None:
        """End every transaction and delete the topic. Log any leftovers."""
        for writer in self._writers:
            writer.abort()
        for log in self._logs:  # a client that still looks for the topic could recreate it
            log.close()
        try:
            if self._is_making:  # the creation was interrupted, and the brokers may still create the topic: wait for it
                self._ledger.ensure()
            self._end_transactions()
            self._delete_topic()
        except TwoPhaseCommitError as error:
            logger.warning("the preflight could not delete its topic %s. Cause: %s", self.topic, error)
        finally:
            self.client.close()
            del self.admin, self._ledger

    def _end_transactions(self) -> None:
        listed = self.client.list_open(id_prefix(self.sink.name)).transactional_ids
        left = fence(self.client, [ProducerIdentity(tid) for tid in listed], timeout_ms=self.timeout_ms)
        if left:
            text = "the preflight could not end these open transactions: %s. They will time out within %d ms"
            logger.warning(text, ", ".join(left), self.sink.transaction_timeout_ms)

    def _delete_topic(self) -> None:
        if not self._exists():
            return
        (future,) = self.admin.delete_topics([self.topic], request_timeout=self.timeout_ms / 1000).values()
        with translated(f"deleting the topic {self.topic}"):
            future.result()
        retrying(is_retriable, timeout_s=self.timeout_ms / 1000, backoff=wait_fixed(0.05))(self._require_gone)

    def _require_gone(self) -> None:
        if self._exists():
            raise RetriableError("the brokers still list the topic")

    def _exists(self) -> bool:
        try:
            return describe(self.admin, self.topic, timeout_ms=self.timeout_ms) is not None
        except ConfigurationError:  # the principal is not allowed to see the topic, so it could not create it either
            return False


def _row(partition: int) -> pa.RecordBatch:
    """Return one row for a partition, without ``pa.array``, because that function imports pandas and takes a second."""
    ends = array("i", [0, len(_VALUE)])
    value = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(ends), pa.py_buffer(_VALUE)])
    where = pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(array("i", [partition]))])
    return pa.record_batch({"value": value, "partition": where})
