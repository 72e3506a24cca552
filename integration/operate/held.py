"""Find the transactions that hold back ``read_committed`` readers.

In each partition, the oldest open transaction holds readers back. A DescribeProducers request returns this
transaction's producer.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from twopc.sinks.kafka.broker_connection import BrokerConnection
from twopc.sinks.kafka.ledger_topic import describe
from twopc.sinks.kafka.partition_reports import open_producers, producers_by_partition, split

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from twopc.integration.verify.cluster import Cluster


@dataclass(frozen=True)
class HeldPartition:
    """A partition whose readers stop before the partition's end.

    Attributes:
        stable: the last stable offset, where the readers stop.
        end: the log end offset.
        producer_id: the producer whose open transaction begins at ``stable``; -1 if the leader did not respond.
        transactional_id: the producer's transactional id; None if no open transaction on the cluster belongs to this
            producer.
    """

    topic: str
    partition: int
    stable: int
    end: int
    producer_id: int = -1
    transactional_id: str | None = None

    def facts(self) -> dict[str, Any]:
        """Return the facts as a JSON object."""
        return asdict(self)


def held_back(cluster: Cluster, topics: Collection[str]) -> tuple[HeldPartition, ...]:
    """Find the partitions whose readers are held back, and the transactions that hold these readers back.

    Raises:
        TwoPhaseCommitError: no broker responds, or a permission is missing.
    """
    behind: dict[str, dict[int, tuple[int, int]]] = {}
    for topic in sorted(topics):
        bounds = cluster.bounds(topic)
        held = {p: (s, bounds.ends[p]) for p, s in bounds.stable.items() if s < bounds.ends[p]} if bounds else {}
        if held:
            behind[topic] = held
    if not behind:
        return ()
    oldest = _oldest_producers(cluster, behind)
    names = _names(cluster, set(oldest.values()))
    return tuple(
        HeldPartition(topic, partition, stable, end, oldest.get((topic, partition), -1))
        if (topic, partition) not in oldest
        else HeldPartition(topic, partition, stable, end, oldest[topic, partition], names.get(oldest[topic, partition]))
        for topic, partitions in behind.items()
        for partition, (stable, end) in sorted(partitions.items())
    )


def _oldest_producers(
    cluster: Cluster, behind: Mapping[str, Mapping[int, tuple[int, int]]]
) -> dict[tuple[str, int], int]:
    """In each partition, find the producer whose open transaction begins first.

    Omit partitions whose leader does not respond.
    """
    leaders: dict[str, int] = {}
    for topic, partitions in behind.items():
        found = describe(cluster.ledger.admin, topic, timeout_ms=cluster.sink.timeout_ms)
        for row in found.partitions if found else ():
            if row.id in partitions and row.leader is not None:
                leaders[f"{topic}:{row.id}"] = row.leader.id
    oldest = {}
    with closing(BrokerConnection(cluster.sink.committing_config())) as connection:
        for partition, row in producers_by_partition(connection, leaders).items():
            if open_ones := open_producers(row):
                first = min(open_ones, key=lambda one: int(one.current_txn_start_offset))
                oldest[split(partition)] = int(first.producer_id)
    return oldest


def _names(cluster: Cluster, producer_ids: Collection[int]) -> dict[int, str]:
    """Find these producers' open transactions, across all sinks. Return the transactional ids by producer id."""
    ids = cluster.transactions.list_open("", producer_ids=producer_ids).transactional_ids if producer_ids else ()
    return {found.producer_id: tid for tid, found in cluster.transactions.describe(ids).items()}
