"""Describe a sink's open transactions, with the facts that an operator needs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from twopc.sinks.kafka.handle import ProducerIdentity, driver_epoch_of, driver_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from twopc.integration.verify.history import History
    from twopc.integration.verify.transactions import Decided
    from twopc.sinks.kafka import KafkaSink
    from twopc.sinks.kafka.reports import Description


#: A difference between two clocks that is not worth a word, and longer than a coordinator needs to abort an expired transaction
#: (transaction.abort.timed.out.transaction.cleanup.interval.ms: 10 s).
_TOLERANCE_S: Final = 15


class Standing(Enum):
    """The decision record's verdict on an open transaction."""

    DECIDED = "decided"  #: decided, so it must be committed
    ABANDONED = "abandoned"  #: decided, but the user abandoned its batch, so it must be aborted
    ORPHAN = "orphan"  #: begun by an earlier driver and undecided in its own ledger, so it can no longer be decided
    RUNNING = "undecided"  #: begun by the newest driver; if this driver is alive, it may still decide the transaction
    DRIVER = "driver"  #: the driver's own transaction, in which the driver writes a decision
    UNMARKED = "unmarked"  #: undecided here, and not begun by the newest driver; another ledger may decide it
    FOREIGN = "foreign"  #: another program's transaction
    UNJUDGED = "unjudged"  #: the decisions could not be read


@dataclass(frozen=True, kw_only=True)
class OpenTransaction:
    """An open transaction. The transaction's JSON object has a key for each attribute.

    Attributes:
        state: the transaction's state, in the coordinator's terms.
        age_s: how long the transaction has been open, in seconds; None if the coordinator did not report the time, or if this
            machine's clock and the coordinator's clock certainly differ.
        expires_in_s: the seconds until the coordinator aborts the transaction. If the number is negative, the abort is
            overdue. None if unknown, or if the coordinator is already ending the transaction.
        batch: the batch of a decided transaction; None if unknown.
        rows: the number of rows in a decided transaction; None if unknown.
        partitions: the partitions that the transaction has written to, as ``topic:partition``.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    standing: Standing
    age_s: float | None
    expires_in_s: float | None
    batch: int | None = None
    task: int | None = None
    rows: int | None = None
    partitions: tuple[str, ...] = ()

    @property
    def is_in_doubt(self) -> bool:
        """Whether the transaction is still waiting for a decision or a commit."""
        return self.standing is not Standing.DRIVER

    @property
    def identity(self) -> ProducerIdentity:
        """The producer that wrote the transaction."""
        return ProducerIdentity(self.transactional_id, self.producer_id, self.producer_epoch)

    @property
    def evidence(self) -> str:
        """The reason for the transaction's standing, without a final period."""
        return {
            Standing.DECIDED: f"the decision for batch {self.batch} names this transaction (task {self.task})",
            Standing.ABANDONED: f"the decision for batch {self.batch} names this transaction, but a later record "
            "abandons the batch",
            Standing.ORPHAN: "no decision names this transaction, and a newer driver has fenced the only driver that "
            "could decide it",
            Standing.RUNNING: (
                "no decision names this transaction yet, but its driver is the newest driver and can still decide it"
            ),
            Standing.DRIVER: "this is the driver's own transaction, which contains a record for the decision log",
            Standing.UNMARKED: "no decision that was read names this transaction, but another ledger may contain the "
            "decision. Either this ledger does not contain the transaction's marker, or another query has taken the sink "
            "over and has not finished its first batch",
            Standing.FOREIGN: "no task of this sink uses this transactional id, so it belongs to another program",
            Standing.UNJUDGED: "the decisions could not be read, so it is unknown whether this transaction was decided",
        }[self.standing]

    def facts(self) -> dict[str, Any]:
        """Return the facts as a JSON object."""
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "state": self.state,
            "decision": self.standing.value,
            "in_doubt": self.is_in_doubt,
            "age_s": self.age_s,
            "expires_in_s": self.expires_in_s,
            "batch": self.batch,
            "task": self.task,
            "rows": self.rows,
            "partitions": list(self.partitions),
            "evidence": self.evidence,
        }


