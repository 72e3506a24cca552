"""What a topic's partitions really hold: rows with their producers, and the markers that end transactions.

No consumer says which producer wrote a record; the batches of a Fetch response do. The request goes over kafka-python's
admin connection, whose ``_manager`` is not public (pinned to 3.0.x, as in ``sinks.kafka.transactions``).

Source: https://kafka.apache.org/documentation/#controlbatch (the key of a control record says which marker it is).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import kafka.errors as kafka_errors
from kafka.admin import KafkaAdminClient
from kafka.protocol.consumer import FetchRequest
from kafka.record import MemoryRecords

from twopc.testing.checkers.history import Kind, LogEntry, Position, Producer

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The last version that names topics by their names, and has log start offset and leader epoch.
_FETCH_VERSION: Final = 11
_FETCH_BYTES: Final = 16_000_000
_MARKER_KEY: Final = struct.Struct(">hh")
_COMMIT: Final = 1


def dump(bootstrap_servers: str, topic: str) -> list[LogEntry]:
    """Every entry of every partition, up to its high watermark.

    Raises:
        KafkaError: a leader does not answer, or returns an error.
    """
    admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers.split(","))
    try:
        manager = admin._manager  # noqa: SLF001 - see the module
        [described] = admin.describe_topics([topic])
        entries: list[LogEntry] = []
        for row in described["partitions"]:
            entries += _partition(manager, topic, row["partition_index"], row["leader_id"])
        return entries
    finally:
        admin.close()


def _partition(manager: Any, topic: str, partition: int, leader: int) -> Iterator[LogEntry]:
    offset, end = 0, 1
    while offset < end:
        answer = _fetch(manager, topic, partition, leader, offset)
        end = answer.high_watermark
        start = offset
        records = MemoryRecords(bytes(answer.records or b""))
        while (batch := records.next_batch()) is not None:
            yield from _entries(batch, partition, start)
            offset = batch.next_offset
        if offset == start and offset < end:
            raise AssertionError(f"{topic}/{partition} returned nothing at offset {offset}, below its end {end}")


def _entries(batch: Any, partition: int, start: int) -> Iterator[LogEntry]:
    producer = Producer(batch.producer_id, batch.producer_epoch)
    for record in batch:
        if record.offset < start:  # a Fetch from the middle of a batch returns the whole batch
            continue
        kind = Kind.ROW
        if batch.is_control_batch:
            _, marker = _MARKER_KEY.unpack_from(record.key)
            kind = Kind.COMMIT if marker == _COMMIT else Kind.ABORT
        yield LogEntry(Position(partition, record.offset), producer, kind)


def _fetch(manager: Any, topic: str, partition: int, leader: int, offset: int) -> Any:
    wanted = FetchRequest.FetchTopic.FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES
    )
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=_FETCH_BYTES,
        isolation_level=0,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[wanted])],
        max_version=_FETCH_VERSION,
    )

    async def ask() -> Any:
        return await manager.send(request, leader)

    response = manager.run(ask)
    [answer] = response.responses[0].partitions
    if answer.error_code:
        raise kafka_errors.for_code(answer.error_code)(f"{topic}/{partition} at {offset}")
    return answer
