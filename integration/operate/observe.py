"""Observe a sink in Kafka: its driver, decisions, open transactions and proofs. The module only reads, and fences no driver."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tenacity import stop_after_delay, wait_fixed

from twopc.attempt import Evidence
from twopc.decision_log import ABSENT
from twopc.errors import ConfigurationError, DecisionLogDamagedError
from twopc.integration.operate.held import HeldPartition, held_back
from twopc.integration.operate.opened import OpenTransaction, lowest_judged, opened
from twopc.integration.verify.cluster import Cluster
from twopc.integration.verify.deciding import NOTHING_KNOWN, DecisionsElsewhereError
from twopc.integration.verify.describing import describe, is_known, undescribed
from twopc.integration.verify.findings import Kind
from twopc.integration.verify.markers import Markers, missing, wait_for_commits
from twopc.integration.verify.transactions import check_missing, decided_in, newest_epoch, topics_of
from twopc.retry import repeating
from twopc.sealed import OtherVersionError
from twopc.sinks.kafka.handle import driver_id, id_prefix
from twopc.sinks.kafka.settings import LEDGERS
from twopc.sinks.kafka.transactions import TransactionClient

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twopc.integration.verify.deciding import QueryFacts
    from twopc.integration.verify.history import BatchId, History
    from twopc.integration.verify.transactions import Decided
    from twopc.sinks.kafka import KafkaSink
    from twopc.sinks.kafka.reports import Description

#: How long a live driver may take from its decision to the last commit.
_COMMIT_S: Final = 1.0
#: Observe many sinks in parallel, because an observation mostly waits for responses, and for drivers that may be about
#: to commit.
_SINKS_AT_ONCE: Final = 16
_OPEN: Final = frozenset({"Ongoing", "PrepareCommit"})


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The evidence for one decided transaction in the last batch."""

    batch: int
    task: int
    transaction: str
    rows: int
    evidence: Evidence
    text: str  #: the reason for the evidence
    is_described: bool = True  #: whether the coordinator described the transaction; an undescribed one may be open

    def facts(self) -> dict[str, Any]:
        """Return the facts as a JSON object."""
        return {**self.__dict__, "evidence": self.evidence.value}


@dataclass(frozen=True, kw_only=True)
class SinkState:
    """The observed state of a sink.

    Attributes:
        problem: why the decision log cannot be used; None if the log can be used.
        is_elsewhere: whether the only problem is that the command cannot reach the decision log, which is on another cluster or
            in a checkpoint that the user has not passed. In that case, nothing is damaged.
        checkpoint: the checkpoint that contains the decisions; empty if they are in a ledger, or cannot be read.
        query_id: the query that the log is open for.
        driver: the newest driver's host and process.
        driver_epoch: the newest driver's epoch.
        producer_id: the id of the producer that may decide. This producer owns the drivers' transactional id.
        producer_epoch: the epoch of the producer that may decide.
        last_decided: the highest batch that ``query_id`` has decided; None if it has decided no batch.
        last_offsets: the source offsets at which the last decided batch ends, one entry for each source. The entry of a named
            source begins with ``name:``.
        last_committed: the highest batch of ``query_id`` that is proven visible.
        transactions: the open transactions.
        proofs: the evidence for every decided transaction in the last batch, and for every earlier transaction that is not
            visible.
        staged: whether the last batch's rows are staged.
        held: the partitions that readers cannot read to the end.
        is_complete: False if a broker did not list its open transactions, or if no coordinator described one of them. In this
            case, the sink may have open transactions that are not in ``transactions``.
        history: the decisions in the log; None if the log cannot be read.
    """

    sink: str
    ledger: str
    problem: str | None = None
    is_elsewhere: bool = False
    checkpoint: str = ""
    query_id: str | None = None
    driver: str | None = None
    driver_epoch: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    last_decided: int | None = None
    last_offsets: tuple[str, ...] = ()
    last_committed: int | None = None
    transactions: tuple[OpenTransaction, ...] = ()
    proofs: tuple[Proof, ...] = ()
    staged: bool = False
    held: tuple[HeldPartition, ...] = ()
    is_complete: bool = True
    history: History | None = None

    @property
    def in_commands(self) -> str:
        """The command-line arguments that say which sink to examine, and how to find its decisions."""
        is_default = self.ledger == f"{LEDGERS}{self.sink}"
        ledger = "" if is_default else f" --ledger-topic {self.ledger}"
        return f"{self.sink}{ledger}{self.checkpoint and f' --checkpoint {self.checkpoint}'}"

    def decided_of(self, query_id: str) -> int | None:
        """Return :attr:`last_decided` if the log is open for this query, otherwise None."""
        return self.last_decided if self.query_id == query_id else None

    def facts(self) -> dict[str, Any]:
        """Return the facts as a JSON object."""
        plain = (
            "sink",
            "ledger",
            "problem",
            "is_elsewhere",
            "query_id",
            "driver",
            "driver_epoch",
            "producer_id",
            "producer_epoch",
        )
        counted = ("last_decided", "last_committed", "is_complete")
        return {
            **{name: getattr(self, name) for name in (*plain, *counted)},
            "last_offsets": list(self.last_offsets),
            "transactions": [one.facts() for one in self.transactions],
            "not_proven": [one.facts() for one in self.proofs if one.evidence is not Evidence.COMMITTED],
            "held_back": [one.facts() for one in self.held],
        }


