"""Messages for a decided batch that is not proven complete: what happened, and every way to continue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twopc.attempt import Evidence
from twopc.counted import counted
from twopc.errors import CommitBlockedError, InDoubtError
from twopc.override import Abandon
from twopc.repair import unseen_files

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from twopc.attempt import TaskKey
    from twopc.engine import StagedRows
    from twopc.override import Overrides
    from twopc.participants import Handles
    from twopc.records import Decision

LEFT_BEHIND: Final = "Spark has moved past this batch and cannot replay it"
OTHER_ROWS: Final = (
    "the replay does not yield the decided rows, so the lost rows cannot be told apart from the visible rows. Check what has "
    "changed since the batch was decided: the function, a DataFrame, select, the set of sinks, a sink's settings, or the version "
    "of Spark or spark-twopc. If any of these has changed, first start the former version, because it may be able to complete "
    "the batch. Otherwise, a shuffle, AQE, changed partitions or a non-deterministic expression has changed the rows"
)
_PREVENTION: Final = (
    "To prevent this in later batches, set staging=True, which keeps the rows (not available under Spark Connect)"
)
OTHER_ORDERS: Final = "each replay yields the decided rows in a different order. Restart the query to try again"
LOST_AGAIN: Final = (
    "their rows were written again, but the new transactions were also lost. Raise the sinks' transaction timeout "
    "(kafka.transaction.timeout.ms) and restart the query to try again"
)
#: A message names at most this many staged files.
_SHOWN_FILES: Final = 3


@dataclass(frozen=True)
class Unproven:
    """A decided batch that is not proven complete.

    Attributes:
        decision: the decision.
        handles: its transactions' handles.
        evidence: the evidence for each of ``handles``, after the driver has tried to commit all of them.
        query_id: the query that runs.
        overrides: the user's overrides.
        blockers: why the commit could not be proven.
        outdated: see :attr:`LastDecision.outdated`.
    """

    decision: Decision
    handles: Handles
    evidence: Mapping[TaskKey, Evidence]
    query_id: str
    overrides: Overrides
    blockers: Sequence[str] = ()
    outdated: Collection[str] = ()

    def blocked(self) -> CommitBlockedError | InDoubtError:
        """Build the error for a batch with transactions whose outcome is unknown."""
        unknown = self._in_sinks(Evidence.UNKNOWN)
        if unknown <= {*self.outdated}:
            return self._outdated(sorted(unknown))
        lost = self._named(Evidence.ABORTED)
        if self.blockers:
            fix = f"{'; '.join(dict.fromkeys(self.blockers))}. Fix the cause, and restart the query"
        else:
            fix = f"{'' if lost else 'No data is lost. '}Restart the query when every broker responds"
        also = f", and some of its transactions are lost: {', '.join(lost)}" if lost else ""
        return CommitBlockedError(
            f"{self._batch} is decided, but its commit could not be completed in time{also}. {fix}. The query will then "
            "complete this batch. If the batch can never be proven complete (because its markers were deleted), "
            f"{self._way_out()}",
            transactions=self._named(Evidence.UNKNOWN),
        )

    def waiting(self, waits_for: Mapping[str, Sequence[Decision]]) -> str:
        """Say which older batches must be complete before this batch is committed in the sinks that they share."""
        older = {f"batch {one.batch_id} of query {one.query_id}": None for found in waits_for.values() for one in found}
        return (
            f"{self._batch} is decided. In the sinks {sorted(waits_for)}, it waits for {' and '.join(older)}, because these "
            "sinks may prove only their newest batch. Do not abandon the waiting batch in these sinks. The query completes the "
            "waiting batch there when the older batch is complete or abandoned"
        )

    def in_doubt(self, why: str, staging: StagedRows | None) -> InDoubtError:
        """Build the error for a batch that cannot be completed. The message lists every transaction by its outcome.

        ``staging`` is this start's store for staged rows.
        """
        fixes = ["Nothing more was written"]
        lost = {key for key, found in self.evidence.items() if found is Evidence.ABORTED}
        if unseen := unseen_files(self.decision, lost, staging):
            fixes.append(staged_elsewhere(self.decision, unseen, self.query_id))
        elif why is OTHER_ROWS:
            fixes.append(_PREVENTION)
        if why is not LOST_AGAIN:
            fixes.append(f"To continue without the lost rows, {self._way_out()}")
        return self._error(
            f"{self._batch} is decided, but some of its transactions are lost: {why}. {'. '.join(fixes)}"
        )

    def _outdated(self, sinks: Sequence[str]) -> InDoubtError:
        lost = " Some of the batch's transactions are lost." if self._named(Evidence.ABORTED) else ""
        return self._error(
            f"{self._batch} is decided, but another query has decided later batches in the sinks {list(sinks)}. So these sinks "
            f"no longer show whether all of the batch's rows are visible there.{lost} A restart does not change this. Insert "
            f"missing rows by other means: {self._way_out()}"
        )

    def _way_out(self) -> str:
        left = {sink for (sink, _), found in self.evidence.items() if found is not Evidence.COMMITTED}
        return way_out(self.decision, sorted(left), self.overrides)

    def _error(self, message: str) -> InDoubtError:
        return InDoubtError(
            message,
            committed=self._named(Evidence.COMMITTED),
            lost=self._named(Evidence.ABORTED),
            unknown=self._named(Evidence.UNKNOWN),
        )

    @property
    def _batch(self) -> str:
        of = "" if self.decision.query_id == self.query_id else f" of query {self.decision.query_id}"
        return f"batch {self.decision.batch_id}{of}"

    def _named(self, wanted: Evidence) -> list[str]:
        return [self.handles[key].transaction for key, found in sorted(self.evidence.items()) if found is wanted]

    def _in_sinks(self, wanted: Evidence) -> set[str]:
        return {sink for (sink, _), found in self.evidence.items() if found is wanted}


def abandon(decision: Decision, sinks: Sequence[str]) -> Abandon:
    """Return the override that gives up a batch in these sinks, and in no other sink.

    The override contains the query id. Otherwise, it could also match a batch with the same number in a query that later
    replaces this one.
    """
    has_others = {sink for task in decision.tasks for sink in task.handles} - {*sinks}
    return Abandon(decision.batch_id, decision.query_id, tuple(sinks) if has_others else ())


def way_out(decision: Decision, sinks: Sequence[str], overrides: Overrides) -> str:
    """Say how to continue without the batch's invisible rows in these sinks."""
    return (
        f"check the batch's rows in the output, then restart with {overrides.in_code(abandon(decision, sinks))}. The batch's "
        "visible rows stay visible, and its other rows are abandoned"
    )


