"""The decision log in Kafka: partition 0 of the ledger. A decision is a committed transaction of the drivers' producer."""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from sinks.kafka import ledger_topic
from sinks.kafka.driver_producer import DriverProducer
from sinks.kafka.ledger_topic import DRIVER_PARTITION
from sinks.kafka.reader import CommittedReader, Row, offsets
from twopc.codec import decode, encode
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

    from sinks.kafka.settings import KafkaSettings
    from twopc.attempt import Claim

logger = logging.getLogger(__name__)

#: Below the default limit of brokers and clients (about 1 MiB), headers included (rule 14). A ledger with a lower limit
#: gets smaller frames.
_FRAME_BYTES: Final = 900_000
#: What a batch of one record adds to its value; an upper bound.
_BATCH_OVERHEAD_BYTES: Final = 1_000
#: librdkafka waits at least 80 % of retry.backoff.ms (100) before it sends EndTxn again. So a commit slower than half of
#: that may be a retry whose first response was lost, and the record is read back (rule 12).
_SLOW_COMMIT_S: Final = 0.05
_READ_BACK_PAUSE_S: Final = 0.005
#: How long a connected broker may be silent, for example paused, or on a lost host: by then another one leads or
#: coordinates. librdkafka's default is a minute, the whole life of the driver's transaction.
_SILENCE_MS: Final = 10_000
_SHORTEST_SILENCE_MS: Final = 2_000