def observe(sink: KafkaSink, facts: QueryFacts = NOTHING_KNOWN) -> SinkState:
    """Observe a sink. If the decisions are in the checkpoint or on another cluster, ``facts`` may say how to reach them.

    Raises:
        TwoPhaseCommitError: no broker responds, or a permission is missing.
    """
    with closing(TransactionClient(sink.committing_config())) as client, closing(sink.create_decision_log()) as log:
        if log.identity() == ABSENT:
            return _without_log(
                sink,
                client,
                f"topic {sink.ledger} does not exist on this cluster ({client.cluster_id}): either the sink uses "
                "another ledger, the topic was deleted, or the sink is on another cluster. If your code sets the "
                "sink's ledger_topic, add --ledger-topic, or pass the query's checkpoint, which names the ledger",
            )
        try:
            with closing(Cluster(sink, facts)) as cluster:
                return _observed(cluster)
        except OtherVersionError as error:
            return _without_log(sink, client, str(error))
        except DecisionLogDamagedError as error:
            return _without_log(sink, client, f"the decision log is damaged: {error}")
        except DecisionsElsewhereError as error:
            return replace(_without_log(sink, client, str(error)), is_elsewhere=True)


def observe_all(sinks: Sequence[KafkaSink]) -> list[SinkState]:
    """Observe all sinks on a cluster, several at a time. A problem with one sink does not hide the other sinks.

    Raises:
        RetriableError: no broker responds.
    """
    with ThreadPoolExecutor(_SINKS_AT_ONCE) as pool:
        return list(pool.map(_observe_or_say_why, sinks))


def _observe_or_say_why(sink: KafkaSink) -> SinkState:
    try:
        return observe(sink)
    except ConfigurationError as error:
        return SinkState(sink=sink.name, ledger=sink.ledger, problem=str(error))


def _without_log(sink: KafkaSink, client: TransactionClient, problem: str) -> SinkState:
    listing = client.list_open(id_prefix(sink.name))
    described = describe(client, [*listing.transactional_ids, driver_id(sink.name)])
    driver = described[driver_id(sink.name)]
    found = opened(sink, described, None, driver_epoch=-1, now_ms=_now_ms())
    return SinkState(
        sink=sink.name,
        ledger=sink.ledger,
        problem=problem,
        producer_id=driver.producer_id,
        producer_epoch=driver.producer_epoch,
        transactions=found,
        is_complete=listing.complete and not undescribed(described),
    )


