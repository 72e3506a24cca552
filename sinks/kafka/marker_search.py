"""The search for markers: what it proves that a marker is there, or that it is not (rule 4).

A marker that a ``read_committed`` reader sees proves its transaction committed. Its absence proves the transaction lost
only below a *barrier*, a record that the driver has written behind it: an open transaction hides the barrier, a stale
leader does not have it, and a deleted record is not an absent one.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Final

from confluent_kafka.admin import OffsetSpec

from sinks.kafka import ledger_topic
from sinks.kafka.reader import Row, offsets
from twopc.crash_points import crash_point
from twopc.handle import Evidence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sinks.kafka.decision_log import KafkaDecisionLog

logger = logging.getLogger(__name__)

_BARRIER: Final = b"barrier"


def ends(log: KafkaDecisionLog, *, timeout_ms: float) -> dict[str, int]:
    """The ends of the marker partitions: markers of an attempt that begins now are at or above them.

    These are the last stable offsets: never above the ends, and one request returns them all.
    """
    partitions = ledger_topic.marker_partitions(log.admin, log.name, timeout_ms=timeout_ms)
    found = offsets(log.admin, log.name, partitions, OffsetSpec.latest(), committed=True, timeout_ms=timeout_ms)
    return {str(partition): offset for partition, offset in found.items()}


def search(
    log: KafkaDecisionLog, wanted: Mapping[int, Sequence[str]], scan_start: Mapping[str, int], *, timeout_ms: float
) -> dict[str, Evidence]:
    """What the markers prove about each transaction.

    Args:
        log: the sink's; its driver's producer writes the barriers.
        wanted: transactions' UUIDs by marker partition.
        scan_start: the first offset of their markers, by marker partition.
        timeout_ms: for each partition.

    Raises:
        FencedError: a newer driver has acquired the sink; nothing was proven.
    """
    found: dict[str, Evidence] = {}
    for partition, transactions in wanted.items():
        seen = _read_to_barrier(log, partition, scan_start.get(str(partition), 0), timeout_ms)
        for transaction in transactions:
            if seen is None:
                found[transaction] = Evidence.UNKNOWN
            else:
                found[transaction] = Evidence.COMMITTED if transaction.encode() in seen else Evidence.ABORTED
    return found


def _read_to_barrier(log: KafkaDecisionLog, partition: int, start: int, timeout_ms: float) -> set[bytes] | None:
    """The keys of the committed records from ``start`` up to a new barrier; None if they could not all be read."""
    earliest = offsets(log.admin, log.name, [partition], OffsetSpec.earliest(), timeout_ms=timeout_ms)[partition]
    if earliest > start:
        logger.error(
            "markers of %s/%d were deleted: it starts at offset %d, they start at %d. The outcome of their transactions "
            "cannot be proven",
            log.name,
            partition,
            earliest,
            start,
        )
        return None
    barrier = _BARRIER + b" " + uuid.uuid4().hex.encode()
    log.write([(partition, barrier)])
    crash_point("driver.barred")

    def is_barrier(row: Row) -> bool:
        return row.value == barrier

    rows = log.reader.read(log.name, partition, start, is_barrier, timeout_ms=timeout_ms)
    return None if rows is None else {row.key for row in rows if row.key is not None}