class KafkaDecisionLog(DecisionLog):
    """Decisions in partition 0 of the ledger. The committer also writes barriers into the marker partitions with it."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.name = settings.ledger
        self._settings = settings
        self._timeout_ms = settings.timeout_ms
        # A third of a step, so that another broker can respond after a silent one.
        silence_ms = int(max(_SHORTEST_SILENCE_MS, min(_SILENCE_MS, settings.timeout_ms / 3)))
        self._silence = {"socket.timeout.ms": str(silence_ms)}
        connection = {**self._silence, **settings.connection_config()}
        self.admin = AdminClient({**connection, "socket.connection.setup.timeout.ms": "5000"})
        self.reader = CommittedReader(connection)
        self._producer: DriverProducer | None = None
        self._run: str | None = None
        self._driver_epoch = -1
        self._frame_bytes = _FRAME_BYTES
        self._topic_id = ""

    def identity(self) -> str:
        """See :class:`DecisionLog`: the topic's id."""
        # Once acquired it is known; a broker that is behind might still report the topic as absent.
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
        """See :class:`DecisionLog`. Initialising the drivers' transactional id fences the former driver (rule 1)."""
        if self._run == claim.run:
            return self._driver_epoch
        self._topic_id = ledger_topic.ensure(self.admin, self.name, timeout_ms=self._timeout_ms)
        ledger_topic.require_safe(self.admin, self.name, timeout_ms=self._timeout_ms)
        limit = ledger_topic.batch_limit(self.admin, self.name, timeout_ms=self._timeout_ms)
        self._frame_bytes = min(_FRAME_BYTES, limit - _BATCH_OVERHEAD_BYTES)
        self._producer = DriverProducer(self._settings, self._silence)
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
        """See :class:`DecisionLog`: up to this driver's own record, so that no stale leader can hide a decision."""
        return self._contents(until=self._driver_epoch)

    def append(self, records: Sequence[Record]) -> int:
        """See :class:`DecisionLog`."""
        frames = [frame for record in records for frame in encode(record, max_bytes=self._frame_bytes)]
        point = None if isinstance(records[0], Acquired) else "driver.deciding"
        return self.write([(DRIVER_PARTITION, frame) for frame in frames], point=point)

    def truncate(self, log_start: int) -> None:
        """See :class:`DecisionLog`."""
        self.delete_before({DRIVER_PARTITION: log_start})

    def close(self) -> None:
        """See :class:`DecisionLog`. Dropping the producer ends no transaction."""
        self._producer = None
        self.reader.close()

    def write(self, values: Sequence[tuple[int, bytes]], *, point: str | None = None) -> int:
        """Write ``(partition, value)`` pairs in one committed transaction; ``point`` is the crash point before the commit.

        Returns:
            the offset of the first.

        Raises:
            FencedError, RetriableError, DecisionInDoubtError: see :meth:`DecisionLog.append`.
        """
        if self._producer is None:
            raise AssertionError("acquire comes first")
        first, took_s = self._producer.write(values, point=point)
        # Partition 0 only: a barrier may stand behind an open transaction, and its writer reads up to it anyway.
        if values[0][0] == DRIVER_PARTITION and took_s > _SLOW_COMMIT_S:
            self._read_back(DRIVER_PARTITION, first, values[0][1])
        return first

    def delete_before(self, starts: Mapping[int, int]) -> None:
        """DeleteRecords below each partition's offset. Best effort: the next call repeats what failed."""
        deleted = self.admin.delete_records(
            [TopicPartition(self.name, partition, offset) for partition, offset in starts.items()],
            request_timeout=self._timeout_ms / 1000,
        )
        for where, future in deleted.items():
            try:
                future.result()
            except KafkaException as error:
                logger.warning("the ledger %s could not be truncated at %s: %s", self.name, where, error)

    def _read_back(self, partition: int, offset: int, value: bytes) -> None:
        """Prove that the record was committed: wait until the last stable offset is above it, then read it."""
        where = f"{self.name}/{partition}/{offset}"
        deadline = time.monotonic() + self._timeout_ms / 1000

        def read_stable() -> list[Row] | None:
            left_ms = max(1.0, (deadline - time.monotonic()) * 1000)
            stable = offsets(
                self.admin, self.name, [partition], OffsetSpec.latest(), committed=True, timeout_ms=left_ms
            )[partition]
            if stable <= offset:
                return None
            return self.reader.read(self.name, partition, offset, None, end=stable, timeout_ms=left_ms)

        retrying = Retrying(
            retry=retry_if_result(lambda rows: rows is None),
            stop=stop_after_delay(self._timeout_ms / 1000),
            wait=wait_fixed(_READ_BACK_PAUSE_S),
            retry_error_callback=lambda _: None,
        )
        try:
            rows = retrying(read_stable)
        except (RetriableError, ConfigurationError) as error:  # the read failed; it says nothing about the record
            raise DecisionInDoubtError(_unreadable(where, error)) from error
        if rows is None:
            raise DecisionInDoubtError(_unreadable(where, f"it was not stable within {self._timeout_ms} ms"))
        if rows and (rows[0].offset, rows[0].value) == (offset, value):
            return
        raise FencedError(
            f"the record at {where} was aborted, although its commit succeeded for librdkafka: a newer driver has acquired the "
            "sink. Restart the query, unless the newer driver is meant to run"
        )

    def _contents(self, until: int | None) -> LogContents:
        found = offsets(self.admin, self.name, [DRIVER_PARTITION], OffsetSpec.earliest(), timeout_ms=self._timeout_ms)
        start = found[DRIVER_PARTITION]
        last = None if until is None else (lambda row: row.offset == until)
        rows: list[Row] | None = self.reader.read(self.name, DRIVER_PARTITION, start, last, timeout_ms=self._timeout_ms)
        if rows is None:
            end = "its end" if until is None else f"offset {until}"
            raise RetriableError(
                f"the ledger {self.name} could not be read up to {end} within {self._timeout_ms} ms: a broker does not respond, "
                "or an open transaction hides the records"
            )
        if until is not None and rows[-1].offset != until:
            raise DecisionLogDamagedError(
                f"the ledger {self.name} lost the record at offset {until}, which this driver has just written"
            )
        return LogContents(start, tuple(decode((row.offset, row.value) for row in rows)))


def _unreadable(where: str, reason: object) -> str:
    return (
        f"the record at {where} cannot be read back ({reason}), so its outcome is unknown. No data is lost. Restart the query; "
        "it reads the outcome"
    )
