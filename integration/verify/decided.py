"""The transactions in decisions. Pure: no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sinks.kafka import reports

if TYPE_CHECKING:
    from integration.verify.history import BatchId, History
    from sinks.kafka import KafkaSink
    from sinks.kafka.handle import KafkaHandle
    from sinks.kafka.reports import Description


class Decided(NamedTuple):
    """A decided transaction; its marker is at offset ``scan_start`` or above."""

    id: BatchId
    task: int
    handle: KafkaHandle
    scan_start: int


def decided_in(history: History, sink: KafkaSink) -> dict[str, Decided]:
    """The sink's decided transactions that were not replaced, by UUID."""
    found = {}
    for key, batch in history.batches.items():
        scan_start = batch.decision.scan_start.get(sink.name, {}).get("markers", {})
        for task, encoded in batch.handles(sink.name):
            handle = sink.decode_handle(encoded)
            found[handle.uuid] = Decided(key, task, handle, scan_start.get(str(handle.marker_partition), 0))
    return found


def superseded_in(history: History, sink: KafkaSink) -> dict[str, BatchId]:
    """The sink's transactions that a later record replaced, by UUID."""
    return {
        sink.decode_handle(handles[sink.name]).uuid: key
        for key, batch in history.batches.items()
        for handles in batch.superseded
        if sink.name in handles
    }


def topics_of(handle: KafkaHandle, sink: KafkaSink) -> frozenset[str]:
    """The output topics that the transaction wrote to."""
    return frozenset(where.rpartition(":")[0] for where in handle.partitions) - {sink.ledger}


def is_at(description: Description, handle: KafkaHandle) -> bool:
    """Whether the transactional id still has the handle's producer id and epoch; else another transaction uses it."""
    here = (description.producer_id, description.producer_epoch)
    return description.error == reports.NONE and here == (handle.producer_id, handle.producer_epoch)
