"""A base class for committers that keep the sink's owner and newest decision in a control record.

If the store can change one value by compare-and-set, the sink needs only :meth:`ControlCommitter.load` and
:meth:`ControlCommitter.swap`.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from msgspec.structs import replace

from twopc import control
from twopc.attempt import Evidence, HandleT
from twopc.committer import SinkCommitter
from twopc.control import Control, fenced, require_revision
from twopc.crash_points import crash_point
from twopc.errors import RestoredError
from twopc.observation import Observation
from twopc.step_failures import StepFailures
from twopc.versions import NO_ATTEMPT, is_ahead, is_behind, is_replaced, proven_before, scan_start_of, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from twopc.attempt import Claim, Owner

StepT = TypeVar("StepT")
#: The maximum number of tries to change the record. Other drivers change the record only once per start or batch, so if all
#: tries fail, the swap is faulty.
_ROUNDS: Final = 100


class ControlCommitter(StepFailures, SinkCommitter[HandleT], Generic[HandleT, StepT]):
    """See :class:`SinkCommitter`.

    In a store with transactions, a *step* is one transaction. In a store with locks, a step lasts as long as the lock
    is held. In any other store, a step is any object that the hooks need, such as a client. An atomic step fences other
    drivers, because nothing can happen between its owner check and its change. In a store without atomic steps, each
    atomic operation itself compares the attempt's version.

    The record's revision never decreases. If a step reads a lower revision than an earlier step read, the store was
    restored to an older state. The driver then stops. If it continued, its next decision would raise the versions in
    the record, so no later start could notice the loss.

    Args:
        name: the sink's name.

    Attributes:
        failures: every error that a step may raise if the store rejects it or does not respond. The step's outcome is then
            unknown. Before the decision, one of these errors makes the attempt fail (:meth:`explain`). During a commit,
            such an error becomes a blocker, and the evidence is UNKNOWN. Any other client error, such as one for an
            invalid statement, stops the query.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._run = ""
        self._driver_epoch = -1
        self._highest_version = 0
        self._revision = 0
        self._is_own = True
        # What the store must already contain before another proof counts.
        self._proven_before = 0
        self._orphans_ended = 0

    # -- the store's hooks ----------------------------------------------------------------------------------------------

    @abstractmethod
    def step(self) -> AbstractContextManager[StepT]:
        """Open a step in the store. The step's changes become durable when the body ends.

        If the body raises, the step changes nothing.

        Values that an atomic step has read do not change until the step ends. If the store's transactions do not lock
        the values that they read, the hooks must lock or write these values. :meth:`load` does so for the control
        record, and a writer does so for its transaction's state.

        A step may raise one of ``failures`` when it is entered or when it ends.
        """

    @abstractmethod
    def load(self, step: StepT) -> bytes | None:
        """Read the control record; return None if the store has none.

        A store with locks locks the record here until the step ends.

        This method is called in every driver step, even in steps that only read.
        """

    @abstractmethod
    def swap(self, step: StepT, old: bytes | None, new: bytes) -> bool:
        """Durably replace ``old`` with ``new`` if the store still contains ``old``; return whether it was replaced.

        If a retry after a lost response finds ``new`` in the store, the swap counts as done. If ``old`` is None,
        :meth:`load` had nothing to lock, so the store may contain another driver's record by now.
        """

    def observing(self) -> AbstractContextManager[StepT]:
        """Open a step that only reads. By default, this method calls :meth:`step`."""
        return self.step()

    def peek(self, step: StepT) -> bytes | None:
        """Read the control record without a lock, for :meth:`observe`. By default, this method calls :meth:`load`."""
        return self.load(step)

    def check_store(self, step: StepT) -> None:
        """Check the store's settings, its permissions, and every table that the sink needs.

        This check must not change the store.

        This method is called first, before :meth:`load`.

        Raises:
            FatalError: the store cannot be used; the message says what to do.
        """

    # -- for callers ----------------------------------------------------------------------------------------------------

    def binding(self) -> Mapping[str, str]:
        """See :class:`SinkCommitter`. Returns the sink's id in the store. A copy of the store's data has the same id."""
        return {"id": self._read("reading the sink's id").id}

    def inspect(self) -> Owner:
        """See :class:`SinkCommitter`. Checks the store's settings, and returns the driver that owned the sink last."""
        with self._try("checking the store"), self.step() as step:
            self.check_store(step)
        return self._read("reading the sink's owner").owner

    def has_newer_decision(self, scan_start: Mapping[str, Any]) -> bool:
        """See :class:`SinkCommitter`."""
        return is_ahead(self._read("reading the sink's newest decision"), scan_start)

    def lacks_decisions(self, scan_start: Mapping[str, Any]) -> bool:
        """See :class:`SinkCommitter`.

        Versions never decrease, so a store that lacks a known version was restored to an earlier state.
        """
        return is_behind(self._read("reading the sink's newest decision"), scan_start)

    def is_replaced(self, query_id: str, scan_start: Mapping[str, Any]) -> bool:
        """See :class:`SinkCommitter`."""
        return is_replaced(self._read("reading the sink's newest decision"), query_id, scan_start)

    def observe(self, decided: Sequence[HandleT], scan_start: Mapping[str, Any]) -> Observation:
        """See :class:`SinkCommitter`. A subclass can extend :meth:`observed`."""
        try:
            with self.observing() as step:
                record = control.decode(self.peek(step))
                if not record.id:
                    return Observation(record=record, bound={"id": ""})
                return self.observed(step, record, decided, scan_start or NO_ATTEMPT)
        except self.failures as error:
            kind = type(self.explain(error, ""))  # the explanation is about an attempt, but here there is no attempt
            raise kind(self.reason(error)) from error

    def acquire(self, claim: Claim, seen: Owner | None) -> int:
        """See :class:`SinkCommitter`."""
        if seen is None:
            raise AssertionError("inspect comes first")
        with self._try("acquiring it"):
            record = self._change(lambda record: control.acquired(record, claim, seen=seen, sink=self.name))
            self._note(record)
        self._run = claim.run
        if record.driver_epoch != self._driver_epoch:
            self._driver_epoch = record.driver_epoch
            crash_point("driver.fenced")
        return self._driver_epoch

    def begin_attempt(self) -> dict[str, Any]:
        """See :class:`SinkCommitter`. Returns the versions of the attempt and of the newest decision."""
        with self._try("beginning an attempt"):
            record = self._reserve(self._highest_version)
        self._highest_version = record.version
        return scan_start_of(record)

    def initialize_state(
        self,
        decided: Sequence[HandleT],
        scan_start: Mapping[str, Any],
        spared: Sequence[HandleT] = (),
        *,
        is_own: bool = True,
    ) -> Mapping[HandleT, Any]:
        """See :class:`SinkCommitter`. Later versions are higher than the last decision's, even if the clock is set back."""
        self._highest_version = max(self._highest_version, version_of(scan_start or NO_ATTEMPT))
        self._is_own, self._proven_before = is_own, proven_before(scan_start)
        try:
            return super().initialize_state(decided, scan_start, spared, is_own=is_own)
        finally:
            self._is_own, self._proven_before = True, 0

    def notify_checkpoint_complete(
        self, batch_id: int, handles: Sequence[HandleT], scan_start: Mapping[str, Any]
    ) -> Mapping[HandleT, Evidence]:
        """See :class:`SinkCommitter`. A store that was restored after the decision proves nothing."""
        try:
            return super().notify_checkpoint_complete(batch_id, handles, scan_start)
        except RestoredError as error:
            self._blockers = [str(error)]
            return dict.fromkeys(handles, Evidence.UNKNOWN)

    def orphans_ended(self) -> int:
        """See :class:`SinkCommitter`."""
        return self._orphans_ended

    # -- for subclasses -------------------------------------------------------------------------------------------------

    def observed(
        self, step: StepT, record: Control, decided: Sequence[HandleT], scan_start: Mapping[str, Any]
    ) -> Observation:
        """Describe the store for :meth:`observe`. This method is called only if the store has a control record."""
        del step, decided
        return Observation(
            record=record,
            bound={"id": record.id},
            is_ahead=is_ahead(record, scan_start),
            is_behind=is_behind(record, scan_start),
        )

    @contextmanager
    def driving(self) -> Iterator[StepT]:
        """Open a step that only the owner may take.

        Raises:
            FencedError: another driver owns the sink.
        """
        with self._looking(self._owned) as step:
            yield step

    @contextmanager
    def _looking(self, check: Callable[[Control], Control] = lambda record: record) -> Iterator[StepT]:
        """Open a step that first reads the control record. Remember the record's revision once the step has succeeded.

        A proof needs such a step. If a commit's response was lost, the driver learns the commit's revision only from the proof.
        """
        with self.step() as step:
            record = check(self._current(self.load(step)))
            yield step
        self._note(record)

    def _reserve(self, above: int) -> Control:
        """Reserve a version higher than ``above`` that no other attempt ever gets. Return the record with this version."""
        # If a response was lost, the version may have been written anyway. The retry reserves a higher version, which
        # is harmless.
        record = self._change(lambda record: control.reserved(self._owned(record), above=above))
        self._note(record)
        return record

    def _record_decision(self, version: int, then: Callable[[StepT], None] = lambda _: None) -> None:
        """Record the owner's newest decision, and call ``then`` in the same step.

        The record gets a new revision even if it already contains this decision (a repair keeps its batch's version).
        Otherwise, the running driver could not notice that the store has lost this step's rows.

        This step does not remember the record's revision. If a failover loses the step, no rows are lost, because the driver
        applies them again until the proof has succeeded. Only the proof remembers the revision. Before the next decision, a
        staged sink also checks that the store still contains the proof's markers.
        """

        def change(record: Control) -> Control:
            return control.renewed(control.decided(self._owned(record), version, is_own=self._is_own))

        self._change(change, then)

    def _with_proof(self, record: Control, version: int) -> Control:
        """Return the record, which now says that the decision with this version is complete.

        Return the record unchanged in two cases. The record does not contain the decision itself, because the step does not see
        its own writes. Or the store lacks an earlier proof: it was restored, and this start completes the decision of a query
        that it replaces. A later start of that query must still notice its loss.
        """
        owned = self._owned(record)
        if owned.decided < version or owned.proven < self._proven_before:
            return owned
        return control.proven(owned, version)

    def _owned(self, record: Control) -> Control:
        """Return the record if this driver owns the sink.

        Raises:
            FencedError: another driver owns it.
        """
        if record.run != self._run:
            raise fenced(self.name)
        return record

    def _change(self, change: Callable[[Control], Control], then: Callable[[StepT], None] = lambda _: None) -> Control:
        """Change the record and call ``then`` in the same step; return the record.

        If another driver changed the record first, try again without a pause. Each try is a new step, because
        within one step, a store may keep showing the old record.
        """
        for _ in range(_ROUNDS):
            with self.step() as step:
                if (changed := self._swapped(step, change)) is not None:
                    then(step)
            if changed is not None:
                return changed
        raise AssertionError(
            f"sink {self.name!r}: swap() rejected the record that load() had just read, {_ROUNDS} times in a row"
        )

    def _swapped(self, step: StepT, change: Callable[[Control], Control]) -> Control | None:
        """Change the record within a step. Return None if another driver changed it first."""
        stored = self.load(step)
        record = self._current(stored)
        changed = change(record)
        if changed == record:
            return record
        changed = replace(changed, revision=record.revision + 1)
        return changed if self.swap(step, stored, control.encode(changed)) else None

    def _current(self, stored: bytes | None) -> Control:
        """Decode the record, and check that the store has kept every step that this driver knows of."""
        record = control.decode(stored)
        require_revision(record, self._revision, sink=self.name)
        return record

    def _note(self, record: Control) -> None:
        # Call this method only after the step has ended. If a step received no response, it is unknown whether it
        # changed the record.
        self._revision = max(self._revision, record.revision)

    def _read(self, what: str) -> Control:
        with self._try(what), self.step() as step:
            return control.decode(self.load(step))
