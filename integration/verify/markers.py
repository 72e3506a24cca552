"""Find out which decided transactions are visible.

Read the markers, and ask the coordinators about transactions without a marker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
from tenacity import stop_after_delay, wait_fixed

from twopc.errors import DecisionLogDamagedError
from twopc.integration.verify.describing import describe
from twopc.integration.verify.tail import Tail
from twopc.retry import repeating
from twopc.sinks.kafka.markers import Marker, decode_marker

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from confluent_kafka import Message

    from twopc.integration.verify.cluster import Cluster
    from twopc.integration.verify.history import BatchId
    from twopc.integration.verify.transactions import Decided
    from twopc.sinks.kafka.reports import Description

#: How long a commit in progress may take to reach every partition.
_COMMIT_S: Final = 5.0


@dataclass
class Markers:
    """The visible markers, by transaction UUID, and the marker partitions."""

    visible: dict[str, Marker] = field(default_factory=dict)
    partitions: Tail = field(default_factory=Tail)

    def read_new(self, cluster: Cluster) -> None:
        """Read the markers that have become visible since the last call.

        Raises:
            DecisionLogDamagedError: a record is not a marker.
            RetriableError: the brokers did not respond in time.
        """
        self.partitions.update(cluster.marker_bounds())
        for messages in self.partitions.read_new(cluster, cluster.sink.ledger):
            # A record without a key is a barrier.
            found = [_decode(message) for message in messages if message.key() is not None]
            self.visible.update({marker.uuid: marker for marker in found})

    def forget_before(self, kept: Collection[BatchId]) -> None:
        """Forget the markers of batches that are older than their query's retained batches.

        The decisions on these batches were truncated.
        """
        oldest: dict[str, int] = {}
        for query_id, batch in kept:
            oldest[query_id] = min(batch, oldest.get(query_id, batch))
        self.visible = {u: m for u, m in self.visible.items() if m.batch_id >= oldest.get(m.query_id, 0)}


def wait_for_commits(cluster: Cluster, decided: Mapping[str, Decided], last: BatchId | None) -> None:
    """Wait up to 5 s while coordinators commit transactions of the last batch."""
    ids = {one.handle.transactional_id: one.handle for one in decided.values() if one.id == last}

    def is_committing() -> bool:
        found = cluster.transactions.describe(list(ids))
        return any(found[tid].is_of(handle) and found[tid].state == "PrepareCommit" for tid, handle in ids.items())

    # If the time is not enough, check_missing reports the transaction as not committed.
    repeating(stop=stop_after_delay(_COMMIT_S), backoff=wait_fixed(0.05))(is_committing)


def missing(cluster: Cluster, markers: Markers, decided: Mapping[str, Decided]) -> dict[str, Description]:
    """For each decided transaction without a visible marker, map its UUID to the coordinator's description of it."""
    absent = {uuid: one.handle.transactional_id for uuid, one in decided.items() if uuid not in markers.visible}
    if not absent:
        return {}
    found = describe(cluster.transactions, absent.values())
    # If a transaction was committed before the broker described it, its marker is visible by now.
    markers.read_new(cluster)
    return {uuid: found[tid] for uuid, tid in absent.items() if uuid not in markers.visible}


def _decode(message: Message) -> Marker:
    try:
        return decode_marker(message.value() or b"")
    except msgspec.DecodeError as error:
        raise DecisionLogDamagedError(
            f"{message.topic()}[{message.partition()}] contains a record that is not a marker ({error})"
        ) from error