def staged_elsewhere(decision: Decision, unseen: Sequence[str], query_id: str) -> str:
    """Say how to complete a batch from staged files that this start does not find. ``query_id`` is the query that starts."""
    files = counted(len(unseen), "file")
    what = f"The lost rows were staged in {files} that this start does not find ({', '.join(unseen[:_SHOWN_FILES])}"
    what += ", …)" if len(unseen) > _SHOWN_FILES else ")"
    if query_id != decision.query_id:
        return (
            f"{what}, because query {decision.query_id} has its own directory. To complete the batch from these files, start "
            "that query once with its own checkpoint and its former staging"
        )
    return (
        f"{what}. A warning names each file that is torn. If staging is now off or has another path, or if its relative "
        "path now begins in another directory, restart with the former staging. The query then completes the batch from these "
        "files"
    )


def together(
    errors: Sequence[CommitBlockedError | InDoubtError], waiting: Sequence[str]
) -> CommitBlockedError | InDoubtError:
    """Combine the errors of several decided batches into one. ``waiting`` describes the batches that only wait for these.

    If one of these batches may still be completed, the result is a :class:`CommitBlockedError`, because the user must first
    restart the query.
    """
    if len(errors) == 1 and not waiting:
        return errors[0]
    message = ". ".join([*map(str, errors), *waiting])
    blocked = [error for error in errors if isinstance(error, CommitBlockedError)]
    if blocked:
        found = CommitBlockedError(message)
        found.transactions = tuple(name for error in blocked for name in error.transactions)
        return found
    doubt, doubts = InDoubtError(message), [error for error in errors if isinstance(error, InDoubtError)]
    doubt.committed = tuple(name for error in doubts for name in error.committed)
    doubt.lost = tuple(name for error in doubts for name in error.lost)
    doubt.unknown = tuple(name for error in doubts for name in error.unknown)
    return doubt
