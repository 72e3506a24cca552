"""Define the ids of producers, and the handles with which another process can end a transaction."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Other programs on the cluster choose their ids freely. An id may contain "²", which ``str.isdigit`` accepts, or a number with
#: thousands of digits.
_EPOCH: Final = re.compile(r"[0-9]{1,19}")


def id_prefix(sink: str) -> str:
    """Return the prefix of the sink's transactional ids.

    Sink names do not contain a dot, so no other sink has the same prefix.
    """
    return f"{sink}."


def driver_id(sink: str) -> str:
    """Return the id that all drivers of the sink share. A driver that initializes this id fences the previous one (rule 1)."""
    return f"{sink}.driver"


def task_id(sink: str, driver_epoch: int, worker: str, sequence: int) -> str:
    """Return the id of a Python worker's ``sequence``-th producer. ``worker`` is a UUID, so no two workers share an id."""
    return f"{sink}.{driver_epoch}.{worker}.{sequence}"


def driver_epoch_of(transactional_id: str) -> int | None:
    """Return the driver epoch in a task's transactional id. Return None for any other id."""
    match transactional_id.split("."):
        case [_, epoch, _, _] if _EPOCH.fullmatch(epoch):
            return int(epoch)
    return None


@dataclass(frozen=True)
class ProducerIdentity:
    """Identifies the producer in a request about a transaction.

    With the defaults, it identifies the current producer for the transactional id.
    """

    transactional_id: str
    producer_id: int = -1
    producer_epoch: int = -1


@dataclass(frozen=True)
class KafkaHandle:
    """Identifies a task's prepared transaction, so that another process can commit the transaction and prove its outcome.

    Attributes:
        uuid: the transaction's UUID, which is its marker's key.
        producer_id: the producer id, as the producer itself reported it.
        producer_epoch: the producer epoch, from the same report. Each epoch is used for only one transaction (rule 5).
        marker_partition: the ledger partition that contains the transaction's marker.
        rows: the number of records written, not including the marker.
        partitions: the partitions to which the task wrote, including the marker's partition, in the form
            ``topic:0-3,7``.
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
        """The transaction name in error messages."""
        return f"{self.transactional_id} ({self.uuid})"

    @property
    def identity(self) -> ProducerIdentity:
        """The producer that wrote the transaction."""
        return ProducerIdentity(self.transactional_id, self.producer_id, self.producer_epoch)

    def topics(self) -> frozenset[str]:
        """Return the topics to which the task wrote, including the ledger."""
        return frozenset(entry.rpartition(":")[0] for entry in self.partitions)

    def topic_partitions(self) -> frozenset[str]:
        """Return the partitions to which the task wrote, in the form ``topic:partition``."""
        return _expanded(self.partitions)


def all_partitions(handles: Iterable[KafkaHandle]) -> frozenset[str]:
    """Return the partitions to which any of the tasks wrote, in the form ``topic:partition``.

    Most tasks of a batch write to the same partitions, so this costs far less than asking each handle.
    """
    return _expanded({entry for handle in handles for entry in handle.partitions})


def _expanded(entries: Iterable[str]) -> frozenset[str]:
    return frozenset(
        f"{topic}:{partition}"
        for topic, _, ranges in (entry.rpartition(":") for entry in entries)
        for low, _, high in (piece.partition("-") for piece in ranges.split(","))
        for partition in range(int(low), int(high or low) + 1)
    )
