"""The records in a decision log."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from twopc.attempt import Attempt  # noqa: TC001 - msgspec reads annotations at run time
from twopc.times import Times  # noqa: TC001 - see above

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from twopc.attempt import Claim


class Part(msgspec.Struct, frozen=True, array_like=True):
    """The rows that a task received from one partition of the plan, as a count and a checksum.

    Attributes:
        index: the partition's index in the plan of its DataFrame.
        rows: the number of rows.
        checksum: the checksum of these rows, computed as in :class:`TaskReport`.
    """

    index: int
    rows: int
    checksum: int


def added_up(parts: Iterable[Part]) -> tuple[int, int]:
    """Add up the parts' row counts and checksums."""
    parts = tuple(parts)
    return sum(part.rows for part in parts), sum(part.checksum for part in parts) % 2**64


class TaskReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report from one accepted task.

    Attributes:
        partition: the task number in the batch, counted over all of the batch's DataFrames.
        parts: the rows that the task received from each partition of the plan. If ``parts`` is empty, the task received all
            rows of the partition whose index is the task number.
        rows: the number of rows that the task received.
        checksum: the sum of the rows' 64-bit hashes, modulo 2**64, which does not depend on the row order; 0 if the
            decision has only one transaction.
        handles: the task's handles by sink name, as JSON values. If the task wrote no rows to a sink, that sink is
            absent (rule 8).
        staged: the name of the file in which the task staged its rows (rule 9); None if it staged no rows.
        frame_name: the name of a sink that writes the DataFrame with these rows; empty if the batch has only one
            DataFrame.
        is_direct: whether the driver itself wrote all rows of the DataFrame, as one task.
        is_repair: whether the task belongs to a replay and wrote rows of lost transactions.
    """

    partition: int
    rows: int
    checksum: int
    handles: dict[str, dict[str, Any]] = {}
    staged: str | None = None
    frame_name: str = ""
    is_direct: bool = False
    parts: tuple[Part, ...] = ()
    is_repair: bool = False

    @property
    def by_part(self) -> tuple[Part, ...]:
        """Return :attr:`parts`; if it is empty, return one part with all of the task's rows."""
        return self.parts or ((Part(self.partition, self.rows, self.checksum),) if self.rows else ())


class Acquired(msgspec.Struct, frozen=True, kw_only=True, tag="acquired"):
    """A driver has acquired the log. The record's offset is the driver's epoch.

    Attributes:
        sink: the sink that provides the log; empty if the log is in the checkpoint.
        deciding_cluster: the id of the cluster that stores the deciding log. A sink on another cluster has no other record of
            where its decisions are. The id is empty if the log is not on a cluster, or if an older version of the toolkit wrote
            the record.
    """

    query_id: str
    run: str
    deciding_log: str
    driver: str
    at_ms: int
    sink: str = ""
    deciding_cluster: str = ""

    @classmethod
    def by_this_process(cls, claim: Claim, at_ms: int, *, sink: str = "") -> Acquired:
        """Build this process's record with the Unix time ``at_ms``, in milliseconds."""
        return cls(
            query_id=claim.query_id,
            run=claim.run,
            deciding_log=claim.deciding_log,
            driver=f"{socket.gethostname()}:{os.getpid()}",
            at_ms=at_ms,
            sink=sink,
            deciding_cluster=claim.deciding_cluster,
        )


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag="begin"):
    """Opens the log for a query. This record is treated as the decision for batch ``first_batch - 1``.

    Attributes:
        prior_offsets: the source offsets of batch ``first_batch - 1``, from the checkpoint; empty if the checkpoint does not
            contain them.
        ends: the id of the previously open query, if this query ends it.
        abandons: whether the user has given up the invisible part of batch ``first_batch - 1``, which was decided but could not
            be completed.
        prior_times: the times of batch ``first_batch - 1`` if this query has written it; otherwise None.
    """

    query_id: str
    first_batch: int
    prior_offsets: tuple[str, ...]
    ends: str | None = None
    abandons: bool = False
    prior_times: Times | None = None


class Decision(msgspec.Struct, frozen=True, kw_only=True, tag="decision"):
    """The commit point. The batch becomes visible with exactly the transactions in this record.

    Attributes:
        offsets: the batch's source offsets, one canonical string per source.
        tasks: every accepted task, including tasks without rows.
        scan_start: for each sink, where the search for evidence of its transactions begins.
        kind: "write"; or "rewrite" if an earlier decision for the batch lost all of its transactions.
        binding: the number of the checkpoint's binding when the batch was decided; 0 if the record does not contain it.
        times: the times with which the engine planned the batch; None if they are unknown, or if an earlier release wrote the
            record.
    """

    query_id: str
    batch_id: int
    attempt: Attempt
    offsets: tuple[str, ...]
    tasks: tuple[TaskReport, ...]
    scan_start: dict[str, dict[str, Any]]
    kind: str = "write"
    binding: int = 0
    times: Times | None = None


class Repair(msgspec.Struct, frozen=True, kw_only=True, tag="repair"):
    """Replaces a decided batch's lost transactions with new transactions that contain the same rows.

    Attributes:
        tasks: the tasks that wrote the new transactions. These are the decided tasks if the rows were staged, otherwise
            the tasks of a replay.
        replaces: the lost transactions, by sink name and task.
    """

    query_id: str
    batch_id: int
    attempt: Attempt
    tasks: tuple[TaskReport, ...]
    replaces: tuple[tuple[str, int], ...] = ()


class Truncation(msgspec.Struct, frozen=True, kw_only=True, tag="truncation"):
    """Announces the deletion of every record before ``log_start``, and preserves the facts that must not be lost."""

    log_start: int
    begin: Begin
    ended: tuple[str, ...]


Record = Acquired | Begin | Decision | Repair | Truncation


class LogEntry(NamedTuple):
    """A record and its offset in the log."""

    offset: int
    record: Record


@dataclass(frozen=True)
class Entries:
    """The entries of a log.

    Each iteration reads the entries again, because a log of many tasks and batches does not fit in memory.
    """

    walk: Callable[[], Iterator[LogEntry]]

    def __iter__(self) -> Iterator[LogEntry]:
        return self.walk()


class LogContents(NamedTuple):
    """The complete log as read by one reader.

    Attributes:
        start: the lowest offset that is still in the store.
        entries: the entries, in order. Iterating may raise the errors of :meth:`DecisionLog.read`.
    """

    start: int
    entries: Iterable[LogEntry]


def truncated_to(entries: Iterable[LogEntry]) -> int:
    """Return the highest ``log_start`` of all truncations. Earlier records are ignored, even if they are still in the store."""
    return max((record.log_start for _, record in entries if isinstance(record, Truncation)), default=0)
