"""One query's sinks, from the coordinator's point of view. Every loop over several sinks is in this module.

No other module loops over committers or decodes stored handles. Every loop therefore visits the sinks in the same
order, and each handle is decoded only once.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

import msgspec

from twopc.attempt import Evidence
from twopc.errors import ConfigurationError, RetriableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from twopc.attempt import Claim, Known, Owner, TaskKey
    from twopc.committer import SinkCommitter
    from twopc.decision_log import DecisionLog
    from twopc.last_decision import LastDecision
    from twopc.records import Decision, TaskReport
    from twopc.sink import TwoPhaseCommitSink

    #: The handle of every transaction of an attempt or a decision.
    Handles = dict[TaskKey, Any]
    #: The result of each committer's ``begin_attempt``, by sink name.
    ScanStart = dict[str, dict[str, Any]]

#: If confirming all votes takes longer than this, all votes are confirmed again, because the first ones have become older.
_LONG_CONFIRM_S: Final = 1.0


class Participants:
    """All sinks of a query and their committers, by name. Every loop visits the sinks in the same order."""

    def __init__(self, sinks: Iterable[TwoPhaseCommitSink[Any]]) -> None:
        named = {sink.name: sink for sink in sinks}
        committers: dict[str, SinkCommitter[Any]] = {}
        with ExitStack() as opened:
            for name, sink in named.items():
                committers[name] = sink.create_committer()
                opened.callback(committers[name].close)
            # Sinks with a log come first, always in the same order, because the log must contain a record before another sink
            # contains a marker.
            order = sorted(named, key=lambda name: (committers[name].decision_log() is None, name))
            opened.pop_all()  # from here on, close() closes the committers
        self.sinks = {name: named[name] for name in order}
        self.committers = {name: committers[name] for name in order}
        self._orphans_told = 0
        self._seen: dict[str, Owner | None] = {}

    @property
    def prepare_timeout_ms(self) -> float | None:
        """How long pre-commit may take before any sink's transactions expire, in ms; None if they never expire."""
        return min((sink.prepare_timeout_ms for sink in self.sinks.values() if sink.prepare_timeout_ms), default=None)

    @property
    def may_expire(self) -> bool:
        """Whether a decided transaction of any sink may expire, even if the sink's settings have changed since the decision."""
        return any(sink.transactions_expire for sink in self.sinks.values())

    def logs(self) -> dict[str, DecisionLog]:
        """Map the name of each sink that provides a decision log to the log."""
        found = ((name, committer.decision_log()) for name, committer in self.committers.items())
        return {name: log for name, log in found if log is not None}

    def decision_logs(self) -> list[DecisionLog]:
        """List the decision logs that the sinks provide."""
        return list(self.logs().values())

    def are_fenced_by(self, log: DecisionLog) -> bool:
        """Whether acquiring this log is enough to fence the previous driver in every sink."""
        return all(committer.decision_log() is log for committer in self.committers.values())

    def decode(self, tasks: Iterable[TaskReport]) -> Handles:
        """Decode each sink's handles from the tasks' reports."""
        tasks = tuple(tasks)
        return {key: handle for sink in self.sinks.values() for key, handle in _decoded(sink, tasks).items()}

    def decode_decided(self, decision: Decision | None) -> Handles:
        """Decode the handles of the last decision, which an older version of a sink's code may have stored.

        Raises:
            ConfigurationError: a sink's handles have changed.
        """
        found: Handles = {}
        if decision is None:
            return found
        for name, sink in self.sinks.items():
            try:
                found |= _decoded(sink, decision.tasks)
            except msgspec.ValidationError as error:
                raise ConfigurationError(
                    f"sink {name!r} cannot read its handles for batch {decision.batch_id} as {sink.handle_type.__name__}: "
                    f"{error}. The batch is decided, and another version of the sink stored these handles. Nothing was "
                    "written, and the batch stays decided. In the handle class, give every new field a default value, and keep "
                    "the names and types of the old fields. Alternatively, start the previous version of the sink again with "
                    "this checkpoint"
                ) from error
        return found

    def left_out(self, decision: Decision) -> list[str]:
        """List the sinks in which the decision has transactions, but which the query no longer passes."""
        return sorted({sink for task in decision.tasks for sink in task.handles} - self.sinks.keys())

    # -- recovery ------------------------------------------------------------------------------------------------------

    def inspect(self) -> dict[str, str | None]:
        """Check every sink without changing it.

        For each sink, return the query that owned it last, or None if the sink does not record its owner.
        """
        found: dict[str, str | None] = {}
        for name, committer in self.committers.items():
            owner = committer.inspect()
            # Only the first result counts. A later result could name a newer driver, which a retried acquisition must not
            # fence.
            self._seen.setdefault(name, owner)
            found[name] = owner.query_id if owner else None
        return found

    def bindings(self) -> dict[str, dict[str, str]]:
        """Return, for each sink, the facts that must not change during a checkpoint's lifetime (rule 11).

        Raises:
            ConfigurationError: two sinks use the same decision log.
        """
        bound = {name: dict(committer.binding()) for name, committer in self.committers.items()}
        logs = {name: log.name for name, committer in self.committers.items() if (log := committer.decision_log())}
        for one, other in combinations(logs, 2):
            if bound[one] == bound[other]:
                raise ConfigurationError(
                    f"sinks {one!r} and {other!r} share the decision log {logs[one]}, so each would damage the other's "
                    "decisions. Nothing was written. Give each sink its own log (for a Kafka sink, remove ledger_topic)"
                )
        return bound

    def acquire(self, claim: Claim) -> dict[str, int]:
        """Fence the driver that the first :meth:`inspect` reported; return each sink's driver epoch."""
        return {name: committer.acquire(claim, self._seen.get(name)) for name, committer in self.committers.items()}

    def recover(self, one: LastDecision, decisions: Sequence[LastDecision], query_id: str) -> None:
        """Commit a decision again in every sink, and end every undecided transaction in these sinks.

        No transaction of any of the ``decisions`` is ended. The first item is the deciding log's last decision, which concerns
        all sinks, even those in which it has no transaction. The caller must pass older decisions before newer ones.
        ``query_id`` is the query that starts.

        Raises:
            RetriableError: a sink has failed. The decision was tried in all other sinks.
        """
        failed: RetriableError | None = None
        for name in self.committers:
            others = [handle for other in decisions if other is not one for handle in other.in_sink(name).values()]
            older = [other for other in decisions if other.must_be_closed_before(one, name)]
            if older:
                one.evidence |= dict.fromkeys(one.in_sink(name), Evidence.UNKNOWN)
                one.waits_for[name] = older
            elif one.in_sink(name) or one is decisions[0]:
                try:
                    self._recover(one, name, others, query_id)
                except RetriableError as error:
                    failed = failed or error
        if failed is not None:
            raise failed

    def _recover(self, one: LastDecision, name: str, others: Sequence[Any], query_id: str) -> None:
        """Commit a decision again in one sink, unless the store shows that another query has decided later batches there."""
        committer, mine, scan_start = self.committers[name], one.in_sink(name), one.scan_start.get(name, {})
        handles, of = [*mine.values()], "" if one.decision is None else one.decision.query_id
        if handles and of != query_id and committer.is_replaced(of, scan_start):
            # When the other query started, it ended every open transaction, so another commit could only do harm. The proof
            # may still exist.
            committer.initialize_state([], scan_start, [*handles, *others])
            known = len(committer.blockers())
            found = committer.prove(handles, scan_start)
            blockers = committer.blockers()[known:] if Evidence.UNKNOWN in found.values() else ()
            is_outdated = not blockers
        else:
            found = committer.initialize_state(handles, scan_start, others, is_own=of == query_id)
            blockers = committer.blockers() if handles else ()
            is_outdated = _is_outdated(committer, found, blockers, scan_start)
        one.blockers += blockers
        if is_outdated:
            one.outdated.add(name)
        one.evidence |= {key: found[handle] for key, handle in mine.items()}

    def with_unknown_commits(self, known: Known[Any], decided: Handles, scan_start: ScanStart) -> list[str]:
        """List the sinks with a log that contain a transaction of the query that is missing from ``decided``.

        Each sink receives a copy of ``known`` that contains the sink's own handles.
        """
        return [
            name
            for name, committer, mine in self._each(decided)
            if committer.decision_log() is not None
            and committer.has_unknown_commit(replace(known, handles=tuple(mine.values())), scan_start.get(name, {}))
        ]

    # -- the two phases ------------------------------------------------------------------------------------------------

    def begin_attempt(self) -> ScanStart:
        """Tell every sink that tasks are about to start.

        Return, for each sink, the position where its search for evidence must start.
        """
        return {name: dict(committer.begin_attempt()) for name, committer in self.committers.items()}

    def require_same_destinations(self, batch_id: int, lost: Handles, again: Handles) -> None:
        """Check that lost rows were written again to the places where the lost transactions wrote them (rule 9).

        Raises:
            ConfigurationError: a sink writes to other places, because its settings have changed since the decision.
        """
        for name, sink in self.sinks.items():
            before, now = (
                sorted({one for key, handle in some.items() if key[0] == name for one in sink.destinations_of(handle)})
                for some in (lost, again)
            )
            if before and before != now:  # some handles contain no place
                place = ", ".join(before)
                raise ConfigurationError(
                    f"sink {name!r}: batch {batch_id} is decided, but some of its transactions are lost. Their rows belong in "
                    f"{place}, but the sink would now write them to {', '.join(now)}. Nothing more was written, and the batch "
                    f"stays decided. Set the sink back to {place}, and restart. You may change the sink when batch {batch_id} "
                    "is complete"
                )

    def confirm(self, prepared: Handles, age_ms: float) -> None:
        """Confirm every vote (rule 3). While one sink waits for its servers, the other sinks' votes become older.

        Raises:
            RetriableError: a vote is no longer valid.
        """
        began = time.monotonic()

        def confirm_each() -> None:
            for _, committer, mine in self._each(prepared):
                committer.confirm(list(mine.values()), age_ms + (time.monotonic() - began) * 1000)

        confirm_each()
        if len(self.committers) > 1 and time.monotonic() - began > _LONG_CONFIRM_S:
            confirm_each()

    def commit(
        self, batch_id: int, decided: Handles, scan_start: ScanStart
    ) -> tuple[dict[TaskKey, Evidence], list[str], list[str]]:
        """Make a decided batch visible in one sink after another.

        Return the evidence for each transaction, the reasons why some transactions could not be proven, and the sinks that may
        no longer prove them, because another query has decided later batches there.
        """
        evidence: dict[TaskKey, Evidence] = {}
        blockers, outdated = list[str](), list[str]()
        for name, committer, mine in self._each(decided):
            start = scan_start.get(name, {})
            found = committer.notify_checkpoint_complete(batch_id, list(mine.values()), start)
            evidence |= {key: found[handle] for key, handle in mine.items()}
            reasons = committer.blockers() if mine else ()
            blockers += reasons
            outdated += [name] if _is_outdated(committer, found, reasons, start) else []
        return evidence, blockers, outdated

    def abort(self, prepared: Handles) -> None:
        """End an attempt's prepared transactions, which will not be decided. If one sink fails, continue with the others."""
        with ExitStack() as ending:
            for _, committer, mine in self._each(prepared):
                ending.callback(committer.abort, list(mine.values()))

    def sweep(self, *spared: Handles) -> None:
        """End every open transaction that is certainly undecided (rule 7).

        If one sink fails, continue with the others.
        """
        with ExitStack() as ending:
            for name, committer in self.committers.items():
                mine = [handle for handles in spared for key, handle in handles.items() if key[0] == name]
                ending.callback(committer.recover_and_abort, mine)

    def prefetch(self) -> None:
        """Let every sink request in advance the data that the next attempt needs."""
        for committer in self.committers.values():
            committer.prefetch()

    # -- the rest ------------------------------------------------------------------------------------------------------

    def take_orphans_ended(self) -> int:
        """Count the open transactions that the sinks' sweeps have ended since the last call.

        This function does not contact any store.
        """
        told, self._orphans_told = self._orphans_told, sum(one.orphans_ended() for one in self.committers.values())
        return self._orphans_told - told

    def forget(self, oldest_kept: Mapping[str, Mapping[str, Any]]) -> None:
        """Delete evidence that is needed only for decisions older than the oldest retained decision."""
        for name, committer in self.committers.items():
            committer.forget(oldest_kept.get(name, {}))

    def close(self) -> None:
        """Release every sink's connections, even if one sink raises an error. Open transactions are not ended."""
        with ExitStack() as closing:
            for committer in self.committers.values():
                closing.callback(committer.close)

    def _each(self, handles: Handles) -> Iterator[tuple[str, SinkCommitter[Any], Handles]]:
        for name, committer in self.committers.items():
            yield name, committer, {key: handle for key, handle in handles.items() if key[0] == name}


def _is_outdated(
    committer: SinkCommitter[Any], found: Mapping[Any, Evidence], blockers: Sequence[str], scan_start: Mapping[str, Any]
) -> bool:
    """Whether the store has answered, but may lack the evidence because of a newer decision.

    This start may have committed the newer decision for another query. So the newer decisions of all queries count.
    """
    if blockers or Evidence.UNKNOWN not in found.values():
        return False
    with suppress(RetriableError):  # a restart tries again
        return committer.is_replaced("", scan_start)
    return False


def _decoded(sink: TwoPhaseCommitSink[Any], tasks: Sequence[TaskReport]) -> Handles:
    return {
        (sink.name, task.partition): sink.decode_handle(task.handles[sink.name])
        for task in tasks
        if sink.name in task.handles
    }
