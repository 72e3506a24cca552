"""Write markers, and search for them. Each task transaction writes a marker to the ledger, as evidence of its commit (rule 4).

If a ``read_committed`` reader sees a marker, the marker's transaction is committed. A missing marker alone proves nothing. If
the marker is missing and the reader sees a *barrier*, the transaction is lost. A barrier is a later record that the driver
writes to the marker's partition. An open transaction hides the barrier, and the barrier is missing from a stale leader. A
deleted marker is not treated as absent.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import msgspec
from confluent_kafka.admin import OffsetSpec

from twopc.attempt import Evidence
from twopc.crash_points import crash_point
from twopc.errors import ConfigurationError, DecisionInDoubtError, RetriableError, release
from twopc.sinks.kafka.reader import Row, offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twopc.attempt import Known, TaskAttempt
    from twopc.sinks.kafka.decision_log import KafkaDecisionLog
    from twopc.sinks.kafka.handle import KafkaHandle


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies a task's transaction. The transaction itself writes this record."""

    uuid: str
    query_id: str
    batch_id: int
    attempt: tuple[int, int]
    task: int
    rows: int


def encode_marker(transaction: str, task: TaskAttempt, rows: int) -> bytes:
    """Encode a marker's value. The marker's key is the transaction's UUID."""
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


def decode_marker(value: bytes) -> Marker:
    """Read a marker.

    Raises:
        msgspec.DecodeError: the value is not a marker.
    """
    return msgspec.json.decode(value, type=Marker)


def search(
    log: KafkaDecisionLog, handles: Sequence[KafkaHandle], scan_start: Mapping[str, int], *, timeout_ms: float
) -> tuple[dict[KafkaHandle, Evidence], list[str]]:
    """Search the markers for each transaction's evidence, starting at ``scan_start``.

    ``timeout_ms`` applies to each partition.

    Returns:
        the evidence, and the reasons why some partitions prove nothing. The search ends at the first partition that cannot be
        read, because the batch is then already unproven, and each further partition could also take ``timeout_ms``.

    Raises:
        FencedError: a newer driver has acquired the sink; nothing was proven.
        FatalError: the brokers have forgotten the drivers' transactional id, so a newer driver may have acquired the sink.
    """
    seen: dict[int, set[bytes] | None] = {}
    reasons: list[str] = []
    for partition in dict.fromkeys(handle.marker_partition for handle in handles):
        try:
            seen[partition] = _read_to_barrier(log, partition, scan_start.get(str(partition), 0), timeout_ms)
        except (RetriableError, ConfigurationError, DecisionInDoubtError) as error:
            # A failed search proves nothing, and a barrier without a response decides nothing. Other errors stop
            # this driver, because a newer driver has or may have acquired the sink.
            reasons.append(f"the markers in {log.name}/{partition} cannot be read: {error}")
            release(error)
            break
        if seen[partition] is None:
            reasons.append(f"markers in {log.name}/{partition} were deleted, so they cannot prove the outcome")
    return {handle: _evidence(handle, seen.get(handle.marker_partition)) for handle in handles}, reasons


def _evidence(handle: KafkaHandle, seen: set[bytes] | None) -> Evidence:
    if seen is None:
        return Evidence.UNKNOWN
    return Evidence.COMMITTED if handle.uuid.encode() in seen else Evidence.ABORTED


def has_unknown(
    log: KafkaDecisionLog, known: Known[KafkaHandle], scan_start: Mapping[str, int], *, timeout_ms: float
) -> bool:
    """Whether the ledger contains a marker from a transaction that is missing from the decisions.

    If the decisions are in the checkpoint, the search after the sweep ends at a barrier, because an open transaction or a stale
    leader could hide a marker. If the decisions are in the ledger, all copies of the checkpoint use the same ledger. A marker
    without a decision then shows that the ledger has lost the decision. In this case, the search writes no barrier.

    Raises:
        RetriableError: a partition cannot be read, so nothing is known.
        FencedError: a newer driver has acquired the sink.
    """
    partitions = log.topic.marker_partitions()
    earliest = offsets(log.admin, log.name, partitions, OffsetSpec.earliest(), timeout_ms=timeout_ms)
    # A partition that was added after the decision is searched from its first record.
    starts = {partition: scan_start.get(str(partition), first) for partition, first in earliest.items()}
    is_last = None
    if not known.decides_in_checkpoint:
        starts = _existing(log, starts, earliest, timeout_ms=timeout_ms)
    elif any(earliest[partition] > start for partition, start in starts.items()):
        return True  # only a run with newer decisions deletes this decision's markers
    elif known.is_swept:
        is_last = _barred(log, partitions)
    decided = {handle.uuid.encode() for handle in known.handles}
    return any(
        row.key is not None and row.key not in decided and _is_of(row, known)  # a barrier has no key
        for partition, start in starts.items()
        for row in log.reader.rows(log.name, partition, start, is_last, timeout_ms=timeout_ms)
    )


def _existing(
    log: KafkaDecisionLog, starts: Mapping[int, int], earliest: Mapping[int, int], *, timeout_ms: float
) -> dict[int, int]:
    """For each partition, return where the search begins: at the given start, or at the earliest record if that is later.

    Omit partitions without records from this offset on.

    A ledger that has lost decisions may also have lost markers. Such a loss must not stop a start.
    """
    latest = offsets(log.admin, log.name, starts, OffsetSpec.latest(), timeout_ms=timeout_ms, committed=True)
    left = {partition: max(start, earliest[partition]) for partition, start in starts.items()}
    return {partition: start for partition, start in left.items() if start < latest[partition]}


def _is_of(row: Row, known: Known[KafkaHandle]) -> bool:
    try:
        marker = decode_marker(row.value)
    except msgspec.DecodeError:
        return False  # another program wrote the record, so it says nothing about this query
    return marker.query_id == known.query_id and marker.batch_id >= known.first_batch


def _barred(log: KafkaDecisionLog, partitions: Sequence[int]) -> Callable[[Row], bool]:
    """Write a barrier to every partition. Return a function that recognizes the barrier."""
    barrier = f"barrier {uuid.uuid4().hex}".encode()
    log.write([(partition, barrier) for partition in partitions])
    crash_point("driver.barred")

    def is_barrier(row: Row) -> bool:
        return row.value == barrier

    return is_barrier


def _read_to_barrier(log: KafkaDecisionLog, partition: int, start: int, timeout_ms: float) -> set[bytes] | None:
    """Read the committed records' keys from ``start`` up to a new barrier. Return None if some records were deleted."""
    earliest = offsets(log.admin, log.name, [partition], OffsetSpec.earliest(), timeout_ms=timeout_ms)[partition]
    if earliest > start:
        return None
    rows = log.reader.rows(log.name, partition, start, _barred(log, [partition]), timeout_ms=timeout_ms)
    return {row.key for row in rows if row.key is not None}
