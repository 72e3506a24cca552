"""Read a topic as brokers store it, batch by batch. A batch identifies its producer, which consumers do not expose.

Source: https://kafka.apache.org/documentation/#recordbatch
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import kafka.errors as kafka_errors
from kafka.protocol.consumer import FetchRequest
from kafka.record import MemoryRecords

from twopc.errors import RetriableError
from twopc.sinks.kafka.broker_connection import BrokerConnection

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: The last Fetch version that identifies topics by name. Its messages contain the log start offset and the leader
#: epoch.
_FETCH_VERSION: Final = 11
_FETCH_BYTES: Final = 16_000_000
#: The first message format with record batches, producer ids and transactions.
_WITH_PRODUCERS: Final = 2


@dataclass(frozen=True)
class OldBatch:
    """One or more records in the format that Kafka used before 0.11, without producers or transactions.

    Upgraded brokers keep these records in their logs. This class provides only those attributes of kafka-python's
    batches that callers use.
    """

    records: Sequence[Any]
    producer_id: ClassVar[int] = -1
    producer_epoch: ClassVar[int] = -1
    is_control_batch: ClassVar[bool] = False
    is_transactional: ClassVar[bool] = False

    @property
    def base_offset(self) -> int:
        """The offset of the first record."""
        return int(self.records[0].offset)

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return int(self.records[-1].offset) + 1

    @property
    def records_count(self) -> int:
        """The number of records."""
        return len(self.records)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the records."""
        return iter(self.records)


def read_batches(config: Mapping[str, Any], topic: str) -> Iterator[tuple[int, Any]]:
    """Yield kafka-python's record batches, each with its partition number, from offset 0 up to the high watermark.

    Args:
        config: kafka-python's connection options.
        topic: the topic.

    Raises:
        RetriableError: a leader does not respond, or the first records were deleted.
    """
    connection = BrokerConnection(config)
    try:
        [described] = connection.admin.describe_topics([topic])
        for row in described["partitions"]:
            partition, offset, end = row["partition_index"], 0, 1
            while offset < end:
                found = _fetch(connection, topic, partition, row["leader_id"], offset)
                records, start, end = MemoryRecords(bytes(found.records or b"")), offset, found.high_watermark
                while (stored := records.next_batch()) is not None:
                    batch = stored if stored.magic >= _WITH_PRODUCERS else OldBatch(tuple(stored))
                    yield partition, batch
                    offset = batch.next_offset
                if offset == start and offset < end:
                    raise RetriableError(
                        f"{topic}[{partition}] contains no record at offset {offset}, although the partition's end "
                        f"offset is {end}"
                    )
    finally:
        connection.close()


def _fetch(connection: BrokerConnection, topic: str, partition: int, leader: int, offset: int) -> Any:
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
    [response] = connection.send_all([(request, leader)])
    if not isinstance(response, Exception):
        [found] = response.responses[0].partitions
        if not found.error_code:
            return found
        response = kafka_errors.for_code(found.error_code)()
    raise RetriableError(f"reading {topic}[{partition}] at offset {offset}: {response!r}") from response
