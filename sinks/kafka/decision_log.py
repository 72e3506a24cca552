"""Implement the decision log in partition 0 of the ledger. A decision is a committed transaction of the drivers' producer."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from tenacity import wait_fixed

from twopc.codec import decode, decoding, encode
from twopc.decision_log import ABSENT, DecisionLog
from twopc.errors import (
    DecisionInDoubtError,
    DecisionLogDamagedError,
    FencedError,
    RetriableError,
    TwoPhaseCommitError,
    UnavailableError,
)
from twopc.records import Acquired, Entries, LogContents, Record, truncated_to
from twopc.retry import retrying
from twopc.sinks.kafka.driver_producer import DriverProducer
from twopc.sinks.kafka.errors import is_retriable, on_topic, translate
from twopc.sinks.kafka.ledger_owner import OwnerCheck
from twopc.sinks.kafka.ledger_topic import DRIVER_PARTITION, LedgerTopic
from twopc.sinks.kafka.oauth import require_token
from twopc.sinks.kafka.reader import CommittedReader, Row, offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from twopc.attempt import Claim
    from twopc.records import LogEntry
    from twopc.sinks.kafka.settings import KafkaSettings

logger = logging.getLogger(__name__)


#: A frame and its headers stay below the brokers' and clients' default limit of about 1 MiB (rule 14). If the ledger's limit is
#: lower, the frames are smaller.
_FRAME_BYTES: Final = 900_000
#: The maximum overhead of a batch that contains one record.
_BATCH_OVERHEAD_BYTES: Final = 1_000
_READ_BACK_PAUSE_S: Final = 0.005
#: If a ledger has more offsets than this, a driver searches it backward for the newest truncation, beginning with this
#: many offsets. A truncated ledger is shorter: it contains 200 decisions, each followed by a control record.
_PART: Final = 512
#: A connected broker may be silent for this long, for example because it is paused or its host is lost. By then, another broker
#: will have taken over as leader or coordinator. The librdkafka default is one minute, which is also the driver's
#: transaction timeout.
_SILENCE_MS: Final = 10_000
_SHORTEST_SILENCE_MS: Final = 2_000


class KafkaDecisionLog(DecisionLog):
    """Reads and writes decisions in partition 0.

    The committer also uses this object to write barriers to the marker partitions.
    """

    def __init__(self, settings: KafkaSettings, *, cluster: str = "") -> None:
        """Prepare the log.

        Args:
            settings: the sink's settings.
            cluster: the id of the cluster; empty if the log is only read.
        """
        self.name = settings.ledger
        self.cluster = cluster
        self._settings = settings
        self._timeout_ms = settings.timeout_ms
        # Wait for a silent broker for a third of the step's timeout, so that another broker can still respond.
        silence_ms = int(max(_SHORTEST_SILENCE_MS, min(_SILENCE_MS, settings.timeout_ms / 3)))
        self._silence = {"socket.timeout.ms": str(silence_ms)}
        connection = {**self._silence, **settings.connection_config()}
        require_token(connection)
        # A request for metadata would recreate a deleted ledger, without its settings and decisions.
        never_creating = {"allow.auto.create.topics": "false", "socket.connection.setup.timeout.ms": "5000"}
        self.admin = AdminClient({**connection, **never_creating})
        self.topic = LedgerTopic(self.admin, self.name, timeout_ms=settings.timeout_ms)
        self.reader = CommittedReader(connection)
        self._producer: DriverProducer | None = None
        self._run: str | None = None
        self.driver_epoch = -1
        self._frame_bytes = _FRAME_BYTES

    def identity(self) -> str:
        """See :class:`DecisionLog`. Return the topic id."""
        return self.topic.identity()

    def inspect(self) -> LogContents:
        """See :class:`DecisionLog`."""
        return LogContents(0, ()) if self.identity() == ABSENT else self.contents(until=None)

    def acquire(self, claim: Claim) -> int:
        """See :class:`DecisionLog`. Initialize the drivers' transactional id, which fences the previous driver (rule 1)."""
        if self._run == claim.run:
            return self.driver_epoch
        self.topic.ensure()
        self.topic.require_safe()
        self.delete_before({DRIVER_PARTITION: 0})
        self._frame_bytes = min(_FRAME_BYTES, self.topic.batch_limit() - _BATCH_OVERHEAD_BYTES)
        self._producer = DriverProducer(self._settings, self._silence)
        acquired = Acquired.by_this_process(claim, int(time.time() * 1000), sink=self._settings.name)
        self.driver_epoch = self.append([acquired])
        self._run = claim.run
        return self.driver_epoch

    def read(self) -> LogContents:
        """See :class:`DecisionLog`. Read up to this driver's own record, so that a stale leader cannot hide a decision."""
        return self.contents(until=self.driver_epoch)

    def require_owner(self) -> None:
        """See :class:`DecisionLog`. Write a barrier, because a stale leader could hide a newer driver's record from a read."""
        self._prove_owner(
            self.topic.marker_partitions()[0],
            "this driver while it was starting. No data is at risk, and this driver has not changed any batch",
        )

    def require_unfenced(self, partition: int) -> None:
        """Prove, before a decision in the checkpoint, that no newer driver has acquired the sink. Write a barrier.

        Raises:
            FencedError: a newer driver has acquired the sink; this driver must not decide.
            FatalError: the brokers have forgotten the drivers' transactional id, so a newer driver may have acquired the sink.
            RetriableError: nothing is proven.
        """
        try:
            self._prove_owner(partition, "this one. No data is at risk, and this batch is not decided")
        except DecisionInDoubtError as error:  # the barrier decides nothing
            raise RetriableError(
                f"the ledger {self.name}: this driver could not prove that it still owns the sink, so the batch is not decided. "
                f"Cause: {error.__cause__ or error}"
            ) from error

    def _prove_owner(self, partition: int, outcome: str) -> None:
        try:
            self.write([(partition, f"barrier {self._run}".encode())])
        except FencedError as error:
            raise FencedError(
                f"the ledger {self.name}: another driver has started, and has fenced {outcome}. Restart the query, unless the "
                "other driver is the one that should run"
            ) from error

    def append(self, records: Sequence[Record]) -> int:
        """See :class:`DecisionLog`."""
        frames = [frame for record in records for frame in encode(record, max_bytes=self._frame_bytes)]
        point = None if isinstance(records[0], Acquired) else "driver.deciding"
        return self.write([(DRIVER_PARTITION, frame) for frame in frames], point=point)

    def truncate(self, log_start: int) -> None:
        """See :class:`DecisionLog`."""
        self.delete_before({DRIVER_PARTITION: log_start})

    def close(self) -> None:
        """See :class:`DecisionLog`. Discard the producer without ending a transaction."""
        self._producer = None
        self.reader.close()
        # A librdkafka admin client lives until its last reference is gone. An error's traceback may keep this object alive for
        # the entire session.
        with contextlib.suppress(AttributeError):  # already closed
            del self.admin, self.topic

    def write(self, values: Sequence[tuple[int, bytes]], *, point: str | None = None) -> int:
        """Write ``(partition, value)`` pairs in one committed transaction, and return the first offset.

        ``point`` is the crash point before the commit.
        """
        if self._producer is None:
            raise AssertionError("acquire() must be called first")
        first, last = self._producer.write(values, point=point)
        # Do not read back a barrier. An open transaction before the barrier would block the read, and the barrier's writer reads
        # up to the barrier anyway.
        partition, value = values[-1]
        # A repeated EndTxn for an earlier record may have ended this transaction before the last part was written (KAFKA-17754).
        # A broker that does not verify transactions still accepts that part and returns NONE for this commit, but the part stays
        # above the last stable offset. Whether a leader verifies transactions depends on its version and settings, so this driver
        # assumes that no leader verifies transactions.
        if partition == DRIVER_PARTITION and self._producer.repeats:
            self._read_back(last, value)
        return first

    def delete_before(self, starts: Mapping[int, int]) -> None:
        """In each partition, delete the records before the given offset. A failed deletion is retried in the next call.

        An offset of 0 deletes nothing. Such a call reveals obstacles early, for example a missing permission.
        """
        deleted = self.admin.delete_records(
            [TopicPartition(self.name, partition, offset) for partition, offset in starts.items()],
            request_timeout=self._timeout_ms / 1000,
        )
        for where, future in deleted.items():
            try:
                future.result()
            except KafkaException as error:
                doing = f"deleting old records from {where.topic}/{where.partition}"
                found = translate(error, doing, on_topic("Delete", self.name))
                if starts[where.partition] or not is_retriable(found):  # a new topic may not have a leader yet
                    logger.warning("%s. No data is at risk, but the ledger grows until the deletion succeeds", found)

    def _read_back(self, offset: int, value: bytes) -> None:
        """Prove that a record was committed.

        Wait until the last stable offset is higher than the record's offset, then read the record.
        """
        where = f"{self.name}/{DRIVER_PARTITION}/{offset}"
        deadline = time.monotonic() + self._timeout_ms / 1000

        def read_stable() -> list[Row]:
            left_ms = max(1.0, (deadline - time.monotonic()) * 1000)
            end = self._offset(OffsetSpec.latest(), committed=True, timeout_ms=left_ms)
            if end <= offset:
                raise UnavailableError(f"the record did not become stable within {self._timeout_ms} ms")
            return list(self.reader.rows(self.name, DRIVER_PARTITION, offset, None, end=end, timeout_ms=left_ms))

        retry = retrying(is_retriable, timeout_s=self._timeout_ms / 1000, backoff=wait_fixed(_READ_BACK_PAUSE_S))
        try:
            rows = retry(read_stable)
        except TwoPhaseCommitError as error:  # a failed read proves nothing about the record
            raise DecisionInDoubtError(
                f"the record at {where} cannot be read back ({error}), so it is unknown whether the record was "
                "committed. No data is lost. Restart the query, which will then read the outcome"
            ) from error
        if rows and (rows[0].offset, rows[0].value) == (offset, value):
            return
        raise FencedError(
            f"the record at {where} was aborted, although librdkafka reported success. A newer driver has acquired the "
            "sink. Restart the query, unless the newer driver is the one that should run"
        )

    def contents(self, until: int | None, *, whoever: bool = False) -> LogContents:
        """Read the ledger up to the record at ``until``, or to the end.

        With ``whoever``, the ledger may belong to another sink.
        """
        start = self._recorded_start(self._offset(OffsetSpec.earliest(), committed=False, timeout_ms=self._timeout_ms))
        return LogContents(start, Entries(lambda: self._entries(start, until, whoever=whoever)))

    def _recorded_start(self, earliest: int) -> int:
        """Find a long ledger's newest truncation, even if older records could not be deleted.

        The truncation is closer to the end than to the beginning. The search therefore goes backward, in growing parts.
        """
        upper = end = self._offset(OffsetSpec.latest(), committed=True, timeout_ms=self._timeout_ms)
        part = _PART
        while end - earliest > _PART and upper > earliest:
            lower = max(earliest, upper - part)
            with contextlib.closing(self._rows(lower, None)) as rows:
                found = max(map(_truncated_by, itertools.takewhile(partial(_is_below, upper), rows)), default=0)
            if found > 0:
                return max(found, earliest)
            upper, part = lower, 2 * part
        return earliest

    def _entries(self, start: int, until: int | None, *, whoever: bool) -> Iterator[LogEntry]:
        check = OwnerCheck(self.name, self._settings.name, whoever=whoever)
        # An error's traceback keeps this function's variables, so none of them may be the reader's generator.
        for entry in decoding(self._frames(start, until)):
            if check.accepts(entry):
                yield entry

    def _frames(self, start: int, until: int | None) -> Iterator[tuple[int, bytes]]:
        last = None if until is None else (lambda row: row.offset >= until)
        offset = -1
        for row in self._rows(start, last):
            offset = row.offset
            yield offset, row.value
        if until is not None and offset != until:
            raise DecisionLogDamagedError(
                f"the ledger {self.name} lost the record that this driver has just written at offset {until}"
            )

    def _rows(self, start: int, last: Callable[[Row], bool] | None) -> Generator[Row]:
        return self.reader.rows(self.name, DRIVER_PARTITION, start, last, timeout_ms=self._timeout_ms)

    def _offset(self, spec: OffsetSpec, *, committed: bool, timeout_ms: float) -> int:
        found = offsets(self.admin, self.name, [DRIVER_PARTITION], spec, committed=committed, timeout_ms=timeout_ms)
        return found[DRIVER_PARTITION]


def _is_below(offset: int, row: Row) -> bool:
    return row.offset < offset


def _truncated_by(row: Row) -> int:
    """Return the truncation offset in a row's record.

    Return 0 if the row has no such offset, or contains only part of a record.
    """
    with contextlib.suppress(DecisionLogDamagedError):  # damage below the truncation does no harm
        return truncated_to(decode([(row.offset, row.value)]))
    return 0
