"""Markers: the record that every task transaction carries in the ledger, and what is proven by finding it or not.

A marker that a ``read_committed`` reader sees proves its transaction committed. Its absence proves the transaction lost
only in front of a *barrier*, a record that the driver has written behind it (rule 4): an open transaction hides the
barrier, a stale leader has none, and what was deleted is not absent.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Final

import msgspec
from confluent_kafka.admin import OffsetSpec

from sinks.kafka import ledger_topic
from sinks.kafka.reader import Row, offsets
from twopc.crash_points import crash_point
from twopc.handle import Evidence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sinks.kafka.decision_log import KafkaDecisionLog
    from twopc.attempt import TaskAttempt

logger = logging.getLogger(__name__)

_BARRIER: Final = b"barrier"


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """A task transaction's own name, written inside it."""

    uuid: str
    query_id: str
    batch_id: int
    attempt: tuple[int, int]
    task: int
    rows: int


#: The names that fields had in markers of version 0.1; both are read.
_FORMER_NAMES: Final = {"lineage": "query_id", "batch": "batch_id"}


def decode_marker(value: bytes) -> Marker:
    """Read a marker back, whichever version wrote it.

    Raises:
        msgspec.DecodeError: the value is not a marker.
    """
    fields = msgspec.json.decode(value, type=dict[str, object])
    return msgspec.convert({_FORMER_NAMES.get(name, name): field for name, field in fields.items()}, Marker)


def marker_of(transaction: str, task: TaskAttempt, rows: int) -> bytes:
    """The marker's value; its key is the transaction's UUID."""
    return msgspec.json.encode(
        Marker(
            uuid=transaction,
            query_id=task.query_id,
            batch_id=task.batch_id,
            attempt=(task.attempt.driver_epoch, task.attempt.counter),
            task=task.partition,
            rows=rows,
        )
    )


def ends(ledger: KafkaDecisionLog, *, timeout_ms: float) -> dict[str, int]:
    """The ends of the marker partitions: no marker of an attempt that begins now lies below.

    The last stable offset rather than the end: it is never higher, and one request has it for all.
    """
    partitions = ledger_topic.marker_partitions(ledger.admin, ledger.name, timeout_ms=timeout_ms)
    found = offsets(ledger.admin, ledger.name, partitions, OffsetSpec.latest(), committed=True, timeout_ms=timeout_ms)
    return {str(partition): offset for partition, offset in found.items()}


def search(
    ledger: KafkaDecisionLog, wanted: Mapping[int, Sequence[str]], scan_start: Mapping[str, int], *, timeout_ms: float
) -> dict[str, Evidence]:
    """What the markers prove of each transaction.

    Args:
        ledger: of the sink; its driver producer writes the barriers.
        wanted: transactions' UUIDs by marker partition.
        scan_start: by marker partition, the offset from which on their markers can lie.
        timeout_ms: for each partition.

    Raises:
        FencedError: a newer driver has taken over; nothing was proven.
    """
    found: dict[str, Evidence] = {}
    for partition, transactions in wanted.items():
        seen = _read_to_barrier(ledger, partition, scan_start.get(str(partition), 0), timeout_ms)
        for transaction in transactions:
            if seen is None:
                found[transaction] = Evidence.UNKNOWN
            else:
                found[transaction] = Evidence.COMMITTED if transaction.encode() in seen else Evidence.ABORTED
    return found


def _read_to_barrier(ledger: KafkaDecisionLog, partition: int, start: int, timeout_ms: float) -> set[bytes] | None:
    """The keys of the committed records between ``start`` and a new barrier; None when that could not be established."""
    earliest = offsets(ledger.admin, ledger.name, [partition], OffsetSpec.earliest(), timeout_ms=timeout_ms)[partition]
    if earliest > start:
        logger.error(
            "%s/%d starts at %d, above %d where the markers begin: they were deleted, which proves nothing",
            ledger.name,
            partition,
            earliest,
            start,
        )
        return None
    barrier = _BARRIER + b" " + uuid.uuid4().hex.encode()
    ledger.write([(partition, barrier)])
    crash_point("driver.barred")

    def is_barrier(row: Row) -> bool:
        return row.value == barrier

    rows = ledger.reader.read(ledger.name, partition, start, is_barrier, timeout_ms=timeout_ms)
    return None if rows is None else {row.key for row in rows if row.key is not None}
