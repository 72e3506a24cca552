"""The decision log in Kafka: partition 0 of the ledger, written by one fenced driver producer.

The producer's fixed transactional id ``<sink>.driver`` makes the broker itself guarantee one driver for a sink name;
whatever a driver decides is a committed transaction of that producer.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from sinks.kafka import ledger_topic
from sinks.kafka.errors import SERVING, error_of, is_fenced, translate
from sinks.kafka.ledger_topic import DRIVER_PARTITION
from sinks.kafka.options import connection_config, producer_config
from sinks.kafka.producer_pool import client_logger, connect
from sinks.kafka.reader import CommittedReader, Row, offsets
from twopc.codec import decode, encode
from twopc.crash_points import crash_point
from twopc.decision_log import DecisionLog
from twopc.errors import (
    ConfigurationError,
    DecisionInDoubtError,
    DecisionLogDamagedError,
    FencedError,
    RetriableError,
)
from twopc.records import Acquired, LogContents, Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from confluent_kafka import Message

    from twopc.attempt import Claim

logger = logging.getLogger(__name__)

#: Under the broker's and the client's default limit of about 1 MiB, headers included (rule 14: parts i/n); a ledger with a
#: lower limit gets smaller ones.
_FRAME_BYTES: Final = 900_000
#: What a batch of one record adds to its value, generously.
_BATCH_OVERHEAD_BYTES: Final = 1_000
#: librdkafka waits at least 80 % of retry.backoff.ms (100) before it sends EndTxn again; a commit slower than half of
#: that may have been a retry whose first answer was lost, so the record is read back (rule 12).
_SLOW_COMMIT_S: Final = 0.05
_DRIVER_TRANSACTION_TIMEOUT_MS: Final = 60_000
#: How long a connected broker may be silent (one that is paused, or whose host is gone): by then another leads or
#: coordinates, and is asked. librdkafka's default is a minute, the whole life of the driver's transaction.
_SILENCE_MS: Final = 10_000
_SHORTEST_SILENCE_MS: Final = 2_000


class KafkaDecisionLog(DecisionLog):
    """Decisions in partition 0 of ``topic``; also the way to write barriers into the marker partitions."""

    def __init__(
        self, sink: str, topic: str, bootstrap_servers: str, options: Mapping[str, Any], timeout_ms: float
    ) -> None:
        self.name = topic
        self._transactional_id = f"{sink}.driver"
        self._timeout_ms = timeout_ms
        # A third of a step, so that who comes after the silent one has time to answer.
        silence = {"socket.timeout.ms": str(int(max(_SHORTEST_SILENCE_MS, min(_SILENCE_MS, timeout_ms / 3))))}
        self._producer_config = {
            **silence,
            **producer_config(bootstrap_servers, options),
            "transactional.id": self._transactional_id,
            "transaction.timeout.ms": str(_DRIVER_TRANSACTION_TIMEOUT_MS),
            "message.timeout.ms": str(_DRIVER_TRANSACTION_TIMEOUT_MS),
            "linger.ms": "0",
            # Parts of a record must fit, whatever the user has set for the rows; the broker's limit is one of batches.
            "batch.num.messages": "1",
            "message.max.bytes": "1000000",
            "queue.buffering.max.kbytes": "1048576",
        }
        connection = {**silence, **connection_config(bootstrap_servers, options)}
        self.admin = AdminClient({**connection, "socket.connection.setup.timeout.ms": "5000"})
        self.reader = CommittedReader(connection)
        self._producer: Producer | None = None
        self._run: str | None = None
        self._driver_epoch = -1
        self._frame_bytes = _FRAME_BYTES
        self._topic_id = ""

    # -- DecisionLog ---------------------------------------------------------------------------------------------------

    def identity(self) -> str:
        """See :class:`DecisionLog`: the topic's id."""
        # Once taken over it is that topic; a broker that is behind might still call it absent.
        return self._topic_id or ledger_topic.topic_id(self.admin, self.name, timeout_ms=self._timeout_ms)

    def require_safe(self) -> None:
        """Refuse dangerous settings of an existing ledger. Read-only.

        Raises:
            ConfigurationError: see ``sinks.kafka.ledger_topic``.
        """
        if self.identity() != ledger_topic.ABSENT:
            ledger_topic.require_safe(self.admin, self.name, timeout_ms=self._timeout_ms)

    def inspect(self) -> LogContents:
        """See :class:`DecisionLog`."""
        if self.identity() == ledger_topic.ABSENT:
            return LogContents(0, ())
        return self._contents(until=None)

    def acquire(self, claim: Claim) -> int:
        """See :class:`DecisionLog`. Initialising the driver's id fences whoever drove before (rule 1)."""
        if self._run == claim.run:
            return self._driver_epoch
        self._topic_id = ledger_topic.ensure(self.admin, self.name, timeout_ms=self._timeout_ms)
        ledger_topic.require_safe(self.admin, self.name, timeout_ms=self._timeout_ms)
        limit = ledger_topic.batch_limit(self.admin, self.name, timeout_ms=self._timeout_ms)
        self._frame_bytes = min(_FRAME_BYTES, limit - _BATCH_OVERHEAD_BYTES)
        self._producer = Producer(self._producer_config, logger=client_logger)
        try:
            connect(self._producer, self.name, timeout_s=self._timeout_ms / 1000)
            self._producer.init_transactions(self._timeout_ms / 1000)
        except KafkaException as error:
            raise translate(error, f"taking over the ledger {self.name} as {self._transactional_id}") from error
        crash_point("driver.fenced")
        record = Acquired(
            query_id=claim.query_id,
            run=claim.run,
            deciding_log=claim.deciding_log,
            driver=f"{socket.gethostname()}:{os.getpid()}",
            at_ms=int(time.time() * 1000),
        )
        self._driver_epoch = self.append([record])
        self._run = claim.run
        return self._driver_epoch

    def read(self) -> LogContents:
        """See :class:`DecisionLog`: up to the own take-over record, so that no stale leader can hide a decision."""
        return self._contents(until=self._driver_epoch)

    def append(self, records: Sequence[Record]) -> int:
        """See :class:`DecisionLog`."""
        frames = [frame for record in records for frame in encode(record, max_bytes=self._frame_bytes)]
        fault = "driver.deciding" if not isinstance(records[0], Acquired) else None
        return self.write([(DRIVER_PARTITION, frame) for frame in frames], fault=fault)

    def truncate(self, log_start: int) -> None:
        """See :class:`DecisionLog`."""
        self.delete_before({DRIVER_PARTITION: log_start})

    def close(self) -> None:
        """See :class:`DecisionLog`. Dropping the producer ends no transaction."""
        self._producer = None
        self.reader.close()

    # -- for the committer ---------------------------------------------------------------------------------------------

    def write(self, values: Sequence[tuple[int, bytes]], *, fault: str | None = None) -> int:
        """Write ``(partition, value)`` pairs in one committed transaction of the driver; returns the first's offset.

        Raises:
            FencedError, RetriableError, DecisionInDoubtError: see :meth:`DecisionLog.append`.
        """
        producer = self._producer
        if producer is None:
            raise AssertionError("take_over comes first")
        written: list[Message] = []
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            failures.append(error) if error else written.append(message)

        try:
            producer.begin_transaction()
            for partition, value in values:
                producer.produce(self.name, value, partition=partition, on_delivery=delivered)
            left = producer.flush(self._timeout_ms / 1000)
            if failures or left:
                raise KafkaException(failures[0] if failures else KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001
        except SERVING as error:
            refused = translate(error, f"writing to the ledger {self.name}")
            # A late EndTxn of the record before may have published this one (KAFKA-17754): only an abort that succeeds tells.
            if not self._give_up(producer) and not isinstance(refused, FencedError):
                raise DecisionInDoubtError(f"{refused}; and it could not be aborted. Restart the query") from error
            raise refused from error
        if fault:
            crash_point(fault)
        began = time.monotonic()
        self._commit(producer)
        first = written[0].offset()
        if first is None:
            raise AssertionError("a delivered message has an offset")
        # Partition 0 only: a barrier may stand behind an open transaction, and whoever writes one reads up to it anyway.
        if values[0][0] == DRIVER_PARTITION and time.monotonic() - began > _SLOW_COMMIT_S:
            self._read_back(DRIVER_PARTITION, first, values[0][1])
        return first

    def delete_before(self, starts: Mapping[int, int]) -> None:
        """DeleteRecords below each partition's offset. Best effort: what fails is dropped with the next one."""
        asked = self.admin.delete_records(
            [TopicPartition(self.name, partition, offset) for partition, offset in starts.items()],
            request_timeout=self._timeout_ms / 1000,
        )
        for where, future in asked.items():
            try:
                future.result()
            except KafkaException as error:
                logger.warning("the ledger %s could not be truncated at %s: %s", self.name, where, error)

    def _commit(self, producer: Producer) -> None:
        """Commit, again and again while the error is retriable; the decision is never taken anew (rule 12)."""
        deadline = time.monotonic() + _DRIVER_TRANSACTION_TIMEOUT_MS / 1000
        while True:
            try:
                producer.commit_transaction(max(0.1, deadline - time.monotonic()))
            except KafkaException as error:
                inner = error_of(error)
                if is_fenced(inner):
                    raise FencedError(
                        f"{self._transactional_id} was fenced while it committed: a newer driver has taken over (it has read "
                        "what became of this record), or this one was paused for longer than its transaction lives. Restart"
                    ) from error
                # Only an abort that succeeds proves that the commit before it did not.
                if inner.txn_requires_abort() and self._give_up(producer):
                    raise RetriableError(f"the ledger {self.name} refused a record: {inner.str()}") from error
                if not inner.retriable() or time.monotonic() > deadline:
                    raise DecisionInDoubtError(
                        f"the ledger {self.name} did not answer the commit of a decision ({inner.str()}): whether it holds is "
                        "not known here. Restart the query when the brokers answer: it reads what became of it"
                    ) from error
            else:
                return

    def _read_back(self, partition: int, offset: int, value: bytes) -> None:
        """Was the record really committed? Asks for everything up to the last stable offset behind it."""
        where = f"{self.name}/{partition}/{offset}"
        deadline = time.monotonic() + self._timeout_ms / 1000
        try:
            while (left_ms := (deadline - time.monotonic()) * 1000) > 0:
                stable = offsets(
                    self.admin, self.name, [partition], OffsetSpec.latest(), committed=True, timeout_ms=left_ms
                )[partition]
                if stable <= offset:
                    continue
                rows = self.reader.read(self.name, partition, offset, None, end=stable, timeout_ms=left_ms)
                if rows is None:
                    continue
                if rows and (rows[0].offset, rows[0].value) == (offset, value):
                    return
                raise FencedError(f"the record at {where} was aborted by somebody else. Restart")
        except (RetriableError, ConfigurationError) as error:  # of the reading: it says nothing of the record
            raise DecisionInDoubtError(
                f"the record at {where} cannot be read back ({error}). Restart the query"
            ) from error
        raise DecisionInDoubtError(f"the record at {where} cannot be read back. Restart the query")

    def _give_up(self, producer: Producer) -> bool:
        try:
            producer.abort_transaction(self._timeout_ms / 1000)
        except SERVING as error:
            logger.warning("a ledger transaction could not be aborted, the next take-over does it: %s", error)
            return False
        return True

    def _contents(self, until: int | None) -> LogContents:
        found = offsets(self.admin, self.name, [DRIVER_PARTITION], OffsetSpec.earliest(), timeout_ms=self._timeout_ms)
        start = found[DRIVER_PARTITION]
        last = None if until is None else (lambda row: row.offset == until)
        rows: list[Row] | None = self.reader.read(self.name, DRIVER_PARTITION, start, last, timeout_ms=self._timeout_ms)
        if rows is None:
            raise RetriableError(f"the ledger {self.name} could not be read up to {until} within {self._timeout_ms} ms")
        if until is not None and rows[-1].offset != until:
            raise DecisionLogDamagedError(f"the ledger {self.name} lost the record at {until} that was just written")
        return LogContents(start, tuple(decode((row.offset, row.value) for row in rows)))