def opened(  # noqa: PLR0913 - the facts
    sink: KafkaSink,
    described: Mapping[str, Description],
    decided: Iterable[Decided] | None,
    *,
    driver_epoch: int,
    now_ms: float,
    judged_from: int = -1,
) -> tuple[OpenTransaction, ...]:
    """Judge a sink's open transactions.

    Args:
        sink: the sink.
        described: the coordinators' descriptions, by transactional id. The result omits every transaction that has ended
            according to its description. The result also omits a transaction that no coordinator described, so the caller must
            report it.
        decided: the decisions in the log; None if the log cannot be read.
        driver_epoch: the epoch of the newest driver in the log.
        now_ms: the time on this machine, in ms since 1970 UTC. An age is the difference between this time and a coordinator's
            timestamp, so the age is wrong by the difference between the two clocks.
        judged_from: the result of :func:`lowest_judged`.
    """
    by_producer = {
        (one.handle.transactional_id, one.handle.producer_id, one.handle.producer_epoch): one for one in decided or ()
    }
    found = []
    for tid, description in sorted(described.items()):
        if description.state not in {"Ongoing", "PrepareCommit", "PrepareAbort"}:
            continue
        one = by_producer.get((tid, description.producer_id, description.producer_epoch))
        age_s = _age_s(description, now_ms)
        found.append(
            OpenTransaction(
                transactional_id=tid,
                producer_id=description.producer_id,
                producer_epoch=description.producer_epoch,
                state=description.state,
                standing=_standing(
                    sink.name,
                    tid,
                    one,
                    is_known=decided is not None,
                    driver_epoch=driver_epoch,
                    is_marked=any(where.rpartition(":")[0] == sink.ledger for where in description.partitions),
                    judged_from=judged_from,
                ),
                age_s=age_s,
                expires_in_s=(
                    None
                    if age_s is None or description.state != "Ongoing"
                    else round(description.timeout_ms / 1000 - age_s, 1)
                ),
                batch=None if one is None else one.id.batch,
                task=None if one is None else one.task,
                rows=None if one is None else one.handle.rows,
                partitions=tuple(sorted(description.partitions)),
            )
        )
    return tuple(found)


def _age_s(found: Description, now_ms: float) -> float | None:
    """Return how long a transaction has been open; None if the time is unknown, or if no open transaction can be of this age."""
    age_s = (now_ms - found.started_ms) / 1000
    is_overdue = found.state == "Ongoing" and age_s > found.timeout_ms / 1000 + _TOLERANCE_S
    if found.started_ms < 0 or age_s < -_TOLERANCE_S or is_overdue:
        return None
    return round(max(0.0, age_s), 1)


def lowest_judged(found: History, sink: str) -> int:
    """Return the lowest driver epoch in this sink whose decisions the log contains.

    A query that takes over the sink first completes the last batch of the sink's former query. That batch's decision is in
    another log, not in this one. Until the new query has decided its first batch with this sink, the former query's batch may
    still be incomplete.
    """
    newest, begin = found.newest, found.view.begin
    has_decided = newest is not None and begin is not None and begin.query_id == newest.query_id
    if newest is None or (has_decided and sink in found.view.scan_start):
        return -1
    former = (epoch for epoch, one in found.acquisitions.items() if one.deciding_log != newest.deciding_log)
    return max(former, default=-1) + 1


def _standing(  # noqa: PLR0913 - the facts
    sink: str, tid: str, one: Decided | None, *, is_known: bool, driver_epoch: int, is_marked: bool, judged_from: int
) -> Standing:
    epoch = driver_epoch_of(tid)
    if epoch is None:  # the sweep ignores ids of any other form, too
        return Standing.DRIVER if tid == driver_id(sink) else Standing.FOREIGN
    if not is_known:
        return Standing.UNJUDGED
    if one is not None:
        return Standing.ABANDONED if one.abandoned else Standing.DECIDED
    if epoch == driver_epoch:
        return Standing.RUNNING
    # A decision is written after the marker, so the ledger that contains the marker also contains the decision. The
    # marker may be in a different ledger, for example if the sink had no ledger_topic at that time. That ledger's
    # drivers have different epochs.
    if not is_marked or epoch < judged_from:
        return Standing.UNMARKED
    return Standing.ORPHAN if epoch < driver_epoch else Standing.RUNNING
