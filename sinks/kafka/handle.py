"""The handle of a prepared transaction: all that another process needs to commit it and to prove its outcome."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProducerIdentity:
    """Which producer a request about a transaction is for: its transactional id, producer id and epoch."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True)
class KafkaHandle:
    """One prepared transaction of one task.

    Attributes:
        uuid: the transaction's UUID, the key of its marker.
        transactional_id: its producer's id.
        producer_id: from the producer's own statistics.
        producer_epoch: likewise; it serves one transaction only (rule 5).
        marker_partition: the ledger partition that holds its marker.
        rows: records written, without the marker.
        partitions: the partitions written to, as ``topic:0-3,7``, the marker's included.
    """

    uuid: str
    transactional_id: str
    producer_id: int
    producer_epoch: int
    marker_partition: int
    rows: int
    partitions: tuple[str, ...]

    @property
    def transaction(self) -> str:
        """The transaction's name in messages."""
        return f"{self.transactional_id} ({self.uuid})"

    @property
    def identity(self) -> ProducerIdentity:
        """The producer that wrote it."""
        return ProducerIdentity(self.transactional_id, self.producer_id, self.producer_epoch)

    def topic_partitions(self) -> frozenset[str]:
        """The partitions written to, as ``topic:partition``."""
        return frozenset(
            f"{topic}:{partition}"
            for topic, _, ranges in (entry.rpartition(":") for entry in self.partitions)
            for low, _, high in (piece.partition("-") for piece in ranges.split(","))
            for partition in range(int(low), int(high or low) + 1)
        )
