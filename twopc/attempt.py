"""The types that identify an attempt, its tasks, its transactions, and the driver that claims a sink."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection

#: One transaction of a batch: the sink name and the task's partition.
TaskKey = tuple[str, int]
#: A partition of the plan: the name of the DataFrame (empty if the batch has only one), and the partition's index.
Place = tuple[str, int]


class Attempt(NamedTuple):
    """The name of one attempt at a batch.

    The name does not depend on records that a dead driver may have failed to write (rule 13).

    Attributes:
        driver_epoch: the driver's epoch in the decision log.
        counter: this attempt's number among that driver's attempts.
    """

    driver_epoch: int
    counter: int


@dataclass(frozen=True)
class TaskAttempt:
    """One task of one attempt.

    The fields do not identify a writer's transaction. If Spark runs a task again, or twice at the same time, all runs of the
    task have identical fields. So take the transaction's name from :func:`twopc.fenced_committer.transaction_name`.

    Attributes:
        partition: the task number in the batch. A repair numbers its tasks above the tasks in the decision (see
            :meth:`twopc.engine.Work.number_of`).
        driver_epoch: the fencing token that this driver acquired for the sink (:meth:`SinkCommitter.acquire`).
        committed_through: the highest batch that this driver has proven to be completely committed; -1 if there is no such
            batch.
        is_repair: whether the task rewrites the decision's lost transactions. Such a task must return a handle, even if the
            user chose a weaker guarantee (rule 9).
        ends_at: the deadline for the task's vote, on this process's ``time.monotonic()`` clock. A writer should not
            wait past this deadline. The deadline is infinite if the engine itself cancels the task.
    """

    query_id: str
    batch_id: int
    attempt: Attempt
    partition: int
    driver_epoch: int
    committed_through: int
    is_repair: bool = False
    ends_at: float = math.inf


@dataclass(frozen=True)
class Claim:
    """The driver that wants to own a sink.

    Attributes:
        run: this run's UUID. Every retry uses the same UUID, so acquiring the sink twice is harmless.
        deciding_log: the name of the log that stores the decisions for all of the query's sinks.
        deciding_cluster: the id of the cluster that stores this log; empty if the log is not on a cluster. The id is needed
            because another cluster may have a log with the same name.
        decides_in_checkpoint: whether this log is in the query's checkpoint. If it is, each copy of the checkpoint has its own
            log, so a driver that uses a copy does not fence this driver in the log.
    """

    query_id: str
    run: str
    deciding_log: str
    deciding_cluster: str = ""
    decides_in_checkpoint: bool = False


@dataclass(frozen=True)
class Owner:
    """The driver that acquired a sink last.

    Attributes:
        query_id: the query that the driver runs; None if no driver has acquired the sink.
        driver_epoch: the driver's epoch for this sink.
    """

    query_id: str | None
    driver_epoch: int


class Evidence(Enum):
    """The proven outcome of a prepared transaction. A broker's error is not proof."""

    COMMITTED = "committed"  #: proven to be permanently visible
    ABORTED = "aborted"  #: proven never to become visible; called "lost" if the transaction was decided
    UNKNOWN = "unknown"  #: neither outcome is proven (yet)


class Handle(Protocol):
    """The facts that the driver needs to end a prepared transaction, as a frozen, picklable dataclass of JSON values."""

    @property
    def transaction(self) -> str:
        """The transaction name, as it appears in messages."""


HandleT = TypeVar("HandleT", bound=Handle)


@dataclass(frozen=True)
class Known(Generic[HandleT]):
    """One sink's decided transactions. The sink uses them to find visible transactions that no decision contains.

    Attributes:
        first_batch: from this batch on, no transaction of the query may be visible, except those in ``handles``.
        handles: the transactions in the last decision and its repairs. All of them belong to ``first_batch``.
        is_swept: whether this driver has acquired the sink and ended its open transactions. If so, the sink can prove what is
            visible. If not, the sink must not change the store, because another driver may be healthy.
        decides_in_checkpoint: whether the decisions are in the checkpoint. If they are, a newer run also reveals itself when it
            deletes the evidence for the newest decision. If the decisions are in a log that all copies use, missing evidence
            reveals nothing.
    """

    query_id: str
    first_batch: int
    handles: Collection[HandleT]
    is_swept: bool
    decides_in_checkpoint: bool = True
