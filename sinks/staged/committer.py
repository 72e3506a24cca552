"""In the driver, commit staged slices. Apply the slices under a fence, record markers as proof, and sweep orphans."""

from __future__ import annotations

import contextlib
import logging
from abc import abstractmethod
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from twopc import control
from twopc.attempt import Evidence
from twopc.control_committer import ControlCommitter
from twopc.crash_points import crash_point
from twopc.errors import ConfigurationError, FencedError, RetriableError, UnavailableError, release
from twopc.sinks.staged.slices import APPLICABLE, WAITING, SliceState, StagedHandleT, epoch_of
from twopc.versions import NO_ATTEMPT, decided_before, version_of

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from twopc.control import Control
    from twopc.errors import RestoredError, TwoPhaseCommitError
    from twopc.observation import Observation
    from twopc.sinks.staged.client import StoreClient
    from twopc.sinks.staged.settings import StagedSettings

logger = logging.getLogger(__name__)

#: What these states of a slice prove about its rows. In all other states, the rows can still be applied.
_OBSERVED: Final = {
    SliceState.COMMITTED: Evidence.COMMITTED,
    SliceState.LOST: Evidence.ABORTED,
    SliceState.TORN: Evidence.ABORTED,
}


class StagedCommitter(ControlCommitter[StagedHandleT, "StoreClient[Any]"]):
    """See :class:`SinkCommitter`. A subclass supplies the store's steps.

    Each step must be repeatable, and may raise one of the client's ``failures``. The store checks the attempt's version in
    each atomic operation, so a step needs only the client.
    """

    def __init__(self, settings: StagedSettings, client: StoreClient[Any]) -> None:
        super().__init__(settings.name)
        self._settings = settings
        self._client = client
        self.failures = client.failures
        # The slices that the last decision committed, and the decision's version.
        self._proven: tuple[Sequence[StagedHandleT], int] = ((), 0)
        # The version of a proven decision whose proof is not in the control record yet.
        self._unrecorded = 0
        self._unanswered: Exception = UnavailableError(f"{client.system} does not respond")

    def observed(
        self,
        step: StoreClient[Any],
        record: Control,
        decided: Sequence[StagedHandleT],
        scan_start: Mapping[str, Any],
    ) -> Observation:
        """See :class:`ControlCommitter`."""
        states = self._look(decided, version_of(scan_start), durable=False)
        if SliceState.UNANSWERED in states.values():
            raise self._unanswered
        named = {handle.entry for handle in decided}
        return replace(
            super().observed(step, record, decided, scan_start),
            evidence={handle: _OBSERVED.get(state, Evidence.UNKNOWN) for handle, state in states.items()},
            leftovers=tuple(sorted(entry for entry in self._unswept() if entry not in named)),
        )

    def step(self) -> AbstractContextManager[StoreClient[Any]]:
        """See :class:`ControlCommitter`."""
        return contextlib.nullcontext(self._client)

    def explain(self, error: Exception, what: str) -> TwoPhaseCommitError:
        """See :class:`ControlCommitter`."""
        return self._client.translate(error, what)

    def reason(self, error: Exception) -> str:
        """See :class:`ControlCommitter`."""
        return self._client.reason(error)

    def check_store(self, step: StoreClient[Any]) -> None:
        """See :class:`ControlCommitter`. Check the store's settings."""
        del step
        servers = self._describe()
        for found in servers:
            for is_wrong, what in self._settings.objections(found):
                if is_wrong:
                    raise ConfigurationError(f"sink {self.name!r}: {what}. Nothing was written")
        cautions = [what for found in servers for applies, what in self._settings.cautions(found) if applies]
        for what in dict.fromkeys(cautions):  # the servers of a cluster usually have the same weaknesses
            logger.warning("sink %r: %s", self.name, what)

    def begin_attempt(self) -> dict[str, Any]:
        """See :class:`ControlCommitter`. Check that the store still contains the last decision."""
        if self._unrecorded:
            with self._try("recording that the last batch is complete"):
                self._change_proof()
        scan_start = super().begin_attempt()
        if decided_before(scan_start) < self._proven[1]:
            raise self._restored("its decision")
        return scan_start

    def confirm(self, handles: Sequence[StagedHandleT], age_ms: float) -> None:
        """See :class:`SinkCommitter`. Check that every chunk exists unchanged, and that the last batch is not lost."""
        del age_ms  # staged data does not expire
        for handle, checksum in self._checksums(handles).items():
            if isinstance(checksum, Exception):
                raise self.explain(checksum, self._named(f"confirming {handle.transaction}")) from checksum
            if checksum != handle.checksum:
                what = (
                    f"data of {handle.transaction} is missing or was changed. Nothing was decided, and a new attempt will "
                    "rewrite the batch"
                )
                raise RetriableError(self._named(what))
        with self._try("checking the last batch"):
            self._require_kept()

    def commit(
        self, handles: Sequence[StagedHandleT], scan_start: Mapping[str, Any]
    ) -> Mapping[StagedHandleT, Evidence]:
        """See :class:`SinkCommitter`. Apply one slice after another, so that a replay applies the slices in the same order."""
        version = version_of(scan_start)
        self._blockers, self._proven = [], ((), 0)
        self._highest_version = max(self._highest_version, self._top(handles, version))
        try:
            # Record the decision before applying any row, because a start from an older checkpoint must see the decision.
            self._record_decision(version)
            self._apply_all(handles, version)
        except self._client.failures as error:
            self._block(self.reason(error))
            release(error)
        found = self.prove(handles, scan_start)
        done = [handle for handle, evidence in found.items() if evidence is Evidence.COMMITTED]
        self._proven = done, version if done else 0
        if len(done) == len(handles):  # otherwise, an applied slice may have to be applied again
            self._unrecorded = version
            self._record_proof()
            with self._tidy("removing applied slices"):
                self._forget(done)
        return found

    def abort(self, handles: Sequence[StagedHandleT]) -> None:
        """See :class:`SinkCommitter`."""
        with self._tidy("aborting slices"):
            self._discard(handles)

    def prove(
        self, handles: Sequence[StagedHandleT], scan_start: Mapping[str, Any]
    ) -> Mapping[StagedHandleT, Evidence]:
        """See :class:`SinkCommitter`. The markers prove the commit."""
        version = version_of(scan_start)
        try:
            states = self._look(handles, version, durable=True)
            self._block_unanswered(states)
            return {handle: self._judge(handle, states[handle], version) for handle in handles}
        except self._client.failures as error:
            self._block(self.reason(error))
            release(error)
            return dict.fromkeys(handles, Evidence.UNKNOWN)

    def initialize_state(
        self,
        decided: Sequence[StagedHandleT],
        scan_start: Mapping[str, Any],
        spared: Sequence[StagedHandleT] = (),
        *,
        is_own: bool = True,
    ) -> Mapping[StagedHandleT, Evidence]:
        """See :class:`SinkCommitter`. Make later versions higher than every version that the last decision used."""
        self._highest_version = max(self._highest_version, self._top(decided, version_of(scan_start or NO_ATTEMPT)))
        return super().initialize_state(decided, scan_start, spared, is_own=is_own)

    def recover_and_abort(self, decided: Collection[StagedHandleT]) -> None:
        """See :class:`SinkCommitter`. Sweep undecided slices from this driver epoch and earlier driver epochs."""
        with self._tidy("sweeping undecided slices"):
            self._sweep_all({handle.entry for handle in decided})

    def close(self) -> None:
        """See :class:`SinkCommitter`."""
        self._client.close()

    # -- the flow's small parts -----------------------------------------------------------------------------------------

    def _record_proof(self) -> None:
        """Record that the newest decision is complete. If the store does not respond, the next attempt tries again.

        The driver does not remember the record's new revision, because this write need not be as durable as the proof.

        Raises:
            RestoredError: the store no longer contains the proof.
        """
        try:
            self._change_proof()
        except FencedError:
            logger.warning("sink %r: another driver has fenced this one after the last batch was complete", self.name)
        except self._client.failures as error:
            logger.warning(
                "sink %r: the record that the last batch is complete could not be written, and will be written before the next "
                "batch. No data is at risk. Cause: %s",
                self.name,
                error,
            )
            release(error)

    def _change_proof(self) -> None:
        self._change(lambda record: self._with_proof(record, self._unrecorded))
        self._unrecorded = 0

    def _require_kept(self) -> None:
        """Check that the store still contains the last decision's markers, which this driver has already proven.

        A failover may lose the markers even if the record keeps the revision that this driver knows. After the next
        decision, no start would look for these markers, and the sweep would remove the slices. Only a later decision
        removes markers, and this driver has not made a later decision yet.

        Raises:
            FencedError: another driver owns the sink, so its decision may have removed the markers.
            RestoredError: a marker is missing.
        """
        handles, version = self._proven
        states = self._look(handles, version, durable=False) if handles else {}
        if SliceState.UNANSWERED in states.values():
            raise self._unanswered
        gone = [handle for handle, state in states.items() if state is not SliceState.COMMITTED]
        if gone:
            self._owned(control.decode(self.load(self._client)))
            raise self._restored(f"the marker of {gone[0].transaction}")

    def _restored(self, gone: str) -> RestoredError:
        return control.restored(
            self.name, f"This driver has proven that the last batch is complete, but {gone} is missing"
        )

    def _apply_all(self, handles: Sequence[StagedHandleT], version: int) -> None:
        states = self._look(handles, version, durable=False)
        todo = [handle for handle in self._in_turn(handles, states) if states[handle] in APPLICABLE]
        if todo:
            self._apply_some(self._to_repeat(states), version)
        if not self._blockers:  # otherwise, the last slice could complete a batch with missing rows
            self._apply_some(todo, version)
        self._block_unanswered(states)

    def _block_unanswered(self, states: Mapping[StagedHandleT, SliceState]) -> None:
        if SliceState.UNANSWERED in states.values():
            self._block(f"some slices cannot be read: {self.reason(self._unanswered)}")

    def _apply_some(self, handles: Sequence[StagedHandleT], version: int) -> None:
        with contextlib.closing(self._apply_each(handles, version)) as applied:
            for handle, blockers in applied:
                for blocker in blockers:
                    self._block(f"{handle.transaction} has not been applied: {blocker}")
                crash_point("driver.committing")
                if self._blockers and self._is_ordered(handle):
                    return

    def _in_turn(
        self, handles: Sequence[StagedHandleT], states: Mapping[StagedHandleT, SliceState]
    ) -> Iterator[StagedHandleT]:
        """List the slices up to the first one that later slices must wait for."""
        return takewhile(lambda handle: not (states[handle] in WAITING and self._is_ordered(handle)), handles)

    def _judge(self, handle: StagedHandleT, state: SliceState, version: int) -> Evidence:
        """Derive the evidence from a slice's state. Record the reason if the state proves nothing."""
        system = self._client.system
        if state is SliceState.COMMITTED:
            return Evidence.COMMITTED
        if state is SliceState.LOST and self._tombstone(handle, version):
            return Evidence.ABORTED
        if state is SliceState.STALE:
            record = self._owned(control.decode(self.load(self._client)))
            if max(record.completed, control.decided_by_others(record, record.query_id)) > version:
                return Evidence.UNKNOWN  # another query's newer decision has removed the markers
            self._block(
                f"{handle.transaction} cannot be proven to be committed: {system} has applied a decision newer than version "
                f"{version}. This checkpoint is older than the output. Restore the newest checkpoint"
            )
        if state is SliceState.TORN:
            self._block(
                f"{handle.transaction} is partly applied, and the rest is missing from {system}. Some of the transaction's "
                f"rows are lost. If a backup of {system} contains all earlier batches, restore it, and restart the query, which "
                'then writes this batch again. With an older backup, the query refuses to start ("older store"). Without such a '
                "backup, insert the missing rows by other means, and abandon this batch"
            )
        return Evidence.UNKNOWN

    def _sweep_all(self, spared: Collection[str]) -> None:
        orphans = {
            entry: facts
            for entry, facts in self._entries().items()
            if entry not in spared and epoch_of(entry) <= self._driver_epoch
        }
        if orphans:
            crash_point("driver.sweeping")
            self._orphans_ended += self._sweep(orphans)

    # -- the store's steps ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _describe(self) -> Iterable[Any]:
        """For each server, read the facts that the settings' ``objections`` method needs. Change nothing."""

    @abstractmethod
    def _checksums(self, handles: Sequence[StagedHandleT]) -> Mapping[StagedHandleT, str | Exception]:
        """Compute the current checksum of each slice's staged data. A BadRecordError means that the slice cannot be applied."""

    def _top(self, handles: Sequence[StagedHandleT], version: int) -> int:
        """Return the highest version that the driver may use to apply these slices."""
        del handles
        return version

    @abstractmethod
    def _look(
        self, handles: Sequence[StagedHandleT], version: int, *, durable: bool
    ) -> Mapping[StagedHandleT, SliceState]:
        """Read each slice's state.

        With ``durable``, report COMMITTED only if the data is as safe as the sink's settings demand.
        """

    @abstractmethod
    def _apply(self, handle: StagedHandleT, version: int) -> Sequence[str]:
        """Apply a slice's chunks, so that each takes effect exactly once. Return the errors that block the slice."""

    def _to_repeat(self, states: Mapping[StagedHandleT, SliceState]) -> Sequence[StagedHandleT]:
        """List the applied slices that must be applied again, in order, before an unfinished batch continues."""
        del states
        return ()

    def _apply_each(
        self, handles: Sequence[StagedHandleT], version: int
    ) -> Generator[tuple[StagedHandleT, Sequence[str]]]:
        """Apply slices in order. Yield each slice with the errors that block it.

        When the iterator is closed, it starts no more slices, and waits for the running slices.
        """
        for handle in handles:
            yield handle, self._apply(handle, version)

    def _is_ordered(self, handle: StagedHandleT) -> bool:
        """Return whether later slices must wait for this slice."""
        del handle
        return False

    @abstractmethod
    def _tombstone(self, handle: StagedHandleT, version: int) -> bool:
        """Prevent all drivers, even paused ones, from applying a lost slice.

        Return whether every driver is now prevented from applying the slice.
        """

    @abstractmethod
    def _discard(self, handles: Sequence[StagedHandleT]) -> None:
        """Remove slices and their entries."""

    def _forget(self, handles: Sequence[StagedHandleT]) -> None:
        """Remove leftovers of committed slices."""
        self._discard(handles)

    @abstractmethod
    def _entries(self) -> Mapping[str, str]:
        """List every slice's entry and the data that :meth:`_sweep` needs."""

    def _unswept(self) -> Iterable[str]:
        """List the entries of slices that no sweep has removed yet."""
        return self._entries()

    @abstractmethod
    def _sweep(self, orphans: Mapping[str, str]) -> int:
        """Remove undecided slices, even if tasks are still writing. Return how many slices were swept for the first time."""
