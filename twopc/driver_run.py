"""Keep a driver's state after recovery: its epochs, the last decision, and the evidence for that decision."""

from __future__ import annotations

import contextlib
import logging
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from twopc.attempt import Attempt, Evidence
from twopc.crash_points import crash_point
from twopc.errors import DecisionInDoubtError, FatalError, FencedError, RetriableError, TwoPhaseCommitError, release
from twopc.fenced import is_proven_absent
from twopc.log_view import fold_more
from twopc.records import Begin, Truncation
from twopc.recovery import Outcome, outcome_of
from twopc.refusals import recreated
from twopc.unproven import Unproven

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from twopc.attempt import TaskKey
    from twopc.batch import Batch
    from twopc.bound import Bound
    from twopc.log_view import LogView
    from twopc.participants import Handles
    from twopc.records import Decision, Record
    from twopc.settings import Setup

logger = logging.getLogger(__name__)


@dataclass
class DriverRun:
    """The state of one driver, from a successful recovery until the driver stops.

    Attributes:
        bound: the log and sinks to which the checkpoint is, or will be, bound.
        log_epoch: this driver's epoch in the decision log; part of every attempt's name.
        driver_epochs: the driver epochs, by sink name.
        handles: the last decision's handles, one for each transaction.
        evidence: the evidence for each handle in ``handles``.
        blockers: why the last commit could not be proven.
        outdated: see :attr:`LastDecision.outdated`.
        is_unlisted: whether a sink shows rows of the last decision's batch in a transaction that no record lists, because the log
            has lost a later record of this batch.
        committed_through: the highest batch whose transactions are all proven, or -1.
        doubt: the reason why the outcome of this run's last decision is unknown, or why the run can make no further
            decisions.
        undetermined: the handles of a decision that is being written, or whose outcome is unknown.
    """

    setup: Setup
    bound: Bound
    log_epoch: int
    driver_epochs: dict[str, int]
    view: LogView
    handles: Handles
    evidence: dict[TaskKey, Evidence]
    blockers: Sequence[str] = ()
    outdated: Collection[str] = ()
    is_unlisted: bool = False
    committed_through: int = -1
    doubt: TwoPhaseCommitError | None = None
    undetermined: Handles = field(default_factory=dict)
    _attempts: int = field(default=0, init=False)
    _newest_offset: int = field(default=-1, init=False)
    _may_have_staged: bool = field(default=True, init=False)  # an earlier driver may have staged rows
    _appending: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    @property
    def outcome(self) -> Outcome:
        """The outcome of the last decision.

        If a sink shows rows of the batch that no record lists, nothing tells which of the decided rows these are. So the evidence
        for the listed transactions does not show whether the decided rows are visible, and no row may be written again.
        """
        return Outcome.UNKNOWN if self.is_unlisted else outcome_of(self.evidence.values())

    @property
    def decision(self) -> Decision:
        """The last decision, with its repairs."""
        if self.view.decision is None:
            raise AssertionError("there is no decision to act on")
        return self.view.decision

    @property
    def lost(self) -> frozenset[TaskKey]:
        """The last decision's transactions that are proven lost."""
        return frozenset(key for key, found in self.evidence.items() if found is Evidence.ABORTED)

    @property
    def is_abandoned(self) -> bool:
        """Whether the user abandons all of the last decision's transactions that are not proven visible.

        This is never true for a decision that this driver made. If such a decision were lost, the query would stop earlier.
        """
        decision, overrides = self.view.decision, self.setup.settings.overrides
        if decision is None or decision.attempt.driver_epoch >= self.log_epoch:
            return False
        left = {sink for (sink, _), found in self.evidence.items() if found is not Evidence.COMMITTED}
        return overrides.abandons(decision.query_id, decision.batch_id, left, needs_id=bool(self.view.ended))

    def unproven(self, query_id: str) -> Unproven:
        """Describe the last decision's transactions for an error of this query."""
        overrides = self.setup.settings.overrides
        # If this driver made the decision, no other query has decided in the decision's sinks since.
        outdated = self.outdated if self.decision.attempt.driver_epoch < self.log_epoch else ()
        return Unproven(self.decision, self.handles, self.evidence, query_id, overrides, self.blockers, outdated)

    def adopts(self, query_id: str) -> bool:
        """Whether the user lets this query adopt the sinks (:class:`AdoptQuery`), and the log has no record of the query yet."""
        return self.setup.settings.overrides.adopt_query_id == query_id and self.view.highest_batch_of(query_id) is None

    def next_attempt(self) -> Attempt:
        """Begin a new attempt, and return its name. No earlier attempt has this name."""
        self._discard_undecided()
        self._may_have_staged = True
        self._attempts += 1
        return Attempt(self.log_epoch, self._attempts)

    def _discard_undecided(self) -> None:
        """Delete the rows that failed attempts staged. Otherwise, a query that keeps failing would fill the file system.

        All older drivers are fenced, and this run makes no attempt while a decision is in doubt. So the last decision is the only
        one that may still need staged rows.
        """
        if self.setup.staging is not None and self._may_have_staged:
            tasks = () if self.view.decision is None else self.view.decision.tasks
            self.setup.staging.discard(self.log_epoch, {task.staged for task in tasks if task.staged is not None})

    def append(self, records: Sequence[Record], judged: LogView, deciding: Handles | None = None) -> LogView:
        """Write records to the decision log, durably. If the records contain a decision, this call is the commit point.

        Args:
            records: the records; either all of them are written, or none.
            judged: the view that led to these records. If the log has changed since then, nothing is written.
            deciding: the handles of the decision in ``records``, if there is one. No later sweep ends this decision's
                transactions.

        Returns:
            the log's new view.

        Raises:
            FatalError: another call has used this object at the same time. Nothing was written.
            FencedError, RetriableError, DecisionInDoubtError: see :meth:`DecisionLog.append`.
        """
        with self._unchanged_since(judged):
            self.undetermined = deciding or {}
            return self._append(records)

    @contextlib.contextmanager
    def _unchanged_since(self, judged: LogView) -> Iterator[None]:
        """Let one call write at a time, and only if no other call has written since this call read the view.

        Another call may have decided the same batch. The log's fence cannot detect this, because both calls have the same epoch.
        """
        if not self._appending.acquire(blocking=False):
            raise _overtaken(self.setup.log.name)
        try:
            if self.doubt is not None:
                raise self.doubt
            if self.view is not judged:
                raise _overtaken(self.setup.log.name)
            yield
        finally:
            self._appending.release()

    def _append(self, records: Sequence[Record]) -> LogView:
        try:
            offset = self.setup.log.append(records)
            self._require_same_log(offset)
            self.view = fold_more(self.view, offset, records)
        except BaseException as error:
            if isinstance(error, (RetriableError, FatalError)) and not isinstance(error, FencedError):
                self.undetermined = {}  # only these errors prove that nothing was written
            else:
                self.doubt = (
                    error if isinstance(error, TwoPhaseCommitError) else _interrupted(self.setup.log.name, error)
                )
                if isinstance(error, FencedError) and self._is_proven_absent(records):
                    self.undetermined = {}  # so that the sweep does not wait for the transactions to time out
            raise
        return self.view

    def _require_same_log(self, offset: int) -> None:
        """Check that offsets grow. If they do not, the driver writes to another log with the same name.

        No restart would ever read that log, because the binding contains the identity of the original log. The records in the
        new log therefore decide nothing, and this run must make no further decisions.

        Raises:
            DecisionLogDamagedError: the log was recreated.
        """
        newest = max(self.log_epoch, self._newest_offset)
        if offset <= newest:
            self.doubt = recreated(self.setup.log.name, offset, newest)
            raise self.doubt
        self._newest_offset = offset

    def _is_proven_absent(self, records: Sequence[Record]) -> bool:
        kept = self.view.kept
        after = max(self.log_epoch, kept[-1][0] if kept else -1)
        return is_proven_absent(self.setup.log, records, driver_run_id=self.setup.driver_run_id, after=after)

    def open(self, begin: Begin, judged: LogView) -> LogView:
        """Open the log at a batch, durably. After that, the last decision needs no further work.

        Returns:
            the log's new view.

        Raises:
            FatalError, FencedError, RetriableError, DecisionInDoubtError: see :meth:`append`.
        """
        view = self.append([begin], judged)
        self.handles, self.evidence, self.is_unlisted = {}, {}, False
        return view

    def abandon(self, judged: LogView) -> None:
        """Record that the user abandons the rest of the last decision. After that, the batch needs no further work.

        Raises:
            FatalError, FencedError, RetriableError, DecisionInDoubtError: see :meth:`append`.
        """
        decision = self.decision
        query_id, batch_id = decision.query_id, decision.batch_id
        rest = [
            self.handles[key].transaction for key, found in self.evidence.items() if found is not Evidence.COMMITTED
        ]
        logger.warning(
            "override=Abandon(%d, %r) abandons this batch's transactions that are not visible: %s",
            batch_id,
            query_id,
            ", ".join(rest),
        )
        begin = Begin(
            query_id=query_id,
            first_batch=batch_id + 1,
            prior_offsets=decision.offsets,
            abandons=True,
            prior_times=decision.times,
        )
        self.open(begin, judged)
        self.sweep()

    def skip(self, batch: Batch) -> None:
        """Record that the user lets the query continue after a visible batch whose decision the log has lost.

        Raises:
            FatalError, FencedError, RetriableError, DecisionInDoubtError: see :meth:`append`.
        """
        logger.warning(
            "override=ResumeAt(%d, %r) continues after batch %d. Its decision is missing from %s. The batch is not written again",
            batch.batch_id + 1,
            batch.query_id,
            batch.batch_id,
            self.setup.log.name,
        )
        self.setup.binding.bind(self.bound, self.log_epoch)  # before the record is written, so that the log cannot move
        ended = self.view.begin.query_id if self.view.begin is not None else batch.query_id
        begin = Begin(
            query_id=batch.query_id,
            first_batch=batch.batch_id + 1,
            prior_offsets=batch.offsets,
            ends=None if ended == batch.query_id else ended,
            prior_times=batch.times,
        )
        self.open(begin, self.view)

    def commit(self) -> Outcome:
        """Commit the last decision in every sink, and return the outcome. This method may be called again."""
        batch_id, scan_start = self.decision.batch_id, self.decision.scan_start
        proven = {key: found for key, found in self.evidence.items() if found is Evidence.COMMITTED}
        found, self.blockers, outdated = self.setup.participants.commit(batch_id, self.handles, scan_start)
        # Since this run proved these transactions, it may have committed another query's newer decision. The earlier proof then
        # still counts. If UNKNOWN has any other cause, such as a restored store, the earlier proof does not count.
        self.evidence = {key: proven.get(key, one) if key[0] in outdated else one for key, one in found.items()}
        self.outdated = {*self.outdated, *outdated}
        return self.outcome

    def sweep(self) -> None:
        """End every open transaction that is certainly undecided."""
        self.setup.participants.sweep(self.handles, self.undetermined)

    def finish(self, batch_id: int) -> None:
        """After a batch is proven, end its orphaned transactions, and delete records that are needed only for older batches."""
        self.sweep()
        self.setup.participants.prefetch()
        self.committed_through = batch_id
        if self.setup.staging is not None:
            self.setup.staging.release(self.log_epoch, batch_id)
            self._may_have_staged = False
        self._truncate()
        crash_point("driver.swept")

    def _truncate(self) -> None:
        # Wait until the log contains twice as many decisions as are retained, so that truncation costs little per batch.
        view, log, keep = self.view, self.setup.log, self.setup.settings.keep_batches
        if len(view.kept) < 2 * keep or view.begin is None:
            return
        log_start, oldest_scan_start = view.kept[-keep]
        try:
            self.append([Truncation(log_start=log_start, begin=view.begin, ended=tuple(sorted(view.ended)))], view)
        except RetriableError as error:
            logger.warning(
                "%s could not be truncated. The next batch will try to truncate it again. Cause: %s", log.name, error
            )
            release(error)
            return
        crash_point("driver.truncating")
        log.truncate(log_start)
        self.setup.participants.forget(oldest_scan_start)


def _overtaken(log: str) -> FatalError:
    return FatalError(
        f"two calls wrote a batch of this query at the same time. The other call has written to {log}, so this call "
        "stops before its decision. None of this call's rows are or will be visible. No row is lost or duplicated. "
        "Spark itself never makes two calls at the same time, so look for a thread in your function or in an "
        "interceptor. Remove the second call, and restart the query"
    )


def _interrupted(log: str, error: BaseException) -> DecisionInDoubtError:
    return DecisionInDoubtError(
        f"{log}: {type(error).__name__} interrupted the write of a decision, so the decision may or may not have been "
        f"written ({error}). No data is lost. Restart the query, which will then find out whether the decision was "
        "written"
    )