def _observed(cluster: Cluster) -> SinkState:
    sink, client = cluster.sink, cluster.transactions
    # The transactions of decisions made before now must be visible or open. The log is read again below, so later
    # decisions are not missed.
    before = cluster.ledgers().history()
    required = decided_in(before, sink)
    # A healthy driver commits a few milliseconds after its decision. That delay is not worth reporting.
    _let_commit(cluster, [one for one in required.values() if one.id == before.last])
    wait_for_commits(cluster, required, before.last)
    markers = Markers()
    markers.read_new(cluster)
    absent = missing(cluster, markers, required)
    listing = client.list_open(id_prefix(sink.name))
    # A broker does not list a transaction while its commit is in progress. The commit may take long, for example if a
    # partition has no leader.
    not_visible = [required[uuid].handle.transactional_id for uuid in absent]
    described = describe(client, [*listing.transactional_ids, *not_visible, driver_id(sink.name)])
    for tid in {*not_visible} - {*listing.transactional_ids}:
        if described[tid].state == "PrepareAbort":  # the proof shows that the transaction is lost, or may be lost
            del described[tid]
    after = cluster.ledgers().history()
    decided = decided_in(after, sink)
    newer = [one for uuid, one in decided.items() if uuid not in required]
    _let_commit(cluster, newer)
    described |= describe(client, [one.handle.transactional_id for one in newer])
    epoch = newest_epoch(after, decided)
    driver = described[driver_id(sink.name)]
    judged_from = lowest_judged(after, sink.name)
    found = opened(sink, described, decided.values(), driver_epoch=epoch, now_ms=_now_ms(), judged_from=judged_from)
    proofs = _proofs(required, absent, markers, before.last)
    acquired = after.newest
    topics = {topic for one in decided.values() if one.id == after.last for topic in topics_of(one.handle, sink)}
    topics |= {where.rpartition(":")[0] for one in found for where in one.partitions}
    last = after.batches.get(after.last) if after.last is not None else None
    return SinkState(
        sink=sink.name,
        ledger=sink.ledger,
        checkpoint="" if acquired is None else cluster.facts.checkpoint_of(acquired),
        query_id=None if after.view.begin is None else after.view.begin.query_id,
        driver=None if acquired is None else acquired.driver,
        driver_epoch=epoch,
        producer_id=driver.producer_id,
        producer_epoch=driver.producer_epoch,
        last_decided=after.view.highest_batch,
        last_offsets=after.view.highest_offsets,
        last_committed=_last_committed(before, {one.batch for one in proofs if one.evidence is not Evidence.COMMITTED}),
        transactions=found,
        proofs=proofs,
        staged=last is not None and any(task.staged for task in last.decision.tasks),
        held=held_back(cluster, topics | {sink.ledger}, {one.producer_id: one.transactional_id for one in found}),
        is_complete=listing.complete and not undescribed(described),
        history=after,
    )


def _let_commit(cluster: Cluster, decided: Sequence[Decided]) -> None:
    """Wait up to a second while a driver commits its decision."""
    handles = {one.handle.transactional_id: one.handle for one in decided}

    def is_committing() -> bool:
        found = cluster.transactions.describe(list(handles))
        return any(found[tid].is_of(handle) and found[tid].state in _OPEN for tid, handle in handles.items())

    if handles:
        repeating(stop=stop_after_delay(_COMMIT_S), backoff=wait_fixed(0.05))(is_committing)


def _proofs(
    decided: Mapping[str, Decided], absent: Mapping[str, Description], markers: Markers, last: BatchId | None
) -> tuple[Proof, ...]:
    found = []
    for uuid, one in decided.items():
        if one.abandoned or (uuid not in absent and one.id != last):
            continue
        evidence, text = Evidence.COMMITTED, "its marker is visible"
        if uuid in absent:
            [finding] = check_missing({uuid: absent[uuid]}, decided, markers.partitions.bounds, last)
            evidence = Evidence.ABORTED if finding.kind is Kind.DECIDED_LOST else Evidence.UNKNOWN
            text = finding.text.partition(": ")[2]
        found.append(
            Proof(
                batch=one.id.batch,
                task=one.task,
                transaction=one.handle.transaction,
                rows=one.handle.rows,
                evidence=evidence,
                text=text,
                is_described=uuid not in absent or is_known(absent[uuid]),
            )
        )
    return tuple(found)


def _last_committed(found: History, unproven: set[int]) -> int | None:
    begin = found.view.begin  # every query counts its batches from 0
    own = {
        key.batch: batch for key, batch in found.batches.items() if begin is not None and key.query_id == begin.query_id
    }
    return next((number for number in reversed(own) if number not in unproven and not own[number].abandoned), None)


def _now_ms() -> float:
    return time.time() * 1000
