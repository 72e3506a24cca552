"""Find the transactions that hold back ``read_committed`` readers.

In each partition, the oldest open transaction holds readers back. A DescribeProducers request returns this
transaction's producer. If the command cannot find the producer's transactional id, it must not claim that the
transaction is about to end. A hanging transaction (KIP-664) never ends on its own.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from tenacity import stop_after_delay, wait_fixed

from twopc.integration.verify.describing import describe as describe_transactions
from twopc.retry import repeating
from twopc.sinks.kafka.broker_connection import BrokerConnection
from twopc.sinks.kafka.ledger_topic import describe
from twopc.sinks.kafka.partition_reports import NOT_ALLOWED, describe_partitions, split
from twopc.sinks.kafka.reports import NONE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from twopc.integration.verify.cluster import Cluster

    Where = tuple[str, int]  # a topic and a partition

#: How long a transaction may take to end before it counts as open.
_END_S: Final = 1.0


class Unnamed(Enum):
    """Why the transaction that holds readers back has no name."""

    ENDED = "ended"  #: the last stable offset has moved on since
    HIDDEN = "hidden"  #: the leader named the producer, but no broker lists an open transaction of this producer
    REFUSED = "refused"  #: the leader does not name the producer, because the principal has no Read permission
    SILENT = "silent"  #: the leader did not respond, or reported an error


@dataclass(frozen=True)
class HeldPartition:
    """A partition whose readers stop before the partition's end.

    Attributes:
        stable: the last stable offset, where the readers stop.
        end: the log end offset.
        producer_id: the producer whose open transaction begins at ``stable``; -1 if the leader did not name it.
        transactional_id: the producer's transactional id; None if it is unknown.
        unnamed: why the transactional id is unknown; None if it is known.
    """

    topic: str
    partition: int
    stable: int
    end: int
    producer_id: int = -1
    transactional_id: str | None = None
    unnamed: Unnamed | None = None

    @property
    def holder(self) -> str:
        """Say who holds the readers back."""
        if self.transactional_id is not None:
            return self.transactional_id
        if self.unnamed is Unnamed.ENDED:
            return "a transaction that has just ended"
        if self.unnamed is Unnamed.HIDDEN:
            return f"producer {self.producer_id}, whose transaction no broker lists for this principal"
        if self.unnamed is Unnamed.REFUSED:
            return "a producer that this principal may not see"
        return "an unknown producer, because the partition's leader did not name it"

    def facts(self) -> dict[str, Any]:
        """Return the facts as a JSON object."""
        return {**asdict(self), "unnamed": None if self.unnamed is None else self.unnamed.value}


def held_back(cluster: Cluster, topics: Collection[str], known: Mapping[int, str]) -> tuple[HeldPartition, ...]:
    """Find the partitions whose readers are held back, and the transactions that hold these readers back.

    ``known`` contains the transactional ids of the sink's open transactions, by producer id.

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
    oldest, refused = _oldest_producers(cluster, behind)
    names = {**_names(cluster, set(oldest.values()) - known.keys()), **known}
    nameless = {
        (topic, partition): stable
        for topic, partitions in behind.items()
        for partition, (stable, _) in partitions.items()
        if oldest.get((topic, partition)) not in names
    }
    ended = _ended(cluster, nameless)

    def why(where: Where) -> Unnamed | None:
        if where not in nameless:
            return None
        if where in ended:
            return Unnamed.ENDED
        if where in oldest:
            return Unnamed.HIDDEN
        return Unnamed.REFUSED if where in refused else Unnamed.SILENT

    return tuple(
        HeldPartition(topic, partition, stable, end, producer_id, names.get(producer_id), why((topic, partition)))
        for topic, partitions in behind.items()
        for partition, (stable, end) in sorted(partitions.items())
        for producer_id in [oldest.get((topic, partition), -1)]
    )


def _oldest_producers(
    cluster: Cluster, behind: Mapping[str, Mapping[int, tuple[int, int]]]
) -> tuple[dict[Where, int], set[Where]]:
    """In each partition, find the producer whose open transaction begins first.

    Omit partitions whose leader does not name a producer. Also return the partitions whose leader refused to name one,
    because the principal has no Read permission on the topic.
    """
    leaders: dict[str, int] = {}
    for topic, partitions in behind.items():
        found = describe(cluster.ledger.admin, topic, timeout_ms=cluster.sink.timeout_ms)
        for row in found.partitions if found else ():
            if row.id in partitions and row.leader is not None:
                leaders[f"{topic}:{row.id}"] = row.leader.id
    oldest, refused = {}, set()
    with closing(BrokerConnection(cluster.sink.committing_config())) as connection:
        for partition, report in describe_partitions(connection, leaders).items():
            if report.error == NOT_ALLOWED:
                refused.add(split(partition))
            elif report.writers:
                oldest[split(partition)], _ = min(report.writers, key=lambda writer: report.writers[writer])
    return oldest, refused


def _names(cluster: Cluster, producer_ids: Collection[int]) -> dict[int, str]:
    """Find these producers' open transactions, across all sinks. Return the transactional ids by producer id.

    A producer is missing from the result if the principal may not see its transaction, if a broker does not respond, or if
    no coordinator knows the transaction.
    """
    ids = cluster.transactions.list_open("", producer_ids=producer_ids).transactional_ids if producer_ids else ()
    found = describe_transactions(cluster.transactions, ids)
    return {one.producer_id: tid for tid, one in found.items() if one.error == NONE}


def _ended(cluster: Cluster, nameless: Mapping[Where, int]) -> set[Where]:
    """Wait a moment for transactions that are ending. Return the partitions whose last stable offset has moved on."""
    ended: set[Where] = set()

    def is_waiting() -> bool:
        for topic in sorted({topic for topic, _ in nameless.keys() - ended}):
            bounds = cluster.bounds(topic)
            ended.update(
                (topic, partition)
                for at, partition in nameless
                if at == topic and (bounds is None or bounds.stable.get(partition, -1) > nameless[topic, partition])
            )
        return len(ended) < len(nameless)

    if nameless:
        repeating(stop=stop_after_delay(_END_S), backoff=wait_fixed(0.1))(is_waiting)
    return ended
