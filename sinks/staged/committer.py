"""The driver's side of a staged sink: stage, decide, apply under a fence with markers, prove by the markers, sweep."""

from __future__ import annotations

import contextlib
import logging
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

from twopc.attempt import Evidence
from twopc.committer import SinkCommitter
from twopc.crash_points import crash_point
from twopc.errors import ConfigurationError, RetriableError
from twopc.sinks.staged.control import fenced
from twopc.sinks.staged.slices import APPLICABLE, SliceState, StagedHandleT, epoch_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence

    from twopc.attempt import Claim
    from twopc.sinks.staged.client import StoreClient
    from twopc.sinks.staged.control import ControlRecord
    from twopc.sinks.staged.settings import StagedSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")


class StagedCommitter(SinkCommitter[StagedHandleT]):
    """See :class:`SinkCommitter`. A subclass supplies a store's own steps.

    Each of them must be repeatable, and may raise one of the client's ``failures``. A *version* is an integer that grows with
    every attempt, the fence under which a decision is applied.
    """

    def __init__(self, settings: StagedSettings, client: StoreClient[Any], control: ControlRecord[Any]) -> None:
        self.name = settings.name
        self._settings = settings
        self._client = client
        self._control = control
        self._run = ""
        self._seen: int | None = None
        self._driver_epoch = -1
        self._highest_version = 0
        self._blockers: list[str] = []
        self._orphans_ended = 0

    def binding(self) -> Mapping[str, str]:
        """See :class:`SinkCommitter`: the sink's id in the store, which moves with the store's data."""
        control = self._try("reading the sink's id", self._control.read)
        return {"id": control.id}

    def inspect(self) -> str | None:
        """See :class:`SinkCommitter`: the store's settings, and the query that owned the sink last."""
        self._try("checking the store's settings", self._require_usable)
        control = self._try("reading its owner", self._control.read)
        # Only the first look counts: a later one could show a newer driver, which a retried acquire must not fence.
        if self._seen is None:
            self._seen = control.driver_epoch
        return control.query_id or None

    def has_newer_decision(self, scan_start: Mapping[str, Any]) -> bool:
        """See :class:`SinkCommitter`."""
        control = self._try("reading its newest decision", self._control.read)
        return bool(control.decided > int(scan_start.get("base", 0)))

    def acquire(self, claim: Claim) -> int:
        """See :class:`SinkCommitter`."""
        if self._seen is None:
            raise AssertionError("inspect comes first")
        seen = self._seen
        driver_epoch = self._try("acquiring it", lambda: self._control.acquire(claim, seen=seen))
        self._run = claim.run
        if driver_epoch != self._driver_epoch:
            self._driver_epoch = driver_epoch
            crash_point("driver.fenced")
        return driver_epoch

    def begin_attempt(self) -> dict[str, Any]:
        """See :class:`SinkCommitter`: the attempt's version."""
        above = self._highest_version
        return {"base": self._try("beginning an attempt", lambda: self._control.reserve(self._run, above=above))}

    def confirm(self, handles: Sequence[StagedHandleT], age_ms: float) -> None:
        """See :class:`SinkCommitter`: checks that every chunk exists unchanged."""
        del age_ms  # staged data does not expire
        for handle, checksum in self._checksums(handles).items():
            if isinstance(checksum, Exception):
                raise self._client.translate(checksum, self._named(f"confirming {handle.transaction}")) from checksum
            if checksum != handle.checksum:
                what = f"{handle.transaction} is no longer whole. Nothing was decided, and a new attempt rewrites it"
                raise RetriableError(self._named(what))

    def commit(
        self, handles: Sequence[StagedHandleT], scan_start: Mapping[str, Any]
    ) -> Mapping[StagedHandleT, Evidence]:
        """See :class:`SinkCommitter`: applies one slice after another, so that a replay applies them in the same order."""
        version = int(scan_start["base"])
        self._blockers = []
        self._highest_version = max(self._highest_version, self._top(handles, version))
        try:
            # Do this before any row is applied: a start from an older checkpoint must see the decision.
            self._control.record_decision(self._run, version)
            self._apply_all(handles, version)
        except self._client.failures as error:
            self._block(f"{self._client.system} does not answer: {error}")
        found = self.prove(handles, scan_start)
        done = [handle for handle, evidence in found.items() if evidence is Evidence.COMMITTED]
        self._tidy("removing applied slices", lambda: self._forget(done))
        return found

    def abort(self, handles: Sequence[StagedHandleT]) -> None:
        """See :class:`SinkCommitter`."""
        self._tidy("aborting slices", lambda: self._discard(handles))

    def prove(
        self, handles: Sequence[StagedHandleT], scan_start: Mapping[str, Any]
    ) -> Mapping[StagedHandleT, Evidence]:
        """See :class:`SinkCommitter`: uses the markers."""
        version = int(scan_start["base"])
        try:
            states = self._look(handles, version, durable=True)
            return {handle: self._judge(handle, states[handle], version) for handle in handles}
        except self._client.failures as error:
            self._block(f"{self._client.system} does not answer: {error}")
            return dict.fromkeys(handles, Evidence.UNKNOWN)

    def initialize_state(
        self, decided: Sequence[StagedHandleT], scan_start: Mapping[str, Any]
    ) -> Mapping[StagedHandleT, Evidence]:
        """See :class:`SinkCommitter`. Later versions are above the last decision's, even if the clock is set back."""
        self._highest_version = self._top(decided, int(scan_start.get("base", 0)))
        return super().initialize_state(decided, scan_start)

    def recover_and_abort(self, decided: Collection[StagedHandleT]) -> None:
        """See :class:`SinkCommitter`: sweeps the undecided slices of this and earlier driver epochs."""
        self._tidy("sweeping undecided slices", lambda: self._sweep_all({handle.entry for handle in decided}))

    def orphans_ended(self) -> int:
        """See :class:`SinkCommitter`."""
        return self._orphans_ended

    def blockers(self) -> Sequence[str]:
        """See :class:`SinkCommitter`."""
        return self._blockers

    def close(self) -> None:
        """See :class:`SinkCommitter`."""
        self._client.close()

    # -- the flow's small parts -----------------------------------------------------------------------------------------

    def _require_usable(self) -> None:
        for found in self._describe():
            for is_wrong, what in self._settings.objections(found):
                if is_wrong:
                    raise ConfigurationError(f"sink {self.name!r}: {what}")

    def _apply_all(self, handles: Sequence[StagedHandleT], version: int) -> None:
        states = self._look(handles, version, durable=False)
        todo = [handle for handle in handles if states[handle] in APPLICABLE]
        with contextlib.closing(self._apply_each(todo, version)) as applied:
            for handle, blockers in applied:
                for blocker in blockers:
                    self._block(f"{handle.transaction} is not applied: {blocker}")
                crash_point("driver.committing")
                if self._blockers and self._is_ordered(handle):
                    return

    def _judge(self, handle: StagedHandleT, state: SliceState, version: int) -> Evidence:
        """Derive the evidence from a slice's state. If nothing is proven, record the reason."""
        system = self._client.system
        if state is SliceState.COMMITTED:
            return Evidence.COMMITTED
        if state is SliceState.LOST and self._tombstone(handle, version):
            return Evidence.ABORTED
        if state is SliceState.STALE:
            if self._control.read().run != self._run:
                raise fenced(self.name)
            self._block(
                f"{handle.transaction} cannot be proven: {system} has applied a decision newer than version "
                f"{version}. This checkpoint is older than the output; restore the newest one"
            )
        if state is SliceState.TORN:
            self._block(
                f"{handle.transaction} is partly applied, and the rest is gone from {system}: some of its rows are lost. "
                f"Restore {system} from a backup"
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

    def _try(self, what: str, step: Callable[[], T]) -> T:
        """Run a step before the decision. Its failure ends the attempt."""
        try:
            return step()
        except self._client.failures as error:
            raise self._client.translate(error, self._named(what)) from error

    def _tidy(self, what: str, step: Callable[[], None]) -> None:
        """Run a step that no decided batch depends on. Its failure is logged."""
        try:
            step()
        except self._client.failures as error:
            logger.warning("sink %r: %s failed and will be retried. No data is at risk: %s", self.name, what, error)

    def _block(self, reason: str) -> None:
        self._blockers.append(self._named(reason))

    def _named(self, text: str) -> str:
        return f"sink {self.name!r}, {text}"

    # -- the store's steps ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _describe(self) -> Iterable[Any]:
        """Read what the settings' ``objections`` needs to know about each server. Read-only."""

    @abstractmethod
    def _checksums(self, handles: Sequence[StagedHandleT]) -> Mapping[StagedHandleT, str | Exception]:
        """Compute the current checksum of each slice's staged data; raise BadRecordError if it cannot be applied."""

    def _top(self, handles: Sequence[StagedHandleT], version: int) -> int:
        """The highest version that applying these slices may use."""
        del handles
        return version

    @abstractmethod
    def _look(
        self, handles: Sequence[StagedHandleT], version: int, *, durable: bool
    ) -> Mapping[StagedHandleT, SliceState]:
        """Read the state of each slice; ``durable``: COMMITTED only if it is as safe as the sink's settings demand."""

    @abstractmethod
    def _apply(self, handle: StagedHandleT, version: int) -> Sequence[str]:
        """Apply the rest of a slice, each chunk once; return what blocks it, as text."""

    def _apply_each(
        self, handles: Sequence[StagedHandleT], version: int
    ) -> Generator[tuple[StagedHandleT, Sequence[str]]]:
        """Apply slices in order; yield each one with what blocks it.

        Closing the iterator starts no further slice, and waits for those that have started.
        """
        for handle in handles:
            yield handle, self._apply(handle, version)

    def _is_ordered(self, handle: StagedHandleT) -> bool:
        """Whether later slices must wait for this one."""
        del handle
        return False

    @abstractmethod
    def _tombstone(self, handle: StagedHandleT, version: int) -> bool:
        """Make sure that no driver, even a paused one, can apply a lost slice; return whether that is proven."""

    @abstractmethod
    def _discard(self, handles: Sequence[StagedHandleT]) -> None:
        """Remove slices and their entries."""

    def _forget(self, handles: Sequence[StagedHandleT]) -> None:
        """Remove the remains of committed slices."""
        self._discard(handles)

    @abstractmethod
    def _entries(self) -> Mapping[str, str]:
        """List every slice: its entry, with the data that :meth:`_sweep` needs."""

    @abstractmethod
    def _sweep(self, orphans: Mapping[str, str]) -> int:
        """Remove undecided slices; some of their tasks may still be writing. Returns how many are new to the sweep."""
